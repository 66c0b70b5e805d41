"""That one runner at a time works on a batch: a lock that the kernel drops with the process.

Decides who that is. Refuses to know what is in the state file.
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
"""A process that only reads who works on a batch has the lock for a moment."""


def lock_path(path: Path) -> Path:
    """The file that is locked by whoever works on the batch; it says who that is."""
    return path.with_name(path.name + ".lock")


def runner_of(path: Path) -> dict[str, Any] | None:
    """Who works on it now: `pid` and `host`; None: nobody does."""
    try:
        descriptor = os.open(lock_path(path), os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return None  # whoever may not see this may not see the state file either, and hears so
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _lock_owner(descriptor)
    finally:
        os.close(descriptor)


def take_lock(path: Path) -> int:
    """Takes the lock, until the descriptor is closed or the process is gone.

    Raises:
        AlreadyExists: STORE_IN_USE, another runner has it.
    """
    descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT, 0o600)
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if tries_left:  # it may only be `runner_of`
                time.sleep(RETRY_DELAY_S)
    else:
        owner = _lock_owner(descriptor)
        os.close(descriptor)
        name = f" (pid {owner['pid']} on {owner.get('host')})" if owner else ""
        raise AlreadyExists(
            f"another runner works on {path}{name}; wait for it, or end it",
            reason=Reason.STORE_IN_USE,
            details={"path": path, "pid": owner.get("pid"), "host": owner.get("host")},
        )
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "began": _start_ticks(os.getpid())}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)
    return descriptor


def _lock_owner(descriptor: int) -> dict[str, Any]:
    """What is said of it; nothing where it has not said so yet. What the last one said is there
    until then, and its pid may be somebody else's by now.
    """
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        pid, began = int(found["pid"]), str(found["began"])
    except (ValueError, KeyError, TypeError):
        return {}
    here = found.get("host") == socket.gethostname()
    return {} if here and _start_ticks(pid) != began else found


def _start_ticks(pid: int) -> str:
    """When a process began, in ticks since the host did; empty: there is none, or no telling."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return fields.rpartition(")")[2].split()[19]
