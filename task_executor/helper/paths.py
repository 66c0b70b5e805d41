"""Reads and writes the files of records. Identifies a process by boot id, pid and start time.

Some functions replace modules of the standard library. A fork copies everything that its parent has
loaded, so the helper loads little. With `secrets`, `shutil`, `tempfile` and OpenSSL's part of
`hashlib`, the fork of a task would cost twice as much.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


def write_json(path: Path, content: dict[str, Any], mode: int = 0o600, gid: int = -1) -> None:
    """Replaces a file atomically: a reader sees the complete old or the complete new content.

    The file is not synced to the disk. A sync is not needed, because the content is useless after a
    reboot. And a sync would delay the helper while tasks keep the disk busy.

    Args:
        path: the file.
        content: the new content.
        mode: the permissions of the file.
        gid: the group of the file; -1: the group of this process.
    """
    fresh = path.with_name(f"{path.name}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        if gid >= 0:
            os.fchown(fd, -1, gid)
        # json.dump would encode piece by piece in Python.
        body = memoryview(json.dumps(content).encode())
        while body:
            body = body[os.write(fd, body) :]
    finally:
        os.close(fd)
    os.rename(fresh, path)  # noqa: PTH104


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns the content; None if the file does not exist or is incomplete."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def remove_directory(path: Path) -> None:
    """Removes a directory that contains only files. If the directory does not exist, this is no
    error.
    """
    with suppress(FileNotFoundError):
        for entry in list(os.scandir(path)):
            with suppress(FileNotFoundError):
                os.unlink(entry.path)  # noqa: PTH108
        os.rmdir(path)  # noqa: PTH106


def random_name(octets: int) -> str:
    """Returns a random name that no other process can guess."""
    return os.urandom(octets).hex()


def temporary_directory() -> str:
    return os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - names in it are random


@cache
def _sha256() -> Any:
    for name in ("_sha2", "_sha256", "hashlib"):  # the first two do not load OpenSSL
        with suppress(ImportError):
            return import_module(name).sha256
    raise AssertionError("Python has no SHA-256")


def digest(content: Any) -> str:
    """Returns the SHA-256 digest of a value's JSON form, as hexadecimal digits."""
    found: str = _sha256()(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return found


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class ProcessStat(NamedTuple):
    """A part of /proc/PID/stat.

    Attributes:
        is_fork: True if the process has not called exec yet. The name of a process does not show
            this, because a program can change its name.
        start_ticks: the start time in clock ticks since boot.
    """

    is_fork: bool
    start_ticks: int


_PF_FORKNOEXEC = 0x40  # a flag of include/linux/sched.h, shown in the flags of /proc/PID/stat


def process_stat(pid: int) -> ProcessStat | None:
    """Returns the state of a process; None if there is no such process."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 4096)
        finally:
            os.close(fd)
        # The name in parentheses can contain spaces and parentheses, so fields are counted after
        # it.
        fields = text.rpartition(b")")[2].split()
        return ProcessStat(bool(int(fields[6]) & _PF_FORKNOEXEC), int(fields[19]))
    except (OSError, IndexError):
        return None


def start_ticks(pid: int) -> int | None:
    """Returns the start time of a process in clock ticks since boot; None if there is no such
    process.
    """
    stat = process_stat(pid)
    return stat.start_ticks if stat is not None else None


def identity_of(pid: int) -> dict[str, Any]:
    """Returns facts that distinguish a process from a later process with the same pid."""
    return {"pid": pid, "start_ticks": start_ticks(pid) or 0, "boot_id": boot_id()}


def is_alive(identity: dict[str, Any]) -> bool:
    """True if the process that `identity_of` described still exists."""
    return bool(
        identity["boot_id"] == boot_id() and start_ticks(identity["pid"]) == identity["start_ticks"]
    )


def blocked_directory(path: str) -> str | None:
    """Returns the first directory above `path` that this process cannot enter; None if it can enter
    all of them.

    The function first resolves symbolic links in `path`.
    """
    parents = reversed(Path(os.path.realpath(path)).parents)
    return next((str(p) for p in parents if os.path.isdir(p) and not os.access(p, os.X_OK)), None)  # noqa: PTH112 - it raises nothing
