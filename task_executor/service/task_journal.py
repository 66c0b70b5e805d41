"""Stores the tasks that this executor has accepted, one line for each change of a task.

    tasks/N.journal   segments of the journal; the highest number is the newest
    tasks/ID.json     one file per task, which an earlier version has written

A line is written before its task starts, and is durable before the start is acknowledged. One sync
serves all lines that were written before it. Lines of deleted tasks are removed from time to time:
the journal then continues in a new segment. The lines of older segments that are still needed are
copied to another new segment. The older segments are removed when the copy is durable. A segment is
never renamed or overwritten, so a crash between any two steps loses nothing.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

LENGTH_BYTES_MAX: Final = 1 << 20  # a longer journal is shortened, if that removes at least half
_SUFFIX: Final = ".journal"
_BODY_AT: Final = 9  # after the checksum
_BEGIN: Final = b'{"task":"'
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class TaskJournal:
    """The tasks on disk. Only the process that has locked the state directory uses the journal.

    Args:
        folder: the folder of the segments.
        read_file: a function that reads a file of an earlier version; None: the file has no task.

    Attributes:
        damage: one sentence for each segment that could not be read as a whole.
    """

    def __init__(self, folder: Path, read_file: Callable[[Path], dict[str, Any] | None]) -> None:
        self._folder = folder
        self._fd, self._size = -1, 0  # the newest segment; it is made when it is first needed
        self._is_named = False  # True if the name of the newest segment is durable
        self._is_broken = False  # True if a sync failed, so that lines are possibly lost
        self._segments = sorted(folder.glob(f"*{_SUFFIX}"), key=_number)
        self._number = _number(self._segments[-1]) if self._segments else 0
        self.damage: list[str] = []
        found, self._old_bytes = self._read(self._segments)
        self._saved: dict[str, dict[str, Any]] = {
            task_id: json.loads(line[_BODY_AT:])["content"] for task_id, line in found.items()
        }
        self._live = {task_id: len(line) for task_id, line in found.items()}
        self._files: list[Path] = []  # files of an earlier version that can be read
        for path in sorted(folder.glob("*.json")):
            content = read_file(path)
            if content is not None and isinstance(task_id := content.get("task_id"), str):
                self._saved.setdefault(task_id, content)
                self._files.append(path)
        for task_id in self._saved.keys() - found.keys():
            with suppress(OSError):  # the disk is full: the file of the earlier version stays
                self.put(task_id, self._saved[task_id])

    def saved(self) -> dict[str, dict[str, Any]]:
        """Returns the tasks by id, as they were when the journal was opened. Works only once."""
        saved, self._saved = self._saved, {}
        return saved

    def put(self, task_id: str, content: dict[str, Any]) -> None:
        """Writes a task, and replaces the earlier content of the task. The line survives the end of
        this process. The line is durable after the next sync.

        Raises:
            OSError: the disk is full. Nothing has changed.
        """
        line = _encode({"task": task_id, "content": content})
        self._append(line)
        self._live[task_id] = len(line)

    def forget(self, task_id: str) -> None:
        """Deletes a task, if it exists. After a crash, the task can exist again."""
        if self._live.pop(task_id, None) is not None:
            with suppress(OSError):
                self._append(_encode({"task": task_id}))

    def prepare_sync(self) -> Callable[[], None]:
        """Returns a function that makes all lines up to now durable.

        The function can run in another thread while lines are written, but must not run twice at a
        time. The function raises OSError if a sync fails.

        Raises:
            OSError: no segment can be made.
        """
        if self._fd < 0:
            self._begin_segment()
        old_fd, copy = -1, None
        if self._is_broken or self._files or self._is_long():
            old_fd, old = self._fd, list(self._segments)
            copied = self._folder / f"{self._number + 1}{_SUFFIX}"
            try:
                self._number += 1
                self._begin_segment()
                copy = partial(self._copy, old, copied, frozenset(self._live))
            except OSError:
                old_fd = -1
                if self._is_broken:
                    raise
        return partial(self._sync, self._fd, old_fd, copy)

    def close(self) -> None:
        """Closes the newest segment."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_long(self) -> bool:
        length = self._old_bytes + self._size
        return length > LENGTH_BYTES_MAX and length > 2 * sum(self._live.values())

    def _begin_segment(self) -> None:
        path = self._folder / f"{self._number + 1}{_SUFFIX}"
        self._fd = os.open(path, _FLAGS, 0o600)
        self._number += 1
        self._segments.append(path)
        self._old_bytes += self._size
        self._size, self._is_named = 0, False

    def _append(self, line: bytes) -> None:
        if self._fd < 0:
            self._begin_segment()
        if os.pwrite(self._fd, line, self._size) < len(line):
            # The next line overwrites the part that was written.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(line)

    def _sync(self, fd: int, old_fd: int, copy: Callable[[], None] | None) -> None:
        try:
            if old_fd >= 0:
                os.fdatasync(old_fd)
            os.fdatasync(fd)
            if not self._is_named:
                _sync_folder(self._folder)
                self._is_named = True
        except OSError:
            self._is_broken = True
            raise
        finally:
            if old_fd >= 0:
                os.close(old_fd)
        if copy is not None:
            try:
                copy()
            except OSError:
                # The older segments stay, and the next sync tries again.
                if self._is_broken:
                    raise
            else:
                self._is_broken = False

    def _copy(self, old: Iterable[Path], path: Path, live: Set[str]) -> None:
        """Copies the lines that are still needed from older segments, and removes the older
        segments.
        """
        found, _ = self._read(old)
        data = b"".join(line for task_id, line in found.items() if task_id in live)
        fd = os.open(path, _FLAGS, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(self._folder)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        removed = set(old)
        self._segments = [path, *(each for each in self._segments if each not in removed)]
        self._old_bytes = len(data)
        for each in (*removed, *self._files):
            each.unlink(missing_ok=True)
        self._files = []

    def _read(self, segments: Iterable[Path]) -> tuple[dict[str, bytes], int]:
        """Returns the last line of each task that is not deleted, and the length of all
        segments.
        """
        found = dict[str, bytes]()
        length = 0
        for path in segments:
            data = path.read_bytes()
            length += len(data)
            unreadable = 0
            for line in data.splitlines(keepends=True):
                task_id = _task_of(line)
                if task_id is None:
                    unreadable += 1
                    continue
                if unreadable:
                    # At the end of a segment, unreadable lines are normal after a power cut.
                    self.damage.append(f"{path.name} has {unreadable} lines that cannot be read")
                    unreadable = 0
                if line[_BODY_AT + len(_BEGIN) + len(task_id) :] == b'"}\n':
                    found.pop(task_id, None)
                else:
                    found[task_id] = line
        return found, length


def _encode(change: dict[str, Any]) -> bytes:
    body = json.dumps(change, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _task_of(line: bytes) -> str | None:
    """Returns the id of the task that a line is about; None: the line is incomplete, or was
    changed.

    A copy reads very many lines, so this function does not parse the JSON of a line. Parsing is not
    needed, because an id has no escapes.
    """
    body = line[_BODY_AT:-1]
    if line[:_BODY_AT] != b"%08x " % zlib.crc32(body) or not line.endswith(b"\n"):
        return None
    return body[len(_BEGIN) : body.index(b'"', len(_BEGIN))].decode()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _number(path: Path) -> int:
    return int(path.name.partition(".")[0])
