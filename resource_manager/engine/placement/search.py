"""Finds hosts that can serve one scheduling class, in one placement pass.

A search visits the hosts of one tier (`policies.py`) in order of id. The capacity index leaves out
hosts that lack an amount. Where amounts do not decide, the cpus and NUMA nodes of each other host
are checked. Where the search stopped is stored with the class (`Cursor`), so that the next pass
continues there, and checks again only hosts that got more room.

Example: a pass fills the hosts at positions 3 and 7 with slots of a class, and no other host before
position 8 has room. The next pass starts at position 8. When a slot on the host at position 3 ends,
the index logs its growth, so the pass after that checks position 3 and then continues where the
last one stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.scheduling_key import ALIGNING, SLOTS, Labels, in_grains
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import CapacityIndex, Need
from resource_manager.engine.placement.ledger import Bookings, Ledger
from resource_manager.engine.placement.policies import Tier
from resource_manager.engine.queue.scheduling_classes import Cursor, SchedulingClass

GROWN_CHECKED_ONE_BY_ONE = 32
"""Up to this many hosts that got more room are checked directly, without a search of the tree."""

OPENED_AT_ONCE = 32
"""Up to this many hosts that were empty before the pass become candidates together."""

OPENED_UNCHECKED = 4
"""Up to this many of them become candidates unchecked, because the ranking checks them anyway."""


@dataclass(slots=True)
class Asks:
    """How many more checks of cpus and NUMA nodes may fail in one pass.

    Attributes:
        left: for all searches together.
        kept: the part of it that is kept for tiers that accept any number of unmet preferences.
    """

    left: int
    kept: int


@dataclass(slots=True, eq=False)
class Scope:
    """What the searches of one class in one pass have in common.

    Attributes:
        scheduling_class: the class.
        index: the index that is searched.
        bookings: what a slot takes on the hosts of the index.
        hosts: all hosts.
        ledger: what is taken of the hosts, cpus and NUMA nodes included.
        labels: required labels that the index does not imply.
        listed: positions of the hosts that carry them, if these are few; None: the index is
            searched.
        barred: positions of hosts that must not be chosen.
        closed: ids of hosts that must not be chosen; more may be added during the searches.
        avoids_reserved: where amounts do not decide, hosts with reserved capacity are left out.
        asks: how many more checks of cpus and NUMA nodes may fail.
    """

    scheduling_class: SchedulingClass
    index: CapacityIndex
    bookings: Bookings
    hosts: Hosts
    ledger: Ledger
    labels: Labels
    listed: list[int] | None
    barred: frozenset[int]
    closed: set[str]
    avoids_reserved: bool
    asks: Asks

    def room(self, position: int, most: int) -> int:
        """Returns how many slots fit a host, at most `most`."""
        for leaves, amount, _ in self.bookings.at(position).columns:
            most = min(most, leaves[position] // amount)
        return self.ledger.cpus.fit(self.scheduling_class, self.host(position), most)

    def host(self, position: int) -> Host:
        """Returns the host at a position of the index."""
        return self.hosts[self.index.ids[position]]

    def need(self, host: Host) -> Need:
        """Returns what one slot needs on a host, in index columns; empty: it cannot be there."""
        wanted = self.scheduling_class
        if wanted.profile is not None:
            needs = needs_of(wanted)
            return needs.separate if host.separate_pools else needs.pooled
        # What a default slot books is up to the host. Where that is nothing, it has none.
        booked = host.booking_for(wanted)
        return {**in_grains(booked), SLOTS: 1} if booked else {}


class Search:
    """The search for hosts of one tier that can serve a class.

    Between its start and `finish`, capacity may shrink but not grow.

    Attributes:
        tier: the tier.
        topology: amounts alone do not decide in this tier.
        candidates: positions of hosts that had room when they were found.
        asked: number of hosts whose cpus and NUMA nodes were checked.
        cut_off: the search ended early, because too many of these checks failed.
    """

    def __init__(self, scope: Scope, tier: Tier) -> None:
        self.tier = tier
        self.topology = tier.aligning or scope.scheduling_class.topology_constrained
        self.candidates: list[int] = []
        self.asked = 0
        self.cut_off = False
        self._scope = scope
        self._needs: list[Need] = []
        # Columns leave out reserved amounts, but do not tell which cpus the owner needs.
        self._avoids_reserved = self.topology and scope.avoids_reserved
        columns = scope.index.columns
        # Aligning hosts have a level for themselves, which asks about cpus.
        plain_only = not self.topology and bool(scope.hosts.indexes.aligning)
        self._aligning = columns[ALIGNING][0] if plain_only and ALIGNING in columns else None
        self._checked = self._avoids_reserved or bool(
            scope.barred or scope.labels or self._aligning is not None
        )
        self._skipped: set[int] = set()  # barred hosts with room
        self._read = 0  # entries of `index.opened` that were read
        self._ended = False  # only hosts of `index.opened` may follow
        self._frontier = 0  # the next position to visit
        self._again: list[int] = []  # positions before it to check again
        self._found: Iterator[list[int]] | None = None  # None: not begun

    def window(self, most: int, besides: Collection[int] = ()) -> list[int]:
        """Returns the first `most` hosts that have room and are not in `besides`. Drops candidates
        that have no room any more.
        """
        window: list[int] = []
        self.drop_opened()
        at = 0
        while len(window) < most and (at < len(self.candidates) or self.further()):
            position = self.candidates[at]
            # Asked first: `has_room` may compute cpus, and `besides` has every host that got
            # slots in this pass.
            if position in besides:
                at += 1
            elif self.has_room(position):
                window.append(position)
                at += 1
            else:
                del self.candidates[at]
        return window

    def further(self) -> bool:
        """Adds the next hosts to the candidates. Returns False if there are none, or if too many
        checks have failed.
        """
        # Only hosts that the pass opened could follow, and all of them were read.
        if self._ended and self._read == len(self._scope.index.opened):
            return False
        while not self.cut_off and (block := self._next_block()) is not None:
            if closed := self._scope.closed:
                ids = self._scope.index.ids
                block = [at for at in block if ids[at] not in closed]
            # The cheap checks come first: `_agrees` computes cpus and uses up the limit of checks.
            if self._checked:
                block = [at for at in block if self._admits(at)]
            if self.topology:
                block = [at for at in block if self._agrees(at)]
            if block:
                self.candidates += block
                return True
        return False

    def drop(self, positions: Collection[int]) -> None:
        """Drops candidates."""
        self.candidates[:] = [at for at in self.candidates if at not in positions]

    def drop_opened(self) -> None:
        """Drops candidates that were empty and have got slots. They now belong to the tier of hosts
        in use.
        """
        if self.tier.in_use is False and self.candidates:
            empty = self._scope.bookings.empty
            self.candidates[:] = [at for at in self.candidates if empty[at]]

    def has_room(self, position: int) -> bool:
        """Returns True if a candidate has room for one slot now."""
        scope = self._scope
        if not self.topology:
            for leaves, amount, _ in scope.bookings.at(position).columns:
                if leaves[position] < amount:
                    return False
            return True
        wanted, host = scope.scheduling_class, scope.host(position)
        need = scope.need(host)
        if not need or not scope.index.covers(position, need):
            return False
        if not scope.ledger.cpus.fit(wanted, host, 1):
            return False
        most = self.tier.unmet_max
        return most is None or scope.ledger.cpus.unmet(wanted, host) <= most

    def best_first(self, column: str) -> Iterator[int]:
        """Yields all hosts that have room, the highest score in a column first.

        Hosts whose check failed in an earlier pass, and that have not got more room since, are left
        out.
        """
        scope = self._scope
        self._begin()
        unknown = {*self._again, *self.candidates, *self._skipped}
        if scope.listed is None:
            best = scope.index.best_first(self._needs, column)
        else:
            value, ids = scope.index.value, scope.index.ids
            able = scope.index.covering_among(scope.listed, self._needs)
            best = iter(sorted(able, key=lambda at: (-value(ids[at], column), at)))
        for at in best:
            # It failed a check before this position was passed, and has not grown since.
            if self.topology and at < self._frontier and at not in unknown:
                continue
            if self._admits(at) and (not self.topology or self._agrees(at)):
                unknown.discard(at)
                yield at
            if self.cut_off:
                break
        # The checks are used up. Candidates from before need no search, so they still count.
        if self.cut_off:
            yield from (at for at in self.candidates if at in unknown and self.has_room(at))

    def with_amounts(self) -> Iterator[int]:
        """Yields all hosts that have the amounts. Those whose check failed in an earlier pass, and
        that have not got more room since, are left out.
        """
        scope = self._scope
        self._begin()
        unknown = {*self._again, *self.candidates, *self._skipped}
        if scope.listed is None:
            able = scope.index.covering(self._needs)
        else:
            able = iter(scope.index.covering_among(scope.listed, self._needs))
        for at in able:
            # It failed a check before this position was passed, and has not grown since.
            if not self.topology or at >= self._frontier or at in unknown:
                yield at

    def accepts(self, position: int) -> bool:
        """Returns True if a host has room and may be chosen. Counts a failed check."""
        if self._scope.index.ids[position] in self._scope.closed or not self._admits(position):
            return False
        if not self.topology:
            return self.has_room(position)
        # When the checks are used up, hosts that were found before still count.
        if self.cut_off:
            return position in self.candidates and self.has_room(position)
        return self._agrees(position)

    def finish(self) -> bool:
        """Stores where the search stopped. Returns True if no host of the tier has room."""
        if self._found is None:
            return False
        index = self._scope.index
        # Opened hosts that were not read belong to this tier when the next pass begins.
        unread = index.opened[self._read :] if self.tier.in_use else ()
        left = frozenset((*self._again, *self._skipped, *self.candidates, *unread))
        ended = self._frontier >= len(index) and not left
        if left and not self.topology:  # it costs less to find these again than to store them
            self._frontier, left = min(self._frontier, *left), frozenset()
        self._scope.scheduling_class.cursors[self.tier] = Cursor(
            index.version, len(index.grown), self._frontier, left
        )
        return ended

    def _begin(self) -> None:
        """Derives from the stored cursor where to continue, and which hosts before that to check
        again.
        """
        if self._found is not None:
            return
        in_tier = dict(self.tier.columns)
        self._needs = [{**in_tier, **need} for need in needs_of(self._scope.scheduling_class).kinds]
        wanted, index = self._scope.scheduling_class, self._scope.index
        version, log_length = wanted.searched
        cursor = wanted.cursors.get(self.tier)
        grown: list[int] = []
        # No host fitted at the last search, so only those that have grown since are checked.
        if version == index.version:
            self._frontier, grown = len(index), index.grown[log_length:]
        elif cursor is not None and cursor.version == index.version:
            # Otherwise the search goes on where it stopped in this tier.
            self._frontier = cursor.frontier
            grown = [*cursor.again, *index.grown[cursor.log_length :]]
        # For many grown hosts, searching the tree from the first one on is cheaper than single
        # checks. Not if each check computes cpus: then no host may be asked without need.
        if len(grown) > GROWN_CHECKED_ONE_BY_ONE and not self.topology:
            self._frontier = min(self._frontier, *grown)
        else:
            # Descending, because `pop` takes from the end.
            self._again = sorted({at for at in grown if at < self._frontier}, reverse=True)
        listed = self._scope.listed
        if listed is not None:
            listed = [at for at in listed if at >= self._frontier]
            block = index.covering_among(listed, self._needs)
            self._found = (
                ([at] for at in block) if self.topology else iter([block] if block else ())
            )
        elif self.topology:  # each is checked, so they come one at a time
            self._found = ([at] for at in index.covering(self._needs, self._frontier))
        else:
            self._found = index.covering_by_block(self._needs, self._frontier)

    def _next_block(self) -> list[int] | None:
        """Returns the next hosts that may have room; None: there are none."""
        if self._ended:
            return self._next_opened()
        self._begin()
        while self._again:
            at = self._again.pop()
            if self._covers(at):
                return [at]
        for block in self._found or ():
            # The index yields positions in order, so all hosts before this one are done.
            self._frontier = block[-1] + 1
            return block
        self._frontier, self._ended = len(self._scope.index), True
        return self._next_opened()

    def _next_opened(self) -> list[int] | None:
        """Returns the next hosts that were empty when the pass began and are in use now; None: no
        more.
        """
        index = self._scope.index
        if not self.tier.in_use or self._read == len(index.opened):
            return None
        most = 1 if self.topology else OPENED_AT_ONCE
        opened = index.opened[self._read : self._read + most]
        self._read += len(opened)
        booking = self._scope.bookings.everywhere
        if booking is None or self.topology:
            # Without the columns of the tier, since `IN_USE` is set only when the pass ends.
            needs = needs_of(self._scope.scheduling_class).kinds
            return [at for at in opened if any(index.covers(at, need) for need in needs)]
        if len(opened) > OPENED_UNCHECKED:
            for leaves, amount, _ in booking.columns:
                opened = [at for at in opened if leaves[at] >= amount]
        return opened

    def _covers(self, position: int) -> bool:
        return any(self._scope.index.covers(position, need) for need in self._needs)

    def _admits(self, position: int) -> bool:
        """Returns True if a host with room may be chosen."""
        if self._aligning is not None and self._aligning[position]:
            return False
        scope = self._scope
        if position in scope.barred or (
            self._avoids_reserved and scope.host(position).reserved is not None
        ):
            # It has room, so the next pass must look at it again.
            self._skipped.add(position)
            return False
        return not scope.labels or scope.host(position).carries(scope.labels)

    def _agrees(self, position: int) -> bool:
        """Checks the cpus and NUMA nodes of a host, and counts failed checks."""
        self.asked += 1
        if self.has_room(position):
            return True
        asks = self._scope.asks
        asks.left -= 1
        # Tiers that demand preferences leave a part of the checks to the tier that accepts any
        # host.
        self.cut_off = asks.left <= (0 if self.tier.unmet_max is None else asks.kept)
        return False


class Growth:
    """The hosts of an index that got more room, for the classes of one pass.

    A class that found no room anywhere in an earlier pass, and fits none of these hosts, stays
    blocked without a search. With many classes this is true of most that are unblocked, and a
    search costs ten times as much.
    """

    def __init__(self, index: CapacityIndex) -> None:
        self._index = index
        self._since: dict[int, tuple[list[int], _Most]] = {}  # by length of the log

    def passes_by(self, scheduling_class: SchedulingClass) -> bool:
        """Returns True if no host has got room for the class since its last search; False: that is
        unknown.
        """
        index = self._index
        version, log_length = scheduling_class.searched
        # Positions have changed their meaning, or the last search did not see all hosts.
        if version != index.version:
            return False
        positions, most = self._since.get(log_length) or self._look(log_length)
        if len(positions) > GROWN_CHECKED_ONE_BY_ONE:
            return False
        for need in needs_of(scheduling_class).kinds:
            # If even the maxima over all these hosts are too small, no single host needs a look.
            for name, amount in need.items():
                if most[name] < amount:
                    break
            else:
                if any(index.covers(position, need) for position in positions):
                    return False
        # So that the next check leaves these hosts out.
        scheduling_class.searched = version, len(index.grown)
        return True

    def _look(self, log_length: int) -> tuple[list[int], _Most]:
        """Returns the positions that were logged since then, and the maximum of each column over
        them. Both are cached.
        """
        positions = list(set(self._index.grown[log_length:]))
        found = self._since[log_length] = positions, _Most(self._index, positions)
        return found


class _Most(dict[str, int]):
    """The maximum of each column over some hosts, computed on first access."""

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
