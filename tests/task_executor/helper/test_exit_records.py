"""How a task ended is on disk, with all of its output, before anybody can read it."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.cgroups.base import Driver, Group, Kernel
from task_executor.helper.loop import Job
from task_executor.helper.output import TaskOutput
from task_executor.helper.protocol import Fault
from task_executor.helper.shim import _Shim
from tests.support.disk_calls import DiskCalls, Synced


class Nothing(Driver):
    """Has no processes, and counts nothing."""

    def kill(self, _group: Group, _shims: Any = ()) -> Job:
        yield from ()

    def remove(self, _group: Group) -> Job:
        yield from ()


class EndedShim(_Shim):
    """A shim whose task has exited with status 0."""

    def __init__(self, directory: Path) -> None:
        self.spec, self.directory = {"scratch": None}, directory
        self.driver, self.group = Nothing(Kernel(), {}), {}
        self.status, self.timed_out, self.started = 0, False, 1.0
        self.used_usec, self.peak_bytes = 0, 0
        no_loop: Any = None  # there is no pipe to read
        self.output = TaskOutput(no_loop, directory, 1_000, os.getgid(), None)

    def _reap(self) -> None:
        """There is nothing below us that is ours."""


def test_an_exit_record_survives_a_power_cut_with_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCalls(monkeypatch)
    shim = EndedShim(tmp_path)
    shim.output._streams["stdout"].log.add(b"all of it", keep=False)
    record = os.open(tmp_path / "exit.json.new", os.O_WRONLY | os.O_CREAT, 0o640)
    for _step in shim._finish(record, None):
        pass
    os.close(record)
    assert json.loads((tmp_path / "exit.json").read_text())["exit_code"] == 0
    disk.check_durable(tmp_path / "exit.json")
    before = disk.calls[: disk.at_naming(tmp_path / "exit.json")]
    assert Synced(tmp_path / "stdout.log", b"all of it") in before
    assert Synced(tmp_path / "stderr.log", b"") in before


def test_a_task_that_has_exited_with_status_0_gets_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be another's by now."""
    shim = EndedShim(tmp_path)
    shim.spec["task_id"], shim.pid = "task", 2**22 + 1
    sent: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _signum: sent.append(pid))
    with pytest.raises(Fault, match="task task is not running") as caught:
        shim._handle("signal", {"signum": signal.SIGTERM})
    assert caught.value.reason == "TASK_ENDED"
    assert sent == []


class QuickShim(EndedShim):
    """Its task has exited with status 0 when exec is known to have worked."""

    pid = 2**22 + 1

    def _make_scratch(self) -> None: ...

    def _fork(self) -> int:
        return -1

    def _until_exec(self, _error_fd: int) -> Job:
        yield from ()

    def _write_task(self) -> None: ...


def test_a_task_that_ends_before_it_is_watched_has_started_all_the_same(tmp_path: Path) -> None:
    shim = QuickShim(tmp_path)
    shim.spec |= {"timeout_ms": None, "memory_limit_bytes": None}
    reader, shim.report_fd = os.pipe()
    record = os.open(tmp_path / "exit.json.new", os.O_WRONLY | os.O_CREAT, 0o640)
    for _step in shim._run_task(record):
        pass
    assert json.loads(os.read(reader, 1_000)) == {"pid": shim.pid, "start_time_ticks": 0}
    written = json.loads((tmp_path / "exit.json").read_text())
    assert (written["exit_code"], written["error"]) == (0, None)
    for each in (reader, shim.report_fd, record):
        os.close(each)


class Counted(Nothing):
    """Has counted what all processes of the task used together."""

    def counters(self, _group: Group) -> dict[str, int]:
        return {"memory_peak_bytes": 7_000_000, "cpu_usec": 8_000, "oom_kills": 1}


def test_what_the_group_counted_is_recorded_rather_than_what_single_processes_used(
    tmp_path: Path,
) -> None:
    shim, began = EndedShim(tmp_path), time.time()
    shim.driver = Counted(Kernel(), {})
    record = os.open(tmp_path / "exit.json.new", os.O_WRONLY | os.O_CREAT, 0o640)
    for _step in shim._finish(record, None):
        pass
    os.close(record)
    written = json.loads((tmp_path / "exit.json").read_text())
    assert written["started_unix_ms"] == 1_000
    assert round(began * 1000) <= written["ended_unix_ms"] <= round(time.time() * 1000)
    assert (written["peak_memory_bytes"], written["cpu_usec"]) == (7_000_000, 8_000)
    assert (written["oom_kills"], written["oom_killed"]) == (1, False)  # it went on, and ended well


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
    shim = EndedShim(tmp_path)
    shim.pid = 7
    _Shim._reap(shim)
    assert (shim.used_usec, shim.peak_bytes) == (3_000_000, 30 * 1024)
