"""Finds hosts for all members of a gang, or for none.

- SAME_EXECUTOR: a host that has what all members need together.
- SPREAD: a bipartite matching of members and hosts, which is exact.
- ANYWHERE: equal members are placed like single requests, or by a matching if their labels differ;
  both are exact. Other members are placed one after the other, the largest first; if that fails, an
  exact search tries all ways, up to `STEPS_MAX` steps. On a host, members get cpus largest first or
  smallest first.
- SAME_LABEL: ANYWHERE on the hosts of one value of the label, value by value. Only values with room
  for as many of the smallest member are tried, first the one with least room to spare
  (with "spread" or "balanced": most).

A failed search is remembered with the kind of the gang, until a host that could have a member gets
more room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from finegrain.values.states import GangPlacement
from resource_manager.engine.model.scheduling_key import Labels, kinds_of
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
"""Most steps of the exact searches for one gang. They take 10 to 20 ms: a decision must be short.
"""

HOSTS_LOOKED_FURTHER = 128
"""Most hosts with room that are checked for a better value of a label, once a value is found."""


class GangSearch:
    """One search. The indexes must be fresh, or those of a pass; it leaves them as they are.

    Attributes:
        members: what is placed.
        wanted: how many members there are.
        steps_left: steps that exact searches may still make.
        cut_off: True if the searches used up their steps: whether the members fit is unknown.
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
        """Begins.

        Args:
            hosts: all hosts.
            where: how the members are placed relative to each other.
            requests: what they request.
            prefix: of the columns of the index that say what hosts could give when empty (`KNOWN`
                or `ONLINE`); empty: of what is free now.
            barred: by request, hosts that must not be chosen, if not those of the request.
            may_build: as for `TentativePlacer`.
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
        self._compares = not prefix  # otherwise any host will do

    def find(self, among: Iterable[str] | None = None) -> list[Share] | None:
        """Returns hosts for all members, in the order in which they must be booked; None: there are
        none, or that is unknown.

        Args:
            among: hosts of which the result must contain at least one, as the caller knows; None:
                nothing is known.
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
            return found if count_of(found) == self.wanted else None
        finally:
            # The indexes may be those of a pass, so nothing may stay taken, whatever happens.
            self._placer.drop()

    def most_on(self, host_id: str) -> int:
        """Returns how many members fit one host."""
        order = self._largest_first()
        placed = []
        for members in (order, order[::-1]):
            placed.append(count_of(self._fill_host(host_id, members)))
            self._placer.roll_back()
        return max(placed)

    def most_within(self, labels: Labels = ()) -> int:
        """Returns how many members fit the hosts that carry these labels."""
        self._placer.restrict(labels)
        spread = self._where.placement is GangPlacement.SPREAD
        found = (self._spread if spread else self._together)(partly=True)
        self._placer.roll_back()
        return count_of(found)

    def roomy(self) -> Iterator[tuple[str, int]]:
        """Yields the hosts with room for the smallest member, those in use first, and how many of
        these fit each, by amounts.
        """
        return self._placer.roomy(self.members)

    def drop(self) -> None:
        """Ends the search."""
        self._placer.drop()

    def _on_one_host(self) -> list[Share]:
        whole = self._whole()
        # The sum of all needs selects hosts. Whether cpus suit shows when members are placed there.
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
        # Equal members with different labels compete for hosts. Taking the first host may then fail
        # where a matching does not.
        alike = len({(each.wanted.profile, each.wanted.cpus) for each in members}) == 1
        if alike and len(members) > 1:
            order = self._least_choice_first()
            return Matching(self._placer, order, one_each=False).run(partly=partly)
        # Largest first is cheap and mostly enough.
        found = self._fill(self._largest_first(), partly=partly)
        # Equal members that differ in nothing are placed exactly by this, so no search finds more.
        if len(members) == 1 or count_of(found) == self.wanted:
            return found
        self._placer.roll_back()
        for order in self._orders():
            # All searches share one budget of steps, as the whole decision must be short.
            packing = Packing(self._placer, order, self.steps_left)
            exact = packing.run()
            self.steps_left, self.cut_off = packing.steps_left, self.cut_off or packing.cut_off
            if exact:
                return exact
            self._placer.roll_back()
        if not partly:
            return []
        # No way has room for all; of two partial ones, the one with more members is reported.
        other = self._fill(self._largest_first()[::-1], partly=True)
        return max(found, other, key=count_of)

    def _fill(self, order: Iterable[Members], *, partly: bool) -> list[Share]:
        """Places members one after the other, each where it suits best; if not `partly`, until some
        do not fit.
        """
        shares: list[Share] = []
        for members in order:
            left = members.count
            # One call may place fewer than fit, such as one slot per host, so it is repeated.
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
        """Returns the values of a label that some hosts have."""
        values = {self._hosts[host_id].labels.get(label) for host_id in hosts}
        return sorted(value for value in values if value is not None)

    def _values(self, label: str) -> Iterator[str]:
        """Yields the values of a label that have room for as many of the smallest member, a few at
        a time, and of those the best first.
        """
        # As if empty, the first value that fits will do, so none are compared.
        further = HOSTS_LOOKED_FURTHER if self._compares else 1
        sign = -1 if self._hosts.settings.strategy != "pack" and self._compares else 1
        most = self._hosts.settings.pack_candidates if self._compares else 1
        room = Counter[str]()
        promising: dict[str, None] = {}
        tried: set[str] = set()
        looked = 0
        for host_id, fitting in self.roomy():
            value = self._hosts[host_id].labels.get(label)
            if value is None or value in tried:
                continue
            room[value] += fitting
            if room[value] >= self.wanted:
                promising[value] = None
            # Only hosts after the first promising value count against the limit.
            looked += bool(promising)
            if len(promising) > most or looked == further:
                yield from sorted(promising, key=lambda each: (sign * room[each], each))
                tried.update(promising)
                promising, looked = {}, 0
        yield from sorted(promising, key=lambda each: (sign * room[each], each))

    def _whole(self) -> Members | None:
        """Returns what all members need together, as one; None: no host can carry all labels."""
        labels: dict[str, str] = {}
        for name, value in (label for each in self.members for label in each.wanted.labels):
            if labels.setdefault(name, value) != value:
                return None
        largest = self._largest_first()[0].wanted
        key = largest.profile, tuple(sorted(labels.items())), largest.cpus
        barred = frozenset[str]().union(*(each.barred for each in self.members))
        whole = SchedulingClass(0, *key)
        pooled, separate = whole_needs(self.members)
        # Policies are those of the largest member; the amounts are replaced by the sum.
        kinds = kinds_of(pooled, separate)
        whole.needs = needs_of(largest)._replace(pooled=pooled, separate=separate, kinds=kinds)
        return Members(-1, whole, 1, barred)

    def _orders(self) -> list[list[Members]]:
        """Returns the orders in which members are given cpus on a host. Largest first finds most;
        a few fit only the other way round.
        """
        order = self._largest_first()
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
    """Returns hosts for all members of a gang; None: none were found. The arguments are those of
    `GangSearch`.
    """
    return GangSearch(hosts, where, requests, prefix=prefix, barred=barred).find()


