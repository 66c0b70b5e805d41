"""Starvation clocks: since when pending requests do not fit while others are placed.

All requests of a scheduling class share one clock: if one of them does not fit, none does. Each
gang and each resize has its own. A clock starts when the class or item is tried for the first time
and does not fit. It stops when the item is placed, or when requests of the class were placed and
more would fit. Once a clock has run for `starvation_timeout_ms`, or for `starvation_placements`
placements of others, the requests that waited all that time are *starved*, and may get a
reservation.

Requests of a class that arrived later must not count from its start. So a record has several
*marks*: moments, each with the last arrival number until then. Example with a timeout of 300 s: a
class does not fit at t = 0, when the last arrival number is 40. At t = 300 request 35 is starved,
and a second mark notes the last number 90. Request 60 counts from the second mark, and is starved
at t = 600.

Nothing is kept over a restart; the code that restores the state decides when clocks start.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from resource_manager.engine.model.settings import Fairness

Waiter = Hashable
"""A scheduling class (by identity), or the arrival number of a gang or resize."""

CHECK_INTERVAL_MS = 1_000
"""Starved requests that could not be helped are examined again after this."""

_DEAD_MAX = 1_024
"""Outdated entries that the heap may always hold, however few are of use."""


MARKS_PER_TIMEOUT = 4
"""Marks that are added to the record of a starved class within one timeout."""

_MARKS_MAX = 2 * MARKS_PER_TIMEOUT


class Mark(NamedTuple):
    """A moment (monotonic, perhaps before this process started), the number of placements of all
    jobs until then, and the last arrival number until then.
    """

    since_ms: int
    placements: int
    last_arrival: int


class Blocked(NamedTuple):
    """Hosts that would do for a starved request if no other reservation had them.

    Attributes:
        version: of the cluster, with the number of slots that outlasted a reservation.
        as_of: searching again gives the same result while this is unchanged.
        hosts: the hosts. No reservation of another one takes them until the request has them.
    """

    version: tuple[int, int]
    as_of: tuple[int, int, int]
    hosts: frozenset[str]


@dataclass(slots=True, eq=False)
class StarvationRecord:
    """The starvation clock of a class, a gang or a resize.

    Attributes:
        waiter: the class, or the arrival number.
        marks: the first failed attempt, and later moments. Requests that arrived after the first
            mark count from a later one.
        hopeless: a version of the cluster, and a time: until then no hosts of that version would
            do.
        blocked: hosts that would do, but belong to other reservations or to requests that come
            before.
        outlasted: number of reservations that were given up because slots did not end in time.
    """

    waiter: Waiter
    marks: list[Mark]
    hopeless: tuple[int, int] = (-1, 0)
    blocked: Blocked | None = None
    outlasted: int = 0

    def of(self, arrival_number: int) -> Mark | None:
        """Returns the mark that a request counts from; None: it arrived after all marks."""
        return next((each for each in self.marks if each.last_arrival >= arrival_number), None)

    def is_hopeless(self, version: int, now_ms: int) -> bool:
        """Returns True if a recent search found no hosts in this version of the cluster."""
        return self.hopeless[0] == version and now_ms < self.hopeless[1]

    def add(self, mark: Mark) -> None:
        """Adds a mark. Beyond the limit the oldest one after the first is dropped; its requests
        then count from a later mark, so they starve later and never too early.
        """
        self.marks.append(mark)
        if len(self.marks) > _MARKS_MAX:
            del self.marks[1]


class StarvationClocks:
    """All starvation clocks that run.

    Attributes:
        placements: placements of all jobs since this process started.
        resume_at: position among the starved at which the next search begins, if the last one did
            not get to all of them.
    """

    def __init__(self, settings: Fairness) -> None:
        self._settings = settings
        self.placements = 0
        self.resume_at = 0
        self._all: dict[Waiter, StarvationRecord] = {}
        # by start, then order of creation; some have stopped
        self._heap: list[tuple[int, int, StarvationRecord]] = []
        # clocks that have run for long enough, the oldest first
        self._starved: dict[Waiter, StarvationRecord] = {}
        self._made = 0
        self._next_check_ms: int | None = None  # when starved requests are examined next
        self._stuck = False  # time alone may make it possible to help one of them
        self._checked_placements = 0  # placements of all jobs at the last search

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._all

    def of(self, waiter: Waiter) -> StarvationRecord | None:
        """Returns the clock of a class or item; None: none runs."""
        return self._all.get(waiter)

    def start(self, waiter: Waiter, since_ms: int, last_arrival: int) -> None:
        """Starts a clock for what was tried and did not fit. Does nothing if one runs, or if
        reservations are turned off.

        Args:
            waiter: the class, or the arrival number of the item.
            since_ms: when the clock starts (monotonic).
            last_arrival: the last arrival number until then.
        """
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
        """Stops a clock: a request was placed, or none is pending any more."""
        if self._all.pop(waiter, None) is not None:
            self._starved.pop(waiter, None)

    def has_starved(self, mark: Mark, now_ms: int) -> bool:
        """Returns True if requests that count from this mark are starved: others were placed since,
        and the timeout (or the number of placements) is over.
        """
        return self.placements > mark.placements and self._is_over(mark, now_ms)

    def starved(self, now_ms: int, last_arrival: int) -> list[StarvationRecord]:
        """Returns records with starved requests, the oldest clock first. Also adds a mark to each
        record whose last mark is old enough.
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
        """Moves records for which no hosts would do behind all others."""
        for each in those:
            if self._starved.pop(each.waiter, None) is not None:
                self._starved[each.waiter] = each

    def is_due(self, now_ms: int) -> bool:
        """Returns True if starved requests must be examined now."""
        if self._heap and self._is_over(self._heap[0][2].marks[0], now_ms):
            return True
        return self._next_check_ms is not None and self._next_check_ms <= now_ms

    def check_at_once(self) -> None:
        """Makes the next search due now and start with the first record: something has changed that
        may make it possible to help a starved request.
        """
        self.resume_at = 0
        if self._starved:
            self._next_check_ms = 0

    def checked(self, now_ms: int, *, stuck: bool) -> None:
        """Notes that the starved requests were examined.

        Args:
            now_ms: now, monotonic.
            stuck: time alone may make it possible to help one of them.
        """
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS if self._starved else None
        self._checked_placements = self.placements
        self._stuck = stuck

    def next_due_ms(self) -> int | None:
        """Returns when the next search is due because of time alone; None: only an event makes it
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
        """Returns True if it is time for another mark."""
        settings = self._settings
        if now_ms - mark.since_ms >= settings.starvation_timeout_ms // MARKS_PER_TIMEOUT:
            return True
        most = settings.starvation_placements
        since = self.placements - mark.placements
        return 0 < most <= since * MARKS_PER_TIMEOUT
