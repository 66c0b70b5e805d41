"""Measures how long requests have waited while other requests were placed. A starvation clock
measures this for each waiter.

The requests of one job in one scheduling class are served in order, so they share a clock. Each
gang and each resize has its own clock. A *waiter* is everything that has one clock: the requests of
a job in a class, a gang or a resize. A clock starts when the first request of its waiter is queued.
The clock stops when no request of the waiter is pending.

A waiter is *starved* if other requests have been placed, and if `starvation_timeout_ms` have passed
or `starvation_placements` requests have been placed. Time and placements count from the last
placement of the waiter or, without a placement, from the start of its clock.

Example: the timeout is 300 s. The clock of a waiter starts at second 0, and one of its requests is
placed at second 200. Other waiters get slots all the time. The waiter is starved from second 500
on.

Clocks are not stored. After the resource manager has restarted, `restart` sets their start times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.model.settings import Fairness
from resource_manager.engine.queue.scheduling_classes import SchedulingClass


class Mark(NamedTuple):
    """A moment: the monotonic time, and the number of placements of all jobs before this moment."""

    ms: int
    placements: int


@dataclass(slots=True, eq=False)
class StarvationClock:
    """The clock of one waiter.

    Attributes:
        since: the moment at which the waiter began to wait.
        served: the moment of the waiter's last placement, or None if no request of the waiter was
            placed.
        expired: the number of the waiter's reservations that expired because slots did not end in
            time.
    """

    since: Mark
    served: Mark | None = None
    expired: int = 0


NEWLY_OVER_MAX = 2_000
"""One call of `starved` finds at most this many further clocks that have run long enough."""

Waiter = tuple[SchedulingClass, str] | int
"""A waiter. For a job's requests of one class, this is a pair (class, job id). For a gang or a
resize, this is its arrival number.
"""


class StarvationClocks:
    """All clocks.

    After a clock has run long enough, `starved` does not check this clock again. So the cost of a
    call depends only on the clocks that have run long enough since the last call. Even with 100,000
    clocks, a call is cheap.
    """

    def __init__(self, flows: FlowTree | None) -> None:
        """Creates an empty collection. `flows` provides the time and the number of placements. If
        `flows` is None, the time and the number are always 0.
        """
        self._flows = flows
        # `_over` contains the clocks that have run long enough, and `_running` contains all other
        # clocks. Each dict is sorted by the start of the clocks. Each clock in `_over` is older
        # than each clock in `_running`.
        self._over: dict[Waiter, StarvationClock] = {}
        self._running: dict[Waiter, StarvationClock] = {}

    def __len__(self) -> int:
        return len(self._over) + len(self._running)

    def start(self, waiter: Waiter) -> None:
        """Starts the clock of a waiter, unless the clock is running."""
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
        """Returns the clock of a waiter, or None if the waiter has no running clock."""
        return self._running.get(waiter) or self._over.get(waiter)

    def waiters(self) -> Iterator[Waiter]:
        """Yields all waiters, the oldest clock first."""
        yield from self._over
        yield from self._running

    def restart(self, since_ms: Callable[[Waiter], int]) -> None:
        """Sets the start of each clock to the time when its waiter began to wait. This time can be
        before the start of this process.

        Args:
            since_ms: a function that returns this time (monotonic) for a waiter.
        """
        # This process counts placements from its own start, so all clocks start at placement 0.
        waiters = (*self._over, *self._running)
        clocks = ((waiter, StarvationClock(Mark(since_ms(waiter), 0))) for waiter in waiters)
        # Sort the clocks, because `starved` stops at the first clock that has not run long enough.
        self._over, self._running = {}, dict(sorted(clocks, key=lambda each: each[1].since))

    def is_over(self, mark: Mark, settings: Fairness) -> bool:
        """Returns whether a waiter is starved. `mark` is the last placement of the waiter or,
        without a placement, the start of its clock.
        """
        now = self._now()
        placed = now.placements - mark.placements
        most = settings.starvation_placements
        waited_ms = now.ms - mark.ms
        # A waiter is not starved if no request was placed since the mark.
        return placed > 0 and (waited_ms >= settings.starvation_timeout_ms or 0 < most <= placed)

    def starved(self, settings: Fairness) -> tuple[Collection[Waiter], Mark]:
        """Returns the waiters whose clocks have run long enough, the oldest clock first, and a
        mark.

        A returned waiter is possibly not starved, because one of its requests was placed after the
        start of the clock. The mark is the start of the oldest clock that has not run long enough.
        If there is no such clock, the mark is the current moment. If more than `NEWLY_OVER_MAX`
        clocks have run long enough since the last call, the next call returns the remaining
        waiters, too.
        """
        over = []
        for waiter, clock in islice(self._running.items(), NEWLY_OVER_MAX):
            # Clocks are sorted by their start, so all later clocks are younger.
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
