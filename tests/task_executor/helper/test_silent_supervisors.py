"""A supervisor that ends, or hangs, before it has reported whether a task runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from task_executor.helper import supervisors as module
from task_executor.helper import tasks
from task_executor.helper.cgroups.base import Driver, Kernel
from task_executor.helper.journal import Journal
from task_executor.helper.loop import Loop
from task_executor.helper.paths import identity_of
from task_executor.helper.protocol import Fault
from task_executor.helper.supervisor import Setup
from task_executor.helper.supervisors import SupervisorLink
from task_executor.helper.tasks import Tasks
from tests.support.patience import PATIENCE_S

ARGS = {"task_id": "task", "allocation_id": "slot", "generation": 1, "cwd": "/", "env": {}}


class Helper(Tasks):
    """The part of a helper that starts tasks, in this process and without cgroups."""

    def __init__(self, folder: Path) -> None:
        config = {"state_dir": str(folder), "front_gid": os.getgid(), "allow_root_tasks": True}
        config |= {"task_uid": os.getuid(), "task_gid": os.getgid()}
        super().__init__(Loop(lambda: None), config, Driver(Kernel(), {}), lambda _event: None)
        self.supervisors: list[int] = []

    def _link(self, pid: int, control: Path) -> SupervisorLink:
        self.supervisors.append(pid)
        return super()._link(pid, control)

    def refusal(self) -> Fault:
        """Returns why a task does not start."""
        errors: list[Exception | None] = []

        def done(_value: Any, error: Exception | None) -> None:
            errors.append(error)
            self.loop.running = False

        self.loop.later(PATIENCE_S, lambda: done(None, None))
        args = ARGS | {"uid": None, "gid": None, "memory_limit_bytes": None}
        self.loop.run(self.start(args, lambda: {"cpus": "", "memory_bytes": 1 << 26}), done)
        self.loop.serve()
        assert isinstance(errors[0], Fault)
        return errors[0]


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Helper]:
    before = signal.getsignal(signal.SIGCHLD)
    helper = Helper(tmp_path)
    yield helper
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, before)
    for pid in helper.supervisors:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_supervisor_that_ends_without_an_answer_means_that_the_task_did_not_start(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(setup: Setup, _starter: object) -> NoReturn:
        journal = Journal(setup.control.parent, setup.control.name)
        journal.own(identity_of(os.getpid()))
        journal.begin("task", {})
        os._exit(0)

    monkeypatch.setattr(module, "run_supervisor", end)
    refusal = helper.refusal()
    assert refusal.reason == "START_FAILED"
    assert "its supervisor was killed; submit the same task again" in refusal.message
    assert helper.known == {}
    assert list(helper.directory.iterdir()) == []


def test_a_supervisor_that_does_not_answer_is_waited_for_only_for_a_time(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer may come late: a second call for the same task gets it."""

    def hang(*_args: object) -> NoReturn:
        time.sleep(PATIENCE_S)
        os._exit(0)

    monkeypatch.setattr(module, "run_supervisor", hang)
    monkeypatch.setattr(tasks, "START_S", 0.05)
    refusal = helper.refusal()
    assert refusal.reason == "START_FAILED"
    assert "submit the same task again" in refusal.message
    assert list(helper.known) == ["task"]
