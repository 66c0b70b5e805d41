"""Starvation clocks measure how long requests have waited while others were placed.

The requests of one job in one scheduling class are served in order, so they share a clock. Each
gang and each resize has its own. Those that share a clock are called a *waiter*. A clock starts
when the first request of its waiter is queued, and stops when none is pending.

A waiter is *starved* if something was placed for others since its own last placement, and since
then `starvation_timeout_ms` have passed or `starvation_placements` placements were made. If none of
its requests was placed, both count from the start of its clock. Clocks are not stored. After a
restart of the resource manager, `restart` sets their start times.
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
    """A moment: the monotonic time, and the number of placements of all jobs up to it."""

    ms: int
    placements: int


@dataclass(slots=True, eq=False)
class StarvationClock:
    """The clock of one waiter.

    Attributes:
        since: when the waiter began to wait.
        served: when one of its requests was placed last; None: none was.
        expired: number of its reservations that were given up because slots did not end in time.
    """

    since: Mark
    served: Mark | None = None
    expired: int = 0


TAKEN_IN_MAX = 2_000
"""Most clocks that one call of `starved` newly finds to have run for long enough."""

Waiter = tuple[SchedulingClass, str] | int
"""A job's requests of one class (class, job id), or the arrival number of a gang or resize."""


class StarvationClocks:
    """All clocks. Once a clock has run for long enough, that stays true until it stops. So
    `starved` compares each clock only until then: with 100,000 clocks, a call costs only the new
    ones.
    """

    def __init__(self, flows: FlowTree | None) -> None:
        """Makes an empty collection. `flows` provides the time and the number of placements; None:
        no time passes.
        """
        self._flows = flows
        # `_over`: clocks that have run for long enough. Both are in order of the clocks' start, and
        # every clock of `_over` is older than those of `_running`.
        self._over: dict[Waiter, StarvationClock] = {}
        self._running: dict[Waiter, StarvationClock] = {}

    def __len__(self) -> int:
        return len(self._over) + len(self._running)

    def start(self, waiter: Waiter) -> None:
        """Starts the clock of a waiter, unless it runs."""
        if self.get(waiter) is None:
            self._running[waiter] = StarvationClock(self._now())

    def stop(self, waiter: Waiter) -> None:
        """Stops the clock of a waiter."""
        if self._running.pop(waiter, None) is None:
            self._over.pop(waiter, None)

    def served(self, waiter: Waiter) -> None:
        """Notes that a request of a waiter was placed."""
        clock = self.get(waiter)
        if clock is not None:
            clock.served = self._now()

    def get(self, waiter: Waiter) -> StarvationClock | None:
        """Returns the clock of a waiter; None: it does not run."""
        return self._running.get(waiter) or self._over.get(waiter)

    def restart(self, since_ms: Callable[[Waiter], int]) -> None:
        """Sets each clock's start to when its waiter began to wait, before this process started.

        Args:
            since_ms: returns that moment (monotonic) for a waiter.
        """
        # This process counts placements from its own start, so all clocks begin at placement 0.
        waiters = (*self._over, *self._running)
        clocks = ((waiter, StarvationClock(Mark(since_ms(waiter), 0))) for waiter in waiters)
        # Sorted, because `starved` ends at the first clock that is not over.
        self._over, self._running = {}, dict(sorted(clocks, key=lambda each: each[1].since))

    def is_over(self, mark: Mark, settings: Fairness) -> bool:
        """Returns True if a waiter that was last served, or began to wait, at `mark` is starved."""
        now = self._now()
        placed = now.placements - mark.placements
        most = settings.starvation_placements
        waited_ms = now.ms - mark.ms
        # A waiter is not starved while nothing is placed for others, however long it waits.
        return placed > 0 and (waited_ms >= settings.starvation_timeout_ms or 0 < most <= placed)

    def starved(self, settings: Fairness) -> tuple[Collection[Waiter], Mark]:
        """Returns the waiters whose clocks have run for long enough, the oldest clock first. Some
        of them may not be starved, because a request of theirs was placed meanwhile. The second
        result is a mark: no other waiter's clock started before it.

        One call moves at most `TAKEN_IN_MAX` clocks into the result. If more have run for long
        enough, the next call returns them as well.
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
