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

LOOKS_MAX = 5
LOOK_AGAIN_S = 0.05
"""Whoever looks who works on a batch has the lock for a moment."""


def lock_path(path: Path) -> Path:
    """The file that is locked by whoever works on the batch; it says who that is."""
    return path.with_name(path.name + ".lock")


def runner_of(path: Path) -> dict[str, Any] | None:
    """Who works on it now: `pid` and `host`; None: nobody does."""
    try:
        descriptor = os.open(lock_path(path), os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _holder(descriptor)
    finally:
        os.close(descriptor)


def take_lock(path: Path) -> int:
    """Takes the lock, until the descriptor is closed or the process is gone.

    Raises:
        AlreadyExists: STORE_IN_USE, another runner has it.
    """
    descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT, 0o600)
    for tries_left in reversed(range(LOOKS_MAX)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if tries_left:  # somebody may only be looking
                time.sleep(LOOK_AGAIN_S)
    else:
        who = _holder(descriptor)
        os.close(descriptor)
        raise AlreadyExists(
            f"another runner works on {path} (pid {who.get('pid')} on {who.get('host')}); "
            "wait for it, or end it",
            reason=Reason.STORE_IN_USE,
            details={"path": path, **who},
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(
        descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0
    )
    return descriptor


def _holder(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}  # it is just writing it
    return found if isinstance(found, dict) else {}
