"""Stores one output stream of a task in segments with absolute positions, up to a limit.

Segments can be removed from the start or from the middle, and the other bytes keep their positions.
`task_executor/host/task_log.py` reads the segments.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SEGMENTS = 16  # maximum number of segments; one removal drops at most 1/16 of the limit
_SEGMENT_BYTES_MAX = 8 << 20
_SEGMENTS_MAX = 1024


def segment_path(directory: Path, stream: str, start: int) -> Path:
    """Returns the path of the segment whose first byte has the position `start`.

    The name of the first segment is the name of the whole log in version 0.2.
    """
    return directory / (f"{stream}.{start}.log" if start else f"{stream}.log")


def segment_starts(directory: Path, stream: str) -> Iterator[int]:
    """Yields the positions of the first bytes of the segments of a stream."""
    for path in directory.glob(f"{stream}*.log"):
        yield int(path.name.split(".")[1]) if path.name.count(".") == 2 else 0


def available(pipe: int) -> int:
    """Returns the number of bytes in a pipe."""
    found = fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0")
    return int.from_bytes(found, sys.byteorder)


def _waiting_at_end(pipe: int) -> int:
    """Returns the number of bytes in a pipe whose writers have all closed it.

    Raises:
        BlockingIOError: a process can still write to the pipe.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if not any(events & select.POLLHUP for _fd, events in poll.poll(0)):
        raise BlockingIOError
    return available(pipe)


