"""Files that outlive processes, and who a process is: (boot id, pid, start time)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, content: dict[str, Any], mode: int = 0o600, gid: int = -1) -> None:
    """Replace a file: whoever reads sees the old or the new content.

    Not synced: what is written so holds for this boot only, the kernel keeps it however many
    processes die, and a disk that tasks keep busy must not hold up the helper.
    """
    fresh = path.with_name(f"{path.name}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(fd, "w") as file:
        os.fchown(fd, -1, gid)
        json.dump(content, file)
    fresh.rename(path)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path: Path) -> dict[str, Any] | None:
    """None if there is no such file or it was never finished."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None


def blocked_directory(path: str) -> str | None:
    """The first directory on the way to path, links followed, that this process may not enter."""
    parents = reversed(Path(os.path.realpath(path)).parents)
    return next((str(p) for p in parents if os.path.isdir(p) and not os.access(p, os.X_OK)), None)  # noqa: PTH112 - it raises nothing
