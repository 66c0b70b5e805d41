"""Starvation clocks: since when requests wait while others are placed.

A job's requests of one scheduling class share a clock, since they are served in order; each gang
and each resize has its own. A clock runs from when the first of them is queued until none is left.
They are *starved* when nothing of them was placed for `starvation_timeout_ms`, or during
`starvation_placements` placements of others. Nothing is stored: `restart` says when clocks started
that ran before a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


Waiter = tuple[SchedulingClass, str] | int
"""A job's requests of one class (class, job id), or the arrival number of a gang or resize."""


class StarvationClocks:
    """All clocks, those that have run longest first."""

    def __init__(self, flows: FlowTree | None) -> None:
        """`flows` tells the time and counts placements; None: no time passes."""
        self._flows = flows
        self._all: dict[Waiter, StarvationClock] = {}

    def __len__(self) -> int:
        return len(self._all)

    def start(self, waiter: Waiter) -> None:
        """Starts a clock, unless it runs."""
        if waiter not in self._all:
            self._all[waiter] = StarvationClock(self._now())

    def stop(self, waiter: Waiter) -> None:
        """Stops a clock."""
        self._all.pop(waiter, None)

    def served(self, waiter: Waiter) -> None:
        """Notes that a request was placed."""
        clock = self._all.get(waiter)
        if clock is not None:
            clock.served = self._now()

    def get(self, waiter: Waiter) -> StarvationClock | None:
        """Returns a clock; None: it does not run."""
        return self._all.get(waiter)

    def restart(self, since_ms: Callable[[Waiter], int]) -> None:
        """Sets all clocks to when their waiters began to wait, before this process started."""
        # Placements are counted from the start of this process, so all clocks begin with 0 of them.
        clocks = ((waiter, StarvationClock(Mark(since_ms(waiter), 0))) for waiter in self._all)
        # Sorted, because `starved` ends at the first clock that is not over.
        self._all = dict(sorted(clocks, key=lambda each: each[1].since))

    def is_over(self, mark: Mark, settings: Fairness) -> bool:
        """Returns True if what waits since `mark` is starved."""
        now = self._now()
        placed = now.placements - mark.placements
        most = settings.starvation_placements
        waited_ms = now.ms - mark.ms
        # While nothing is placed for others, the waiter loses nothing to them.
        return placed > 0 and (waited_ms >= settings.starvation_timeout_ms or 0 < most <= placed)

    def starved(self, settings: Fairness) -> tuple[list[Waiter], Mark]:
        """Returns waiters that have waited for long enough, the longest first; of some of them a
        request may have been placed meanwhile. Also returns since when the others wait at most.
        """
        found: list[Waiter] = []
        for waiter, clock in self._all.items():
            # Clocks are in the order in which they started, so all further ones are younger.
            if not self.is_over(clock.since, settings):
                return found, clock.since
            found.append(waiter)
        return found, self._now()

    def _now(self) -> Mark:
        flows = self._flows
        return Mark(flows.clock.now_ms, flows.placements) if flows is not None else Mark(0, 0)
