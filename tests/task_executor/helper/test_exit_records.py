"""How a task ended is on disk, with all of its output, before anybody can read it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.cgroups.base import Driver, Group, Kernel
from task_executor.helper.loop import Job
from task_executor.helper.shim import _Log, _Shim
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
        self.reading: set[int] = set()
        gid = os.getgid()
        self.logs = {n: _Log(directory / f"{n}.log", 1_000, gid) for n in ("stdout", "stderr")}

    def _reap(self) -> None:
        """There is nothing below us that is ours."""


def test_an_exit_record_survives_a_power_cut_with_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCalls(monkeypatch)
    shim = EndedShim(tmp_path)
    shim.logs["stdout"].add(b"all of it")
    record = os.open(tmp_path / "exit.json.new", os.O_WRONLY | os.O_CREAT, 0o640)
    for _step in shim._bury(record, None):
        pass
    os.close(record)
    assert json.loads((tmp_path / "exit.json").read_text())["exit_code"] == 0
    disk.check_durable(tmp_path / "exit.json")
    before = disk.calls[: disk.at_naming(tmp_path / "exit.json")]
    assert Synced(tmp_path / "stdout.log", b"all of it") in before
    assert Synced(tmp_path / "stderr.log", b"") in before
