"""Places slots of a gang's members tentatively, to find out whether all members fit. At the end,
all changes are rolled back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, filterfalse

from finegrain.cpu_policy import CpuPolicy
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.scheduling_key import (
    IN_USE,
    SLOTS,
    Labels,
)
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.cpu_constraint import (
    NODE_CPU_MILLI,
    PIN_CORES,
    PIN_NODE_CPUS,
)
from resource_manager.engine.placement.device_constraint import MOST_LEFT
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import CapacityIndex, Need
from resource_manager.engine.placement.ledger import Bookings, Ledger, Mark
from resource_manager.engine.placement.placer import Candidates, Placer
from resource_manager.engine.placement.policies import POLICIES, Level, Tier
from resource_manager.engine.placement.search import CheckBudget, Scope, Search
from resource_manager.engine.queue.gangs import MemberRequest
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

HOSTS_AT_ONCE = 8
"""The number of hosts that one search returns together if hosts need not be compared."""

OF_ONE_SLOT = (PIN_CORES, PIN_NODE_CPUS, NODE_CPU_MILLI)
"""In these columns, the needs of several members on one host do not add up: the value of the host
must only be enough for one member. Each member can use another NUMA node, or other cpus of the same
cores.
"""

_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Equal members of a gang, for the time of a search for hosts.

    Attributes:
        number: the position of the members' request in the gang, which `Share` also contains.
        wanted: a scheduling class that only this search uses, so that the search does not change
            the cursors of the queued class with equal requests.
        count: the number of members.
        barred: the executors that must not be chosen for the members.
    """

    number: int
    wanted: SchedulingClass
    count: int
    barred: frozenset[str]

    @classmethod
    def of(cls, number: int, request: MemberRequest, barred: Collection[str]) -> Members:
        """Returns the members that share one request of a gang."""
        wanted = SchedulingClass(number, *request.key)
        return cls(number, wanted, request.count, frozenset(barred))


def least_needs(members: Sequence[Members]) -> list[Need]:
    """Returns the lowest values of index columns with which a host can serve at least one member.
    If the columns differ between hosts with one memory pool and hosts with separate pools, returns
    both sets of columns.
    """
    pooled = _least([needs_of(each.wanted).pooled for each in members])
    separate = _least([needs_of(each.wanted).separate for each in members])
    return [pooled] if pooled == separate else [pooled, separate]


def _least(needs: Sequence[Need]) -> Need:
    common = set(needs[0]).intersection(*needs[1:]).difference(OF_ONE_SLOT)
    return {name: min(need[name] for need in needs) for name in sorted(common)} or {SLOTS: 1}


