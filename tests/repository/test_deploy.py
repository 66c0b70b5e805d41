"""The files under deploy are understood by the programs they are for."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
    settings = Settings.model_validate(tomllib.loads((SYSTEMD / "finegrain.toml").read_text()))
    assert settings.executor.manager == settings.client.manager


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


def test_tasks_do_not_inherit_a_sandbox_from_the_helper() -> None:
    """They are its descendants: what confines it would confine them, too."""
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
    [("check", "rules", "finegrain.rules.yml"), ("test", "rules", "finegrain.rules.test.yml")],
    ids=" ".join,
)
def test_prometheus_understands_the_rules_and_alerts_when_it_should(
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
    known = {each.name for daemon in daemons for each in daemon.registry.collect()}
    text = file.read_text()
    if file.suffix == ".json":
        panels = json.loads(text)["panels"]
        text = "\n".join(target["expr"] for panel in panels for target in panel["targets"])
        assert len({panel["id"] for panel in panels}) == len(panels)
    named = set(METRIC.findall(text))
    assert named
    assert named <= known
