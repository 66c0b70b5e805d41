"""Front and helper are two units: each one is started, killed and stopped without the other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.errors import ConfigurationError
from task_executor import helper_main
from task_executor.options import TaskExecutorOptions
from task_executor.service.task_users import User, UserPolicy, user_policy
from tests.support.components import REPOSITORY
from tests.support.patience import PATIENCE_S
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import JobMaster, ScriptedRM, allocation, eventually

pytestmark = pytest.mark.full

_PROGRAM = """
import json, sys
from pathlib import Path
from task_executor.helper_main import run
from task_executor.options import TaskExecutorOptions
told = json.loads(sys.argv[1])
for name in ("state_dir", "run_dir", "helper_state_dir", "helper_socket"):
    told[name] = Path(told[name])
sys.exit(run(TaskExecutorOptions(managers=(), **told)))
"""


@dataclass
class HelperUnit:
    """Does what systemd would do for the helper: starts it, waits until it is ready, ends it."""

    folder: Path
    executor_id: str
    environment: dict[str, str] = field(default_factory=dict)
    cwd: Path = REPOSITORY  # its code runs, unless the environment names another
    process: subprocess.Popen[bytes] | None = None

    @property
    def places(self) -> dict[str, str]:
        return {
            "helper_state_dir": str(self.folder / "helper-state"),
            "helper_socket": str(self.folder / "helper-run/socket"),
        }

    def start(self) -> str:
        """Starts the helper; returns its message to systemd that it is ready."""
        path = self.folder / "notify"
        path.unlink(missing_ok=True)
        told = self.places | {
            "state_dir": str(self.folder / "state"),
            "run_dir": str(self.folder / "run"),
            "executor_id": self.executor_id,
            "task_user": "root" if os.geteuid() == 0 else "self",
            "allow_root_tasks": True,
        }
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(str(path))
            listener.settimeout(30)
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(told)],
                cwd=self.cwd,
                env=os.environ
                | {"NOTIFY_SOCKET": str(path), "TMPDIR": str(self.folder)}
                | self.environment,
            )
            return listener.recv(100).decode()

    def end(self, signum: int) -> int:
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def unit(process: ExecutorProcess) -> Iterator[HelperUnit]:
    unit = HelperUnit(process.folder, f"test-{process.folder.name}")
    assert unit.start() == "READY=1"
    process.options |= {**unit.places, "task_user": "root", "managers": [process.manager]}
    yield unit
    if unit.process is not None and unit.process.poll() is None:
        unit.end(signal.SIGKILL)


async def registered(process: ExecutorProcess, rm: ScriptedRM) -> JobMaster:
    before = len(rm.registrations)
    process.start()
    await eventually(
        lambda: len(rm.registrations) > before or process.exit_code is not None, "it registers"
    )
    assert process.exit_code is None, process.log
    return rm.job_master()


@pytest.mark.slow
@pytest.mark.needs("root")
async def test_both_are_killed_and_started_in_any_order_and_nothing_is_lost(
    rm: ScriptedRM, process: ExecutorProcess, unit: HelperUnit
) -> None:
    job_master = await registered(process, rm)
    await rm.allocate(allocation())
    task = await job_master.submit("sh", "-c", "echo begun; sleep 2; echo ended; exit 7")
    process.kill()
    unit.end(signal.SIGKILL)
    before = len(rm.registrations)
    process.start()  # it waits for its helper
    await asyncio.sleep(0.5)
    assert len(rm.registrations) == before
    assert unit.start() == "READY=1"
    await eventually(lambda: len(rm.registrations) > before, "it registers")
    again = await rm.job_master().submit("sh", "-c", "echo begun; sleep 2; echo ended; exit 7")
    assert again.pid == task.pid
    unit.end(signal.SIGTERM)  # a planned restart, while the front goes on
    assert unit.start() == "READY=1"
    seen = await rm.job_master().watch()
    assert (seen.stdout, seen.exit.exit_code) == (b"begun\nended\n", 7)
    assert process.exit_code is None


@pytest.mark.slow
@pytest.mark.needs("root")
async def test_a_planned_stop_of_the_front_leaves_the_helper_alone(
    rm: ScriptedRM, process: ExecutorProcess, unit: HelperUnit
) -> None:
    await registered(process, rm)
    assert await process.stop() == 0
    assert unit.process is not None
    assert unit.process.poll() is None
    assert unit.end(signal.SIGTERM) == 0
    await eventually(lambda: not process.groups(), "its groups are gone")


@pytest.mark.slow
@pytest.mark.needs("root")
async def test_a_helper_of_another_executor_is_refused_with_the_way_out(
    process: ExecutorProcess, unit: HelperUnit
) -> None:
    process.give_credentials("somebody-else")
    process.start(executor_id="somebody-else")
    await eventually(lambda: process.exit_code is not None, "it gives up")
    assert f"belongs to executor {unit.executor_id}, not to somebody-else" in process.log
    assert "set executor_id for both" in process.log


def options(folder: Path, **changes: Any) -> TaskExecutorOptions:
    usual = TaskExecutorOptions(
        folder / "state", folder / "run", (), helper_socket=folder / "helper-run/socket"
    )
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"helper_socket": None}, "set executor.helper_socket", id="no socket"),
        pytest.param({"front_user": "no-such-user"}, "useradd --system", id="no such front"),
    ],
)
def test_a_helper_that_cannot_be_told_what_to_do_names_the_option(
    changes: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = {"allow_root_tasks": True, "task_user": "self"}
    assert helper_main.run(options(tmp_path, **allowed, **changes)) == 2
    assert words in capsys.readouterr().err


def test_nobody_else_may_write_where_the_socket_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "helper-run").mkdir()
    (tmp_path / "helper-run").chmod(0o777)
    allowed = {"allow_root_tasks": True, "task_user": "self"}
    assert helper_main.run(options(tmp_path, **allowed)) == 2
    assert "cannot be trusted" in capsys.readouterr().err


def test_the_helper_takes_the_name_that_the_front_keeps(tmp_path: Path) -> None:
    saved = helper_main.executor_id(options(tmp_path, executor_id="told"))
    assert saved == "told"
    (tmp_path / "state").mkdir()
    content = {"version": 1, "content": json.dumps({"executor_id": "kept"})}
    (tmp_path / "state/state.json").write_text(json.dumps(content))
    assert helper_main.executor_id(options(tmp_path)) == "kept"
    for bad in ('{"content": 7}', "[]", '{"content": "{\\"executor_id\\": \\"../x\\"}"}', "{"):
        (tmp_path / "state/state.json").write_text(bad)
        assert helper_main.executor_id(options(tmp_path)) not in ("", "../x")


def test_a_front_without_rights_may_use_the_task_user_of_its_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_executor.service.task_users.os.geteuid", lambda: 12345)
    policy = user_policy(options(tmp_path, task_user="nobody"))
    assert policy.resolve("").name == "nobody"
    policy = UserPolicy(User("f", 12345, 1, "/"), policy.default, True, root_helper=True)
    assert policy.resolve("root").uid == 0
    with pytest.raises(ConfigurationError, match="allow_root_tasks"):
        user_policy(options(tmp_path, task_user="root"))
