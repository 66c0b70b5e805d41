"""Finds hosts that can serve one scheduling class, in one placement pass.

A search reads the hosts of one tier (`policies.py`) in order of id. The capacity index skips hosts
that lack an amount. For topology-constrained classes and on aligning hosts, the search also checks
the cpus and NUMA nodes of each remaining host. The class stores the position where the search
stopped (`Cursor`). The next pass continues at this position, and checks earlier hosts again only if
these hosts have got more room.

Example: a pass fills the hosts at positions 3 and 7 with slots of a class, and no other host before
position 8 has room. The next pass starts at position 8. When a slot on the host at position 3 ends,
the index logs that this host got more room. So the following pass checks position 3 again, and then
continues where the last pass stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.scheduling_key import ALIGNING, SLOTS, Labels, in_grains
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import CapacityIndex, Need, alone
from resource_manager.engine.placement.ledger import Bookings, Ledger
from resource_manager.engine.placement.policies import Tier
from resource_manager.engine.queue.scheduling_classes import Cursor, SchedulingClass

GROWN_CHECKED_ONE_BY_ONE = 32
"""If at most this many hosts got more room, the search checks each of these hosts directly, and
does not search the tree.
"""

OPENED_AT_ONCE = 32
"""The largest number of hosts of `index.opened` that become candidates at once. These hosts were
empty when the pass began.
"""

OPENED_UNCHECKED = 4
"""If at most this many hosts of `index.opened` become candidates together, the search does not
check their amounts. The ranking checks the amounts anyway.
"""


@dataclass(slots=True)
class CheckBudget:
    """A limit for the number of failed checks of cpus and NUMA nodes in one pass.

    Attributes:
        left: the number of failed checks that are left, for all searches together.
        kept: the part of `left` that only tiers without a limit of unmet preferences can use.
    """

    left: int
    kept: int


@dataclass(slots=True, eq=False)
class Scope:
    """The values that all searches for one class in one pass share.

    Attributes:
        scheduling_class: the scheduling class of the slots.
        index: the index that the searches read.
        bookings: the amounts that a slot takes on each host of the index.
        hosts: all hosts.
        ledger: the capacity that the pass has taken, including cpus and NUMA nodes.
        labels: the required labels that the search must check, because the index also contains
            hosts without these labels.
        listed: the positions of the hosts with these labels, if there are only a few of these
            hosts. If None, the search reads the index.
        barred: the positions of hosts that must not be chosen.
        closed: the ids of hosts that must not be chosen. The caller can add ids during the
            searches.
        avoids_reserved: True if a search that checks cpus must skip hosts with a reservation.
        check_budget: the limit for failed checks of cpus and NUMA nodes.
        one_host: True if the caller must book the slots of one host before it places more slots,
            because the later slots possibly have to be near these slots.
        prefers_neighbors: True if some rules about neighbors are preferred.
        labeled_version: the version of the table of labeled slots for which the scope is valid.
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
    check_budget: CheckBudget
    one_host: bool = False
    prefers_neighbors: bool = False
    labeled_version: int = 0

    def room(self, position: int, most: int) -> int:
        """Returns the number of slots that fit on a host, at most `most`."""
        for leaves, amount, _ in self.bookings.at(position).columns:
            most = min(most, leaves[position] // amount)
        return self.ledger.cpus.fit(self.scheduling_class, self.host(position), most)

    def host(self, position: int) -> Host:
        """Returns the host at a position of the index."""
        return self.hosts[self.index.ids[position]]

    def need(self, host: Host) -> Need:
        """Returns the needs of one slot on a host, in index columns. The result is empty if the
        host cannot have such a slot.
        """
        wanted = self.scheduling_class
        if wanted.profile is not None:
            needs = needs_of(wanted)
            return needs.separate if host.separate_pools else needs.pooled
        # Each host defines the amounts of its default slot. If these amounts are empty, the host
        # gives no default slots.
        booked = host.booking_for(wanted)
        return {**in_grains(booked), SLOTS: 1} if booked else {}


class Search:
    """A search for the hosts of one tier that can serve a class.

    Between the start of a search and `finish`, free capacity can decrease, but must not increase.

    Attributes:
        tier: the tier that is searched.
        topology: True if amounts alone do not decide whether a slot fits in this tier, so that the
            search must also check cpus and NUMA nodes.
        candidates: the positions of hosts that had room when the search found them.
        hosts_checked: the number of hosts whose cpus and NUMA nodes were checked.
        cut_off: True if the search ended early because too many checks failed.
    """

    def __init__(self, scope: Scope, tier: Tier) -> None:
        self.tier = tier
        self.topology = tier.aligning or scope.scheduling_class.topology_constrained
        self.candidates: list[int] = []
        self.hosts_checked = 0
        self.cut_off = False
        self._scope = scope
        self._needs: list[Need] = []
        # The columns exclude reserved amounts. But it is not known which cpus the owner of a
        # reservation needs. So a search that checks cpus avoids reserved hosts.
        self._avoids_reserved = self.topology and scope.avoids_reserved
        columns = scope.index.columns
        # Aligning hosts have their own level, in which the search checks cpus.
        plain_only = not self.topology and bool(scope.hosts.indexes.aligning)
        self._aligning = columns[ALIGNING][0] if plain_only and ALIGNING in columns else None
        self._checked = self._avoids_reserved or bool(
            scope.barred or scope.labels or self._aligning is not None
        )
        self._skipped: set[int] = set()  # hosts with room that are barred or reserved
        self._read = 0  # number of entries of `index.opened` that were read
        # true if the index was searched to its end, so that only hosts of `index.opened` can follow
        self._ended = False
        self._frontier = 0  # the next position to check
        self._again: list[int] = []  # earlier positions to check again, in descending order
        self._found: Iterator[list[int]] | None = None  # None: the search has not begun

    def window(self, most: int, besides: Collection[int] = ()) -> list[int]:
        """Returns the first `most` hosts that have room and are not in `besides`. Removes
        candidates that have no room any more.
        """
        window: list[int] = []
        self.drop_opened()
        at = 0
        while len(window) < most and (at < len(self.candidates) or self.further()):
            position = self.candidates[at]
            # Check this first, because `has_room` sometimes computes cpus, which is costly.
            if position in besides:
                at += 1
            elif self.has_room(position):
                window.append(position)
                at += 1
            else:
                del self.candidates[at]
        return window

    def further(self) -> bool:
        """Adds the next hosts to the candidates. Returns False if there are no more hosts, or if
        too many checks have failed.
        """
        if self._ended and self._read == len(self._scope.index.opened):
            return False
        while not self.cut_off and (block := self._next_block()) is not None:
            if closed := self._scope.closed:
                ids = self._scope.index.ids
                block = [at for at in block if ids[at] not in closed]
            # Check the cheap conditions first, because `_check_cpus` computes cpus, and a failed
            # check uses up a part of the budget.
            if self._checked:
                block = [at for at in block if self._admits(at)]
            if self.topology:
                block = [at for at in block if self._check_cpus(at)]
            if block:
                self.candidates += block
                return True
        return False

    def drop(self, positions: Collection[int]) -> None:
        """Removes hosts from the candidates."""
        self.candidates[:] = [at for at in self.candidates if at not in positions]

    def drop_opened(self) -> None:
        """Removes candidates that were empty and have got slots, because these hosts now belong to
        the tier of hosts in use.
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
        """Yields all hosts that have room, in descending order of their score in a column.

        The function skips a host if its check failed in an earlier pass and the host has got no
        more room since the check.
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
            # The check of this host failed in an earlier pass, and the host has not got more room
            # since then.
            if self.topology and at < self._frontier and at not in unknown:
                continue
            if self._admits(at) and (not self.topology or self._check_cpus(at)):
                unknown.discard(at)
                yield at
            if self.cut_off:
                break
        # The budget of checks is used up, but earlier candidates can still be used.
        if self.cut_off:
            yield from (at for at in self.candidates if at in unknown and self.has_room(at))

    def with_amounts(self) -> Iterator[int]:
        """Yields all hosts that have the needed amounts. The function skips a host if its check
        failed in an earlier pass and the host has got no more room since the check.
        """
        scope = self._scope
        self._begin()
        unknown = {*self._again, *self.candidates, *self._skipped}
        if scope.listed is None:
            able = scope.index.covering(self._needs)
        else:
            able = iter(scope.index.covering_among(scope.listed, self._needs))
        for at in able:
            # Leave out a host if its check failed in an earlier pass and the host has got no more
            # room since then.
            if not self.topology or at >= self._frontier or at in unknown:
                yield at

    def accepts(self, position: int) -> bool:
        """Returns True if a host has room and can be chosen. A check that fails counts against the
        budget.
        """
        if self._scope.index.ids[position] in self._scope.closed or not self._admits(position):
            return False
        if not self.topology:
            return self.has_room(position)
        # If the budget of checks is used up, earlier candidates can still be used.
        if self.cut_off:
            return position in self.candidates and self.has_room(position)
        return self._check_cpus(position)

    def finish(self) -> bool:
        """Stores in the class the position at which the search stopped. Returns True if no host of
        the tier has room.
        """
        if self._found is None:
            return False
        index = self._scope.index
        # Hosts of `index.opened` that the search has not read yet belong to this tier in the next
        # pass.
        unread = index.opened[self._read :] if self.tier.in_use else ()
        left = frozenset((*self._again, *self._skipped, *self.candidates, *unread))
        ended = self._frontier >= len(index) and not left
        if left and not self.topology:  # finding these hosts again costs less than storing them
            self._frontier, left = min(self._frontier, *left), frozenset()
        self._scope.scheduling_class.cursors[self.tier] = Cursor(
            index.version, len(index.grown), self._frontier, left
        )
        return ended

    def _begin(self) -> None:
        """Reads the stored cursor: the position at which to continue, and the earlier hosts to
        check again.
        """
        if self._found is not None:
            return
        in_tier = dict(self.tier.columns)
        self._needs = [{**in_tier, **need} for need in needs_of(self._scope.scheduling_class).kinds]
        wanted, index = self._scope.scheduling_class, self._scope.index
        version, log_length = wanted.searched
        cursor = wanted.cursors.get(self.tier)
        grown: list[int] = []
        if version == index.version:
            # The last search found no host with room. So this search checks only hosts that have
            # got more room since then.
            self._frontier, grown = len(index), index.grown[log_length:]
        elif cursor is not None and cursor.version == index.version:
            # The last search stopped in this tier, so this search continues at the stored position.
            self._frontier = cursor.frontier
            grown = [*cursor.again, *index.grown[cursor.log_length :]]
        # If many hosts got more room, one search of the tree, from the first of these hosts on, is
        # cheaper than a direct check of each host. But if each check must compute cpus, which is
        # costly, check only the hosts that got more room.
        if len(grown) > GROWN_CHECKED_ONE_BY_ONE and not self.topology:
            self._frontier = min(self._frontier, *grown)
        else:
            # The order is descending, because `pop` takes from the end.
            self._again = sorted({at for at in grown if at < self._frontier}, reverse=True)
        listed = self._scope.listed
        if listed is not None:
            listed = [at for at in listed if at >= self._frontier]
            block = index.covering_among(listed, self._needs)
            self._found = (
                ([at] for at in block) if self.topology else iter([block] if block else ())
            )
        elif self.topology:  # each host is checked, so yield one host at a time
            self._found = map(alone, index.covering(self._needs, self._frontier))
        else:
            self._found = index.covering_by_block(self._needs, self._frontier)

    def _next_block(self) -> list[int] | None:
        """Returns the next hosts that possibly have room. Returns None if there are no more
        hosts.
        """
        if self._ended:
            return self._next_opened()
        self._begin()
        while self._again:
            at = self._again.pop()
            if self._covers(at):
                return [at]
        for block in self._found or ():
            # The index yields positions in order, so all earlier positions have been checked.
            self._frontier = block[-1] + 1
            return block
        self._frontier, self._ended = len(self._scope.index), True
        return self._next_opened()

    def _next_opened(self) -> list[int] | None:
        """Returns the next hosts that were empty when the pass began, and have slots now. Returns
        None if there are no more of these hosts.
        """
        index = self._scope.index
        if not self.tier.in_use or self._read == len(index.opened):
            return None
        most = 1 if self.topology else OPENED_AT_ONCE
        opened = index.opened[self._read : self._read + most]
        self._read += len(opened)
        booking = self._scope.bookings.everywhere
        if booking is None or self.topology:
            # The columns of the tier are not compared here, because `IN_USE` is set only at the end
            # of the pass.
            needs = needs_of(self._scope.scheduling_class).kinds
            return [at for at in opened if any(index.covers(at, need) for need in needs)]
        if len(opened) > OPENED_UNCHECKED:
            for leaves, amount, _ in booking.columns:
                opened = [at for at in opened if leaves[at] >= amount]
        return opened

    def _covers(self, position: int) -> bool:
        return any(self._scope.index.covers(position, need) for need in self._needs)

    def _admits(self, position: int) -> bool:
        """Returns True if a host can be chosen: it has the labels, and is not barred. Some searches
        also exclude reserved hosts or aligning hosts.
        """
        if self._aligning is not None and self._aligning[position]:
            return False
        scope = self._scope
        if position in scope.barred or (
            self._avoids_reserved and scope.host(position).reserved is not None
        ):
            # The host has room and is excluded only in this pass, so the next pass must check the
            # host again.
            self._skipped.add(position)
            return False
        return not scope.labels or scope.host(position).carries(scope.labels)

    def _check_cpus(self, position: int) -> bool:
        """Returns True if the cpus and NUMA nodes of a host are suitable. A check that fails counts
        against the budget.
        """
        self.hosts_checked += 1
        if self.has_room(position):
            return True
        budget = self._scope.check_budget
        budget.left -= 1
        # Tiers that require preferences must leave a part of the budget to the tier that accepts
        # any host.
        self.cut_off = budget.left <= (0 if self.tier.unmet_max is None else budget.kept)
        return False


class Growth:
    """The hosts of an index that got more room. The classes of one pass share this object.

    If an earlier pass found no room for a class, only the hosts that got more room can have room
    for the class now. If none of them has room, the class stays blocked without a search. If there
    are many classes, most unblocked classes are skipped in this way. A search would cost ten times
    as much.
    """

    def __init__(self, index: CapacityIndex) -> None:
        self._index = index
        # the key is the length of the log at the last search
        self._since: dict[int, tuple[list[int], _Most]] = {}

    def still_lacks_room(self, scheduling_class: SchedulingClass) -> bool:
        """Returns True if certainly no host has got room for the class since the last search for
        the class.
        """
        index = self._index
        version, log_length = scheduling_class.searched
        # If the versions differ, positions have changed, or the last search did not check all
        # hosts.
        if version != index.version:
            return False
        positions, most = self._since.get(log_length) or self._grown_since(log_length)
        if len(positions) > GROWN_CHECKED_ONE_BY_ONE:
            return False
        for need in needs_of(scheduling_class).kinds:
            # If a maximum over all hosts that got more room is too low, no single host needs a
            # check.
            for name, amount in need.items():
                if most[name] < amount:
                    break
            else:
                if any(index.covers(position, need) for position in positions):
                    return False
        # The next check can skip the hosts that were checked now.
        scheduling_class.searched = version, len(index.grown)
        return True

    def _grown_since(self, log_length: int) -> tuple[list[int], _Most]:
        """Returns the positions that were logged after the first `log_length` entries. Also returns
        the maximum of each column over these positions. Both results are cached.
        """
        positions = list(set(self._index.grown[log_length:]))
        found = self._since[log_length] = positions, _Most(self._index, positions)
        return found


class _Most(dict[str, int]):
    """The maximum of each column over some hosts. Each value is computed on first access."""

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
