"""Hosts for those whom amounts alone do not say to fit: cpus of their own, NUMA nodes, or hosts
that align everybody. One search is one shape's way through an index during one pass.

The index leaves out hosts that cannot serve it for want of what it counts; each of the others is
asked, in order of id, until some have answered that they can. A host that cannot is passed, like
one without room, until it grows; so each is asked once. Of those that can the best by score is
taken, and gives as many as it can.

Books nothing, and lowers nothing: until the slots are booked and the pass has followed the hosts
(`Placing.follow`), nobody may be placed there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from resource_manager.engine.host import SCORE, Host
from resource_manager.engine.placement.index import CapacityIndex, Need
from resource_manager.engine.placement.indexes import Positions, carries
from resource_manager.engine.placement.search import go_on, leave_at, needs_of
from resource_manager.engine.queue import SLOTS, Shape, in_grains
from resource_manager.engine.shapes import Cursor


class ExactSearch:
    """Hosts that can serve a shape.

    `among`: only these positions are looked at; None: all. `barred` are positions that must not be
    chosen, `every_host` says that the index is not that of the shape's labels alone, `compared` is
    how many hosts are compared for one slot. Capacity may shrink while the search lasts, not grow.

    Attributes:
        index: that is searched.
        asked: hosts that were asked so far.
    """

    def __init__(
        self,
        shape: Shape,
        index: CapacityIndex,
        hosts: Mapping[str, Host],
        barred: Collection[int],
        *,
        among: Positions | None = None,
        every_host: bool = False,
        compared: int = 1,
    ) -> None:
        self.index = index
        self.asked = 0
        self._shape = shape
        self._hosts = hosts
        self._barred = barred
        self._among = among
        self._labels = shape.labels if every_host else ()
        self._compared = compared
        self._cursor = shape.cursor if among is None else shape.strict_cursor
        self._candidates: list[int] = []
        self._passed, self._found = self._begin()
        self._ended = False
        self._skipped: int | None = None  # the first that was barred

    def has_room(self) -> bool:
        """True if one can be placed."""
        return bool(self._window(1))

    def has_room_for_more(self) -> bool:
        """True if more than one can be placed."""
        window = self._window(2)
        if len(window) != 1:
            return bool(window)
        return self._room(window[0], 2) > 1

    def place(self, count: int, *, spread: bool = False) -> list[tuple[str, int]]:
        """Hosts for up to `count`, with how many on each; "spread": one on each."""
        taken: list[tuple[str, int]] = []
        if spread:
            positions: Iterable[int] = self._least_loaded()
        else:
            positions = self._best_ones()
        for at in positions:
            share = 1 if spread else self._room(at, count)
            taken.append((self.index.ids[at], share))
            count -= share
            if not count:
                break
        return taken

    def finish(self) -> None:
        """Remembers with the shape that no host before the first candidate can serve it."""
        frontier = len(self.index) if self._ended else self._passed
        if self._candidates:
            frontier = self._candidates[0]
        frontier = frontier if self._skipped is None else min(frontier, self._skipped)
        leave_at(self.index, self._cursor, frontier)

    def _begin(self) -> tuple[int, Iterator[int]]:
        index, needs = self.index, needs_of(self._shape)
        if self._among is None:
            passed, blocks = go_on(index, self._cursor, needs)
            return passed, chain.from_iterable(blocks)
        return _go_on_among(self._among, index, self._cursor, needs)

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
        """Adds the next host that can serve one to the candidates; False: there is none."""
        for position in self._found:
            self._passed = position + 1
            if self._admits(position):
                self.asked += 1
                if self._can(position):
                    self._candidates.append(position)
                    return True
            elif self._skipped is None and position in self._barred:
                self._skipped = position
        self._ended = True
        return False

    def _admits(self, position: int) -> bool:
        if position in self._barred:
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
        shape = self._shape
        if shape.profile is not None:
            return shape.separate_need if host.separate_pools else shape.pooled_need
        booked = host.need_of(shape)
        return {**in_grains(booked), SLOTS: 1} if booked else {}

    def _host(self, position: int) -> Host:
        return self._hosts[self.index.ids[position]]

    def _best_ones(self) -> Iterator[int]:
        """One host after the other, each the best of those compared."""
        used: set[int] = set()
        while window := self._window(self._compared, used):
            best = window[0]
            if len(window) > 1:
                shape = self._shape
                best = min(window, key=lambda at: (-self._host(at).score(shape), at))
            used.add(best)
            yield best

    def _least_loaded(self) -> Iterator[int]:
        """Hosts that can serve one, the least loaded first."""
        for position in self.index.best_first(needs_of(self._shape), SCORE):
            if self._among is not None and position not in self._among.all:
                continue
            if self._admits(position) and self._can(position):
                yield position


def _go_on_among(
    among: Positions, index: CapacityIndex, cursor: Cursor, needs: list[dict[str, int]]
) -> tuple[int, Iterator[int]]:
    """As `go_on`, for some positions alone."""

    def covering(positions: Iterable[int]) -> Iterator[int]:
        return (at for at in positions if any(index.covers(at, need) for need in needs))

    if cursor.version != index.version:
        return 0, covering(among.ordered)
    grown = sorted(among.all.intersection(index.grown[cursor.log_length :]))
    passed = min([cursor.frontier, *grown[:1]])
    if cursor.frontier < len(index) or not grown:
        return passed, covering(among.ordered[bisect_left(among.ordered, passed) :])
    return passed, covering(grown)
