"""Implements the lock that lets only one runner work on a batch.

The kernel releases the lock when the process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from finegrain.errors import AlreadyExists, Reason

TRIES_MAX = 5
RETRY_DELAY_S = 0.05
"""Wait in seconds between tries, for example while `runner_of` in another process has the lock."""


def lock_path(path: Path) -> Path:
    """Returns the path of the lock file. The file also contains the name of the lock's owner."""
    return path.with_name(path.name + ".lock")


def runner_of(path: Path) -> dict[str, Any] | None:
    """Returns `pid` and `host` of the runner that works on the batch, or None if there is no
    runner.
    """
    try:
        descriptor = os.open(lock_path(path), os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        # the state file is not readable either, and the function that reads that file reports the
        # error
        return None
    try:
        # Use a shared lock, so that a reader does not mistake another reader for a runner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _lock_owner(descriptor)
    finally:
        os.close(descriptor)


def take_lock(path: Path) -> int:
    """Takes the lock, and returns its descriptor. The lock ends when the descriptor is closed or
    the process ends.

    Raises:
        AlreadyExists: STORE_IN_USE: another runner has the lock.
    """
    descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT, 0o600)
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if tries_left:  # `runner_of` in another process can have the lock for a moment
                time.sleep(RETRY_DELAY_S)
    else:
        owner = _lock_owner(descriptor)
        os.close(descriptor)
        name = f" (pid {owner['pid']} on {owner.get('host')})" if owner else ""
        raise AlreadyExists(
            f"another runner is working on {path}{name}; wait until it has ended, or stop it",
            reason=Reason.STORE_IN_USE,
            details={"path": path, "pid": owner.get("pid"), "host": owner.get("host")},
        )
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "began": _start_ticks(os.getpid())}
    # Never remove the file: if it were removed, two processes could lock two different files.
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)
    return descriptor


def _lock_owner(descriptor: int) -> dict[str, Any]:
    """Returns the owner that the lock file names, or {} if the present owner has not written the
    file yet.

    Until the owner writes the file, the file names the previous owner. The pid of the previous
    owner can now belong to another process, so the start time of the process must also match.
    """
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        pid, began = int(found["pid"]), str(found["began"])
    except (ValueError, KeyError, TypeError):
        return {}
    here = found.get("host") == socket.gethostname()
    return {} if here and _start_ticks(pid) != began else found


def _start_ticks(pid: int) -> str:
    """Returns the start time of a process, in clock ticks since the host's boot; empty if it is
    unknown.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    # The name in parentheses can itself contain blanks and parentheses.
    return fields.rpartition(")")[2].split()[19]
