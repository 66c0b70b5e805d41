"""Tests when a holder makes the task wait; the test sets the clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper import output_log
from task_executor.helper.output import HOLD_S, TaskOutput
from task_executor.helper.output_log import available
from task_executor.helper.protocol import Fault
from task_executor.host.task_log import read_output
from tests.task_executor.helper.test_output_log import FullDisk, bytes_at

LIMIT = 1600


class ScriptedLoop:
    """Calls back when the test asks for it."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[int], None]] = {}
        self.timers: list[Callable[[], None]] = []

    def watch(self, fd: int, callback: Callable[[int], None]) -> None:
        self.watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def later(self, _seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append(callback)

    def run_timers(self) -> None:
        timers, self.timers = self.timers, []
        for callback in timers:
            callback()


class Pipe:
    """A task with one pipe, and the part of the supervisor that collects its output."""

    def __init__(self, folder: Path, holder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.written, self.loop = 1000.0, 0, ScriptedLoop()
        monkeypatch.setattr("task_executor.helper.output.time.monotonic", lambda: self.now)
        self.disk = FullDisk()
        monkeypatch.setattr(output_log, "os", self.disk)
        loop: Any = self.loop
        self.folder, self.output = folder, TaskOutput(loop, folder, LIMIT, -1, holder)
        self.reader, self.writer = os.pipe()
        self.output.collect("stdout", self.reader)

    def write(self, size: int) -> None:
        os.write(self.writer, bytes_at(self.written, self.written + size))
        self.written += size
        self.collect()

    def collect(self) -> None:
        while self.reader in self.loop.watched and available(self.reader):
            self.loop.watched[self.reader](1)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.loop.run_timers()
        self.collect()

    def waits(self) -> bool:
        return self.reader not in self.loop.watched

    def acknowledge(self, position: int) -> None:
        self.output.hold("me", position, 0)
        self.collect()

    def dropped(self) -> int:
        return self.output.counts()["stdout_dropped_bytes"]


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    pipe = Pipe(tmp_path, "me", monkeypatch)
    yield pipe
    os.close(pipe.reader)
    os.close(pipe.writer)


def test_the_task_waits_until_the_holder_acknowledges(held: Pipe) -> None:
    held.write(4000)
    assert held.waits()
    assert read_output(held.folder, "stdout", 0, 9999) == bytes_at(0, LIMIT)
    held.acknowledge(1000)
    assert held.waits()
    assert read_output(held.folder, "stdout", 1000, 9999) == bytes_at(1000, 2600)
    held.acknowledge(2600)
    assert not held.waits()
    assert read_output(held.folder, "stdout", 2600, 9999) == bytes_at(2600, 4000)
    assert held.dropped() == 0


def test_a_holder_that_is_gone_no_longer_makes_the_task_wait(held: Pipe) -> None:
    held.write(8000)
    held.pass_time(HOLD_S - 1)
    assert held.waits()
    held.pass_time(2)
    assert not held.waits()
    assert read_output(held.folder, "stdout", 0, LIMIT // 2) == bytes_at(0, LIMIT // 2)
    assert read_output(held.folder, "stdout", 7900, 9999) == bytes_at(7900, 8000)
    assert held.dropped() >= 8000 - LIMIT


def test_a_renewal_counts_from_its_own_time_and_a_holder_can_come_back(held: Pipe) -> None:
    held.write(8000)
    for _ in range(5):
        held.now += HOLD_S - 1
        held.acknowledge(0)
        assert held.waits()
    held.now += HOLD_S + 1
    held.output.hold("me too", 8000, 0)
    held.collect()
    held.write(LIMIT + 500)
    assert held.waits()
    with pytest.raises(Fault, match="another reader"):
        held.output.hold("me", 0, 0)


def test_a_full_disk_delays_held_output_and_later_drops_it(held: Pipe) -> None:
    held.write(100)
    held.disk.left = 50
    held.write(200)
    assert held.waits()
    held.disk.left = None
    held.pass_time(1)
    assert (held.waits(), held.dropped()) == (False, 0)
    assert read_output(held.folder, "stdout", 0, 9999) == bytes_at(0, 300)

    held.disk.left = 0
    held.write(300)
    for _ in range(3):
        held.now += 40
        held.output.hold("me", 0, 0)
        held.collect()
    assert held.dropped() > 0


def test_without_a_holder_the_task_never_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = Pipe(tmp_path, None, monkeypatch)
    pipe.write(9000)
    assert not pipe.waits()
    assert pipe.dropped() >= 9000 - LIMIT
    os.close(pipe.reader)
    os.close(pipe.writer)