class TentativePlacer(Placer):
    """A placer whose slots are rolled back. The search must end with `drop`. Until then, no other
    code must change the indexes.

    Attributes:
        topology: True if amounts alone do not decide whether members fit, so that the placer must
            also give cpus and NUMA nodes to slots.
    """

    _avoids_reserved = False  # the free amounts in the index already exclude reserved capacity

    def __init__(
        self, hosts: Hosts, members: Sequence[Members], prefix: str = "", *, may_build: bool = False
    ) -> None:
        """Starts a tentative ledger. No member is placed yet.

        Args:
            hosts: all hosts.
            members: the members to place.
            prefix: the prefix of index columns from which to take capacity; see `Ledger`.
            may_build: True if the placer is allowed to build indexes for the labels that members
                require.
        """
        # Build the indexes before the ledger, because the ledger sets its journal only in indexes
        # that exist.
        for each in members if may_build else ():
            hosts.indexes.get_or_build(each.wanted.labels, hosts.values())
        constrained = any(each.wanted.topology_constrained for each in members)
        self.topology = constrained or bool(hosts.indexes.aligning)
        ledger = Ledger(hosts, prefix, topology=self.topology)
        super().__init__(hosts, ledger)
        self._within: Labels = ()
        # After the first mark, the ledger records all changes and can roll them back.
        self._start = self._ledger.mark()
        self._columns = {
            name for each in members for need in needs_of(each.wanted).kinds for name in need
        }
        self._barred = {each.wanted: each.barred for each in members}
        self._scopes: dict[SchedulingClass, Scope] = {}
        # The number of failed checks has no limit: with a limit, a gang could seem infeasible after
        # the limit was used up.
        self._check_budget = CheckBudget(_UNLIMITED, 0)
        self._as_if_empty = bool(prefix)
        if self._as_if_empty:
            # If hosts are treated as empty, no host is in use, and any host with room is good
            # enough.
            self._policy = POLICIES["pack"]._replace(use_first=False)

    def hosts(self, members: Members) -> Iterator[str]:
        """Yields the hosts that have room for one of the members, the best of the compared hosts
        first. Hosts that are closed during the iteration are skipped.
        """
        # A search for one host passes members that stand for the whole gang. `__init__` did not get
        # these members.
        self._barred[members.wanted] = members.barred
        # Each call needs a new search, because `_ranked` removes the candidates that it yields.
        found = self._begin(members.wanted)
        index, yielded = found.scope.index, set[int]()
        for level in range(len(found.levels)):
            for at in self._ranked(found, level):
                # a host can be in several tiers
                if at not in yielded and index.ids[at] not in self._closed:
                    yielded.add(at)
                    yield index.ids[at]

    def room(self, members: Members, host_id: str, most: int) -> int:
        """Returns the number of these members that fit on a host, at most `most`."""
        found = self._place_at(members, host_id)
        return 0 if found is None else found[0].room(found[1], most)

    def take(self, members: Members, host_id: str, most: int) -> int:
        """Places as many of these members on a host as fit, at most `most`. Returns the number of
        placed members.
        """
        found = self._place_at(members, host_id)
        if found is None:
            return 0
        scope, position = found
        count = scope.room(position, most)
        if count:
            self._ledger.take(scope.bookings, position, count)
        return count

    def admits(self, members: Members, host_id: str) -> bool:
        """Returns True if a host has the labels that the members require, and the members are not
        barred from the host.
        """
        scope = self._scope(members.wanted)
        if not scope.index.knows(host_id) or scope.index.position[host_id] in scope.barred:
            return False
        return self._hosts[host_id].carries(scope.labels)

    def _place_at(self, members: Members, host_id: str) -> tuple[Scope, int] | None:
        if not self.admits(members, host_id):
            return None
        scope = self._scope(members.wanted)
        position = scope.index.position[host_id]
        need = scope.need(self._hosts[host_id])
        return (scope, position) if need and scope.index.covers(position, need) else None

    @property
    def index(self) -> CapacityIndex:
        """The index of all hosts."""
        return self._indexes.main

    def host(self, host_id: str) -> Host:
        """Returns a host."""
        return self._hosts[host_id]

    def free(self, host_id: str, name: str) -> int:
        """Returns the free amount of a host in a column of the index."""
        return self._indexes.main.value(host_id, name)

    def state(self, host_id: str) -> object:
        """Returns a key of a host's state. If two hosts have equal keys and equal labels, the same
        members fit on both hosts. If cpus matter, no two hosts have equal keys.
        """
        if self.topology and self._hosts[host_id].cpus is not None:
            return host_id
        return tuple(self.free(host_id, name) for name in self._columns)

    def hosts_with_room(self, members: Sequence[Members]) -> Iterator[tuple[str, int]]:
        """Yields each host with room for the smallest member, with the number of smallest members
        that fit there. Hosts in use come first. Only amounts are compared.
        """
        index, needs = self.index, least_needs(members)
        # Each member can use a different device. So the free capacity of one device does not limit
        # the number of members.
        counted = [
            {name: amount for name, amount in need.items() if not name.startswith(MOST_LEFT)}
            for need in needs
        ]
        in_use = index.columns[IN_USE][0] if IN_USE in index.columns else [0] * len(index)
        used = index.covering([{IN_USE: 1, **need} for need in needs])
        for at in chain(used, filterfalse(in_use.__getitem__, index.covering(needs))):
            host_id = index.ids[at]
            if not self._within or self._hosts[host_id].carries(self._within):
                yield host_id, max([index.room(at, need or {SLOTS: 1}) for need in counted])

    def close(self, host_id: str) -> None:
        """Takes all slots that a host can still get, so that `hosts` skips the host until
        `reopen`.
        """
        self._closed.add(host_id)
        self._ledger.close(self._hosts[host_id])

    def reopen(self) -> None:
        """Undoes `close`, and gives back all other taken capacity."""
        self._closed.clear()
        self.roll_back()

    def restrict(self, within: Labels) -> None:
        """Restricts all later searches to hosts that also carry these labels."""
        self._within = within
        # Both caches depend on the labels that hosts must carry.
        self._scopes.clear()
        self._found.clear()

    def mark(self) -> Mark:
        """Returns a mark to which the placer can roll back."""
        return self._ledger.mark()

    def roll_back(self, mark: Mark | None = None) -> None:
        """Gives back all capacity that was taken since a mark. If `mark` is None, gives back
        everything that was taken since the start.
        """
        self._ledger.roll_back(mark or self._start)
        self._found.clear()  # a host that was full possibly has room again

    def drop(self) -> None:
        """Gives back all taken capacity, and ends the placer."""
        self._ledger.drop()

    def _ranked(self, found: Candidates, level: int) -> Iterator[int]:
        searches, scope = found.searches(level), found.scope
        if self._policy.column is not None:
            need, sums = needs_of(scope.scheduling_class).pooled, self._indexes.main.sums
            for search in searches:
                yield from search.best_first(self._policy.column(need, sums))
            return
        while True:
            if searches[0].topology:
                best = found.window(
                    level, 1 if self._as_if_empty else self._hosts.settings.pack_candidates, ()
                )
                if len(best) > 1:
                    best.sort(key=found.rank)
            else:
                best = [at for _, at in self._by_affinity(searches, scope.bookings, ())]
            if not best:
                return
            # Remove the yielded hosts, so that the next ranking has only other hosts.
            for search in searches:
                search.drop(best)
            yield from best

    def _candidates(self, scheduling_class: SchedulingClass) -> Candidates:
        found = self._found.get(scheduling_class)
        if found is None:
            found = self._found[scheduling_class] = self._begin(scheduling_class)
        return found

    def _begin(self, scheduling_class: SchedulingClass) -> Candidates:
        return Candidates(self._scope(scheduling_class), self._levels(scheduling_class))

    def _scope(self, scheduling_class: SchedulingClass) -> Scope:
        scope = self._scopes.get(scheduling_class)
        if scope is None:
            own, index = scheduling_class.labels, self._indexes.main
            labels = own if not self._within else tuple(sorted({*own, *self._within}))
            # The best index is the index of all required labels. If only an index of some labels
            # exists, the search must still check all labels.
            for implied in (labels, self._within, own) if labels else ():
                if (selected := self._indexes.of(implied)) is not self._indexes.main:
                    index, labels = selected, () if implied == labels else labels
                    break
            barred = list(self._barred.get(scheduling_class, ()))
            # A refusal depends on the present state of a host, so refusals do not matter for an
            # empty host.
            if not self._as_if_empty:
                barred += self._refusing(scheduling_class)
            scope = self._scope_in(index, scheduling_class, labels, barred)
            self._scopes[scheduling_class] = scope
        return scope

    def _hosts_near(self, policy: CpuPolicy) -> set[str] | None:  # noqa: ARG002 -- of no policy
        return None  # members of the gang can be neighbors of each other

    def _by_affinity(
        self, searches: list[Search], bookings: Bookings, besides: Collection[int]
    ) -> list[tuple[int, int]]:
        if self._as_if_empty:  # any host is good enough
            return [(0, at) for at in searches[0].window(HOSTS_AT_ONCE, besides)]
        return super()._by_affinity(searches, bookings, besides)

    def _best_fit(self, found: Candidates, level: int, besides: set[int]) -> int | None:
        if self._as_if_empty:
            return next(iter(found.window(level, 1, besides)), None)
        return super()._best_fit(found, level, besides)

    def _levels(self, scheduling_class: SchedulingClass) -> tuple[Level, ...]:
        if self._as_if_empty:
            return ((Tier(aligning=bool(self._indexes.aligning)),),)
        return super()._levels(scheduling_class)
