"""Who is passed over, and since when. Knows times and counts; who they are, what they need and
what is done about it is not its business.

Whoever had a turn and did not fit is *passed over* from then on, as soon as others are placed. That
is noted once for all requests of a shape (where one of them does not fit, none does), and for each
gang and each slot that is to grow by itself. Whoever was passed over for `starvation_timeout_ms`,
or for `starvation_placements` placements, is *starving*. Being placed by a turn like any other ends
that.

Nothing is kept over a restart; whoever restores the books says from when it counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from resource_manager.engine.model.settings import Fairness

Waiter = Hashable
"""A shape (by identity), or the arrival number of what waits by itself."""

CHECK_INTERVAL_MS = 1_000
"""Whoever starves and could not be helped is looked at again after this."""

_DEAD_MAX = 1_024
"""Entries of those who are passed over no longer that may be kept, however few are."""


MARKS_PER_TIMEOUT = 4
"""So many times within the timeout it is noted who had come until then."""

_MARKS_MAX = 2 * MARKS_PER_TIMEOUT


class Mark(NamedTuple):
    """A moment (monotonic, perhaps before this incarnation), how many placements of everybody there
    had been, and the arrival number given out last.
    """

    since_ms: int
    placements: int
    last_arrival: int


class Blocked(NamedTuple):
    """Hosts that would do for somebody, had none of them been taken.

    Attributes:
        version: of the cluster, with how many slots stay.
        as_of: nothing else comes of looking again as long as this stays.
        hosts: these, until he has them.
    """

    version: tuple[int, int]
    as_of: tuple[int, int, int]
    hosts: frozenset[str]


@dataclass(slots=True, eq=False)
class StarvationRecord:
    """Somebody who had a turn in vain: all who wait with one shape, or one by himself.

    Attributes:
        waiter: it is.
        marks: that turn, and later moments until which it was in vain all along. Who came later
            than the first counts from a later one.
        hopeless: no hosts would do for it, as of this version of the cluster, and until then.
        blocked: it was found that hosts would do which others have or come before.
        outlasted: how many reservations of it were outlasted by what was to end.
    """

    waiter: Waiter
    marks: list[Mark]
    hopeless: tuple[int, int] = (-1, 0)
    blocked: Blocked | None = None
    outlasted: int = 0

    def of(self, arrival_number: int) -> Mark | None:
        """From when it counts for one of them; None: he has only just come."""
        return next((each for each in self.marks if each.last_arrival >= arrival_number), None)

    def is_hopeless(self, version: int, now_ms: int) -> bool:
        """True if it was found lately that no hosts of this version of the cluster would do."""
        return self.hopeless[0] == version and now_ms < self.hopeless[1]

    def add(self, mark: Mark) -> None:
        """It is still in vain."""
        self.marks.append(mark)
        if len(self.marks) > _MARKS_MAX:
            del self.marks[1]


class StarvationClocks:
    """All who are passed over.

    Attributes:
        placements: of everybody, in this incarnation.
        resume_at: with which of those who starve the next look begins, if the last one was not at
            all of them.
    """

    def __init__(self, settings: Fairness) -> None:
        self._settings = settings
        self.placements = 0
        self.resume_at = 0
        self._all: dict[Waiter, StarvationRecord] = {}
        self._heap: list[tuple[int, int, StarvationRecord]] = []  # since, number; some are over
        self._starved: dict[Waiter, StarvationRecord] = {}  # for long enough, longest first
        self._made = 0
        self._next_check_ms: int | None = None  # at those who are ripe
        self._stuck = False  # somebody starves whom it may be right to help later
        self._checked_placements = 0  # of everybody until the last look

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._all

    def of(self, waiter: Waiter) -> StarvationRecord | None:
        """Since when somebody is passed over; None: he is not."""
        return self._all.get(waiter)

    def start(self, waiter: Waiter, since_ms: int, last_arrival: int) -> None:
        """Somebody had a turn and did not fit; the first time counts."""
        if waiter in self._all or not self._settings.reservations_max:
            return
        record = StarvationRecord(waiter, [Mark(since_ms, self.placements, last_arrival)])
        self._all[waiter] = record
        if len(self._heap) > 2 * len(self._all) + _DEAD_MAX:
            self._heap = [
                entry for entry in self._heap if self._all.get(entry[2].waiter) is entry[2]
            ]
            heapq.heapify(self._heap)
        self._made += 1
        heapq.heappush(self._heap, (since_ms, self._made, record))

    def stop(self, waiter: Waiter) -> None:
        """Somebody was placed, or waits no more."""
        if self._all.pop(waiter, None) is not None:
            self._starved.pop(waiter, None)

    def has_starved(self, mark: Mark, now_ms: int) -> bool:
        """True if that was so long ago that whoever was passed over since then starves."""
        return self.placements > mark.placements and self._is_over(mark, now_ms)

    def starved(self, now_ms: int, last_arrival: int) -> list[StarvationRecord]:
        """Those of whom some were passed over for long enough, longest first; and notes who has
        come until now.
        """
        heap = self._heap
        while heap and self._is_over(heap[0][2].marks[0], now_ms):
            record = heapq.heappop(heap)[2]
            if self._all.get(record.waiter) is record:
                self._starved[record.waiter] = record
        for each in self._starved.values():
            if self._is_old(each.marks[-1], now_ms):
                each.add(Mark(now_ms, self.placements, last_arrival))
        return [each for each in self._starved.values() if self.has_starved(each.marks[0], now_ms)]

    def move_last(self, those: Iterable[StarvationRecord]) -> None:
        """Nothing would help them: all others are looked at first."""
        for each in those:
            if self._starved.pop(each.waiter, None) is not None:
                self._starved[each.waiter] = each

    def is_due(self, now_ms: int) -> bool:
        """True if it is time to look at them."""
        if self._heap and self._is_over(self._heap[0][2].marks[0], now_ms):
            return True
        return self._next_check_ms is not None and self._next_check_ms <= now_ms

    def check_at_once(self) -> None:
        """Somebody who is ripe may be helped now who could not be before."""
        self.resume_at = 0
        if self._starved:
            self._next_check_ms = 0

    def checked(self, now_ms: int, *, stuck: bool) -> None:
        """They were looked at; `stuck`: time alone may make it right to help somebody."""
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS if self._starved else None
        self._checked_placements = self.placements
        self._stuck = stuck

    def next_due_ms(self) -> int | None:
        """When the next look is due by time alone; None: only something that happens can make it
        due.
        """
        due = []
        news = self._stuck or self.placements > self._checked_placements
        if news and self._next_check_ms is not None:
            due.append(self._next_check_ms)
        if self._heap:
            due.append(self._heap[0][0] + self._settings.starvation_timeout_ms)
        return min(due, default=None)

    def _is_over(self, mark: Mark, now_ms: int) -> bool:
        if now_ms - mark.since_ms >= self._settings.starvation_timeout_ms:
            return True
        most = self._settings.starvation_placements
        return 0 < most <= self.placements - mark.placements

    def _is_old(self, mark: Mark, now_ms: int) -> bool:
        """True if it is time for another mark."""
        settings = self._settings
        if now_ms - mark.since_ms >= settings.starvation_timeout_ms // MARKS_PER_TIMEOUT:
            return True
        most = settings.starvation_placements
        since = self.placements - mark.placements
        return 0 < most <= since * MARKS_PER_TIMEOUT
