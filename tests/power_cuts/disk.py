"""A disk in memory that at a power cut loses what was not synced (without FUSE).

Data of a file: everything written before its last fsync survives; of later writes each sector of
512 bytes survives by a coin toss. Names (created, linked, renamed, removed) keep their order, as in
the journal of a file system: those before the last fsync of a directory that they touch survive,
and of the later ones the first few. Nothing but an fsync is promised, so a file may exist with its
name and no content, and a rename may be undone. Modes and owners survive always.

After a cut every call fails with EIO, so that later writes have no effect. `image()` returns what
survived, from which the next disk is made.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import threading
import time
from dataclasses import dataclass, field

SECTOR = 512
ROOT = "/"


@dataclass(eq=False)
class Node:
    """A file or folder.

    `pending` has the writes since the last fsync, in order, as offset and bytes. Without bytes it
    is a change of the file's length.
    """

    mode: int
    uid: int = 0
    gid: int = 0
    live: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    time_ns: int = field(default_factory=time.time_ns)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


Names = dict[str, Node]


@dataclass(frozen=True)
class CutReport:
    """What a power cut lost and kept."""

    sectors_lost: int
    sectors_kept: int
    names_lost: int


@dataclass(frozen=True)
class _Renaming:
    """One atomic change of names."""

    changes: dict[str, Node | None]

    def touches(self, folder: str) -> bool:
        return any(parent(path) == folder for path in self.changes)

    def apply(self, names: Names) -> None:
        for path, node in self.changes.items():
            if node is None:
                names.pop(path, None)
            else:
                names[path] = node


def parent(path: str) -> str:
    """Returns the folder that contains a name."""
    return path.rpartition("/")[0] or ROOT


class LossyDisk:
    """The disk, as the module describes. Paths are absolute within the disk; safe for threads.

    Raises:
        OSError: ENOENT, EEXIST, ENOTEMPTY as usual; EIO once the power is cut.
    """

    def __init__(self, seed: int, image: Names | None = None) -> None:
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._names: Names = image or {ROOT: Node(stat.S_IFDIR | 0o755)}
        self._durable: Names = dict(self._names)
        self._pending: list[_Renaming] = []
        self._dark = False
        self.syncs = 0

    # -- reading -----------------------------------------------------------------------------

    def node(self, path: str) -> Node:
        """Returns the file or folder of this name."""
        with self._lock:
            self._must_have_power()
            found = self._names.get(path)
            if found is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return found

    def entries(self, folder: str) -> list[str]:
        """Returns the names in a folder, without the folder's path."""
        with self._lock:
            self._must_have_power()
            return [
                path.rpartition("/")[2]
                for path in self._names
                if path != ROOT and parent(path) == folder
            ]

    def links(self, node: Node) -> int:
        """Returns the number of names of a node."""
        with self._lock:
            return sum(each is node for each in self._names.values())

    def read(self, node: Node, offset: int, size: int) -> bytes:
        """Returns bytes of a file, as many as there are."""
        with self._lock:
            self._must_have_power()
            return bytes(node.live[offset : offset + size])

    # -- writing -----------------------------------------------------------------------------

    def create(self, path: str, mode: int) -> Node:
        """Creates a file or folder, according to `mode`."""
        with self._lock:
            self._must_have_power()
            if path in self._names:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            made = Node(mode)
            self._rename({path: made})
            return made

    def link(self, source: str, target: str) -> None:
        """Gives a file another name."""
        with self._lock:
            node = self.node(source)
            if target in self._names:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), target)
            self._rename({target: node})

    def rename(self, old: str, new: str) -> None:
        """Renames a file, or a folder with all below it; replaces what had the new name."""
        with self._lock:
            self.node(old)
            moved = [p for p in self._names if p == old or p.startswith(old + "/")]
            changes: dict[str, Node | None] = dict.fromkeys(moved)
            changes |= {new + path[len(old) :]: self._names[path] for path in moved}
            self._rename(changes)

    def remove(self, path: str) -> None:
        """Removes a name; a folder must be empty."""
        with self._lock:
            if self.node(path).is_folder and self.entries(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._rename({path: None})

    def write(self, node: Node, offset: int, data: bytes) -> None:
        """Writes data, which is not durable before an fsync."""
        with self._lock:
            self._must_have_power()
            _put(node.live, offset, data)
            node.pending.append((offset, data))
            node.time_ns = time.time_ns()

    def truncate(self, node: Node, length: int) -> None:
        """Changes the length, which is not durable before an fsync."""
        with self._lock:
            self._must_have_power()
            _resize(node.live, length)
            node.pending.append((length, None))

    def sync(self, node: Node) -> None:
        """Makes the data of a file durable (fsync), but not its name."""
        with self._lock:
            self._must_have_power()
            for offset, data in node.pending:
                if data is None:
                    _resize(node.synced, offset)
                else:
                    _put(node.synced, offset, data)
            node.pending.clear()
            self.syncs += 1

    def sync_folder(self, path: str) -> None:
        """Makes the names in a folder durable (fsync), and all earlier changes of names."""
        with self._lock:
            self._must_have_power()
            touching = [n for n, each in enumerate(self._pending) if each.touches(path)]
            for _ in range(touching[-1] + 1 if touching else 0):
                self._pending.pop(0).apply(self._durable)
            self.syncs += 1

    # -- the power ---------------------------------------------------------------------------

    def cut(self) -> CutReport:
        """Cuts the power."""
        with self._lock:
            self._must_have_power()
            self._dark = True
            kept_names = self._random.randint(0, len(self._pending))
            for each in self._pending[:kept_names]:
                each.apply(self._durable)
            lost = kept = 0
            for node in {id(each): each for each in self._durable.values()}.values():
                for offset, data in node.pending:
                    if data is None:
                        if self._random.random() < 0.5:
                            _resize(node.synced, offset)
                        continue
                    for start, part in _sectors(offset, data):
                        if self._random.random() < 0.5:
                            lost += 1
                        else:
                            kept += 1
                            _put(node.synced, start, part)
            return CutReport(lost, kept, len(self._pending) - kept_names)

    def image(self) -> Names:
        """Returns what survived a power cut, by name, for the next disk."""
        with self._lock:
            return {
                path: Node(node.mode, node.uid, node.gid, bytearray(node.synced), node.synced)
                for path, node in self._durable.items()
            }

    def _rename(self, changes: dict[str, Node | None]) -> None:
        change = _Renaming(changes)
        change.apply(self._names)
        self._pending.append(change)

    def _must_have_power(self) -> None:
        if self._dark:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def _resize(content: bytearray, length: int) -> None:
    if length < len(content):
        del content[length:]
    else:
        content.extend(bytes(length - len(content)))


def _put(content: bytearray, offset: int, data: bytes) -> None:
    end = offset + len(data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[offset:end] = data


def _sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    """Splits a write into pieces that a disk writes atomically."""
    pieces = []
    position = 0
    while position < len(data):
        size = min(len(data) - position, SECTOR - (offset + position) % SECTOR)
        pieces.append((offset + position, data[position : position + size]))
        position += size
    return pieces
