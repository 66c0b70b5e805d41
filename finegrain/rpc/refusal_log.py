"""Logs refused calls at a limited rate. So a flood of refused calls cannot fill the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from finegrain.errors import FinegrainError

WINDOW_S = 10.0
LINES_MAX = 10
"""Maximum number of lines per method and reason within one window."""


@dataclass(slots=True)
class _Window:
    """The refusals of one method for one reason, in the window that began at `since_s`."""

    since_s: float
    lines: int = 0
    left_out: int = 0


class RefusalLog:
    """Writes a line for each of the first refusals in a window, and only counts later refusals.

    Example: a method is called 1,000 times a second with a wrong token. In each window of 10 s, the
    log gets 10 lines `call_refused`. The first line of the next window contains `left_out: 9990`.

    Args:
        log: the logger that writes the lines.
        clock: a function that returns the seconds of a monotonic clock.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._windows: dict[tuple[str, str], _Window] = {}

    def add(self, method: str, error: FinegrainError, peer: str) -> None:
        """Logs a refused call. If the window already has its maximum of lines, only counts the
        call.

        Args:
            method: full name of the method.
            error: the reason why the call was refused.
            peer: address of the caller.
        """
        key, now_s = (method, error.reason.value), self._clock()
        window = self._windows.get(key)
        left_out = 0
        if window is None or now_s - window.since_s >= WINDOW_S:
            left_out = window.left_out if window is not None else 0
            # There is a fixed number of methods and reasons. So this dict cannot grow without end.
            window = self._windows[key] = _Window(now_s)
        if window.lines >= LINES_MAX:
            window.left_out += 1
            return
        window.lines += 1
        extra: dict[str, object] = {
            "method": method,
            "reason": error.reason.value,
            "error": error.message,
            "peer": peer,
        }
        if left_out:
            extra["left_out"] = left_out
        self._log.info("call_refused", extra=extra)
