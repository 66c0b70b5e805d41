"""Checks all invariants of the state again and again, in short slices between the writer's
batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from resource_manager.engine.state import State

Findings = Callable[[State], Iterable[str | None]]
"""Yields what is wrong with a state, and None where it may be left until after a batch."""

SLICE_S = 0.003
"""A slice ends at the first pause after this time."""

SPARE = 2
"""A sweep is spread over the window divided by this, so that it is over in time if it takes longer
than the one before.
"""


class StateCheck:
    """Checks all invariants once in each window.

    Args:
        findings: the sweep.
        window_s: in what time everything is checked.
        clock: replaces the clock, for tests.
    """

    def __init__(
        self,
        findings: Findings,
        window_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._findings = findings
        self._period_s = window_s / SPARE
        self._clock = clock
        self._sweep: Iterator[str | None] | None = None
        self._began_s = 0.0
        self._took_s = 0.0  # this sweep, until now
        self._whole_s = 0.0  # the sweep before

    def run(self, state: State) -> list[str]:
        """Checks everything at once and returns what is wrong. A sweep in progress is dropped."""
        self._begin(state)
        return self._continue(limit_s=None)

    def due(self) -> bool:
        """Returns True if a slice should be run now."""
        # The part of the period that has passed. The same part of the sweep should be done by now.
        elapsed = (self._clock() - self._began_s) / self._period_s
        if self._sweep is None:
            return elapsed >= 1
        # If this sweep takes longer than the previous one, the remaining work is unknown. A sweep
        # ahead of schedule needs no slice now, except if it takes longer than expected.
        return self._took_s < self._whole_s * elapsed or self._took_s >= self._whole_s

    def run_slice(self, state: State) -> list[str]:
        """Continues the sweep for a slice, or begins the next one; returns what is wrong."""
        if self._sweep is None:
            self._begin(state)
        return self._continue(limit_s=SLICE_S)

    def _begin(self, state: State) -> None:
        self._sweep = iter(self._findings(state))
        self._began_s, self._took_s = self._clock(), 0.0

    def _continue(self, limit_s: float | None) -> list[str]:
        started, found = self._clock(), []
        for finding in self._sweep or ():
            if finding is not None:
                found.append(finding)
            # The clock is read only where the sweep can pause.
            elif limit_s is not None and self._clock() - started >= limit_s:
                self._took_s += self._clock() - started
                return found
        self._sweep = None
        self._whole_s = self._took_s + self._clock() - started
        return found
