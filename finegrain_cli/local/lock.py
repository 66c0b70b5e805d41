"""Implements the lock of a state directory. The lock ensures that at most one local cluster at a
time uses the directory.

The sweeper of a cluster inherits the lock. If `finegrain up` is killed, the sweeper keeps the lock
while it stops the executors. The next `finegrain up` waits for the lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from finegrain.errors import ConfigurationError
from resource_manager.providers.process_tree import this_process

LOCK_FILE = "up.lock"
SWEEP_WAIT_S = 120.0
POLL_INTERVAL_S = 0.1


def take_lock(state_dir: Path, *, wait_s: float = SWEEP_WAIT_S) -> int:
    """Locks a state directory and returns the descriptor of the lock.

    The lock is released when this process and all processes that inherit the descriptor have closed
    it.

    Args:
        state_dir: state directory of the cluster.
        wait_s: the time to wait for the sweeper of a cluster that was killed, in seconds.

    Raises:
        ConfigurationError: another cluster uses the directory, or the directory cannot be written.
    """
    path = state_dir / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"the state directory {state_dir} cannot be used: {error.strerror}; name another one "
            "with --state-dir",
            details={"state_dir": state_dir},
        ) from None
    try:
        _lock(descriptor, state_dir, time.monotonic() + wait_s)
    except BaseException:
        os.close(descriptor)
        raise
    with suppress(OSError):  # for example, the disk is full; only errors need the pid
        os.ftruncate(descriptor, os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
    return descriptor


def _lock(descriptor: int, state_dir: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        # Do not wait for a running `finegrain up`, because it keeps the lock. Wait for a sweeper,
        # because it will release the lock.
        if _is_running(owner) or time.monotonic() > deadline:
            _refuse(state_dir, owner)
        time.sleep(POLL_INTERVAL_S)


def _is_running(pid: str) -> bool:
    process = this_process(int(pid)) if pid.isdecimal() else None
    return process is not None and process.is_running()


def _refuse(state_dir: Path, owner: str) -> NoReturn:
    who = (
        f"`finegrain up`, process {owner}; stop it"
        if _is_running(owner)
        else "the cleanup after a `finegrain up` that was killed; wait until it has ended"
    )
    raise ConfigurationError(
        f"the state directory {state_dir} is in use by {who}, or name another one with --state-dir",
        details={"state_dir": state_dir, "pid": owner},
    )
