"""That a state directory belongs to one local cluster at a time, until the last of it has ended.

Decides who may use it: whoever holds its lock, and the sweeper that was handed that. One that was
killed left the directory to its sweeper; whoever comes then waits for it. Refuses to know what lies
in the directory.
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
    """A descriptor that holds the lock until all copies of it are closed.

    Args:
        state_dir: of the cluster.
        wait_s: for the sweeper of one that was killed.

    Raises:
        ConfigurationError: another cluster uses the directory, or it cannot be written.
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
    with suppress(OSError):  # others are only told whom they meet; the disk may be full
        os.ftruncate(descriptor, os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
    return descriptor


def _lock(descriptor: int, state_dir: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        if _is_running(owner) or time.monotonic() > deadline:
            _refuse(state_dir, owner)
        time.sleep(POLL_INTERVAL_S)


def _is_running(pid: str) -> bool:
    process = this_process(int(pid)) if pid.isdecimal() else None
    return process is not None and process.is_running()


def _refuse(state_dir: Path, owner: str) -> NoReturn:
    who = (
        f"`finegrain up`, process {owner}; end it"
        if _is_running(owner)
        else "what ends the executors of one that was killed; wait for it"
    )
    raise ConfigurationError(
        f"the state directory {state_dir} is in use by {who}, or name another one with --state-dir",
        details={"state_dir": state_dir, "pid": owner},
    )
