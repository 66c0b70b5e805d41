"""Reads the output of a task from the log segments that its supervisor writes.

Each byte has a position in the stream. If the supervisor removes a segment during the reading, the
reader continues at the next byte that exists. Tasks cannot write to the directory. So a task cannot
replace a segment by a link.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from pathlib import Path
from typing import Final, Literal

Stream = Literal["stdout", "stderr"]

_SETTLED_NS: Final = 1_000_000_000  # after this time, a change of a directory gets a new time stamp


class OutputReader:
    """Reads one stream, beginning at a position.

    Args:
        task_dir: the task's directory.
        stream: stdout or stderr.
        offset: the position of the first byte to read.

    Attributes:
        offset: the position of the next byte to read.
    """

    def __init__(self, task_dir: Path, stream: Stream, offset: int = 0) -> None:
        self.offset = offset
        self._directory = task_dir
        self._stream = stream
        self._start = 0  # start of the segment that contains `offset`, if this segment is known
        self._starts: list[int] = []
        self._listed_at_ns = -1  # time stamp of the directory when `_starts` was read

    def read(self, max_bytes: int) -> tuple[int, bytes]:
        """Reads the next bytes, and moves past them.

        Returns:
            The position of the first byte, and the bytes. At the present end of the log, or if
            there is no log yet, there are no bytes. If the position is above `offset`, the bytes
            between `offset` and the position are missing.

        Raises:
            OSError: a segment exists, but cannot be read.
        """
        while True:
            if data := self._read_segment(max_bytes):
                return self._take(data, max_bytes)
            # List the segments before the next attempt. If the list has a later segment, the
            # earlier segment is complete, and the attempt reads all its bytes.
            starts = self._list()
            at = bisect_right(starts, self.offset)
            if at:
                self._start = starts[at - 1]
                if data := self._read_segment(max_bytes):
                    return self._take(data, max_bytes)
            if at == len(starts):
                return self.offset, b""
            self._start = self.offset = starts[at]

    def _take(self, data: bytes, max_bytes: int) -> tuple[int, bytes]:
        """Moves past the data, and adds bytes of segments that follow without a gap."""
        start, self.offset = self.offset, self.offset + len(data)
        while len(data) < max_bytes:
            known, self._start = self._start, self.offset
            if not (more := self._read_segment(max_bytes - len(data))):
                self._start = known
                break
            data, self.offset = data + more, self.offset + len(more)
        return start, data

    def _read_segment(self, max_bytes: int) -> bytes:
        name = f"{self._stream}.{self._start}.log" if self._start else f"{self._stream}.log"
        try:
            fd = os.open(self._directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(fd, max_bytes, self.offset - self._start)
        finally:
            os.close(fd)

    def _list(self) -> list[int]:
        """Returns the positions at which segments start. Reads the directory if it has changed."""
        try:
            changed_ns = self._directory.stat().st_mtime_ns
            if changed_ns != self._listed_at_ns:
                names = os.listdir(self._directory)  # noqa: PTH208 - only names are needed
                self._starts = sorted(
                    start for name in names if (start := _start_of(name, self._stream)) is not None
                )
                # Two changes within a tick of the kernel's clock have the same time stamp.
                settled = time.time_ns() - changed_ns > _SETTLED_NS
                self._listed_at_ns = changed_ns if settled else -1
        except FileNotFoundError:
            return []
        return self._starts


def _start_of(name: str, stream: Stream) -> int | None:
    """Returns the position at which the segment with this name starts; None if the file is not a
    segment.
    """
    first, _, rest = name.partition(".")
    if first != stream or not rest.endswith("log"):
        return None
    number = rest[: -len(".log")]
    if not number:
        return 0
    return int(number) if number.isdecimal() else None


def read_output(task_dir: Path, stream: Stream, offset: int, max_bytes: int) -> bytes:
    """Returns bytes of a stream, beginning at a position; see `OutputReader.read`."""
    reader = OutputReader(task_dir, stream, offset)
    parts: list[bytes] = []
    while max_bytes > 0 and (data := reader.read(max_bytes)[1]):
        parts.append(data)
        max_bytes -= len(data)
    return b"".join(parts)
