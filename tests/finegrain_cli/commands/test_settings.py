"""`config show`, `config check`, `completion`, `version`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from finegrain_cli.command_tree import COMPLETE_VARIABLE
from tests.support.cli import Finegrain


def test_show_names_the_origin_of_each_value(
    finegrain: Finegrain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[rm]\nstrategy = "spread"\n')
    monkeypatch.setenv("FINEGRAIN_RM__LEASE", "45s")

    lines = finegrain("config", "show", "--origin", "--config", str(file)).stdout.splitlines()

    assert f'strategy = "spread"  # {file}' in lines
    assert 'lease = "45s"  # FINEGRAIN_RM__LEASE' in lines
    assert 'report_interval = "3s"  # default' in lines


def test_show_gives_programs_base_units(finegrain: Finegrain) -> None:
    items = json.loads(finegrain("config", "show", "-o", "json").stdout)["items"]

    assert {each["key"]: each for each in items}["rm.lease"] == {
        "key": "rm.lease",
        "value": 30_000,
        "unit": "milliseconds",
        "text": '"30s"',
        "origin": "default",
        "variable": "FINEGRAIN_RM__LEASE",
    }


def test_check_tells_good_from_bad(finegrain: Finegrain, tmp_path: Path) -> None:
    good, bad, odd = (tmp_path / name for name in ("good", "bad", "odd"))
    good.write_text('[rm]\nlease = "1m"\n')
    bad.write_text('[rm]\nlaese = 1\nlease = "soon"\n[executr]\nx = 1\n')
    odd.write_text('[rm]\nproviders_file = "/nonexistent"\n')

    assert finegrain("config", "check", str(good)).exit_code == 0
    refused = finegrain("config", "check", str(bad), "-o", "json")
    assert refused.exit_code == 1
    problems = json.loads(refused.stdout)["problems"]
    for number, part in enumerate(("rm.laese", "unknown section 'executr'", "rm.lease is 'soon'")):
        assert part in problems[number]
    doubted = finegrain("config", "check", str(odd), "-o", "json")
    assert doubted.exit_code == 1
    assert "there is no such file" in json.loads(doubted.stdout)["problems"][0]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script(finegrain: Finegrain, shell: str) -> None:
    script = finegrain("completion", shell).stdout

    assert COMPLETE_VARIABLE in script
    if program := shutil.which(shell):
        checked = subprocess.run([program, "-n"], input=script, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stderr


def test_completion_knows_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from finegrain_cli.main import main; main()"],
        env={"COMP_WORDS": "finegrain ex", "COMP_CWORD": "1", COMPLETE_VARIABLE: "complete_bash"},
        capture_output=True,
        text=True,
    )

    assert set(done.stdout.split()) == {"executors", "explain", "executor"}


def test_version_is_for_people_and_programs(finegrain: Finegrain) -> None:
    short = finegrain("version").stdout.strip()

    assert short.startswith("finegrain ")
    assert finegrain("--version").stdout.strip() == short
    data = json.loads(finegrain("version", "-o", "json").stdout)
    assert data["kind"] == "Version"
    assert f"finegrain {data['version']}" == short
    assert data["parts"]["grpcio"]


def test_a_command_that_is_not_there_is_a_usage_error(finegrain: Finegrain) -> None:
    result = finegrain("executros")

    assert result.exit_code == 2
    assert "Did you mean" in result.stderr
    assert "executors" in result.stderr
