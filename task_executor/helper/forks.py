"""Makes forks of the helper, which do not keep the helper's descriptors and signal handlers."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable, Collection

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up once, before any fork


_own_limit = [resource.getrlimit(resource.RLIMIT_NOFILE)]


def raise_descriptor_limit() -> None:
    """Raises the limit of descriptors as far as allowed. Each task needs several descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_own_limit[0][1], _own_limit[0][1]))


def restore_descriptor_limit() -> None:
    """Restores the limit from before `raise_descriptor_limit`, for the program of a task."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _own_limit[0])


def own_descriptor_limit(limit: tuple[int, int] | None = None) -> tuple[int, int]:
    """Returns the limit from before `raise_descriptor_limit`.

    Args:
        limit: the limit to remember, if another process has raised it before this process started.
    """
    if limit is not None:
        _own_limit[0] = limit
    return _own_limit[0]


def become_subreaper() -> None:
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def default_signals() -> None:
    # The fork inherits the helper's wakeup pipe, and a signal in the fork must not wake the helper.
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def close_all_but(keep: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                # this descriptor belonged to the listing of the directory, and is already closed
                continue


def run_in_fork(work: Callable[[], None]) -> int:
    """Runs `work` in a new process. Returns its pid. The caller must reap the process."""
    if pid := os.fork():
        return pid
    try:
        default_signals()
        # Close locks and sockets, too: a fork that kept the helper's lock would block the next
        # helper.
        close_all_but(())
        work()
        os._exit(0)
    finally:
        os._exit(1)


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent had already ended before the call
        os._exit(1)
