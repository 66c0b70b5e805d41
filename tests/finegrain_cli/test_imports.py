"""Commands do not load modules too early. The tests look at the loaded modules, and measure no
time.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from finegrain.credentials import write_credentials
from finegrain_cli.command_tree import MODULES, loaded
from finegrain_cli.config.sources import ClientSettings
from finegrain_cli.context import Invocation
from finegrain_cli.exit_codes import ExitCode
from tests.support.rm_service import running_rm

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


RARE = (
    "finegrain.topology",
    "finegrain_client.admin.resizing",
    "finegrain_client.batch",
    "finegrain_client.decoding_hosts",
    "finegrain_client.decoding_identities",
    "finegrain_client.graph",
    "finegrain_client.graph_run",
    "finegrain_client.types.identities",
    "finegrain_client.types.topology",
)
OF_JOBS = (
    "finegrain_client.types.explain",
    "finegrain_client.job.job",
    "finegrain_client.slot.task",
    "finegrain_client.specs",
)


WITHOUT: dict[str, tuple[str, ...]] = {
    "status": RARE + OF_JOBS,
    "executors": RARE + OF_JOBS,
    "slots": RARE + OF_JOBS,
    "requests": RARE + OF_JOBS,
    "jobs": RARE + OF_JOBS,
    "events": RARE + OF_JOBS,
    "groups": RARE + OF_JOBS,
    "explain 01a20a21": RARE + OF_JOBS,
    "release 01a20a21 --yes": RARE + OF_JOBS,
    "run --wait-timeout 10ms -- true": RARE,
}
"""Modules of the client that a command must not import."""


async def test_a_command_imports_only_the_part_of_the_client_that_it_calls(
    tmp_path: Path,
) -> None:
    """A dataclass takes half a millisecond of cpu to define, and the client has a hundred."""
    async with running_rm(tmp_path / "rm") as rm:
        credentials = tmp_path / "credentials"
        write_credentials(credentials, rm.own("operator/root").credentials)
        own = {
            "FINEGRAIN_CREDENTIALS": str(credentials),
            "FINEGRAIN_MANAGER": rm.address,
            "FINEGRAIN_RUN_DIR": str(tmp_path),
            "HOME": str(tmp_path),
        }
        for command, rare in WITHOUT.items():
            code = f"HEAVY = {rare!r}\n{PROBE}"
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code, *command.split()),
                stdout=subprocess.PIPE,
                env=os.environ | own,
            )
            output, _ = await process.communicate()
            *imported, exit_code = output.decode().split()

            assert imported == [], command
            # The two ids are unknown, and no executor has a slot for `run`.
            expected = {"explain": 3, "release": 3, "run": 5}.get(command.partition(" ")[0], 0)
            assert exit_code == str(expected), command


def test_every_public_name_of_the_client_is_found() -> None:
    code = """
import finegrain_client
for name in finegrain_client.__all__:
    getattr(finegrain_client, name)
assert set(dir(finegrain_client)) == set(finegrain_client.__all__)
assert not hasattr(finegrain_client, "no_such_name")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


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
    """grpc must not be loaded when the helper is forked."""
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
