"""A disk in memory that forgets at a power cut what was not synced; no FUSE in here.

Decides what survives. The data of a file: what was written before its last fsync, and of what was
written since then each sector of 512 bytes by a coin toss. Names (made, linked, renamed, removed)
keep their order, as in the journal of a file system: those before the last fsync of a directory
that they touch survive, and of the later ones the first few. Nothing but an fsync is promised, so
a file may be there under its name with nothing in it, and a rename may be undone. Modes and owners
are kept at once.

After a cut the disk is dark: every call fails with EIO, so that nothing that a program still writes
can count. What survived is found in `image()`, and makes the next disk.
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
    """A file or folder. `pending`: what was written since the last fsync, in order, as offset and
    bytes; no bytes: cut or stretched to that length."""

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
    """What a power cut took and left."""

    sectors_lost: int
    sectors_kept: int
    names_lost: int


@dataclass(frozen=True)
class _Renaming:
    """One change of names: all of it or nothing."""

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
    """The folder that a name stands in."""
    return path.rpartition("/")[0] or ROOT


class LossyDisk:
    """See the module. Paths are absolute within the disk; safe for threads.

    Raises:
        OSError: ENOENT, EEXIST, ENOTEMPTY as everywhere; EIO once the power is cut.
    """

    def __init__(self, seed: int, image: Names | None = None) -> None:
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._names: Names = image or {ROOT: Node(stat.S_IFDIR | 0o755)}
        self._durable: Names = dict(self._names)
        self._pending: list[_Renaming] = []
        self._dark = False
        self.syncs = 0

    # -- looking -----------------------------------------------------------------------------

    def node(self, path: str) -> Node:
        """What stands under a name."""
        with self._lock:
            self._must_have_power()
            found = self._names.get(path)
            if found is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return found

    def entries(self, folder: str) -> list[str]:
        """Names in a folder, without the folder."""
        with self._lock:
            self._must_have_power()
            return [
                path.rpartition("/")[2]
                for path in self._names
                if path != ROOT and parent(path) == folder
            ]

    def links(self, node: Node) -> int:
        """Under how many names a node stands."""
        with self._lock:
            return sum(each is node for each in self._names.values())

    def read(self, node: Node, offset: int, size: int) -> bytes:
        """Bytes of a file, as far as there are any."""
        with self._lock:
            self._must_have_power()
            return bytes(node.live[offset : offset + size])

    # -- changing ----------------------------------------------------------------------------

    def create(self, path: str, mode: int) -> Node:
        """A new file or folder; `mode` says which."""
        with self._lock:
            self._must_have_power()
            if path in self._names:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            made = Node(mode)
            self._rename({path: made})
            return made

    def link(self, source: str, target: str) -> None:
        """One more name for a file."""
        with self._lock:
            node = self.node(source)
            if target in self._names:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), target)
            self._rename({target: node})

    def rename(self, old: str, new: str) -> None:
        """Moves a name, with all below it; what stood under the new name is replaced."""
        with self._lock:
            self.node(old)
            moved = [p for p in self._names if p == old or p.startswith(old + "/")]
            changes: dict[str, Node | None] = dict.fromkeys(moved)
            changes |= {new + path[len(old) :]: self._names[path] for path in moved}
            self._rename(changes)

    def remove(self, path: str) -> None:
        """Removes a name; a folder has to be empty."""
        with self._lock:
            if self.node(path).is_folder and self.entries(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._rename({path: None})

    def write(self, node: Node, offset: int, data: bytes) -> None:
        """Writes; not on the disk before an fsync."""
        with self._lock:
            self._must_have_power()
            _put(node.live, offset, data)
            node.pending.append((offset, data))
            node.time_ns = time.time_ns()

    def truncate(self, node: Node, length: int) -> None:
        """Cuts or stretches; not on the disk before an fsync."""
        with self._lock:
            self._must_have_power()
            _resize(node.live, length)
            node.pending.append((length, None))

    def sync(self, node: Node) -> None:
        """fsync of a file: its data, not its name."""
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
        """fsync of a folder: its names, and with them whatever came before."""
        with self._lock:
            self._must_have_power()
            touching = [n for n, each in enumerate(self._pending) if each.touches(path)]
            for _ in range(touching[-1] + 1 if touching else 0):
                self._pending.pop(0).apply(self._durable)
            self.syncs += 1

    # -- the power ---------------------------------------------------------------------------

    def cut(self) -> CutReport:
        """Takes the power away, now."""
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
        """What a power cut left, by name; for the next disk."""
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
    """A write as pieces that a disk writes whole."""
    pieces = []
    position = 0
    while position < len(data):
        size = min(len(data) - position, SECTOR - (offset + position) % SECTOR)
        pieces.append((offset + position, data[position : position + size]))
        position += size
    return pieces
