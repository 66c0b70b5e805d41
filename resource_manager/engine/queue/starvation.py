"""Measures, with starvation clocks, how long requests have waited while other requests were placed.

The requests of one job in one scheduling class are served in order, so they share a clock. Each
gang and each resize has its own clock. Requests that share a clock are called a *waiter*. A clock
starts when the first request of its waiter is queued, and stops when no request of the waiter is
pending.

A waiter is *starved* if two conditions are true since its own last placement (or since the start of
its clock, if it has had no placement). First, other requests were placed. Second,
`starvation_timeout_ms` have passed, or `starvation_placements` placements were made.

Example: the timeout is 300 s. A waiter's clock starts at second 0, and one of its requests is
placed at second 200. Other waiters get slots all the time. The waiter is starved from second 500
on.

Clocks are not stored. After a restart of the resource manager, `restart` sets their start times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.model.settings import Fairness
from resource_manager.engine.queue.scheduling_classes import SchedulingClass


class Mark(NamedTuple):
    """A moment: the monotonic time, and the number of placements of all jobs until then."""

    ms: int
    placements: int


@dataclass(slots=True, eq=False)
class StarvationClock:
    """The clock of one waiter.

    Attributes:
        since: when the waiter began to wait.
        served: when one of its requests was placed last; None: no request was placed.
        expired: number of its reservations that expired because slots did not end in time.
    """

    since: Mark
    served: Mark | None = None
    expired: int = 0


NEWLY_OVER_MAX = 2_000
"""One call of `starved` finds at most this many clocks that have run long enough."""

Waiter = tuple[SchedulingClass, str] | int
"""A job's requests of one class (class, job id), or the arrival number of a gang or resize."""


class StarvationClocks:
    """All clocks.

    Once a clock has run long enough, `starved` does not compare it again until it stops. So with
    100,000 clocks, the cost of a call depends only on the clocks that have run long enough since
    the last call.
    """

    def __init__(self, flows: FlowTree | None) -> None:
        """Makes an empty collection. `flows` provides the time and the number of placements; None:
        both are always 0.
        """
        self._flows = flows
        # `_over` has the clocks that have run long enough, and `_running` has the other clocks.
        # Both are in order of the start of the clocks. All clocks in `_over` are older than all in
        # `_running`.
        self._over: dict[Waiter, StarvationClock] = {}
        self._running: dict[Waiter, StarvationClock] = {}

    def __len__(self) -> int:
        return len(self._over) + len(self._running)

    def start(self, waiter: Waiter) -> None:
        """Starts the clock of a waiter, unless it is running."""
        if self.get(waiter) is None:
            self._running[waiter] = StarvationClock(self._now())

    def stop(self, waiter: Waiter) -> None:
        """Stops the clock of a waiter."""
        if self._running.pop(waiter, None) is None:
            self._over.pop(waiter, None)

    def served(self, waiter: Waiter) -> None:
        """Records that a request of a waiter was placed."""
        clock = self.get(waiter)
        if clock is not None:
            clock.served = self._now()

    def get(self, waiter: Waiter) -> StarvationClock | None:
        """Returns the clock of a waiter; None: no clock is running."""
        return self._running.get(waiter) or self._over.get(waiter)

    def restart(self, since_ms: Callable[[Waiter], int]) -> None:
        """Sets the start of each clock to the time when its waiter began to wait, which may be
        before this process started.

        Args:
            since_ms: returns this time (monotonic) for a waiter.
        """
        # This process counts placements from its own start, so all clocks begin at placement 0.
        waiters = (*self._over, *self._running)
        clocks = ((waiter, StarvationClock(Mark(since_ms(waiter), 0))) for waiter in waiters)
        # Sorted, because `starved` stops at the first clock that has not run long enough.
        self._over, self._running = {}, dict(sorted(clocks, key=lambda each: each[1].since))

    def is_over(self, mark: Mark, settings: Fairness) -> bool:
        """Returns True if a waiter is starved. `mark` is its last placement, or else the start of
        its clock.
        """
        now = self._now()
        placed = now.placements - mark.placements
        most = settings.starvation_placements
        waited_ms = now.ms - mark.ms
        # If no other request is placed, a waiter is never starved.
        return placed > 0 and (waited_ms >= settings.starvation_timeout_ms or 0 < most <= placed)

    def starved(self, settings: Fairness) -> tuple[Collection[Waiter], Mark]:
        """Returns the waiters whose clocks have run long enough, the oldest clock first.

        Some of these waiters may not be starved, because one of their requests was placed since the
        start of the clock. The second result is the start of the oldest clock that has not run long
        enough, or the current moment if there is none. If more than `NEWLY_OVER_MAX` clocks would
        be new in the result, the next call adds the remaining clocks.
        """
        over = []
        for waiter, clock in islice(self._running.items(), NEWLY_OVER_MAX):
            # Clocks are in the order of their start, so all later clocks are younger.
            if not self.is_over(clock.since, settings):
                break
            over.append(waiter)
        for waiter in over:
            self._over[waiter] = self._running.pop(waiter)
        first = next(iter(self._running.values()), None)
        return self._over.keys(), first.since if first is not None else self._now()

    def _now(self) -> Mark:
        flows = self._flows
        return Mark(flows.clock.now_ms, flows.placements) if flows is not None else Mark(0, 0)
