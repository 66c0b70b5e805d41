"""The end of a task and all of its output are on disk before the helper learns of the end."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper import syncing
from task_executor.helper.cgroups.base import Driver, Group, Kernel
from task_executor.helper.journal import Journal
from task_executor.helper.loop import Job
from task_executor.helper.protocol import Fault
from task_executor.helper.running_task import RunningTask
from task_executor.helper.supervisor import Supervisor
from tests.support.disk_calls import DiskCalls, Synced

PID = 2**22 + 1  # no process has it


class Nothing(Driver):
    """Has no processes, and counts nothing."""

    def kill(self, _group: Group, _supervisors: Any = ()) -> Job:
        yield from ()

    def remove(self, _group: Group) -> Job:
        yield from ()


class Counted(Nothing):
    """Returns counters of the group, which sum up all processes of the task."""

    def counters(self, _group: Group) -> dict[str, int]:
        return {"memory_peak_bytes": 7_000_000, "cpu_usec": 8_000, "oom_kills": 1}


class NoLoop:
    """Runs jobs to their end at once. There is no pipe and no clock."""

    def run(self, job: Job) -> None:
        for _step in job:
            pass

    def unwatch(self, fd: int) -> None: ...


class SyncsHere:
    """Syncs in this process. Its first `failures` calls report that the kernel failed."""

    def __init__(self) -> None:
        self.failures = 0

    def sync(self, paths: Iterable[str], done: Callable[[bool], None]) -> None:
        each = [syncing._sync(path) for path in paths]
        self.failures -= 1
        done(all(each) and self.failures < 0)


class OneTask:
    """A supervisor with a task whose program runs."""

    def __init__(self, directory: Path, driver: Driver | None = None) -> None:
        self.loop: Any = NoLoop()
        self.driver = driver or Nothing(Kernel(), {})
        self.syncer, self.front_gid, self._spawner = SyncsHere(), os.getgid(), None
        self.reported: list[dict[str, Any]] = []
        spec: dict[str, Any] = {
            "task_id": "task",
            "group": {},
            "scratch": None,
            "started_unix_ms": 1_000,
        }
        spec |= {"output_holder": None, "log_limit_bytes": 1_000, "timeout_ms": None}
        me: Any = self
        self.task = RunningTask(me, spec, directory)
        self.task._pid, self.task._is_started = PID, True
        (directory / "journals").mkdir()
        os.close(Journal.create(directory / "journals", "name", 1))
        self.journal = Journal(directory / "journals", "name")
        self.journal.own({"pid": os.getpid()})
        self.journal.begin("task", spec)

    def ended(self, _task: RunningTask, record: dict[str, Any]) -> None:
        self.reported.append(record)

    def forget(self, _task: RunningTask) -> None: ...

    def end(self, status: int = 0) -> dict[str, Any]:
        """The first process ends; returns the record that the helper gets."""
        self.task.reaped(status, 100, 1 << 20)
        (record,) = self.reported
        return record


def end_in(directory: Path) -> dict[str, Any]:
    """The record of the end in the journal, as a later helper reads it."""
    end: dict[str, Any] = Journal(directory / "journals", "name").entries["task"]["end"]
    return end


def write(task: RunningTask, data: bytes) -> None:
    reader, writer = os.pipe()
    os.write(writer, data)
    task._output._streams["stdout"].log.take(reader, 1 << 16, keep=False)
    os.close(reader)
    os.close(writer)


def test_an_exit_record_survives_a_power_cut_with_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCalls(monkeypatch)
    supervisor = OneTask(tmp_path)
    write(supervisor.task, b"all of it")
    reported = supervisor.end()
    assert end_in(tmp_path) == reported
    assert reported["exit_code"] == 0
    (journal,) = (tmp_path / "journals").iterdir()
    assert disk.calls == [
        Synced(tmp_path / "stdout.log", b"all of it"),
        Synced(tmp_path, None),
        Synced(tmp_path.parent, None),
        Synced(journal, journal.read_bytes()),
        Synced(tmp_path / "journals", None),
    ]
    assert not (tmp_path / "stderr.log").exists()


def test_output_that_the_kernel_could_not_write_is_reported_as_lost(
    tmp_path: Path,
) -> None:
    supervisor = OneTask(tmp_path)
    supervisor.syncer.failures = 1
    supervisor.loop.later = lambda _seconds, callback: callback()
    write(supervisor.task, b"all of it")
    reported = supervisor.end()
    assert (reported["stdout_dropped_bytes"], reported["stderr_dropped_bytes"]) == (1, 0)
    assert end_in(tmp_path) == reported


def test_a_task_that_has_exited_with_status_0_gets_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this time, its pid may belong to another process."""
    supervisor = OneTask(tmp_path)
    supervisor.end()
    sent: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _signum: sent.append(pid))
    with pytest.raises(Fault, match="task task is not running") as caught:
        supervisor.task.handle("signal", {"signum": signal.SIGTERM})
    assert caught.value.reason == "TASK_ENDED"
    assert sent == []


def test_the_counters_of_the_group_count_more_than_those_of_single_processes(
    tmp_path: Path,
) -> None:
    supervisor, began = OneTask(tmp_path, Counted(Kernel(), {})), time.time()
    record = supervisor.end()
    assert record["started_unix_ms"] == 1_000
    assert round(began * 1000) <= record["ended_unix_ms"] <= round(time.time() * 1000)
    assert (record["peak_memory_bytes"], record["cpu_usec"]) == (7_000_000, 8_000)
    assert (record["oom_kills"], record["oom_killed"]) == (1, False)  # it ended well


def test_without_groups_the_time_of_all_processes_in_both_modes_is_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usages = [
        resource.struct_rusage((1.5, 0.25, 30, *[0] * 13)),
        resource.struct_rusage((0.5, 0.75, 20, *[0] * 13)),
    ]

    def waitid(*_args: int) -> os.waitid_result:
        if not usages:
            raise ChildProcessError
        return os.waitid_result((1001, 0, signal.SIGCHLD, 0, os.CLD_EXITED))

    monkeypatch.setattr(os, "waitid", waitid)
    monkeypatch.setattr(os, "wait4", lambda pid, _options: (pid, 0, usages.pop(0)))
    one = OneTask(tmp_path)
    supervisor: Any = one
    supervisor._running, supervisor._by_pid = {"task": one.task}, {}
    Supervisor._reap(supervisor)
    assert (one.task._used_usec, one.task._peak_bytes) == (3_000_000, 30 * 1024)
