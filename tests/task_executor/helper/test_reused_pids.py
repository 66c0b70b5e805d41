"""A helper that finds a task without a supervisor kills this task, and never a process of another
task.

The kernel reuses pids: when a record is read, its pid may belong to any other process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.cgroups.base import Driver, Kernel
from task_executor.helper.loop import Loop
from task_executor.helper.paths import boot_id, start_ticks
from task_executor.helper.task import Task
from task_executor.helper.tasks import Tasks
from tests.task_executor.helper.conftest import Host

Process = subprocess.Popen[bytes]


@pytest.fixture
def loop() -> Iterator[Loop]:
    before = signal.getsignal(signal.SIGCHLD)
    yield Loop(lambda: None)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, before)


@pytest.fixture
def started() -> Iterator[Callable[[], Process]]:
    """Starts processes that each lead a process group, as tasks do."""
    processes: list[Process] = []

    def start() -> Process:
        processes.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def gone(started: Callable[[], Process]) -> tuple[int, int]:
    """Returns pid and start time of a process that has ended."""
    process = started()
    ticks = start_ticks(process.pid)
    process.kill()
    process.wait()
    assert ticks is not None
    return process.pid, ticks


class Helper:
    """The part of a helper that adopts tasks, in this process and without cgroups."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.told: list[dict[str, Any]] = []
        config = {"state_dir": str(folder), "front_gid": os.getgid()}
        self.tasks = Tasks(loop, config, Driver(Kernel(), {}), self.told.append)

    def adopts(
        self, task: tuple[int, int | None], supervisor: tuple[int, int | None]
    ) -> dict[str, Any]:
        """Adopts one task of this boot; returns its exit record."""
        record = {"allocation_id": "slot", "generation": 1, "boot_id": boot_id(), "group": {}}
        record |= {"pid": task[0], "start_time_ticks": task[1]}
        record |= {"shim_pid": supervisor[0], "shim_start_ticks": supervisor[1]}
        folder = self.tasks.directory / "task"
        folder.mkdir()
        (folder / "task.json").write_text(json.dumps(record))
        self.tasks.adopt()
        (event,) = self.told
        assert (event["event"], event["task_id"]) == ("task_exited", "task")
        stored: dict[str, Any] = json.loads((folder / "exit.json").read_text())
        assert event["record"] == stored
        return stored


def identity(process: Process) -> tuple[int, int]:
    ticks = start_ticks(process.pid)
    assert ticks is not None
    return process.pid, ticks


def test_a_task_without_its_supervisor_is_killed(
    loop: Loop, tmp_path: Path, started: Callable[[], Process], gone: tuple[int, int]
) -> None:
    task = started()
    record = Helper(loop, tmp_path).adopts(identity(task), supervisor=gone)
    assert record["error"]["reason"] == "TERMINATED"
    assert task.wait(30) == -signal.SIGKILL


def test_a_process_that_has_the_pid_of_a_task_by_now_is_left_alone(
    loop: Loop, tmp_path: Path, started: Callable[[], Process], gone: tuple[int, int]
) -> None:
    pid, ticks = identity(stranger := started())
    Helper(loop, tmp_path).adopts((pid, ticks - 1), supervisor=gone)
    os.killpg(pid, signal.SIGTERM)  # a SIGKILL would have arrived before this signal
    assert stranger.wait(30) == -signal.SIGTERM


def test_a_process_that_has_the_pid_of_a_supervisor_by_now_is_not_taken_for_it(
    loop: Loop, tmp_path: Path, started: Callable[[], Process]
) -> None:
    task, (pid, ticks) = started(), identity(stranger := started())
    Helper(loop, tmp_path).adopts(identity(task), supervisor=(pid, ticks - 1))
    assert task.wait(30) == -signal.SIGKILL
    assert stranger.poll() is None


def test_a_task_that_ends_while_it_is_to_be_killed_is_reported_all_the_same(
    loop: Loop,
    tmp_path: Path,
    started: Callable[[], Process],
    gone: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process may end after its start time was read and before it is killed."""
    task = started()

    def too_late(_pid: int, _signum: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "killpg", too_late)
    monkeypatch.setattr(os, "kill", too_late)
    record = Helper(loop, tmp_path).adopts(identity(task), supervisor=gone)
    assert record["error"]["reason"] == "TERMINATED"


async def test_the_record_of_a_task_tells_its_process_from_a_later_one_of_that_pid(
    host: Host,
) -> None:
    await host.slot()
    pid = await host.start("sleep 60")
    record = host.record("task")
    assert (record["pid"], record["start_time_ticks"]) == (pid, start_ticks(pid))


def test_a_descriptor_that_a_supervisor_uses_for_another_pipe_by_now_is_not_copied(
    tmp_path: Path,
) -> None:
    """The output of a task must not get into the log of another task."""
    mine, others, ended = os.pipe(), os.pipe(), -1
    task = Task(tmp_path / "task", {"allocation_id": "slot", "generation": 1})
    inode = os.fstat(mine[0]).st_ino
    task.copy_pipes(os.getpid(), [(mine[0], inode), (others[0], inode)])
    assert os.fstat(task.pipes[0]).st_ino == inode
    assert task.pipes[1] == -1
    task.copy_pipes(os.getpid(), [(ended, 0), (ended, 0)])
    assert task.pipes == (-1, -1)
    for fd in (*mine, *others):
        os.close(fd)
