"""Checks all invariants of the state repeatedly, in short slices between the writer's batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from resource_manager.engine.state import State

Findings = Callable[[State], Iterable[str | None]]
"""Yields each broken invariant of a state as text, and None where the check can pause."""

SLICE_S = 0.003
"""Seconds after which a slice ends at its next possible pause."""

FIRST_SLICE_S = 0.01
"""The length of a slice in the first sweep of a state, in seconds. No slots are granted until the
first sweep has ended.
"""

SPARE = 2
"""The planned duration of a sweep is the window divided by this number. So a sweep that takes
longer than planned can still end within the window.
"""


class StateCheck:
    """Checks all invariants once in each window.

    Args:
        findings: the function that checks all invariants: a sweep.
        window_s: the time in which all invariants must be checked once, in seconds.
        clock: returns the current time in seconds. Tests replace it.
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
        self._took_s = 0.0  # time that this sweep has taken until now
        self._whole_s = 0.0  # time that the previous sweep took
        self.complete = False  # True: all invariants of the state were checked at least once

    def run(self, state: State, limit_s: float | None = None) -> list[str]:
        """Begins to check a state, and drops a sweep in progress. Returns broken invariants.

        Args:
            state: a state that was read from the store.
            limit_s: seconds after which this call returns. `run_slice` then continues the sweep.
                None: no limit.
        """
        self.complete = False
        self._begin(state)
        return self._continue(limit_s)

    def due(self) -> bool:
        """Returns True if a slice should be run now."""
        if not self.complete:
            return True
        # `elapsed` is the part of the period that has passed. The same part of the sweep should be
        # done.
        elapsed = (self._clock() - self._began_s) / self._period_s
        if self._sweep is None:
            return elapsed >= 1
        # If a sweep is ahead of its plan, no slice is due now. But if the sweep has already taken
        # longer than the sweep before, its remaining work is unknown, and a slice is due.
        return self._took_s < self._whole_s * elapsed or self._took_s >= self._whole_s

    def run_slice(self, state: State) -> list[str]:
        """Continues the sweep for a slice, or starts the next sweep. Returns broken invariants."""
        if self._sweep is None:
            self._begin(state)
        return self._continue(SLICE_S if self.complete else FIRST_SLICE_S)

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
        self.complete = True
        self._whole_s = self._took_s + self._clock() - started
        return found
