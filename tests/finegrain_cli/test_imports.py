"""What a command loads before it has to; judged by the modules, never by the clock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from finegrain_cli.command_tree import MODULES, loaded
from finegrain_cli.config.sources import ClientSettings
from finegrain_cli.context import Invocation
from finegrain_cli.exit_codes import ExitCode

PROBE = """
import sys
from typer.testing import CliRunner
from finegrain_cli.main import app
result = CliRunner().invoke(app, sys.argv[1:], prog_name="finegrain")
print(" ".join(name for name in HEAVY if name in sys.modules), result.exit_code)
"""
MODEL = "finegrain_cli.config.model"
HEAVY = ("grpc", "sqlalchemy", "alembic", "rich", "structlog", "uvloop", MODEL)


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ("--help", ""),
        ("executors --help", ""),
        ("run --help", ""),
        ("batch --help", ""),
        ("rm --help", MODEL),
        ("completion bash", ""),
        ("version", ""),
        ("config show", MODEL),
        ("detect", MODEL),
    ],
)
def test_nothing_heavy_is_loaded_for(arguments: str, allowed: str) -> None:
    code = f"HEAVY = {HEAVY!r}\n{PROBE}"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments.split()], capture_output=True, text=True, check=True
    )

    *loaded, exit_code = done.stdout.split()
    assert exit_code == "0"
    assert set(loaded) <= {allowed}


@pytest.mark.parametrize("command", ["executors", "slots", "jobs", "requests", "run -- true"])
def test_a_command_that_calls_a_manager_needs_no_model_of_the_configuration(
    command: str, tmp_path: Path
) -> None:
    """pydantic would double the time that these commands take."""
    code = f"HEAVY = ('pydantic', 'rich', 'sqlalchemy', {MODEL!r})\n{PROBE}"
    # Without credentials a command ends before it makes a call, so the client is imported here.
    code += "\nimport finegrain_client.blocking\nassert 'pydantic' not in sys.modules"
    no_manager = {"FINEGRAIN_MANAGER": "127.0.0.1:1", "FINEGRAIN_RUN_DIR": str(tmp_path)}
    own = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | no_manager | own,
    )

    exit_code = ExitCode.RUN_FAILED if command.startswith("run") else ExitCode.PERMISSION
    assert done.stdout.split() == [str(int(exit_code))]


def test_settings_without_a_configuration_are_the_defaults_of_its_model(tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.touch()

    assert Invocation(config_file=str(empty)).client_settings() == ClientSettings()


def test_every_command_is_found_by_its_name_and_listed_once() -> None:
    registered = {
        (name, module) for module in set(MODULES.values()) if module for name in loaded(module)
    }

    assert registered == {(name, module) for name, module in MODULES.items() if module}


def test_an_executor_is_served_without_grpc_before_its_helper() -> None:
    """grpc must not be there when the helper is forked off."""
    code = """
import sys
from task_executor import main
main.run = lambda options: print("grpc" in sys.modules, options.executor_id) or 0
from finegrain_cli.main import app
app(["executor", "serve", "--executor-id", "x", "--state-dir", "/nonexistent"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["False", "x"], done.stderr


def test_the_client_is_loaded_without_what_few_need() -> None:
    code = """
import sys
import finegrain_client
late = ("finegrain_client.batch", "finegrain_client.blocking", "finegrain_client.graph")
print([name for name in late if name in sys.modules])
finegrain_client.blocking.connect
assert "finegrain_client.batch" not in sys.modules
finegrain_client.BatchJob, finegrain_client.blocking.BatchJob
print([name for name in late if name in sys.modules], "BatchJob" in dir(finegrain_client))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    before, after = done.stdout.splitlines()
    assert before == "[]"
    assert after == "['finegrain_client.batch', 'finegrain_client.blocking'] True"
