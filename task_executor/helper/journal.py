"""Writes and reads the journal of a supervisor: the tasks that it has begun to start, and their
ends.

Only one process at a time writes a journal: first the supervisor, and after its end the helper. All
tasks of a supervisor share its journal. So a task that writes no output needs no file, and one sync
makes the ends of many tasks durable.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

# Bytes that are reserved for each running task, to record its end even on a full disk.
_RESERVED_BYTES = 4096
_CHUNK_BYTES = 1 << 16
_SEGMENT_BYTES_MAX = 1 << 20
_SUFFIX = ".journal"


def journal_names(directory: Path) -> list[str]:
    """Returns the names of all journals in a directory."""
    return sorted({path.name.partition(".")[0] for path in directory.glob(f"*.*{_SUFFIX}")})


class Journal:
    """Lines of JSON, each with a task's id and one fact: `start`, `process`, `end` or `forget`.

    The lines are in one file, or in several segments with numbers, and every segment names the
    owner. A long journal continues in a new segment, which begins with all facts that are still
    needed. A segment is never renamed, so a crash between any two steps loses nothing.

    Args:
        directory: the directory of journals.
        name: the name of the journal.

    Attributes:
        owner: the facts that identify the supervisor; empty if the supervisor has written nothing
            yet.
        entries: for each task that was not forgotten, its facts by name.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self.owner: dict[str, Any] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        self._fd, self._size, self._reserved = -1, 0, 0
        self._segments = sorted(directory.glob(f"{name}.*{_SUFFIX}"), key=_number)
        self._is_new = True  # True if the name of the file is possibly not durable yet
        for path in self._segments:
            self._read(path)
        # A power cut can destroy the line about a start, but not a later line about the same task.
        # Ignore such a task.
        self.entries = {name: entry for name, entry in self.entries.items() if "start" in entry}
        self._running = {name for name, entry in self.entries.items() if "end" not in entry}

    @staticmethod
    def create(directory: Path, name: str, tasks: int) -> int:
        """Makes an empty journal. Returns a descriptor that locks it.

        The supervisor inherits the descriptor. So the journal is locked until the supervisor ends.

        Args:
            directory: the directory of journals.
            name: the name of the journal.
            tasks: the number of tasks for which the function reserves space.

        Raises:
            OSError: the disk has no space.
        """
        path = _segment(directory, name, 0)
        lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(lock, 0, (tasks + 1) * 2 * _RESERVED_BYTES)
        except OSError:
            os.close(lock)
            path.unlink()
            raise
        return lock

    def is_abandoned(self) -> bool:
        """True if the journal has no owner yet, and no process can write to it any more."""
        try:
            fd = os.open(self._segments[0], os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, IndexError):
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def own(self, owner: dict[str, Any]) -> None:
        """Makes this process, a supervisor, the owner of the journal."""
        self.owner = owner
        self._fd = os.open(self._segments[-1], os.O_WRONLY | os.O_CLOEXEC)
        self._reserved = os.fstat(self._fd).st_size
        self._write({"supervisor": owner})

    def begin(self, task_id: str, record: dict[str, Any]) -> None:
        """Records the start of a task, and reserves space for its end.

        Raises:
            OSError: the disk has no space.
        """
        line = _encode({"task": task_id, "start": record})
        needed = self._size + len(line) + (len(self._running) + 1) * _RESERVED_BYTES
        if needed > self._reserved:
            try:
                self._reserve(needed + _CHUNK_BYTES)
            except OSError:
                self._reserve(needed)
        self.entries[task_id] = {"start": record}
        self._running.add(task_id)
        self._append(line)

    def add(self, task_id: str, fact: str, content: dict[str, Any]) -> None:
        """Records a fact of a task, without a sync.

        Raises:
            OSError: the disk has no space.
        """
        self.entries.setdefault(task_id, {})[fact] = content
        if fact == "end":
            self._running.discard(task_id)
        self._write({"task": task_id, fact: content})

    def forget(self, task_id: str) -> None:
        """Records that no data about an ended task is needed any more."""
        if self.entries.pop(task_id, None) is not None:
            self._running.discard(task_id)
            with suppress(OSError):  # after an error, a later helper reports the end again
                self._write({"task": task_id, "forget": True})
            # A journal without tasks is useless if its supervisor has ended.
            if not self.entries and self._fd < 0:
                self.remove()

    def remove(self) -> None:
        for path in self._segments:
            path.unlink(missing_ok=True)

    def to_sync(self) -> list[str]:
        """Returns the files that must be synced, so that all facts are durable."""
        return [str(self._segments[-1]), *([str(self.directory)] if self._is_new else [])]

    def synced(self) -> None:
        """Records that the name of the file is durable."""
        self._is_new = False

    def compact(self, sync: Callable[[list[str], Callable[[bool], None]], None]) -> None:
        """Continues in a new segment if the present segment is long. The old segment is removed
        when all needed facts are durable in the new segment.

        Args:
            sync: a function that syncs files and then calls back, with True if it was successful.
        """
        if self._size < _SEGMENT_BYTES_MAX or len(self._segments) > 1:
            return
        lines = [
            _encode({"task": task_id, fact: content})
            for task_id, entry in self.entries.items()
            for fact, content in entry.items()
        ]
        if sum(map(len, lines)) > _SEGMENT_BYTES_MAX // 2:
            return
        before = self._fd, self._size, self._reserved
        path = _segment(self.directory, self.name, _number(self._segments[-1]) + 1)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fd, self._size, self._reserved = os.open(path, flags, 0o600), 0, 0
            self._reserve(sum(map(len, lines)) + len(self.entries) * _RESERVED_BYTES + _CHUNK_BYTES)
            self._write({"supervisor": self.owner})
            for line in lines:
                self._append(line)
        except OSError:  # the disk is full
            path.unlink(missing_ok=True)
            if self._fd != before[0]:
                os.close(self._fd)
            self._fd, self._size, self._reserved = before
            return
        os.close(before[0])
        self._segments.append(path)
        self._is_new = True

        def synced(is_durable: bool) -> None:
            if is_durable:
                self._is_new = False
                self._segments.pop(0).unlink(missing_ok=True)

        sync(self.to_sync(), synced)

    def _reserve(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)
        self._reserved = size

    def _write(self, line: dict[str, Any]) -> None:
        if self._fd >= 0:
            return self._append(_encode(line))
        # Open the file only for this line: the helper writes seldom, and can have many journals.
        self._fd = os.open(self._segments[-1], os.O_WRONLY | os.O_CLOEXEC)
        try:
            self._append(_encode(line))
        finally:
            os.close(self._fd)
            self._fd = -1
        return None

    def _append(self, line: bytes) -> None:
        if os.pwrite(self._fd, line, self._size) < len(line):
            raise OSError(
                errno.ENOSPC, os.strerror(errno.ENOSPC)
            )  # the next line overwrites this part
        self._size += len(line)

    def _read(self, path: Path) -> None:
        """Adds the facts of a segment. Facts of a later segment replace facts of an earlier
        segment.
        """
        self._size = 0
        with suppress(FileNotFoundError):
            data = path.read_bytes()
            for line in _lines(data):
                self._size += len(line)
                with suppress(ValueError, KeyError):  # a power cut has destroyed the line
                    self._take(json.loads(line))

    def _take(self, line: dict[str, Any]) -> None:
        if owner := line.get("supervisor"):
            self.owner = owner
        elif line.get("forget"):
            self.entries.pop(line["task"], None)
        else:
            entry = self.entries.setdefault(line.pop("task"), {})
            entry |= line


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _lines(data: bytes) -> Iterator[bytes]:
    """Yields the complete lines. The reserved space after them contains zeros."""
    for line in data.rstrip(b"\0").splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield line


def _segment(directory: Path, name: str, number: int) -> Path:
    return directory / f"{name}.{number}{_SUFFIX}"


def _number(path: Path) -> int:
    return int(path.name.split(".")[1])
