"""Hosts for those whom amounts alone do not say to fit: cpus of their own, NUMA nodes, or hosts
that align everybody. One search is one shape's way through an index during one pass.

The index leaves out hosts that cannot serve it for want of what it counts; each of the others is
asked, in order of id, until some have answered that they can. A host that cannot is passed, like
one without room, until it grows; so each is asked once. Nor is that done at one go: to ask costs
much more than to compare numbers, so in one pass only so many answer that they cannot (`Asks`), and
the next pass goes on with the others.

Of those that can one that gives all that is preferred is taken before others, then the one with
least free: what is large and whole stays so for those who need it. (How to choose among NUMA nodes
is a setting of each host, and says nothing about hosts; it decides between equally full ones.) It
gives as many as it can.

Books nothing, and lowers nothing: until the slots are booked and the pass has followed the hosts
(`PlacementPass.follow`), nobody may be placed there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from finegrain.cpu_assignment import CpuAssignment
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI
from resource_manager.engine.hosts.host import SCORE, Host
from resource_manager.engine.model.scheduling_key import SLOTS, in_grains
from resource_manager.engine.placement.index import CapacityIndex, Need
from resource_manager.engine.placement.indexes import Positions, carries
from resource_manager.engine.placement.search import needs_of
from resource_manager.engine.queue.scheduling_classes import SchedulingClass


@dataclass(slots=True)
class Asks:
    """How many hosts may still answer that they cannot, in one pass, to whoever asks."""

    left: int


class ExactSearch:
    """Hosts that can serve a shape.

    `among`: only these positions are looked at; None: all. `barred` are positions that must not be
    chosen, `every_host` says that the index is not that of the shape's labels alone, `compared` is
    how many hosts are compared for one slot, `asks` says when to stop. Capacity may shrink while
    the search lasts, not grow.

    Attributes:
        index: that is searched.
        asked: hosts that were asked so far.
        stopped: there are hosts left that were not asked, and that may serve one.
    """

    def __init__(
        self,
        scheduling_class: SchedulingClass,
        index: CapacityIndex,
        hosts: Mapping[str, Host],
        barred: Collection[int],
        *,
        among: Positions | None = None,
        every_host: bool = False,
        compared: int = 1,
        asks: Asks | None = None,
    ) -> None:
        self.index = index
        self.asked = 0
        self.stopped = False
        self._shape = scheduling_class
        self._hosts = hosts
        self._barred = barred
        self._among = among
        self._labels = scheduling_class.labels if every_host else ()
        self._compared = compared
        self._cursor = (
            scheduling_class.cursor if among is None else scheduling_class.aligning_cursor
        )
        self._asks = asks
        self._needs = needs_of(scheduling_class)
        self._candidates: list[int] = []
        self._skipped: set[int] = set()  # barred ones
        self._frontier = 0  # of those from here on none was asked
        self._again: list[int] = []  # of those before, these are to be asked; the last one first
        self._found = self._begin()

    def has_room(self) -> bool:
        """True if one can be placed."""
        return bool(self._window(1))

    def has_room_for_more(self) -> bool:
        """True if more than one can be placed."""
        window = self._window(2)
        if len(window) != 1:
            return bool(window)
        return self._room(window[0], 2) > 1

    def place(
        self, count: int, *, spread: bool = False, besides: Collection[int] = ()
    ) -> list[tuple[str, int]]:
        """Hosts for up to `count`, with how many on each, but none at the positions `besides`;
        "spread": one on each.
        """
        taken: list[tuple[str, int]] = []
        positions = self._least_loaded(besides) if spread else self._best_ones(besides)
        for at in positions:
            share = 1 if spread else self._room(at, count)
            taken.append((self.index.ids[at], share))
            count -= share
            if not count:
                break
        return taken

    def finish(self) -> None:
        """Remembers with the shape which hosts cannot serve it."""
        cursor, index = self._cursor, self.index
        cursor.version, cursor.log_length = index.version, len(index.grown)
        cursor.frontier = self._frontier
        cursor.again = frozenset((*self._again, *self._skipped, *self._candidates))

    def _begin(self) -> Iterator[int]:
        """Positions that cover what the index counts, from the frontier on; takes in what is to be
        asked again.
        """
        cursor, index, among = self._cursor, self.index, self._among
        if cursor.version == index.version:
            self._frontier = cursor.frontier
            again = cursor.again.union(index.grown[cursor.log_length :])
            if among is not None:
                again &= among.all
            self._again = sorted((at for at in again if at < self._frontier), reverse=True)
        if among is None:
            return index.covering(self._needs, self._frontier)
        positions = among.ordered[bisect_left(among.ordered, self._frontier) :]
        return filter(self._covered, positions)

    def _window(self, most: int, besides: Collection[int] = ()) -> list[int]:
        """The first so many positions that can serve one. Candidates that cannot any more are
        dropped on the way.
        """
        window: list[int] = []
        at = 0
        while len(window) < most and (at < len(self._candidates) or self._further()):
            position = self._candidates[at]
            if position in besides:
                at += 1
            elif self._can(position):
                window.append(position)
                at += 1
            else:
                del self._candidates[at]
        return window

    def _further(self) -> bool:
        """Adds the next host that can serve one to the candidates; False: there is none, or it is
        enough for this pass.
        """
        while not self.stopped and (position := self._next()) is not None:
            if not self._admits(position):
                continue
            self.asked += 1
            if self._can(position):
                self._candidates.append(position)
                return True
            if self._asks is not None:
                self._asks.left -= 1
                self.stopped = self._asks.left <= 0
        return False

    def _next(self) -> int | None:
        """The next position to look at; None: there is none."""
        while self._again:
            grown = self._again.pop()
            if self._covered(grown):
                return grown
        position = next(self._found, None)
        self._frontier = len(self.index) if position is None else position + 1
        return position

    def _covered(self, position: int) -> bool:
        return any(self.index.covers(position, need) for need in self._needs)

    def _admits(self, position: int) -> bool:
        if position in self._barred:
            self._skipped.add(position)
            return False
        return not self._labels or carries(self._host(position), self._labels)

    def _can(self, position: int) -> bool:
        host = self._host(position)
        need = self._need(host)
        return bool(need) and self.index.covers(position, need) and host.suits(self._shape)

    def _room(self, position: int, most: int) -> int:
        """How many a host can serve, so many at most."""
        host = self._host(position)
        room = self.index.room(position, self._need(host))
        return len(host.assign_many(self._shape, min(most, room)))

    def _need(self, host: Host) -> Need:
        """What one needs there, in columns; empty: it cannot go there."""
        scheduling_class = self._shape
        if scheduling_class.profile is not None:
            return (
                scheduling_class.separate_need
                if host.separate_pools
                else scheduling_class.pooled_need
            )
        booked = host.booking_for(scheduling_class)
        return {**in_grains(booked), SLOTS: 1} if booked else {}

    def _host(self, position: int) -> Host:
        return self._hosts[self.index.ids[position]]

    def _best_ones(self, besides: Collection[int]) -> Iterator[int]:
        """One host after the other, each the best of those compared."""
        used = set(besides)
        while window := self._window(self._compared, used):
            best = window[0] if len(window) == 1 else min(window, key=self._rank)
            used.add(best)
            yield best

    def _rank(self, position: int) -> tuple[int, int, int, int]:
        """Of hosts that can serve one the best has the least."""
        host, scheduling_class = self._host(position), self._shape
        given = host.assign(scheduling_class)
        unmet = len(given.notes) if isinstance(given, CpuAssignment) else 0
        cpu = BEST_EFFORT_CPU_MILLI if scheduling_class.best_effort else CPU_MILLI
        return unmet, self.index.value(host.host_id, cpu), -host.score(scheduling_class), position

    def _least_loaded(self, besides: Collection[int]) -> Iterator[int]:
        """Hosts that can serve one, the least loaded first."""
        unknown = {*self._again, *self._candidates}
        for position in self.index.best_first(self._needs, SCORE):
            if position in besides or (self._among and position not in self._among.all):
                continue
            if position < self._frontier and position not in unknown:
                continue  # it was asked
            if not self._admits(position):
                continue
            if self._can(position):
                unknown.discard(position)
                yield position
            elif self._asks is not None:
                self._asks.left -= 1
                if self._asks.left <= 0:
                    break
        for position in self._candidates:  # enough were asked; these have answered that they can
            if position in unknown and position not in besides and self._can(position):
                yield position
