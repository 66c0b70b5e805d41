"""The programs for which the files under deploy are written accept these files."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from finegrain_cli.config.model import Settings
from tests.support.components import REPOSITORY

SYSTEMD = REPOSITORY / "deploy/systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
PROGRAM = "/opt/finegrain/bin/finegrain"


def test_the_configuration_for_containers_has_only_known_keys_and_good_values() -> None:
    settings = Settings.model_validate(
        tomllib.loads((REPOSITORY / "deploy/compose.toml").read_text())
    )
    assert settings.executor.manager == settings.client.manager
    assert settings.rm.database.startswith("postgresql://")


def test_the_configuration_for_systemd_has_only_known_keys_and_good_values() -> None:
    text = (SYSTEMD / "finegrain.toml").read_text()
    examples = re.sub(r"^# ([a-z_]+ = )", r"\1", text, flags=re.MULTILINE)
    for each in (text, examples):
        Settings.model_validate(tomllib.loads(each))
    assert Settings.model_validate(tomllib.loads(examples)).rm.listen == "0.0.0.0:7170"


def test_there_are_three_units() -> None:
    names = ["finegrain-executor-helper", "finegrain-executor", "finegrain-resource-manager"]
    assert [unit.stem for unit in UNITS] == names


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_understands_the_unit_without_a_warning(unit: Path, tmp_path: Path) -> None:
    for each in UNITS:  # they name each other
        text = each.read_text().replace(PROGRAM, sys.executable)
        (tmp_path / each.name).write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / unit.name],
        capture_output=True,
        text=True,
        check=False,
    )
    about_ours = [line for line in checked.stderr.splitlines() if "finegrain" in line]
    assert (checked.returncode, about_ours) == (0, []), checked.stderr


def command_of(unit: Path) -> list[str]:
    text = unit.read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    return shlex.split(line)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_the_command_line_knows_what_the_unit_starts(unit: Path) -> None:
    program, group, command, *flags = command_of(unit)
    assert program == PROGRAM
    shown = subprocess.run(
        [sys.executable, "-m", "finegrain_cli", group, command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={"COLUMNS": "200", "PATH": "/usr/bin"},
    ).stdout
    for flag in flags:
        assert f"{flag.partition('=')[0]} " in shown


def test_front_and_helper_agree_on_where_they_meet() -> None:
    front, helper = (dict(_pairs(SYSTEMD / f"{name}.service")) for name in _EXECUTOR)
    for flag in ("--helper-socket", "--helper-state-dir", "--front-user"):
        assert front[flag] == helper[flag]
    assert helper["--state-dir"] == "/var/lib/finegrain/executor"
    assert (
        "StateDirectory=finegrain/executor\n" in (SYSTEMD / f"{_EXECUTOR[0]}.service").read_text()
    )
    users = (SYSTEMD / "sysusers.conf").read_text()
    assert f"u {front['--front-user']} " in users


_EXECUTOR = ("finegrain-executor", "finegrain-executor-helper")


def _pairs(unit: Path) -> list[tuple[str, str]]:
    flags = command_of(unit)[3:]
    return [(flag.partition("=")[0], flag.partition("=")[2]) for flag in flags]


def test_a_resource_manager_that_steps_down_is_not_started_again() -> None:
    from resource_manager.main import EXIT_STEPPED_DOWN

    text = (SYSTEMD / "finegrain-resource-manager.service").read_text()
    assert f"RestartPreventExitStatus={EXIT_STEPPED_DOWN}\n" in text


@pytest.mark.parametrize(("status", "seen"), [(0, 0), (1, 1), (4, 0)])
def test_compose_does_not_start_it_again_either(status: int, seen: int, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", _manager_command()], env=_program(tmp_path, f"exit {status}"), check=False
    )
    assert done.returncode == seen


def test_compose_stops_the_resource_manager_as_planned(tmp_path: Path) -> None:
    script = "trap 'sleep 0.2; echo stopped; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    script = f"sleep 0.2; {script}"  # the shell must have got the number of the process
    with subprocess.Popen(
        ["sh", "-c", _manager_command()],
        env=_program(tmp_path, script),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.stdout.read() == "stopped\n"
    assert process.returncode == 0


def _manager_command() -> str:
    services = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
    (command,) = services["resource-manager"]["command"]
    return str(command).replace("$$", "$")


def _program(folder: Path, script: str) -> dict[str, str]:
    """The environment in which `finegrain` is a shell script."""
    program = folder / "finegrain"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_tasks_do_not_inherit_a_sandbox_from_the_helper() -> None:
    """They are descendants of the process: limits of the process would also apply to them."""
    text = (SYSTEMD / "finegrain-executor-helper.service").read_text()
    settings = re.findall(r"^([A-Za-z]+)=", text, re.MULTILINE)
    sandbox = (
        "Protect",
        "Private",
        "Restrict",
        "SystemCall",
        "NoNewPriv",
        "ReadOnly",
        "Capability",
    )
    assert [name for name in settings if name.startswith(sandbox)] == []


PROMETHEUS = REPOSITORY / "deploy/prometheus"
METRIC = re.compile(r"\bfinegrain_[a-z_]+\b")


@pytest.mark.needs("promtool")
@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", "finegrain.rules.yml"),
        ("test", "rules", "finegrain.rules.test.yml"),
        ("check", "config", "--syntax-only", "prometheus.example.yml"),
    ],
    ids=" ".join,
)
def test_prometheus_understands_its_files_and_alerts_when_it_should(
    command: tuple[str, ...],
) -> None:
    checked = subprocess.run(
        ["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    "file",
    [PROMETHEUS / "finegrain.rules.yml", *sorted((REPOSITORY / "deploy/grafana").glob("*.json"))],
    ids=lambda path: path.stem,
)
def test_rules_and_dashboards_name_only_metrics_that_there_are(file: Path) -> None:
    from resource_manager.service.metrics import ResourceManagerMetrics
    from task_executor.service.metrics import ExecutorMetrics

    daemons = ResourceManagerMetrics("0"), ExecutorMetrics("0")
    families = [each for daemon in daemons for each in daemon.registry.collect()]
    known = {each.name + ("_total" if each.type == "counter" else "") for each in families}
    text = file.read_text()
    if file.suffix == ".json":
        panels = json.loads(text)["panels"]
        text = "\n".join(target["expr"] for panel in panels for target in panel["targets"])
        assert len({panel["id"] for panel in panels}) == len(panels)
    named = set(METRIC.findall(text))
    assert named
    assert named <= known
