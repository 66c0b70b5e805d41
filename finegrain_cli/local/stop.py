"""How parts of a local cluster end: in order, and all of what belongs to them.

Decides how long the end of one part may take and that a second Ctrl-C does not cut it short.
Refuses to know which parts there are.
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

KILL_GRACE_MS = 5_000  # of tasks
STOP_TIMEOUT_S = 30.0  # beyond the tasks' grace
SWEEP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.05


def sweep(executor: DaemonProcess) -> None:
    """An executor that crashed left its helper, slots and tasks: started again it finds them all,
    and stopped in order it frees them."""
    executor.start()
    deadline = time.monotonic() + SWEEP_TIMEOUT_S
    while executor.runs() and executor.endpoint() is None and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    executor.terminate()
    if not executor.wait(KILL_GRACE_MS / 1000 + STOP_TIMEOUT_S):
        executor.kill()
        executor.wait(STOP_TIMEOUT_S)


def describe_exit(daemon: DaemonProcess) -> str:
    """How a daemon ended, and what it said last."""
    code = daemon.exit_code() or 0
    if code < 0:
        return f"the {daemon.name} was killed by signal {-code}"
    last_words = daemon.last_words()
    ending = f"the {daemon.name} ended with exit code {code}"
    return f"{ending}: {last_words}" if last_words else ending


@contextmanager
def signals_deferred() -> Iterator[None]:
    """While everything is being stopped, a second Ctrl-C must not leave half of it behind."""
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
