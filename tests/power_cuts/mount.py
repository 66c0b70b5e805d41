"""Mounts a `LossyDisk` by FUSE, so that unchanged programs can use it.

    python -m tests.power_cuts.mount MOUNTPOINT IMAGE --seed N

IMAGE is a folder with the initial content of the disk; it may be empty. SIGUSR1 cuts the power:
from then on every call fails, IMAGE is replaced by what survived, and "cut ..." is printed. SIGTERM
unmounts, and loses everything if the power was not cut before. Needs root, /dev/fuse, libfuse3 and
the wheel `mfusepy`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import mfusepy  # type: ignore[import-untyped]

from tests.power_cuts.disk import ROOT, LossyDisk, Names, Node

BLOCK = 4096


class Operations(mfusepy.Operations):  # type: ignore[misc]  # untyped
    """Translates FUSE calls into calls of the disk. Handles are numbers of open files."""

    use_ns = True

    def __init__(self, disk: LossyDisk) -> None:
        self._disk = disk
        self._open: dict[int, Node] = {}
        self._last_handle = 0
        self._lock = threading.Lock()

    def _node(self, path: str, handle: int | None) -> Node:
        # An open file stays the same file when its name changes.
        found = self._open.get(handle) if handle is not None else None
        return found if found is not None else self._disk.node(path)

    def _opened(self, node: Node) -> int:
        with self._lock:
            self._last_handle += 1
            self._open[self._last_handle] = node
            return self._last_handle

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        node = self._node(path, fh)
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), node.time_ns)
        links = 2 if node.is_folder else self._disk.links(node)
        owner = {"st_mode": node.mode, "st_uid": node.uid, "st_gid": node.gid, "st_nlink": links}
        size = len(node.live)
        return owner | times | {"st_size": size, "st_blocks": -(-size // 512)}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *self._disk.entries(path)]

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return self._opened(self._disk.create(path, stat.S_IFREG | stat.S_IMODE(mode)))

    def open(self, path: str, flags: int) -> int:
        return self._opened(self._disk.node(path))

    def release(self, path: str, fh: int) -> int:
        self._open.pop(fh, None)
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self._disk.read(self._node(path, fh), offset, size)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._disk.write(self._node(path, fh), offset, bytes(data))
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._disk.truncate(self._node(path, fh), length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._disk.sync(self._node(path, fh))
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._disk.sync_folder(path)
        return 0

    def flush(self, path: str, fh: int) -> int:
        return 0  # closing a file does not sync it

    def mkdir(self, path: str, mode: int) -> int:
        self._disk.create(path, stat.S_IFDIR | stat.S_IMODE(mode))
        return 0

    def mknod(self, path: str, mode: int, dev: int) -> int:
        self._disk.create(path, mode)  # sockets
        return 0

    def unlink(self, path: str) -> int:
        self._disk.remove(path)
        return 0

    rmdir = unlink

    def rename(self, old: str, new: str) -> int:
        self._disk.rename(old, new)
        return 0

    def link(self, target: str, source: str) -> int:
        self._disk.link(source, target)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        node = self._disk.node(path)
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        node = self._disk.node(path)
        node.uid = node.uid if uid in (-1, 0xFFFFFFFF) else uid
        node.gid = node.gid if gid in (-1, 0xFFFFFFFF) else gid
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        if times is not None:
            self._disk.node(path).time_ns = times[1]
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        blocks = dict.fromkeys(("f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree"), 1 << 20)
        return blocks | {"f_bsize": BLOCK, "f_frsize": BLOCK, "f_namemax": 255}


def load_image(folder: Path) -> Names:
    """Returns the names and contents of a folder."""
    names: Names = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        told = path.lstat()
        content = b"" if stat.S_ISDIR(told.st_mode) else path.read_bytes()
        inside = ROOT if path == folder else f"/{path.relative_to(folder)}"
        names[inside] = Node(
            told.st_mode, told.st_uid, told.st_gid, bytearray(content), bytearray(content)
        )
    return names


def save_image(names: Names, folder: Path) -> None:
    """Replaces a folder by the content of the disk."""
    shutil.rmtree(folder, ignore_errors=True)
    for inside, node in sorted(names.items()):
        path = folder if inside == ROOT else folder / inside.removeprefix("/")
        if node.is_folder:
            path.mkdir()
        else:
            path.write_bytes(node.live)
        path.chmod(stat.S_IMODE(node.mode))
        os.chown(path, node.uid, node.gid)


def _obey_signals(disk: LossyDisk, mountpoint: Path, image: Path) -> None:
    while True:
        if signal.sigwait(SIGNALS) == signal.SIGUSR1:
            report = disk.cut()
            save_image(disk.image(), image)
            sys.stdout.write(
                f"cut {report.sectors_lost} {report.sectors_kept} {report.names_lost} "
                f"{disk.syncs}\n"
            )
            sys.stdout.flush()
        else:
            subprocess.run(["umount", "--lazy", mountpoint], check=False)
            os._exit(0)


SIGNALS = {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT}


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    disk = LossyDisk(options.seed, load_image(options.image))
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    arguments = (disk, options.mountpoint, options.image)
    threading.Thread(target=_obey_signals, args=arguments, daemon=True).start()
    # Disable caching, so that the kernel never differs from the disk.
    mfusepy.FUSE(
        Operations(disk),
        str(options.mountpoint),
        foreground=True,
        nothreads=False,
        allow_other=True,
        default_permissions=True,
        fsname="lossy",
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
    )


if __name__ == "__main__":
    main()
