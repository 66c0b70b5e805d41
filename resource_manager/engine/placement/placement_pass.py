"""So many slots of one shape: on which hosts, and how many on each. A `PlacementPass` is one pass
over the books; everything in it is counted, nothing is made per slot.

Within a pass capacity only shrinks. So what a shape's search has passed stays passed; hosts that
had room stay candidates until they have none; how many fit is a division, and taking them one
subtraction per column of the index. What follows from the columns (their maxima and sums, how many
default slots fit) may be too high meanwhile, which costs a look in vain and never hides a host;
`finish` puts it right.

Knows capacity and rank. Who is served first, and what a slot is, `scheduling/cycle.py` knows.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

from resource_manager.engine.hosts.host import SCORE, Host
from resource_manager.engine.placement.exact import Asks, ExactSearch
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import CapacityIndex
from resource_manager.engine.placement.rank import (
    HOSTS_PER_CANDIDATE,
    Proportions,
    candidates_compared,
)
from resource_manager.engine.placement.reserved import Reservations
from resource_manager.engine.placement.search import Growth, Search
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

Run = tuple[str, int]
"""An executor's id, and how many slots are placed there."""

_Taken = tuple[int, int]
"""The same by position in the index."""


class PlacementPass:
    """One pass. The indexes must be fresh; until `finish`, nobody else may change them."""

    def __init__(self, hosts: Hosts, reservations: Reservations) -> None:
        self._hosts = hosts
        self._reservations = reservations
        self._settings = hosts.settings
        self._in_use = hosts.in_use  # no longer counted when there are enough to compare
        self._in_use_wanted = HOSTS_PER_CANDIDATE * self._settings.pack_candidates
        self._proportions: dict[CapacityIndex, Proportions] = {}
        self._searches: dict[SchedulingClass, Search] = {}
        self._exact: dict[SchedulingClass, ExactSearch] = {}
        self._asks = Asks(self._settings.hosts_asked_max)
        self._strict = hosts.indexes.aligning
        self._growth: dict[CapacityIndex, Growth] = {}
        for name in list(hosts.refusing):
            if name not in hosts or not hosts[name].refusals:
                del hosts.refusing[name]

    def has_room(self, scheduling_class: SchedulingClass) -> bool:
        """True if at least one slot of a shape can be placed."""
        known = scheduling_class in self._searches or scheduling_class in self._exact
        if not known and self._sleeps_on(scheduling_class):
            return False
        if not scheduling_class.topology_constrained and _ranked(self._search(scheduling_class), 1):
            return True
        return self._has_exact(scheduling_class) and self._exactly(scheduling_class).has_room()

    def has_room_for_more(self, scheduling_class: SchedulingClass) -> bool:
        """True if more than one slot of a shape can be placed, given that there is room for one."""
        if scheduling_class.topology_constrained:
            return self._exactly(scheduling_class).has_room_for_more()
        search = self._search(scheduling_class)
        if search.candidates and _fits_twice(search, search.candidates[0]):
            return True  # as it is with most: nobody has to be ranked
        ranked = _ranked(search, 2)
        if len(ranked) == 2 or (ranked and _fits_twice(search, ranked[0][1])):
            return True
        if not self._strict:
            return False
        exactly = self._exactly(scheduling_class)
        return exactly.has_room() if ranked else exactly.has_room_for_more()

    def place(
        self, scheduling_class: SchedulingClass, count: int, elsewhere: Collection[str] = ()
    ) -> list[Run]:
        """Takes capacity for up to `count` slots, on hosts other than those of `elsewhere`; fewer
        come back if nothing more fits.

        Books nothing: slots on hosts are the caller's to make, before it asks again; of those whose
        slots are placed exactly (`Host.needs_topology`) it lets the pass `follow` what was booked.
        Hosts that align everybody come after the others, whom amounts do: they are for those who
        need it.
        """
        if scheduling_class.cpus is None and not self._strict:
            return self._by_count(scheduling_class, count, elsewhere)  # as with most
        runs = (
            []
            if scheduling_class.topology_constrained
            else self._by_count(scheduling_class, count, elsewhere)
        )
        left = count - sum(share for _, share in runs)
        if left and self._has_exact(scheduling_class):
            spread = self._settings.strategy == "spread"
            search = self._exactly(scheduling_class)
            known = search.index.position
            besides = {known[name] for name in elsewhere if search.index.knows(name)}
            runs += search.place(left, spread=spread, besides=besides)
        return runs

    def asked(self, scheduling_class: SchedulingClass) -> int:
        """How many hosts were asked in this pass whether their cpus and NUMA nodes suit a shape."""
        search = self._exact.get(scheduling_class)
        return search.asked if search is not None else 0

    def stopped(self, scheduling_class: SchedulingClass) -> bool:
        """True if too many hosts answered in this pass that they cannot serve a shape, or others,
        and there are more: nobody knows yet whether there is room.
        """
        search = self._exact.get(scheduling_class)
        return search is not None and search.stopped

    def _by_count(
        self, scheduling_class: SchedulingClass, count: int, elsewhere: Collection[str]
    ) -> list[Run]:
        search = self._search(scheduling_class, elsewhere)
        settings = self._settings
        if settings.strategy == "spread":
            taken = self._spread(search, count)
        else:
            compared = candidates_compared(settings.pack_candidates, self._in_use)
            taken = _first_fit(search, count) if compared == 1 else _pack(search, count, compared)
            self._keep(search, taken)
        ids = search.index.ids
        return [(ids[position], share) for position, share in taken]

    def follow(self, hosts: Iterable[Host]) -> None:
        """Takes in what somebody else has booked on these hosts during the pass: a gang, or a slot
        that grows.
        """
        for host in hosts:
            self._hosts.indexes.follow(host)
            for index, proportions in self._proportions.items():
                if index.knows(host.host_id):
                    proportions.free.pop(index.position[host.host_id], None)
        self._in_use = max(self._in_use, self._hosts.in_use)

    def finish(self) -> None:
        """Makes the indexes exact again and remembers how far the searches came."""
        for search in self._searches.values():
            search.finish()
        for exact in self._exact.values():
            exact.finish()
        for proportions in self._proportions.values():
            proportions.settle()
        self._hosts.indexes.settle(self._hosts)

    def _sleeps_on(self, scheduling_class: SchedulingClass) -> bool:
        hosts = self._hosts
        index = hosts.indexes.made_for(scheduling_class.labels, hosts.values())
        growth = self._growth.get(index)
        if growth is None:
            growth = self._growth[index] = Growth(index, strict=bool(self._strict))
        return growth.passes_by(scheduling_class)

    def _search(self, scheduling_class: SchedulingClass, elsewhere: Collection[str] = ()) -> Search:
        hosts = self._hosts
        search = self._searches.get(scheduling_class)
        if (
            search is not None
            and search.index is hosts.indexes.of(scheduling_class.labels)
            and not elsewhere
        ):
            return search
        index = hosts.indexes.made_for(scheduling_class.labels, hosts.values())
        proportions = self._proportions.get(index)
        if proportions is None:
            proportions = self._proportions[index] = Proportions(index, hosts.indexes.main)
        search = Search(
            scheduling_class,
            proportions,
            hosts,
            self._barred(scheduling_class, index, elsewhere),
            aside=hosts.indexes.aligning_at(index).all if self._strict else (),
            every_host=index is hosts.indexes.main,
        )
        if not elsewhere:
            self._searches[scheduling_class] = search
        return search

    def _has_exact(self, scheduling_class: SchedulingClass) -> bool:
        """True if hosts have to be asked about a shape."""
        return bool(self._strict) or scheduling_class.topology_constrained

    def _exactly(self, scheduling_class: SchedulingClass) -> ExactSearch:
        hosts = self._hosts
        search = self._exact.get(scheduling_class)
        if search is not None and search.index is hosts.indexes.of(scheduling_class.labels):
            return search
        index = hosts.indexes.made_for(scheduling_class.labels, hosts.values())
        held = [name for name in self._reservations.on_host if name in hosts]
        search = self._exact[scheduling_class] = ExactSearch(
            scheduling_class,
            index,
            hosts,
            self._barred(scheduling_class, index, held),
            among=None
            if scheduling_class.topology_constrained
            else hosts.indexes.aligning_at(index),
            every_host=index is hosts.indexes.main,
            compared=self._settings.pack_candidates,
            asks=self._asks,
        )
        return search

    def _barred(
        self, scheduling_class: SchedulingClass, index: CapacityIndex, names: Iterable[str]
    ) -> set[int]:
        """Positions of these hosts, and of those that refused the shape lately."""
        hosts = self._hosts
        refusing = [name for name in hosts.refusing if hosts[name].refuses(scheduling_class)]
        return {index.position[name] for name in (*refusing, *names) if index.knows(name)}

    def _keep(self, search: Search, taken: list[_Taken]) -> None:
        """Notes where leaves of the search's index were lowered, and lowers the other indexes'."""
        index, hosts, indexes = search.index, self._hosts, self._hosts.indexes
        positions = [position for position, _ in taken]
        if self._in_use < self._in_use_wanted:
            new = set(positions) - index.taken
            self._in_use += sum(not hosts[index.ids[position]].slots for position in new)
        index.took(positions)
        if indexes.selected:
            for position, count in taken:
                host = hosts[index.ids[position]]
                amounts = (search.booking or search.booking_at(position)).amounts
                indexes.lower(host, amounts, count, besides=index)
                self._forget_elsewhere(index, host.host_id)

    def _forget_elsewhere(self, index: CapacityIndex, host_id: str) -> None:
        for other, proportions in self._proportions.items():
            if other is not index and other.knows(host_id):
                proportions.free.pop(other.position[host_id], None)

    def _spread(self, search: Search, count: int) -> list[_Taken]:
        """One slot at a time on the least loaded host."""
        index, hosts = search.index, self._hosts
        found = filter(search.admits, index.best_first(search.needs(), SCORE))
        taken: list[_Taken] = []
        loaded: list[tuple[int, int]] = []  # heap of hosts that got slots here
        ahead = next(found, None)
        while len(taken) < count and (loaded or ahead is not None):
            score = index.columns[SCORE][0]
            if ahead is not None and (not loaded or (-score[ahead], ahead) < loaded[0]):
                position, ahead = ahead, next(found, None)
            else:
                _, position = heapq.heappop(loaded)
            booking = search.booking or search.booking_at(position)
            hosts.indexes.lower(hosts[index.ids[position]], booking.amounts, 1)
            taken.append((position, 1))
            if all(leaves[position] >= amount for leaves, amount, _ in booking.columns):
                heapq.heappush(loaded, (-score[position], position))
        return taken


