"""Finds hosts for slots of a scheduling class, and takes the capacity. A `Placer` is one placement
pass. The placer computes the number of slots per host, and does not create an object for each slot.

For each class, the placer tries the levels of candidates in order (`policies.py`). If the class
needs only amounts, the placer computes with one division how many slots fit on a host, and takes
their capacity with one subtraction per index column. Otherwise the placer checks the cpus and NUMA
nodes of each candidate (`search.py`). At the end, the caller books the slots, and calls `follow`
with their hosts.

Example (strategy "pack"): the placer places 5 slots of 2 cpus. Hosts a and b are in use, and have 5
and 3 free cpus. Host c is empty, and has 8 free cpus. First a gets 2 slots and b gets 1 slot. Then
neither a nor b has 2 free cpus, so c gets the other 2 slots. The result is [("a", 2), ("b", 1),
("c", 2)].
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, filterfalse

from finegrain.cpu_policy import CpuPolicy
from finegrain.neighbors import NeighborRule
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.labeled_slots import near_rules
from resource_manager.engine.model.scheduling_key import Labels
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.gpu_hosts import GpuHosts
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import CapacityIndex
from resource_manager.engine.placement.ledger import Bookings, Ledger, Taken
from resource_manager.engine.placement.policies import POLICIES, Level, empty_compared, levels
from resource_manager.engine.placement.search import CheckBudget, Growth, Scope, Search
from resource_manager.engine.placement.stranding import Ranking
from resource_manager.engine.queue.scheduling_classes import NOT_SEARCHED, SchedulingClass

LISTED_MAX = 256
"""If at most this many hosts have the required labels, the placer checks each of these hosts
directly, and does not search the index.
"""

Run = tuple[str, int]
"""The id of an executor, and the number of slots that are placed there."""


class Placer:
    """One placement pass. The indexes must be up to date at its start. Until `finish`, no other
    code must change the indexes.
    """

    _avoids_reserved = True

    def __init__(self, hosts: Hosts, ledger: Ledger | None = None) -> None:
        self._hosts = hosts
        self._policy = POLICIES[hosts.settings.strategy]
        self._ledger = ledger or Ledger(hosts)
        self._indexes = self._ledger.indexes
        self._found: dict[SchedulingClass, Candidates] = {}
        self._growth: dict[CapacityIndex, Growth] = {}
        self._closed: set[str] = set()  # hosts that get no more slots in this pass
        most = hosts.settings.hosts_asked_max
        self._check_budget = CheckBudget(most, most // 2)
        # Remove hosts whose refusals were deleted. Each class checks all entries of `refusing`, so
        # entries without refusals would cost time.
        for name in list(hosts.refusing):
            if name not in hosts or not hosts[name].refusals:
                del hosts.refusing[name]

    def has_room(self, scheduling_class: SchedulingClass) -> bool:
        """Returns True if at least one slot of a class can be placed."""
        # Most unblocked classes still fit nowhere. This check finds most of these classes, at a
        # lower cost than a search.
        if scheduling_class not in self._found and scheduling_class.searched != NOT_SEARCHED:
            index = self._index_of(scheduling_class)
            if index not in self._growth:
                self._growth[index] = Growth(index)
            if self._growth[index].still_lacks_room(scheduling_class):
                return False
        return self._candidates(scheduling_class).first() is not None

    def has_room_for_more(self, scheduling_class: SchedulingClass) -> bool:
        """Returns True if more than one slot of a class can be placed. The caller must have checked
        that one slot can be placed.
        """
        found = self._candidates(scheduling_class)
        first = found.first()
        if first is None:
            return False
        # Either two slots fit on one host, or a second host has room for one slot.
        return found.scope.room(first, 2) > 1 or found.first(besides=(first,)) is not None

    def place(
        self, scheduling_class: SchedulingClass, count: int, elsewhere: Collection[str] = ()
    ) -> list[Run]:
        """Takes capacity for up to `count` slots.

        The caller must book the slots before the next call. If the booking chooses cpus and NUMA
        nodes for the slots (`Host.needs_topology`), the caller must also call `follow` with their
        hosts.

        Args:
            scheduling_class: the class of the slots.
            count: the largest number of slots to place.
            elsewhere: hosts that must not be chosen.

        Returns:
            Hosts with the number of slots on each host. The result has fewer than `count` slots in
            two cases: no more slots fit, or the caller must book these slots before the placer can
            know whether more slots fit.
        """
        if scheduling_class.cpus is not None and scheduling_class.policy.neighbor_job:
            # Tentative slots that were taken since the last call are possibly neighbors.
            self._found.pop(scheduling_class, None)
        found = self._candidates(scheduling_class)
        index = found.scope.index
        besides = {index.position[name] for name in elsewhere if index.knows(name)}
        runs: list[Run] = []
        for level in range(len(found.levels)):
            taken = self._place_on(found, level, count, besides)
            for position, share in taken:
                runs.append((index.ids[position], share))
                count -= share
            # A later level is less suitable, so it gets only slots that do not fit on an earlier
            # level. If devices are chosen at the booking, the caller must book these slots before
            # the placer tries the next level.
            if not count or (taken and (found.one_host_at_a_time(level) or found.scope.one_host)):
                break
        return runs

    def hosts_checked(self, scheduling_class: SchedulingClass) -> int:
        """Returns the number of hosts whose cpus and NUMA nodes this pass has checked for a
        class.
        """
        found = self._found.get(scheduling_class)
        return sum(search.hosts_checked for search in found.begun()) if found is not None else 0

    def cut_off(self, scheduling_class: SchedulingClass) -> bool:
        """Returns True if the search for a class was cut off because too many hosts were not
        suitable. In this case, a host that was not checked possibly has room.
        """
        found = self._found.get(scheduling_class)
        # Levels that require preferred policies do not count: the last level searches the same
        # hosts without this requirement.
        return found is not None and any(
            search.cut_off and search.tier.unmet_max is None for search in found.begun()
        )

    def follow(self, hosts: Iterable[Host]) -> None:
        """Reads the free capacity of these hosts again. The caller must call this method after it
        has booked a gang, a slot that grows, or slots whose cpus and NUMA nodes were chosen at the
        booking.
        """
        self._ledger.follow(hosts)

    def finish(self) -> None:
        """Ends the pass: updates the indexes, and stores where the searches stopped."""
        self._ledger.settle()
        for found in self._found.values():
            found.finish()
        self._indexes.end_pass()

    def _index_of(self, scheduling_class: SchedulingClass) -> CapacityIndex:
        return self._indexes.get_or_build(scheduling_class.labels, self._hosts.values())

    def _candidates(self, scheduling_class: SchedulingClass) -> Candidates:
        found = self._found.get(scheduling_class)
        # If an index for the labels was built after the search began, the search begins again in
        # this index.
        if (
            found is None
            or found.scope.index is not self._indexes.of(scheduling_class.labels)
            # Slots that were booked since the search began are possibly neighbors.
            or (
                scheduling_class.cpus is not None
                and scheduling_class.policy.neighbor_job
                and found.scope.labeled_version != self._hosts.labeled.version
            )
        ):
            found = self._found[scheduling_class] = self._begin(scheduling_class)
        return found

    def _begin(self, scheduling_class: SchedulingClass) -> Candidates:
        """Begins the searches of a class."""
        index, labels = self._index_of(scheduling_class), scheduling_class.labels
        # The index of a selector contains only hosts with its labels, so the labels need no check.
        labels = labels if index is self._indexes.main else ()
        refusing = self._refusing(scheduling_class)
        if scheduling_class.cpus is not None and scheduling_class.policy.neighbor_job:
            # The table of labeled slots finds some unsuitable hosts without a check of their cpus.
            # Unsuitable hosts that the table does not find are checked later.
            refusing += self._hosts.labeled.excluded(scheduling_class.policy)
        scope = self._scope_in(index, scheduling_class, labels, refusing)
        return Candidates(scope, self._levels(scheduling_class))

    def _refusing(self, scheduling_class: SchedulingClass) -> list[str]:
        """Returns the hosts that refused slots of a class recently."""
        hosts = self._hosts
        return [name for name in hosts.refusing if hosts[name].refuses(scheduling_class)]

    def _scope_in(
        self,
        index: CapacityIndex,
        scheduling_class: SchedulingClass,
        labels: Labels,
        barred: Iterable[str],
    ) -> Scope:
        """Returns the values that all searches for a class in an index share.

        Args:
            index: the index to search.
            scheduling_class: the class.
            labels: the required labels that the search must check, because the index also contains
                hosts without these labels.
            barred: hosts that must not be chosen.
        """
        listed = None
        # If few hosts have the labels, they are checked directly. A search of the index would read
        # every host with room.
        if labels and self._indexes.carrier_count(labels) <= LISTED_MAX:
            position, carriers = index.position, self._indexes.carriers(labels)
            listed = sorted([position[name] for name in carriers if name in position])
        near: tuple[NeighborRule, ...] = ()
        prefers = False
        if scheduling_class.cpus is not None and scheduling_class.policy.neighbors:
            near = near_rules(scheduling_class.policy)
            prefers = any(not each.required for each in scheduling_class.policy.neighbors)
        if near and (found := self._hosts_near(scheduling_class.policy)) is not None:
            listed = sorted(index.position[name] for name in found if index.knows(name))
        return Scope(
            scheduling_class,
            index,
            Bookings(scheduling_class, self._ledger.proportions(index), self._hosts),
            self._hosts,
            self._ledger,
            labels,
            listed,
            barred=frozenset(index.position[name] for name in barred if index.knows(name)),
            closed=self._closed,
            avoids_reserved=self._avoids_reserved,
            check_budget=self._check_budget,
            one_host=bool(near) or prefers,
            prefers_neighbors=prefers,
            labeled_version=self._hosts.labeled.version,
        )

    def _hosts_near(self, policy: CpuPolicy) -> set[str] | None:
        """Returns the only hosts on which the required rules `near` of a request can be met.
        Returns None if the rules can be met on any host.
        """
        table = self._hosts.labeled
        alone = table.without_neighbor(policy)
        rules = [each for each in near_rules(policy) if each.required and each not in alone]
        return set.intersection(*(table.near(policy, each) for each in rules)) if rules else None

    def _levels(self, scheduling_class: SchedulingClass) -> tuple[Level, ...]:
        return levels(
            scheduling_class,
            use_first=self._policy.use_first,
            aligning=bool(self._indexes.aligning),
            gpus=self._indexes.gpu_hosts.sums[0] > 0,
        )

    def _place_on(
        self, found: Candidates, level: int, count: int, besides: set[int]
    ) -> list[Taken]:
        """Takes capacity on the hosts of one level. If cpus and NUMA nodes are chosen at the
        booking, the function adds the hosts to `besides`, because these hosts must get no more
        slots until the slots are booked.
        """
        wanted = found.scope.scheduling_class
        # `topology` is equal in all tiers of a level.
        topology = found.searches(level)[0].topology
        if found.is_ranked(level):
            return self._least_stranding(found, level, count, besides)
        if self._policy.column is None:
            return (self._pack_each if topology else self._pack)(found, level, count, besides)
        column = self._policy.column(needs_of(wanted).pooled, self._indexes.main.sums)
        if topology:
            taken: list[Taken] = []
            for position in _best_first(found, level, column):
                # Place one slot per host, because the next free cpus are known only after the
                # caller has booked the slot.
                if len(taken) == count or (taken and found.scope.one_host):
                    break
                if position not in besides:
                    besides.add(position)
                    self._ledger.take(found.scope.bookings, position)
                    taken.append((position, 1))
            return taken
        return self._one_by_one(found, level, column, count, besides)

    def _pack(self, found: Candidates, level: int, count: int, besides: set[int]) -> list[Taken]:
        """Takes a part of each host with room, the best host first, until all slots are placed or
        no host has room.
        """
        taken: list[Taken] = []
        # This is the innermost loop of placement. So this loop uses local variables, and does the
        # arithmetic without function calls.
        bookings = found.scope.bookings
        empty_at, free_of = bookings.empty, bookings.free
        searches = found.searches(level)
        while count and (ranked := self._by_affinity(searches, bookings, besides)):
            # Rank the hosts again only after each host of this ranking has got a part of the slots.
            for _, position in ranked:
                booking = bookings.everywhere or bookings.at(position)
                columns = booking.columns
                # If only one host is left, the host gets all slots. Otherwise each host gets only a
                # part of the slots. The remaining capacity is left for slots with other proportions
                # of cpu and memory.
                share = count if len(ranked) == 1 else min(count, booking.at_once)
                # The ranking has just checked that one slot fits, so only more slots need a check.
                if share > 1:
                    for leaves, amount, _ in columns:
                        fit = leaves[position] // amount
                        if fit < share:  # noqa: PLR1730 -- min() would cost more than all the rest
                            share = fit
                for leaves, amount, _ in columns:
                    leaves[position] -= amount * share
                # The next access computes the weighted free capacity again from the leaves. So
                # rounding errors do not add up: the order of hosts must not depend on which indexes
                # exist.
                free_of.pop(position, None)
                # The sums of the index are corrected once, at the end of the pass.
                booking.owed += share
                if empty_at[position]:
                    self._ledger.open(bookings.index, position)
                taken.append((position, share))
                count -= share
                if not count:
                    break
        # One call for all hosts lowers the other indexes and marks the nodes to repair.
        self._ledger.took(bookings, taken)
        return taken

    def _by_affinity(
        self, searches: list[Search], bookings: Bookings, besides: Collection[int]
    ) -> list[tuple[int, int]]:
        """Returns some hosts with room as (negative affinity, position), the best host first. Empty
        hosts are included only if few hosts in use have room.
        """
        most = self._hosts.settings.pack_candidates
        used, *others = searches
        ranked = _affinities(used, most, bookings, besides)
        for empty in others if len(ranked) < most else ():
            compared = empty_compared(most, self._ledger.hosts_in_use)
            if len(ranked) < compared:
                ranked += _affinities(empty, compared - len(ranked), bookings, besides)
        ranked.sort()
        return ranked

    def _pack_each(
        self, found: Candidates, level: int, count: int, besides: set[int]
    ) -> list[Taken]:
        """Compares some hosts, and places as many slots as fit on the best host, then on the next
        best host, and so on.
        """
        taken: list[Taken] = []
        while count and (best := self._best_fit(found, level, besides)) is not None:
            # The host gets no more slots until the caller has booked these slots, because only the
            # booking chooses the cpus.
            besides.add(best)
            # With preferred rules about neighbors, it is possible that only the first slot on a
            # host meets the rules.
            most = 1 if found.scope.prefers_neighbors else count
            share = found.scope.room(best, most)
            self._ledger.take(found.scope.bookings, best, share)
            taken.append((best, share))
            count -= share
            if found.scope.one_host:
                break
        return taken

    def _least_stranding(
        self, found: Candidates, level: int, count: int, besides: set[int]
    ) -> list[Taken]:
        """Repeatedly places slots on the host where they strand the least GPU capacity. If devices
        are chosen at the booking, stops after the first host.
        """
        taken: list[Taken] = []
        scope = found.scope
        ranking = found.ranking(level, self._indexes.gpu_hosts, self._ledger.changed)
        while count:
            best = ranking.best(besides)
            # The ranking contains a limited number of hosts. If no ranked host has room, any other
            # host with room is used.
            if best is None and (window := found.window(level, 1, besides)):
                best = window[0]
            if best is None:
                break
            share = scope.room(best, ranking.share(best, count))
            self._ledger.take(scope.bookings, best, share)
            taken.append((best, share))
            count -= share
            if found.one_host_at_a_time(level):
                break
        return taken

    def _best_fit(self, found: Candidates, level: int, besides: set[int]) -> int | None:
        """Returns the host that meets the most preferred policies. Of equal hosts, returns the host
        with the least free cpu, so that hosts with much free cpu remain for large requests. A host
        in use comes before an empty host.
        """
        window = found.window(level, self._hosts.settings.pack_candidates, besides)
        return min(window, key=found.rank, default=None)

    def _one_by_one(
        self, found: Candidates, level: int, column: str, count: int, besides: set[int]
    ) -> list[Taken]:
        """Takes one slot at a time, on the host with the highest score."""
        bookings = found.scope.bookings
        index = bookings.index
        # Merge two lists in order of score: the hosts that got no slot in this call, and the hosts
        # that got slots. The second list is separate because slots change the score.
        ahead = filterfalse(besides.__contains__, _best_first(found, level, column))
        taken: list[Taken] = []
        again: list[tuple[int, int]] = []  # a heap of the hosts that got slots in this call
        position = next(ahead, None)
        while len(taken) < count and (again or position is not None):
            score = index.columns[column][0]
            # At equal scores the lower position comes first, as in the index.
            if position is not None and (not again or (-score[position], position) < again[0]):
                chosen, position = position, next(ahead, None)
            else:
                _, chosen = heapq.heappop(again)
            self._ledger.take(bookings, chosen)
            taken.append((chosen, 1))
            columns = bookings.at(chosen).columns
            if all(leaves[chosen] >= amount for leaves, amount, _ in columns):
                heapq.heappush(again, (-score[chosen], chosen))
        return taken


def _best_first(found: Candidates, level: int, column: str) -> Iterator[int]:
    """Yields the hosts of a level that have room, in descending order of their score in a column,
    tier by tier.
    """
    return chain.from_iterable([search.best_first(column) for search in found.searches(level)])


class Candidates:
    """The searches of one class in one pass, by level. A search begins when its hosts are
    needed.
    """

    def __init__(self, scope: Scope, order: tuple[Level, ...]) -> None:
        self.scope = scope
        self.levels = order
        self._searches: dict[int, list[Search]] = {}
        self._rankings: dict[int, Ranking] = {}

    def is_ranked(self, level: int) -> bool:
        """Returns True if the hosts of a level are ordered by the GPU capacity that a slot would
        strand.
        """
        return self.levels[level][0].ranked

    def one_host_at_a_time(self, level: int) -> bool:
        """Returns True if the caller must book the slots of one host before the placer chooses
        another host.
        """
        return self.is_ranked(level) and self.searches(level)[0].topology

    def ranking(self, level: int, gpu_hosts: GpuHosts, changed: list[str]) -> Ranking:
        """Returns the ranking of a level. The first call creates it.

        Args:
            level: the position of the level.
            gpu_hosts: the hosts with GPUs.
            changed: the hosts that changed in this pass; the caller can append more hosts later.
        """
        found = self._rankings.get(level)
        if found is None:
            found = Ranking(self.searches(level), self.scope, gpu_hosts, changed)
            self._rankings[level] = found
        return found

    def searches(self, level: int) -> list[Search]:
        """Returns the searches of a level, one search for each tier. The first call creates
        them.
        """
        found = self._searches.get(level)
        if found is None:
            found = [Search(self.scope, tier) for tier in self.levels[level]]
            self._searches[level] = found
        return found

    def begun(self) -> Iterator[Search]:
        """Yields the searches of all levels that were used until now."""
        return chain.from_iterable(self._searches.values())

    def first(self, besides: Collection[int] = ()) -> int | None:
        """Returns a host with room that is not in `besides`. Returns None if there is no such
        host.
        """
        for level in range(len(self.levels)):
            if window := self.window(level, 1, besides):
                return window[0]
        return None

    def window(self, level: int, most: int, besides: Collection[int]) -> list[int]:
        """Returns up to `most` hosts of a level that have room. These are hosts in use, or empty
        hosts if no host in use has room. If the search of hosts in use was cut off, the function
        returns no empty hosts, because a host in use that was not checked possibly has room.

        Args:
            level: the position of the level.
            most: the largest number of hosts.
            besides: the positions of hosts that must not be returned.
        """
        found: list[int] = []
        for search in self.searches(level):
            if found and not search.tier.in_use:
                break
            found += search.window(most - len(found), {*besides, *found})
            if search.cut_off and search.tier.unmet_max is None:
                break
        return found

    def rank(self, position: int) -> tuple[int, int, int, int]:
        """Returns the rank of a host after a check of its cpus. The best host has the lowest
        rank.
        """
        scope = self.scope
        wanted, host = scope.scheduling_class, scope.host(position)
        cpu = BEST_EFFORT_CPU_MILLI if wanted.best_effort else CPU_MILLI
        free = scope.index.value(host.host_id, cpu)
        # Compare preferred policies first, then the free cpu. The position breaks ties.
        return scope.ledger.cpus.unmet(wanted, host), free, -host.score(wanted), position

    def finish(self) -> None:
        """Stores in the scheduling class the positions at which its searches stopped."""
        # Slots of the job that start or end change where rules about neighbors can be met, even if
        # no host gets more room. So the next search checks all hosts again.
        wanted = self.scope.scheduling_class
        if wanted.cpus is not None and wanted.policy.neighbor_job:
            return
        # It is certain that no host has room only if every level was searched to its end.
        index, full = self.scope.index, len(self._searches) == len(self.levels)
        for search in self.begun():
            ended = search.finish()
            # A level with a limit of missed policies counts as searched, because the last level
            # searches all hosts, without this limit.
            full = full and (ended or search.tier.unmet_max is not None)
        self.scope.scheduling_class.searched = (
            (index.version, len(index.grown)) if full else NOT_SEARCHED
        )


def _affinities(
    search: Search, most: int, bookings: Bookings, besides: Collection[int]
) -> list[tuple[int, int]]:
    """Returns the first hosts of a search that have room, each as a pair of its negative affinity
    and its position. Removes candidates without room from the search.
    """
    ranked: list[tuple[int, int]] = []
    search.drop_opened()
    # Hosts in `besides` are removed at the end, so one further host is ranked for each of them.
    candidates, free_of, wanted = search.candidates, bookings.free, most + len(besides)
    everywhere = bookings.everywhere.columns if bookings.everywhere is not None else None
    # The loop removes full hosts from the candidates, so the first `len(ranked)` candidates are
    # always the ranked hosts.
    while len(ranked) < wanted and (len(ranked) < len(candidates) or search.further()):
        # Iterate over a slice, because the loop removes candidates.
        for position in candidates[len(ranked) : wanted]:
            affinity = 0
            for leaves, amount, affinity_of_one in everywhere or bookings.at(position).columns:
                free = leaves[position]
                if free < amount:
                    candidates.remove(position)
                    break
                affinity += free * affinity_of_one
            else:
                # The number is negative, so that the best host is sorted first. The divisor is 1
                # for a host without weighted free capacity.
                ranked.append((-affinity // (free_of[position] or 1), position))
    if besides:
        return [each for each in ranked if each[1] not in besides][:most]
    return ranked