def passed_by(hosts: Hosts, kind: GangKind) -> bool:
    """Returns True if a search for gangs of this kind has failed, and no host has got more room
    since that could have a member.
    """
    grown = _grown_since(hosts, kind.failed_search)
    if grown is None or _helps(hosts, kind, grown):
        return False
    # These hosts did not help, so the next check leaves them out.
    kind.failed_search = _now(hosts)
    return True


def find_together(
    hosts: Hosts, waiting: WaitingGang, requests: tuple[MemberRequest, ...]
) -> list[Share] | None:
    """Returns hosts for all members of a pending gang, as a pass has left them; None: none were
    found. Takes nothing.

    Args:
        hosts: all hosts; the indexes must be fresh but for what the pass has taken.
        waiting: the gang.
        requests: those of its kind, or the same with the hosts that hold older slots of members.
    """
    kind, grown = waiting.kind, None
    # With hosts excluded because of older slots, a failure says nothing of equal gangs.
    if requests == kind.member_requests:
        grown = _grown_since(hosts, kind.failed_search)
    elif waiting.failed_search is not None and waiting.failed_search[0] == requests:
        since = _grown_since(hosts, waiting.failed_search[1])
        if since is not None and not _helps(hosts, kind, since):
            return None
    search = GangSearch(hosts, kind.where, requests, may_build=True)
    # After a failed search, any way must include a host that has grown since.
    found = search.find(grown)
    waiting.steps = STEPS_MAX - search.steps_left
    failed = _now(hosts) if found is None else None
    if requests == kind.member_requests:
        kind.failed_search = failed
    else:
        waiting.failed_search = (requests, failed) if failed is not None else None
    return found


def count_of(shares: Iterable[Share]) -> int:
    """Returns how many members are placed."""
    return sum(share.count for share in shares)


def whole_needs(members: Sequence[Members]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns what a host must have at least for all members, with one memory pool and with one for
    each memory part.
    """
    pooled, separate = Counter[str](), Counter[str]()
    for each in members:
        needs = needs_of(each.wanted)[:2]
        for whole, need in zip((pooled, separate), needs, strict=True):
            for name, amount in need.items():
                # Members may share a device or have different ones, so its rest is not summed.
                if name in OF_ONE_SLOT or name.startswith(MOST_LEFT):
                    whole[name] = max(whole[name], amount)
                else:
                    whole[name] += amount * each.count
    return pooled, separate


def _now(hosts: Hosts) -> FailedSearch:
    main = hosts.indexes.main
    return FailedSearch(main.version, len(main.grown))


def _grown_since(hosts: Hosts, failed: FailedSearch | None) -> list[str] | None:
    """Returns the hosts that got more room since a search failed; None: none did, or these are too
    many.
    """
    main = hosts.indexes.main
    if failed is None or failed.version != main.version:
        return None
    grown = set(main.grown[failed.log_length :])
    if len(grown) > GROWN_CHECKED_ONE_BY_ONE:
        return None
    return [main.ids[at] for at in sorted(grown)]


def _helps(hosts: Hosts, kind: GangKind, grown: Sequence[str]) -> bool:
    """Returns True if one of these hosts may have room for a member, or for all members of a gang
    that must be on one host.
    """
    if not grown:
        return False
    members = [Members.of(0, request, ()) for request in kind.member_requests]
    on_one = kind.where.placement is GangPlacement.SAME_EXECUTOR
    needs: Sequence[Need] = whole_needs(members) if on_one else least_needs(members)
    main = hosts.indexes.main
    return any(main.covers(main.position[name], need) for name in grown for need in needs)
