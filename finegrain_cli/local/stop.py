"""Stops daemons of a local cluster in an orderly way, with their slots and tasks.

This module defines the time limits of the stop. It also prevents a second Ctrl-C from interrupting
the stop.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from finegrain_cli.local.daemon_process import DaemonProcess

KILL_GRACE_MS = 5_000  # time between SIGTERM and SIGKILL for tasks
STOP_TIMEOUT_S = 30.0  # time for a daemon to stop, in addition to the grace period of tasks
SWEEP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.05


def sweep(executor: DaemonProcess) -> None:
    """Ends the helper, slots and tasks of a crashed executor.

    The function starts the executor again. The executor adopts the helper, slots and tasks. Then
    the function stops the executor in an orderly way.
    """
    executor.start()
    deadline = time.monotonic() + SWEEP_TIMEOUT_S
    while executor.runs() and executor.endpoint() is None and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    executor.terminate()
    if not executor.wait(KILL_GRACE_MS / 1000 + STOP_TIMEOUT_S):
        executor.kill()
        executor.wait(STOP_TIMEOUT_S)


def describe_exit(daemon: DaemonProcess) -> str:
    """Returns a text about the end of a daemon, with the last log line of the daemon."""
    code = daemon.exit_code() or 0
    if code < 0:
        return f"the {daemon.name} was killed by signal {-code}"
    last_words = daemon.last_words()
    ending = f"the {daemon.name} ended with exit code {code}"
    return f"{ending}: {last_words}" if last_words else ending


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Inside the context, SIGINT, SIGTERM and SIGHUP only print a message. So these signals do not
    interrupt the stop.
    """
    # Python allows signal handlers only in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def notice(_number: int, _frame: FrameType | None) -> None:
        os.write(2, b"finegrain: stopping already, please wait\n")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, notice) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