def _fits_twice(search: Search, position: int) -> bool:
    """True if two slots fit on a host."""
    for leaves, amount, _ in (search.booking or search.booking_at(position)).columns:
        if leaves[position] < amount + amount:
            return False
    return True


def _first_fit(search: Search, count: int) -> list[_Taken]:
    """As many as fit on the first host, then on the next."""
    taken: list[_Taken] = []
    candidates = search.candidates
    while count and (candidates or search.further()):
        position = candidates[0]
        booking = search.booking or search.booking_at(position)
        share = count
        for leaves, amount, _ in booking.columns:
            fit = leaves[position] // amount
            if fit < share:  # noqa: PLR1730 -- min() would cost more than all the rest
                share = fit
        if share < count:
            del candidates[0]
        if share:
            for leaves, amount, _ in booking.columns:
                leaves[position] -= amount * share
            search.proportions.free.pop(position, None)
            booking.owed += share
            count -= share
            taken.append((position, share))
    return taken


def _pack(search: Search, count: int, compared: int) -> list[_Taken]:
    """A part of each host with room, in order of rank, and again until nothing is left to place or
    nothing fits.
    """
    taken: list[_Taken] = []
    everywhere, free_of = search.booking, search.proportions.free
    while count and (ranked := _ranked(search, compared)):
        for _, position in ranked:
            booking = everywhere or search.booking_at(position)
            columns = booking.columns
            share = count if len(ranked) == 1 else min(count, booking.at_once)
            if share > 1:
                for leaves, amount, _ in columns:
                    fit = leaves[position] // amount
                    if fit < share:  # noqa: PLR1730
                        share = fit
            for leaves, amount, _ in columns:
                leaves[position] -= amount * share
            free_of[position] -= booking.weight * share
            booking.owed += share
            taken.append((position, share))
            count -= share
            if not count:
                break
    return taken


def _ranked(search: Search, most: int) -> list[tuple[int, int]]:
    """The first so many hosts with room, best first, as (affinity with the sign turned, position).

    Candidates that have no room any more are dropped on the way.
    """
    ranked: list[tuple[int, int]] = []
    candidates, free_of = search.candidates, search.proportions.free
    everywhere = search.booking.columns if search.booking is not None else None
    while len(ranked) < most and (len(ranked) < len(candidates) or search.further()):
        for position in candidates[len(ranked) : most]:
            affinity = 0
            columns = everywhere or search.booking_at(position).columns
            for leaves, amount, affinity_of_one in columns:
                free = leaves[position]
                if free < amount:
                    candidates.remove(position)
                    break
                affinity += free * affinity_of_one
            else:
                ranked.append((-affinity // (free_of[position] or 1), position))
    ranked.sort()
    return ranked
