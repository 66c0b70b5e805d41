"""Handles signals: the first signal ends the work of a command, and the second signal ends the
process.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from finegrain_cli.exit_codes import ExitCode

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TwoSignals:
    """Handles SIGINT, SIGTERM and SIGHUP. An instance must be created inside a running event loop.

    Args:
        on_first: a function that is called at the first signal.
        before_exit: a function that is called at the second signal. The process then ends at once.
            All data that must survive must already be on disk.

    Attributes:
        first: number of the first signal, or 0 if no signal has arrived.
    """

    def __init__(self, on_first: Callable[[], None], before_exit: Callable[[], None]) -> None:
        self.first = 0
        self._on_first = on_first
        self._before_exit = before_exit
        loop = asyncio.get_running_loop()
        for number in ENDING_SIGNALS:
            # If nohup started this process, keep SIGHUP ignored, because a handler would undo
            # nohup.
            hardened = number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
            if not hardened:
                loop.add_signal_handler(number, self._take, number)

    def _take(self, number: int) -> None:
        if self.first:
            self._before_exit()
            os._exit(ExitCode.SIGNAL + number)
        self.first = number
        self._on_first()
