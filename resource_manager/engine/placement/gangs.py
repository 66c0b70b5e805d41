"""Finds hosts for all members of a gang, or for no member.

- SAME_EXECUTOR: the search finds one host with enough capacity for all members together.
- SPREAD: the search uses a bipartite matching of members and hosts, which is exact.
- ANYWHERE: equal members are placed like requests outside a gang, or by a matching if their labels
  differ. Both algorithms are exact. Members of different sizes are placed one after the other, the
  largest first (best fit decreasing). If some members do not fit, an exact search tries all
  arrangements, up to `STEPS_MAX` steps. If members need dedicated cpus or NUMA nodes, the exact
  search also tries two orders in which the members on a host get their cpus: the largest member
  first, and the smallest member first.
- SAME_LABEL: the search tries the values of the label one after the other. For each value, it
  places the members on the hosts with this value, in the same way as for ANYWHERE. A value is tried
  only if its hosts have enough room. As a quick check, all members are counted as copies of the
  smallest member. With the strategy "pack", the value with the least room comes first. With
  "spread" or "balanced", the value with the most room comes first.

Example (ANYWHERE): hosts a and b have 10 free cpus each. A gang has two members of 4 cpus and four
members of 3 cpus. The order "largest first" puts both large members on a (2 cpus left), and three
small members on b (1 cpu left). So the last small member does not fit. The exact search puts one
large and two small members on each host.

The result of a failed search is cached for all equal gangs. The cached result is valid until a host
that could serve a member gets more room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from finegrain.values.states import GangPlacement
from resource_manager.engine.hosts.labeled_slots import near_rules
from resource_manager.engine.model.scheduling_key import CpuKey, Labels, cpu_key, kinds_of
from resource_manager.engine.placement.columns import needs_of, size_of
from resource_manager.engine.placement.device_constraint import MOST_LEFT
from resource_manager.engine.placement.gang_packing import Matching, Packing
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import Need
from resource_manager.engine.placement.search import GROWN_CHECKED_ONE_BY_ONE
from resource_manager.engine.placement.tentative import (
    OF_ONE_SLOT,
    Members,
    TentativePlacer,
    least_needs,
)
from resource_manager.engine.queue.gangs import (
    FailedSearch,
    GangKind,
    MemberRequest,
    Share,
    WaitingGang,
    Where,
)
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

STEPS_MAX = 1_500
"""The largest number of steps of all exact searches for one gang. 1,500 steps take 10 to 20 ms.
Longer searches would delay other events.
"""

MORE_HOSTS_CHECKED_MAX = 128
"""After a search has found a promising value of the label, it looks for a better value among up to
this many more hosts with room.
"""


class GangSearch:
    """One search for hosts for a gang. The indexes must be up to date, or in use by a placement
    pass. The search leaves the indexes unchanged.

    Attributes:
        members: the members to place. Equal members are one entry.
        wanted: the number of members to place.
        steps_left: the number of steps that exact searches are still allowed to make.
        cut_off: True if the searches used up their steps, so that it is unknown whether the members
            fit.
    """

    def __init__(
        self,
        hosts: Hosts,
        where: Where,
        requests: Sequence[MemberRequest],
        *,
        prefix: str = "",
        barred: Sequence[frozenset[str]] = (),
        may_build: bool = False,
    ) -> None:
        """Prepares the search. `find` runs it.

        Args:
            hosts: all hosts.
            where: the rule for the hosts of the members, such as SPREAD.
            requests: the requests of the members. Equal members are one request.
            prefix: if the prefix is `KNOWN` or `ONLINE`, the search places members as if all hosts
                were empty, and uses the index columns with this prefix. If the prefix is empty, the
                search places members on free capacity.
            barred: for each request, the hosts that must not be chosen. If `barred` is empty, these
                are the hosts in `MemberRequest.elsewhere` of each request.
            may_build: see `TentativePlacer`.
        """
        self.steps_left = STEPS_MAX
        self.cut_off = False
        self._hosts = hosts
        self._where = where
        if not barred:
            barred = [frozenset() if prefix else request.elsewhere for request in requests]
        self.members = [
            Members.of(number, request, names)
            for number, (request, names) in enumerate(zip(requests, barred, strict=True))
        ]
        self.wanted = sum(each.count for each in self.members)
        self._placer = TentativePlacer(hosts, self.members, prefix, may_build=may_build)
        self._compares = not prefix  # among empty hosts, any host is good enough

    def find(self, among: Iterable[str] | None = None) -> list[Share] | None:
        """Returns hosts for all members, in the order in which the caller must book the members.
        Returns None if there are no such hosts, or if the search was cut off.

        Args:
            among: a set of hosts of which every possible result contains at least one. None if no
                such set is known.
        """
        try:
            match self._where.placement:
                case GangPlacement.SAME_EXECUTOR:
                    found = self._on_one_host()
                case GangPlacement.SPREAD:
                    found = self._spread(partly=False)
                case GangPlacement.SAME_LABEL:
                    found = self._within_a_value(among)
                case GangPlacement.ANYWHERE:
                    found = self._together(partly=False)
            fits = count_of(found) == self.wanted and self._keeps_near(found)
            return found if fits else None
        finally:
            # A placement pass is possibly using the indexes, so all changes are rolled back, even
            # after an error.
            self._placer.drop()

    def most_on(self, host_id: str) -> int:
        """Returns the number of members that fit on one host."""
        order = self._largest_first()
        placed = []
        for members in (order, order[::-1]):
            placed.append(count_of(self._fill_host(host_id, members)))
            self._placer.roll_back()
        return max(placed)

    def most_within(self, labels: Labels = ()) -> int:
        """Returns the number of members that fit on the hosts with these labels."""
        self._placer.restrict(labels)
        spread = self._where.placement is GangPlacement.SPREAD
        found = (self._spread if spread else self._together)(partly=True)
        self._placer.roll_back()
        return count_of(found)

    def hosts_with_room(self) -> Iterator[tuple[str, int]]:
        """Yields each host with room for the smallest member, with the number of smallest members
        that fit there. Hosts in use come first. Only amounts are compared.
        """
        return self._placer.hosts_with_room(self.members)

    def drop(self) -> None:
        """Ends the search, and rolls back its changes."""
        self._placer.drop()

    @property
    def _has_near(self) -> bool:
        return any(near_rules(each.wanted.policy) for each in self.members)

    def _keeps_near(self, found: Sequence[Share]) -> bool:
        """Returns True if the members can be booked in the order of the result. The result can be
        False only if a member must be near another member, because searches check hosts
        independently of each other.
        """
        if not self._has_near:
            return True
        self._placer.roll_back()
        return all(
            self._placer.take(self.members[each.request_index], each.host_id, each.count)
            == each.count
            for each in found
        )

    def _near_others(self, *, partly: bool) -> list[Share]:
        """Places members of which some must be near other members. Places all members on one host
        if possible, and otherwise one member after the other. The search is not exact.
        """
        found = self._on_one_host()
        if found:
            return found
        best: list[Share] = []
        for order in self._orders():
            self._placer.roll_back()
            found = self._fill(order, partly=partly)
            if count_of(found) == self.wanted:
                return found
            best = max(best, found, key=count_of)
        return best

    def _on_one_host(self) -> list[Share]:
        whole = self._whole()
        # The sum of all needs selects the hosts. `_fill_host` then checks the cpus of a host.
        for host_id in self._placer.hosts(whole) if whole is not None else ():
            for order in self._orders():
                found = self._fill_host(host_id, order)
                if count_of(found) == self.wanted:
                    return found
                self._placer.roll_back()
        return []

    def _fill_host(self, host_id: str, order: Iterable[Members]) -> list[Share]:
        taken = ((each, self._placer.take(each, host_id, each.count)) for each in order)
        return [Share(each.number, host_id, count) for each, count in taken if count]

    def _spread(self, *, partly: bool) -> list[Share]:
        return Matching(self._placer, self._least_choice_first(), one_each=True).run(partly=partly)

    def _together(self, *, partly: bool) -> list[Share]:
        members = self.members
        if self._has_near:
            return self._near_others(partly=partly)
        # Members of equal size with different labels compete for hosts: the first suitable host of
        # one member can be the only suitable host of another member. So a matching is used.
        alike = len({(each.wanted.profile, each.wanted.cpus) for each in members}) == 1
        if alike and len(members) > 1:
            order = self._least_choice_first()
            return Matching(self._placer, order, one_each=False).run(partly=partly)
        # To place the largest members first is cheap, and usually succeeds.
        found = self._fill(self._largest_first(), partly=partly)
        # If all members are equal, the result is exact, so another search would not place more
        # members.
        if len(members) == 1 or count_of(found) == self.wanted:
            return found
        self._placer.roll_back()
        for order in self._orders():
            # All searches share one limit of steps, so that the whole decision does not take too
            # long.
            packing = Packing(self._placer, order, self.steps_left)
            exact = packing.run()
            self.steps_left, self.cut_off = packing.steps_left, self.cut_off or packing.cut_off
            if exact:
                return exact
            self._placer.roll_back()
        if not partly:
            return []
        # No arrangement has room for all members. So the function returns the better of two partial
        # arrangements.
        other = self._fill(self._largest_first()[::-1], partly=True)
        return max(found, other, key=count_of)

    def _fill(self, order: Iterable[Members], *, partly: bool) -> list[Share]:
        """Places members one after the other, each on the most suitable host. If `partly` is False,
        stops at the first member that does not fit.
        """
        shares: list[Share] = []
        for members in order:
            left = members.count
            # One call can place fewer slots than fit, so repeat the call.
            while left and (runs := self._placer.place(members.wanted, left)):
                shares += [Share(members.number, host_id, count) for host_id, count in runs]
                left -= sum(count for _, count in runs)
            if left and not partly:
                break
        return shares

    def _within_a_value(self, among: Iterable[str] | None) -> list[Share]:
        label = self._where.label
        for value in self._values(label) if among is None else self._values_of(label, among):
            self._placer.restrict(((label, value),))
            found = self._together(partly=False)
            if count_of(found) == self.wanted:
                return found
            self._placer.roll_back()
            self._placer.restrict(())
        return []

    def _values_of(self, label: str, hosts: Iterable[str]) -> list[str]:
        """Returns the values that a label has on these hosts."""
        values = {self._hosts[host_id].labels.get(label) for host_id in hosts}
        return sorted(value for value in values if value is not None)

    def _values(self, label: str) -> Iterator[str]:
        """Yields promising values of a label, the best first. A value is promising if its hosts
        have enough room. As a quick check, all members are counted as copies of the smallest
        member. The function compares only a few values at a time.
        """
        # Among empty hosts, any value that fits is good enough, so values are not compared.
        further = MORE_HOSTS_CHECKED_MAX if self._compares else 1
        sign = -1 if self._hosts.settings.strategy != "pack" and self._compares else 1
        most = self._hosts.settings.pack_candidates if self._compares else 1
        room = Counter[str]()
        promising: dict[str, None] = {}
        tried: set[str] = set()
        checked = 0
        for host_id, fitting in self.hosts_with_room():
            value = self._hosts[host_id].labels.get(label)
            if value is None or value in tried:
                continue
            room[value] += fitting
            if room[value] >= self.wanted:
                promising[value] = None
            # The limit counts only hosts that are checked after the first promising value was
            # found.
            checked += bool(promising)
            if len(promising) > most or checked == further:
                yield from sorted(promising, key=lambda each: (sign * room[each], each))
                tried.update(promising)
                promising, checked = {}, 0
        yield from sorted(promising, key=lambda each: (sign * room[each], each))

    def _whole(self) -> Members | None:
        """Returns all members together as one large member. Returns None if no host can have the
        labels of all members.
        """
        labels: dict[str, str] = {}
        for name, value in (label for each in self.members for label in each.wanted.labels):
            if labels.setdefault(name, value) != value:
                return None
        largest = self._largest_first()[0].wanted
        key = largest.profile, tuple(sorted(labels.items())), _without_neighbors(largest.cpus)
        barred = frozenset[str]().union(*(each.barred for each in self.members))
        whole = SchedulingClass(0, *key)
        # A host that has refused equal requests without rules about neighbors has not refused the
        # members.
        whole.key = largest.profile, key[1], largest.cpus
        pooled, separate = whole_needs(self.members)
        # The policies are copied from the largest member. The amounts are the sums over all
        # members.
        kinds = kinds_of(pooled, separate)
        whole.needs = needs_of(largest)._replace(pooled=pooled, separate=separate, kinds=kinds)
        return Members(-1, whole, 1, barred)

    def _orders(self) -> list[list[Members]]:
        """Returns the orders to try in which members get cpus on a host. The order "largest first"
        usually works, but a few combinations fit only with "smallest first".
        """
        order = self._largest_first()
        if self._has_near:
            # Members that need no neighbor come first, so that they can be the neighbors of the
            # later members.
            order.sort(key=lambda each: len(near_rules(each.wanted.policy)))
            return [order]
        return [order, order[::-1]] if self._placer.topology else [order]

    def _largest_first(self) -> list[Members]:
        return sorted(self.members, key=self._size, reverse=True)

    def _size(self, members: Members) -> int:
        return size_of(members.wanted, self._hosts.indexes.main.sums)

    def _least_choice_first(self) -> list[Members]:
        return sorted(
            self.members,
            key=lambda each: (len(each.wanted.labels), self._size(each), len(each.barred)),
            reverse=True,
        )


def seek(
    hosts: Hosts,
    where: Where,
    requests: Sequence[MemberRequest],
    *,
    prefix: str = "",
    barred: Sequence[frozenset[str]] = (),
) -> list[Share] | None:
    """Returns hosts for all members of a gang; None if the search found no hosts. `GangSearch`
    describes the arguments.
    """
    return GangSearch(hosts, where, requests, prefix=prefix, barred=barred).find()


def search_would_fail(hosts: Hosts, kind: GangKind) -> bool:
    """Returns True if a search for an equal gang has failed, and no host that could serve a member
    has got more room since then.
    """
    if _among_neighbors(kind.member_requests):
        return False
    grown = _grown_since(hosts, kind.failed_search)
    if grown is None or _helps(hosts, kind, grown):
        return False
    # The hosts that have got more room do not help, so the next check can skip them.
    kind.failed_search = _now(hosts)
    return True


def find_together(
    hosts: Hosts, waiting: WaitingGang, requests: tuple[MemberRequest, ...]
) -> list[Share] | None:
    """Returns hosts for all members of a pending gang. Returns None if the search found no hosts.
    The search uses only the capacity that the current pass has not taken yet. The function does not
    take the capacity.

    Args:
        hosts: all hosts; the indexes must be up to date, except for changes by the current pass.
        waiting: the pending gang.
        requests: the requests of the gang. Each request names the hosts that must not be chosen,
            because older slots of members are on these hosts.
    """
    kind, grown = waiting.kind, None
    neighbors = _among_neighbors(requests)
    # The cached result of equal gangs is valid only if this gang excludes no hosts.
    if neighbors:
        grown = None
    elif requests == kind.member_requests:
        grown = _grown_since(hosts, kind.failed_search)
    elif waiting.failed_search is not None and waiting.failed_search[0] == requests:
        since = _grown_since(hosts, waiting.failed_search[1])
        if since is not None and not _helps(hosts, kind, since):
            return None
    search = GangSearch(hosts, kind.where, requests, may_build=True)
    # The last search failed. So every solution must contain a host that has got more room since the
    # last search.
    found = search.find(grown)
    waiting.steps = STEPS_MAX - search.steps_left
    # With rules about neighbors, a failed search is not cached: a slot that starts or ends on any
    # host can change its result.
    failed = _now(hosts) if found is None and not neighbors else None
    if requests == kind.member_requests:
        kind.failed_search = failed
    else:
        waiting.failed_search = (requests, failed) if failed is not None else None
    return found


def _among_neighbors(requests: Iterable[MemberRequest]) -> bool:
    """Returns True if rules about neighbors apply to some members."""
    return any(each.cpus is not None and each.cpus[0].neighbor_job for each in requests)


def _without_neighbors(cpus: CpuKey | None) -> CpuKey | None:
    if cpus is None:
        return None
    policy, limit = cpus
    plain = replace(policy, slot_labels=(), neighbors=(), neighbor_job="")
    return cpu_key(plain, limit)


def count_of(shares: Iterable[Share]) -> int:
    """Returns the number of members in some shares."""
    return sum(share.count for share in shares)


def whole_needs(members: Sequence[Members]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the index columns that one host needs for all members together. The first dict is for
    a host with one memory pool, the second dict for a host with a separate pool for each memory
    part.
    """
    pooled, separate = Counter[str](), Counter[str]()
    for each in members:
        needs = needs_of(each.wanted)[:2]
        for whole, need in zip((pooled, separate), needs, strict=True):
            for name, amount in need.items():
                # Members can share a device or use different devices. So the largest need of a
                # member counts, not the sum of the needs.
                if name in OF_ONE_SLOT or name.startswith(MOST_LEFT):
                    whole[name] = max(whole[name], amount)
                else:
                    whole[name] += amount * each.count
    return pooled, separate


def _now(hosts: Hosts) -> FailedSearch:
    main = hosts.indexes.main
    return FailedSearch(main.version, len(main.grown))


def _grown_since(hosts: Hosts, failed: FailedSearch | None) -> list[str] | None:
    """Returns the hosts that have got more room since a search failed. Returns None if no search
    has failed, if the growth log was cleared after the search, or if too many hosts got more room.
    """
    main = hosts.indexes.main
    if failed is None or failed.version != main.version:
        return None
    grown = set(main.grown[failed.log_length :])
    if len(grown) > GROWN_CHECKED_ONE_BY_ONE:
        return None
    return [main.ids[at] for at in sorted(grown)]


def _helps(hosts: Hosts, kind: GangKind, grown: Sequence[str]) -> bool:
    """Returns True if one of these hosts possibly has room for a member. If all members must be on
    one host, returns True only if a host possibly has room for all members.
    """
    if not grown:
        return False
    members = [Members.of(0, request, ()) for request in kind.member_requests]
    on_one = kind.where.placement is GangPlacement.SAME_EXECUTOR
    needs: Sequence[Need] = whole_needs(members) if on_one else least_needs(members)
    main = hosts.indexes.main
    return any(main.covers(main.position[name], need) for name in grown for need in needs)
