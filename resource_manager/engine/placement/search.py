"""One shape's way through an index during one pass: hosts with room, in order of id.

Remembers with the shape how far it came, so that the next pass begins there and, where nothing was
left, looks only at hosts that grew since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from resource_manager.engine.hosts.bookings import shared_booking
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.placement.index import CapacityIndex
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.placement.rank import Booking, Proportions
from resource_manager.engine.queue.scheduling_classes import Cursor, SchedulingClass

GROWN_CHECKED_ONE_BY_ONE = 32
"""Up to this many grown hosts are looked at directly instead of searching the tree."""


class Growth:
    """Which hosts of an index grew, in one pass. Lets a shape that was looked for everywhere, and
    fits none of those that grew since, sleep on: with many shapes most that wake go this way, and a
    search costs ten times as much.
    """

    def __init__(self, index: CapacityIndex, *, strict: bool = False) -> None:
        """`strict`: there are hosts that align everybody, which have a search of their own."""
        self._index = index
        self._strict = strict
        self._since: dict[int, tuple[list[int], _Most]] = {}  # by length of the log

    def passes_by(self, scheduling_class: SchedulingClass) -> bool:
        """True if nothing that grew since the shape was last tried has room for it, which is
        remembered with it then; False says nothing.
        """
        index, cursor = self._index, scheduling_class.cursor
        if not _is_through(cursor, index):
            return False
        strict = scheduling_class.aligning_cursor
        through = _is_through(strict, index) and strict.log_length >= cursor.log_length
        if self._strict and not scheduling_class.topology_constrained and not through:
            return False
        positions, most = self._since.get(cursor.log_length) or self._look(cursor.log_length)
        if len(positions) > GROWN_CHECKED_ONE_BY_ONE:
            return False
        pooled, separate = scheduling_class.pooled_need, scheduling_class.separate_need
        for need in (pooled,) if pooled == separate else (pooled, separate):
            for name, amount in need.items():
                if most[name] < amount:
                    break
            else:
                if any(index.covers(position, need) for position in positions):
                    return False
        cursor.log_length = len(index.grown)
        if through:
            strict.log_length = cursor.log_length
        return True

    def _look(self, log_length: int) -> tuple[list[int], _Most]:
        """Positions that grew since then, and the most that any of them had at the first look."""
        positions = list(set(self._index.grown[log_length:]))
        found = self._since[log_length] = positions, _Most(self._index, positions)
        return found


def _is_through(cursor: Cursor, index: CapacityIndex) -> bool:
    """True if a search went through all of an index as it is."""
    through = cursor.version == index.version and cursor.frontier >= len(index)
    return through and not cursor.again


class _Most(dict[str, int]):
    """The most that any of some hosts has, by column. Filled when asked."""

    def __init__(self, index: CapacityIndex, positions: list[int]) -> None:
        super().__init__()
        self._index = index
        self._positions = positions

    def __missing__(self, name: str) -> int:
        column = self._index.columns.get(name)
        most = 0
        if column is not None:
            most = max([column[0][position] for position in self._positions], default=0)
        self[name] = most
        return most


class Search:
    """Candidates of one shape: hosts, by position, that had room when they were found.

    `barred` are positions that must not be chosen, `aside` those that are looked at by themselves
    (`exact.py`), `every_host` says that the index is not that of the shape's labels alone;
    `booking` is what a slot takes on any host, None where hosts differ. Capacity may shrink while
    the search lasts, not grow. `finish` remembers how
    far it came; a search that is only thrown away changes nothing.
    """

    def __init__(
        self,
        scheduling_class: SchedulingClass,
        proportions: Proportions,
        hosts: Mapping[str, Host],
        barred: Collection[int],
        *,
        aside: Collection[int] = (),
        every_host: bool = False,
    ) -> None:
        self.index = proportions.index
        self.proportions = proportions
        self.candidates: list[int] = []
        self.barred = barred
        self._aside = aside
        self._shape = scheduling_class
        self._labels = scheduling_class.labels if every_host else ()
        self._hosts = hosts
        self.booking = self._booking_everywhere()
        self._bookings: dict[int, Booking] = {}  # by position, where hosts differ
        self._passed = 0  # everything before was looked at
        self._found = self._begin()
        self._ended = False
        self._skipped: int | None = None  # the first that was barred

    def needs(self) -> list[dict[str, int]]:
        """What a host must cover, by kind of host."""
        return needs_of(self._shape)

    def further(self) -> bool:
        """Adds the next hosts with room to the candidates; False: there are no more."""
        for block in self._found:
            self._passed = block[-1] + 1
            allowed = block
            if self.barred or self._aside or self._labels:
                allowed = [position for position in block if self.admits(position)]
                if self._skipped is None and len(allowed) < len(block):
                    self._skipped = next((at for at in block if at in self.barred), None)
            if allowed:
                self.candidates += allowed
                return True
        self._ended = True
        return False

    def admits(self, position: int) -> bool:
        """True if this host may be chosen, given that it has room."""
        if position in self.barred or position in self._aside:
            return False
        return not self._labels or carries(self._hosts[self.index.ids[position]], self._labels)

    def booking_at(self, position: int) -> Booking:
        """What a slot takes on this host, where `booking` does not say it for all."""
        booking = self._bookings.get(position)
        if booking is None:
            host = self._hosts[self.index.ids[position]]
            booking = self.proportions.booking(host.booking_for(self._shape))
            self._bookings[position] = booking
        return booking

    def finish(self) -> None:
        """Remembers with the shape that no host before the first candidate fits."""
        frontier = len(self.index) if self._ended else self._passed
        if self.candidates:
            frontier = self.candidates[0]
        frontier = frontier if self._skipped is None else min(frontier, self._skipped)
        leave_at(self.index, self._shape.cursor, frontier)

    def _booking_everywhere(self) -> Booking | None:
        """What a slot takes on any host; None if that differs between hosts."""
        scheduling_class, columns = self._shape, self.index.columns
        if scheduling_class.profile is None:
            return None
        kinds = [
            separate
            for separate, need in (
                (False, scheduling_class.pooled_need),
                (True, scheduling_class.separate_need),
            )
            if need.keys() <= columns.keys()
        ]
        alike = len(kinds) == 1 or scheduling_class.pooled_need == scheduling_class.separate_need
        if not kinds or not alike:
            return None
        return self.proportions.booking(
            shared_booking(scheduling_class.profile, kinds[0], scheduling_class.best_effort)
        )

    def _begin(self) -> Iterator[list[int]]:
        self._passed, found = go_on(self.index, self._shape.cursor, self.needs())
        return found


def needs_of(scheduling_class: SchedulingClass) -> list[dict[str, int]]:
    """What a host must cover for one, by kind of host."""
    pooled, separate = scheduling_class.pooled_need, scheduling_class.separate_need
    return [pooled] if pooled == separate else [pooled, separate]


def go_on(
    index: CapacityIndex, cursor: Cursor, needs: list[dict[str, int]]
) -> tuple[int, Iterator[list[int]]]:
    """Where a search goes on that came so far, and the hosts with room from there on."""
    if cursor.version != index.version:
        return 0, index.covering_by_block(needs)
    grown = sorted(set(index.grown[cursor.log_length :]))
    if not grown:
        return cursor.frontier, index.covering_by_block(needs, cursor.frontier)
    passed = min(cursor.frontier, grown[0])
    if cursor.frontier < len(index) or len(grown) > GROWN_CHECKED_ONE_BY_ONE:
        return passed, index.covering_by_block(needs, passed)
    return passed, ([at] for at in grown if any(index.covers(at, need) for need in needs))


def leave_at(index: CapacityIndex, cursor: Cursor, frontier: int) -> None:
    """Remembers that no host before this position fits."""
    cursor.version = index.version
    cursor.log_length = len(index.grown)
    cursor.frontier = frontier
