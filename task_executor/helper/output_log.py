"""Stores one output stream of a task in segments with absolute positions, up to a limit.

Segments can be removed from the start or from the middle, and the other bytes keep their positions.
`task_executor/host/task_log.py` reads the segments.
"""

from __future__ import annotations

import os
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


class _Segment:
    def __init__(self, path: Path, start: int, capacity: int, gid: int) -> None:
        self.path, self.start, self.size, self.capacity = path, start, 0, capacity
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self.fd = os.open(path, flags, 0o640)
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
    """Stores one stream.

    With `keep=True`, no unacknowledged byte is lost, if the caller adds at most `room()` bytes, and
    then calls `flush` until `flush` returns True. With `keep=False`, the log stores the first half
    of the limit, and the last bytes in the other half. The bytes between the two halves are
    dropped.

    Example: the limit is 160 bytes, so segments have 10 bytes, and there are 300 bytes of output
    without acknowledgements. The log keeps bytes 0 to 79 in eight segments, and bytes 220 to 299 in
    the other eight. `dropped` is 140.

    Args:
        directory: the directory of the task.
        stream: stdout or stderr.
        limit: the maximum number of bytes to store.
        gid: the group that may read the log.

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
        self._unwritten = b""
        self._segments: list[_Segment] = []
        self._begin_segment()  # so that the start of the task fails if the disk is full

    def room(self, most: int) -> int:
        """Returns the number of bytes that fit, at most `most`. Removes acknowledged segments to
        make room.
        """
        while self._stored + most > self.limit and self._remove_acknowledged():
            pass
        return max(0, min(most, self.limit - self._stored))

    def add(self, data: bytes, *, keep: bool) -> None:
        """Appends bytes.

        Args:
            data: the bytes. With `keep`, these must be at most `room()` bytes, and the last `flush`
                must have returned True.
            keep: True if no unacknowledged byte may be lost, as the class describes. If the disk is
                full, the bytes then stay in memory until `flush` can write them.
        """
        view = memoryview(data)
        while view:
            beyond = len(view) - (self.limit - self._first_bytes)
            if not keep and self.end >= self._first_bytes and beyond > 0:
                # Drop the bytes that the later bytes of the same chunk would displace.
                self._drop(beyond)
                view = view[beyond:]
            written = self._append(view, keep=keep)
            if not written and keep:
                self._unwritten = bytes(view)
                return
            if not written:
                self._drop(len(view))
                return
            view = view[written:]

    def flush(self, *, keep: bool) -> bool:
        """Writes bytes that could not be written before. Returns True if no such bytes are left."""
        data, self._unwritten = self._unwritten, b""
        if data:
            self.add(data, keep=keep)
        return not self._unwritten

    def acknowledge(self, position: int) -> None:
        """Records that the holder has received all bytes before `position`."""
        self.acknowledged = max(self.acknowledged, min(position, self.end))

    def sync(self) -> None:
        """Syncs the bytes that the holder has not received. If this fails, bytes count as
        dropped.
        """
        try:
            for each in self._segments:
                if each.end >= self.acknowledged:
                    fd = os.open(each.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    try:
                        os.fsync(fd)
                    finally:
                        os.close(fd)
        except OSError:
            # The kernel could not write all data. The number of lost bytes is unknown, so count at
            # least 1.
            self.dropped = max(1, self.dropped)

    def _append(self, view: memoryview, *, keep: bool) -> int:
        """Writes bytes to one segment. Returns the number of written bytes; 0: there is no room."""
        try:
            segment = self._segments[-1] if self._segments else None
            if segment is None or segment.fd < 0:
                segment = self._begin_segment()
            part = view[: segment.capacity - segment.size]
            while self._stored + len(part) > self.limit and not keep:
                if not self._remove_acknowledged() and not self._remove_middle():
                    return 0
            written = os.write(segment.fd, part)
        except OSError:  # the disk is full
            while self._remove_acknowledged():
                pass
            return 0
        segment.size += written
        self._stored += written
        self.end += written
        if segment.size == segment.capacity:
            segment.close()
        return written

    def _begin_segment(self) -> _Segment:
        # A segment must end where the first half of the limit ends, so that no byte of this half is
        # dropped later.
        before = self._first_bytes - self.end
        capacity = min(self._segment_bytes, before) if before > 0 else self._segment_bytes
        path = segment_path(self._directory, self._stream, self.end)
        self._segments.append(segment := _Segment(path, self.end, capacity, self._gid))
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
        """Removes the oldest complete segment that is not in the first half of the limit, if there
        is such a segment.
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
