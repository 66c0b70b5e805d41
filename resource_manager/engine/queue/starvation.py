"""Starvation clocks: since when requests wait while others are placed.

A job's requests of one scheduling class share a clock, since they are served in order; each gang
and each resize has its own. A clock runs from when the first of them is queued until none is left.
They are *starved* when nothing of them was placed for `starvation_timeout_ms`, or during
`starvation_placements` placements of others. Nothing is stored: `restart` says when clocks started
that ran before a restart.
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
    """A moment (monotonic), and the number of placements of all jobs until then."""

    ms: int
    placements: int


@dataclass(slots=True, eq=False)
class StarvationClock:
    """The clock of one waiter.

    Attributes:
        since: when it began to wait.
        served: when a request of it was placed last; None: none was.
        expired: number of its reservations that were given up because slots did not end.
    """

    since: Mark
    served: Mark | None = None
    expired: int = 0


TAKEN_IN_MAX = 2_000
"""Clocks that one call of `starved` finds to have run for long enough."""

Waiter = tuple[SchedulingClass, str] | int
"""A job's requests of one class (class, job id), or the arrival number of a gang or resize."""


class StarvationClocks:
    """All clocks. A clock that has run for long enough stays so until it stops, so each is compared
    only until then, and a check of 100,000 of them costs no more than what is new.
    """

    def __init__(self, flows: FlowTree | None) -> None:
        """`flows` tells the time and counts placements; None: no time passes."""
        self._flows = flows
        # Both in the order in which the clocks started. All of `_over` are older.
        self._over: dict[Waiter, StarvationClock] = {}
        self._running: dict[Waiter, StarvationClock] = {}

    def __len__(self) -> int:
        return len(self._over) + len(self._running)

    def start(self, waiter: Waiter) -> None:
        """Starts a clock, unless it runs."""
        if self.get(waiter) is None:
            self._running[waiter] = StarvationClock(self._now())

    def stop(self, waiter: Waiter) -> None:
        """Stops a clock."""
        if self._running.pop(waiter, None) is None:
            self._over.pop(waiter, None)

    def served(self, waiter: Waiter) -> None:
        """Notes that a request was placed."""
        clock = self.get(waiter)
        if clock is not None:
            clock.served = self._now()

    def get(self, waiter: Waiter) -> StarvationClock | None:
        """Returns a clock; None: it does not run."""
        return self._running.get(waiter) or self._over.get(waiter)

    def restart(self, since_ms: Callable[[Waiter], int]) -> None:
        """Sets all clocks to when their waiters began to wait, before this process started."""
        # Placements are counted from the start of this process, so all clocks begin with 0 of them.
        waiters = (*self._over, *self._running)
        clocks = ((waiter, StarvationClock(Mark(since_ms(waiter), 0))) for waiter in waiters)
        # Sorted, because `starved` ends at the first clock that is not over.
        self._over, self._running = {}, dict(sorted(clocks, key=lambda each: each[1].since))

    def is_over(self, mark: Mark, settings: Fairness) -> bool:
        """Returns True if what waits since `mark` is starved."""
        now = self._now()
        placed = now.placements - mark.placements
        most = settings.starvation_placements
        waited_ms = now.ms - mark.ms
        # While nothing is placed for others, the waiter loses nothing to them.
        return placed > 0 and (waited_ms >= settings.starvation_timeout_ms or 0 < most <= placed)

    def starved(self, settings: Fairness) -> tuple[Collection[Waiter], Mark]:
        """Returns waiters that have waited for long enough, the longest first; of some of them a
        request may have been placed meanwhile. Also returns since when the others wait at most.

        One call takes in at most `TAKEN_IN_MAX` clocks. If more have run for long enough, they are
        among the others, and a further call returns them as well.
        """
        over = []
        for waiter, clock in islice(self._running.items(), TAKEN_IN_MAX):
            # Clocks are in the order in which they started, so all further ones are younger.
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