class _Segment:
    """A segment that can have `capacity` bytes.

    A new object stands for a complete segment, which cannot be written. `create` makes the file of
    a segment that can be written.
    """

    def __init__(self, path: Path, start: int, size: int) -> None:
        self.path, self.start, self.size, self.capacity, self.fd = path, start, size, size, -1

    def create(self, capacity: int, gid: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            self.fd = os.open(self.path, flags, 0o640)
        except FileNotFoundError:
            # The first byte of a task's output makes its directory.
            directory = self.path.parent
            with suppress(FileExistsError):
                os.mkdir(directory, 0o750)  # noqa: PTH102
                os.chown(directory, -1, gid)
            self.fd = os.open(self.path, flags, 0o640)
        self.capacity = capacity
        os.fchmod(self.fd, 0o640)
        os.fchown(self.fd, -1, gid)

    @property
    def end(self) -> int:
        return self.start + self.size

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class OutputLog:
    """Stores one stream. The first segment is made with the first byte.

    With `keep=True`, bytes that do not fit stay in the pipe. So no byte is lost that the holder has
    not acknowledged. With `keep=False`, the log stores the first half of the limit, and the last
    bytes in the other half. The bytes between the two halves are dropped.

    Example: the limit is 160 bytes, so segments have 10 bytes, and there are 300 bytes of output
    without acknowledgments. The log keeps bytes 0 to 79 in eight segments, and bytes 220 to 299 in
    the other eight. `dropped` is 140.

    Args:
        directory: the directory of the task.
        stream: stdout or stderr.
        limit: the maximum number of bytes to store.
        gid: the group that can read the log.

    Attributes:
        end: the number of bytes that were stored or dropped until now.
        acknowledged: the holder has received all bytes before this position.
        dropped: the number of lost bytes that were not acknowledged.
    """

    def __init__(self, directory: Path, stream: str, limit: int, gid: int) -> None:
        self._directory, self._stream, self._gid = directory, stream, gid
        self.limit, self._first_bytes = limit, limit // 2
        self._segment_bytes = max(
            1, min(limit // _SEGMENTS, _SEGMENT_BYTES_MAX), limit // _SEGMENTS_MAX
        )
        self.end = self.acknowledged = self.dropped = self._stored = 0
        self._segments: list[_Segment] = []

    def room(self, most: int) -> int:
        """Returns the number of bytes that fit, at most `most`. Removes acknowledged segments to
        make room.
        """
        while self._stored + most > self.limit and self._remove_acknowledged():
            pass
        return max(0, min(most, self.limit - self._stored))

    def take(self, pipe: int, most: int, *, keep: bool) -> int | None:
        """Moves bytes from a pipe to the log.

        The kernel moves the bytes. So a kill of this process loses none of them: each byte is in
        the pipe or in the log.

        Args:
            pipe: the read end of a pipe. The pipe has bytes, or its stream has ended.
            most: the maximum number of bytes.
            keep: see the class.

        Returns:
            The number of bytes that were taken from the pipe; 0 if the stream has ended. With
            `keep`, None means that the log has no room.

        Raises:
            BlockingIOError: there are no bytes, and the stream has not ended.
            OSError: with `keep`, the disk is full.
        """
        if not (waiting := min(most, available(pipe) or _waiting_at_end(pipe))):
            return 0
        if keep:
            if not (waiting := self.room(waiting)):
                return None
            try:
                return self._move(pipe, waiting, keep=True)
            except OSError:
                while self._remove_acknowledged():
                    pass
                raise
        # Drop the bytes that the later bytes of the same chunk would displace.
        beyond = waiting - (self.limit - self._first_bytes)
        if self.end >= self._first_bytes and beyond > 0:
            return self._discard(pipe, beyond)
        try:
            moved = self._move(pipe, waiting, keep=False)
        except OSError:  # the disk is full
            moved = 0
        return moved or self._discard(pipe, waiting)

    def acknowledge(self, position: int) -> None:
        """Records that the holder has received all bytes before `position`."""
        self.acknowledged = max(self.acknowledged, min(position, self.end))

    def to_sync(self) -> list[str]:
        """Returns the files whose bytes the holder has not received."""
        return [
            str(each.path) for each in self._segments if each.size and each.end >= self.acknowledged
        ]

    def lost(self) -> None:
        """Records that the kernel could not write all bytes. Their number is unknown."""
        self.dropped = max(1, self.dropped)  # the number is not known, but it is at least one byte

    def close(self) -> None:
        for each in self._segments:
            each.close()

    def restore(self) -> None:
        """Reads the segments that a killed process has left, and continues after them.

        The bytes between two segments with a gap were dropped. The holder had received all bytes
        before the first segment, because the first half of the limit is never dropped.
        """
        starts = sorted(segment_starts(self._directory, self._stream))
        for start in starts:
            path = segment_path(self._directory, self._stream, start)
            if not (size := path.stat().st_size):
                path.unlink()
                continue
            self.dropped += max(0, start - self.end) if self._segments else 0
            self._segments.append(_Segment(path, start, size))
            self.end, self._stored = start + size, self._stored + size
        self.acknowledged = starts[0] if starts else 0

    def _move(self, pipe: int, most: int, *, keep: bool) -> int:
        """Moves bytes from a pipe to one segment. Returns their number; 0 if there is no room.

        Raises:
            OSError: the disk is full.
        """
        segment = self._segments[-1] if self._segments else None
        if segment is None or segment.fd < 0:
            segment = self._begin_segment()
        part = min(most, segment.capacity - segment.size)
        while self._stored + part > self.limit and not keep:
            if not self._remove_acknowledged() and not self._remove_middle():
                return 0
        moved = os.splice(pipe, segment.fd, part)
        segment.size += moved
        self._stored += moved
        self.end += moved
        if segment.size == segment.capacity:
            segment.close()
        return moved

    def _discard(self, pipe: int, most: int) -> int:
        dropped = len(os.read(pipe, most))
        self._drop(dropped)
        return dropped

    def _begin_segment(self) -> _Segment:
        # A segment must end at the end of the first half of the limit. So no byte of this half is
        # dropped later.
        before = self._first_bytes - self.end
        capacity = min(self._segment_bytes, before) if before > 0 else self._segment_bytes
        path = segment_path(self._directory, self._stream, self.end)
        segment = _Segment(path, self.end, 0)
        segment.create(capacity, self._gid)
        self._segments.append(segment)
        return segment

    def _drop(self, size: int) -> None:
        self.end += size
        self.dropped += size
        # The next byte comes after the dropped bytes, so it cannot be in the last segment. Close
        # this segment.
        if self._segments and self._segments[-1].fd >= 0:
            self._segments[-1].close()
            if not self._segments[-1].size:
                self._remove(len(self._segments) - 1)

    def _remove_acknowledged(self) -> bool:
        """Removes the oldest segment if it is complete and the holder has received all its
        bytes.
        """
        oldest = self._segments[0] if self._segments else None
        if oldest is None or oldest.fd >= 0 or oldest.end > self.acknowledged:
            return False
        self._remove(0)
        return True

    def _remove_middle(self) -> bool:
        """Removes the oldest complete segment outside of the first half of the limit. Does nothing
        if there is no such segment.
        """
        for index, each in enumerate(self._segments):
            if each.start >= self._first_bytes and each.fd < 0:
                self.dropped += max(0, each.end - max(each.start, self.acknowledged))
                self._remove(index)
                return True
        return False

    def _remove(self, index: int) -> None:
        segment = self._segments.pop(index)
        segment.close()
        with suppress(OSError):
            segment.path.unlink()
        self._stored -= segment.size
