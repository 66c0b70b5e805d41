"""Compares the segments of an output log with a model: each byte is stored, acknowledged or
lost.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from task_executor.helper import output_log
from task_executor.helper.output_log import OutputLog, available
from task_executor.host.task_log import OutputReader, read_output
from tests.support.properties import examples

PERIOD = 251  # a prime, so that no segment or chunk has the same bytes as its neighbor


def bytes_at(start: int, end: int) -> bytes:
    return bytes(position % PERIOD for position in range(start, end))


class FullDisk:
    """Replaces the module `os` for the log. While the disk is full, only `left` bytes fit."""

    def __init__(self) -> None:
        self.left: int | None = None

    def splice(self, source: int, target: int, most: int) -> int:
        if self.left is None:
            return os.splice(source, target, most)
        if not self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        moved = os.splice(source, target, min(most, self.left))
        self.left -= moved
        return moved

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class Pipe:
    """A pipe that can hold everything that a test writes at once."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 1 << 18)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


def add(log: OutputLog, data: bytes) -> None:
    """Adds bytes without a holder."""
    pipe = Pipe()
    os.write(pipe.writer, data)
    while available(pipe.reader):
        log.take(pipe.reader, 1 << 16, keep=False)
    pipe.close()


class LogMachine(RuleBasedStateMachine):
    """One stream of a task, a holder that comes and goes, a reader, and a disk that fills up."""

    @initialize(limit=st.integers(0, 700))
    def begin(self, limit: int) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.directory = Path(self.place.name)
        self.disk = FullDisk()
        self.patch = mock.patch.object(output_log, "os", self.disk)
        self.patch.start()
        self.limit = limit
        self.log = OutputLog(self.directory, "stdout", limit, -1)
        self.reader = OutputReader(self.directory, "stdout")
        self.keep, self.was_always_kept = False, True
        self.pipe = Pipe()
        self.written = 0  # by the task into the pipe
        self.stored: set[int] = set()
        self.lost: set[int] = set()
        self.received: set[int] = set()  # by the reader

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.stop()
            self.place.cleanup()
            self.pipe.close()

    @rule(holds=st.booleans())
    def the_holder_comes_or_goes(self, holds: bool) -> None:
        self.keep = holds and self.limit > 0

    @rule(left=st.none() | st.integers(0, 50))
    def the_disk_fills_or_has_room(self, left: int | None) -> None:
        self.disk.left = left

    @rule(size=st.integers(1, 900))
    def the_task_writes(self, size: int) -> None:
        os.write(self.pipe.writer, bytes_at(self.written, self.written + size))
        self.written += size
        self.the_supervisor_reads()

    @rule()
    def the_supervisor_reads(self) -> None:
        """Reads until the pipe is empty, or until the log has no room for held output."""
        self.was_always_kept = self.was_always_kept and self.keep
        try:
            while available(self.pipe.reader):
                if self.log.take(self.pipe.reader, 1 << 16, keep=self.keep) is None:
                    return
        except OSError:
            assert self.keep
            assert self.disk.left is not None

    @rule()
    def the_supervisor_is_killed(self) -> None:
        """The next supervisor knows only the segments, and what the holder sends it."""
        acknowledged, dropped = self.log.acknowledged, self.log.dropped
        end = self.log.end
        self.log.close()
        self.log = OutputLog(self.directory, "stdout", self.limit, -1)
        self.log.restore()
        assert self.log.end <= end
        self.log.acknowledged, self.log.dropped, self.log.end = acknowledged, dropped, end

    @rule(share=st.integers(0, 100))
    def the_holder_acknowledges(self, share: int) -> None:
        self.observe()
        self.log.acknowledge(self.log.end * share // 100)

    @rule(most=st.integers(1, 300))
    def a_reader_reads(self, most: int) -> None:
        before = self.reader.offset
        start, data = self.reader.read(most)
        assert start >= before
        assert data == bytes_at(start, start + len(data))
        self.received |= set(range(start, start + len(data)))

    @invariant()
    def every_byte_is_accounted_for(self) -> None:
        self.observe()
        assert self.log.end + available(self.pipe.reader) == self.written
        assert len(self.stored) <= self.limit
        assert self.log.dropped == len(self.lost)
        if self.was_always_kept:
            assert not self.lost

    def observe(self) -> None:
        """Updates the model: a byte that is no longer stored was acknowledged, or is lost."""
        stored: set[int] = set()
        for path in self.directory.iterdir():
            start = int(path.name.split(".")[1]) if path.name.count(".") == 2 else 0
            content = path.read_bytes()
            assert content == bytes_at(start, start + len(content))
            stored |= set(range(start, start + len(content)))
        known = self.stored | self.lost | set(range(self.log.acknowledged))
        fresh = set(range(self.log.end)) - stored - known
        gone = {position for position in self.stored - stored if position >= self.log.acknowledged}
        self.lost |= fresh | gone
        self.stored = stored


LogMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestLog = LogMachine.TestCase


@pytest.mark.parametrize("sizes", [[100_000], [1] * 3000, [700, 1, 65_536, 3]])
@pytest.mark.parametrize("limit", [1, 16, 160, 1000])
def test_without_a_holder_the_first_and_the_last_part_are_kept(
    tmp_path: Path, limit: int, sizes: list[int]
) -> None:
    log, at = OutputLog(tmp_path, "stdout", limit, -1), 0
    for size in sizes:
        add(log, bytes_at(at, at + size))
        at += size
    reader, chunks = OutputReader(tmp_path, "stdout"), []
    while (chunk := reader.read(1 << 20))[1]:
        chunks.append(chunk)
    first, last = chunks[0], chunks[-1]
    assert first == (0, bytes_at(0, limit // 2)) or limit == 1
    assert last[0] + len(last[1]) == at
    assert limit - limit // 2 - limit // 16 <= len(last[1]) <= limit - limit // 2
    assert log.dropped == at - sum(len(data) for _, data in chunks)


def test_a_log_of_the_previous_version_is_one_segment(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").write_bytes(b"all of it")
    assert read_output(tmp_path, "stdout", 4, 100) == b"of it"


def test_a_reader_goes_on_in_the_next_segment_that_exists(tmp_path: Path) -> None:
    log = OutputLog(tmp_path, "stdout", 160, -1)
    add(log, bytes_at(0, 30))
    reader = OutputReader(tmp_path, "stdout")
    assert reader.read(25) == (0, bytes_at(0, 25))
    add(log, bytes_at(30, 300))
    assert reader.read(1000) == (25, bytes_at(25, 80))
    start, data = reader.read(1000)
    assert (start >= 220, data) == (True, bytes_at(start, 300))
    assert reader.read(1000) == (300, b"")
    add(log, b"\xff")
    assert reader.read(1000) == (300, b"\xff")
