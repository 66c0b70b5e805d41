"""Chooses the hosts to reserve for a request or a gang. They must be able to serve it if all other
slots there ended. Of these hosts, those with the smallest missing part are chosen.

The missing part of a host is measured in its scarcest dimension. Example: a slot needs 4 cpus and
8 GiB, and the host has 1 cpu and 6 GiB free. 75 % of the cpus and 25 % of the memory are missing,
so the missing part is 75 %. Members of a gang get hosts one after another, the largest member
first. If that fails, the search that places gangs (`placement/gangs.py`) is tried. Slots that
outlasted a reservation are assumed never to end.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from finegrain.resources import Amounts, add, fits, subtract, total_of
from finegrain.values.states import GangPlacement
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.hosts.host import ONLINE, UNLIMITED, Host
from resource_manager.engine.model.scheduling_key import SLOTS, SchedulingKey
from resource_manager.engine.placement.columns import needs_of, size_of
from resource_manager.engine.placement.constraint import Constraint
from resource_manager.engine.placement.fit import conditions_of, meets
from resource_manager.engine.placement.gangs import seek
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.reserved import Members, Reservation, Reservations
from resource_manager.engine.placement.tentative_cpus import TentativeCpus
from resource_manager.engine.queue.gangs import MemberRequest, Share, Where
from resource_manager.engine.queue.queue import WaitingQueue

MILLION = 1_000_000

CANDIDATES_MAX = 50_000
"""Most hosts that are compared for one reservation. A host that is compared for two member requests
counts twice.
"""

LABEL_VALUES_MAX = 32
"""Most values of a label that are tried for a gang; those with most free capacity come first."""

Candidate = tuple[int, int, str]
"""A host as (missing part in millionths, negative number of its slots, id); the least is the best.

On a tie, a host with more slots is preferred, because these are smaller. A large slot that ends
frees enough by itself, without a reservation.
"""


class ReservationSearch:
    """Chooses hosts for one reservation. The indexes must be fresh."""

    def __init__(self, hosts: Hosts, queue: WaitingQueue, reservations: Reservations) -> None:
        self._hosts = hosts
        self._queue = queue
        self._outlasting = reservations.outlasting
        self._trials = TentativeCpus(self._cpus_if_others_ended)
        self._most = CANDIDATES_MAX
        self._conditions: dict[SchedulingKey, tuple[Constraint, ...]] = {}
        # Amounts of the members that have a host already, by host.
        self._chosen: dict[str, Amounts] = {}

    def choose(
        self, where: Where, requests: Sequence[MemberRequest], taken: Collection[str]
    ) -> list[Share] | None:
        """Returns hosts for as many slots as are requested; None: there are none.

        Args:
            where: how the slots are placed relative to each other.
            requests: the member requests.
            taken: hosts that must not be used.
        """
        self._most = CANDIDATES_MAX // len(requests)
        if where.placement is GangPlacement.SAME_EXECUTOR:
            found = self._on_one(requests, taken)
        else:
            each = [self._candidates([(request, 1)], taken) for request in requests]
            if where.placement is GangPlacement.SAME_LABEL:
                found = self._within_a_value(requests, each, where.label)
            else:
                spread = where.placement is GangPlacement.SPREAD
                found = self._fill(requests, each, one_each=spread)
        # For a single slot the search above is exact, so a second search would not find more.
        if found is None and sum(request.count for request in requests) > 1:
            # `seek` does not know which slots may never end, so it must avoid hosts with such
            # slots.
            away = {name for name, host in self._hosts.items() if not host.eligible}.union(taken)
            away.update(
                name for name, host in self._hosts.items() if self._outlasting & host.slots.keys()
            )
            barred = [request.elsewhere.union(away) for request in requests]
            found = seek(self._hosts, where, requests, prefix=ONLINE, barred=barred)
        return found

    def suits(self, each: Reservation, host_id: str) -> bool:
        """Returns True if a host of a reservation could still serve its members if all other slots
        there ended.
        """
        host = self._hosts.get(host_id)
        members = each.choice.members[host_id]
        if host is None or not self._may_serve(host, members):
            return False
        need = each.choice.booked[host_id]
        # Processes outside slots may use a part of the host only for a while, so the total counts.
        # On a host without slots, only what is free counts.
        most = host.total if host.slots or host.unowned else host.free()
        slots = host.executor.registration.slots_max or UNLIMITED
        return (
            # A default slot may book another amount since the executor registered again.
            booked_by(host, members) == need
            and fits(need, {**most, SLOTS: slots})
            and self._trials.fit_all(members, host)
        )

    def _may_serve(self, host: Host, members: Members) -> bool:
        if not host.eligible:
            return False
        for request, _ in members:
            conditions = self._conditions.get(request.key)
            if conditions is None:
                conditions = self._conditions[request.key] = conditions_of(request)
            if conditions and not meets(request, host, conditions):
                return False
            if request.elsewhere and host.host_id in request.elsewhere:
                return False
            if host.refusals and host.refuses(request):
                return False
        return True

    def _candidates(self, members: Members, taken: Collection[str]) -> list[Candidate]:
        """Returns hosts whose total amounts are enough for all these members together."""
        pooled, separate = Counter[str](), Counter[str]()
        for request, count in members:
            needs = needs_of(self._queue.class_for(request.key)).amounts
            for whole, need in zip((pooled, separate), needs, strict=True):
                whole.update({name: amount * count for name, amount in need.items()})
        index = self._hosts.indexes.main
        kinds = [pooled] if pooled == separate else [pooled, separate]
        wanted = [{ONLINE + name: amount for name, amount in need.items()} for need in kinds]
        # The index counts reserved capacity as taken, so hosts without reservations are preferred.
        none = [0] * len(index)
        free_of = {
            kind: [
                (index.columns[name][0] if name in index.columns else none, n)
                for name, n in need.items()
                if n
            ]
            for kind, need in ((False, pooled), (True, separate))
        }
        found: list[Candidate] = []
        for at in islice(index.covering(wanted), self._most):
            host_id = index.ids[at]
            host = self._hosts[host_id]
            if host_id in taken or not self._may_serve(host, members):
                continue
            # The same as `missing_part`, inlined for speed: this is done for all hosts.
            part = 0
            for free, amount in free_of[host.separate_pools]:
                if (missing := (amount - free[at]) * MILLION // amount) > part:
                    part = missing
            found.append((part, -len(host.slots), host_id))
        return found

    def _missing(self, host: Host, members: Members) -> int | None:
        """Returns the missing part of a host for these members and those that it was given before.
        None: they would not fit even if all other slots there ended.
        """
        need = add(booked_by(host, members), self._chosen.get(host.host_id, {}))
        if not fits(need, self._if_others_ended(host)):
            return None
        if not self._trials.fit_all(members, host):
            return None
        return missing_part(need, {**host.free(), SLOTS: host.slots_left()})

    def _fill(
        self,
        requests: Sequence[MemberRequest],
        candidates: Sequence[Iterable[Candidate]],
        *,
        one_each: bool = False,
    ) -> list[Share] | None:
        """Gives each member the host with the smallest missing part, the largest member first.
        Returns None if a member gets no host.
        """
        # `_within_a_value` calls this for each value, and each call begins with no member placed.
        self._chosen.clear()
        self._trials.roll_back()
        counts: Counter[tuple[int, str]] = Counter()
        largest_first = sorted(range(len(requests)), key=lambda at: -self._size(requests[at]))
        for number in largest_first:
            request, heap = requests[number], list(candidates[number])
            heapq.heapify(heap)
            left = request.count
            while left and heap:
                _, slots, host_id = heapq.heappop(heap)
                host = self._hosts[host_id]
                one = [(request, 1)]
                if (one_each and host_id in self._chosen) or self._missing(host, one) is None:
                    # Not put back: room only shrinks during the search.
                    continue
                self._chosen[host_id] = add(booked_by(host, one), self._chosen.get(host_id, {}))
                self._trials.take(request, host, 1)
                counts[number, host_id] += 1
                left -= 1
                if not one_each and (more := self._missing(host, one)) is not None:
                    heapq.heappush(heap, (more, slots, host_id))
            if left:
                return None
        return [Share(number, host_id, count) for (number, host_id), count in counts.items()]

    def _on_one(
        self, requests: Sequence[MemberRequest], taken: Collection[str]
    ) -> list[Share] | None:
        members = [(request, request.count) for request in requests]
        for _, _, host_id in sorted(self._candidates(members, taken)):
            if self._missing(self._hosts[host_id], members) is not None:
                return [Share(at, host_id, count) for at, (_, count) in enumerate(members)]
        return None

    def _within_a_value(
        self,
        requests: Sequence[MemberRequest],
        candidates: Sequence[Sequence[Candidate]],
        label: str,
    ) -> list[Share] | None:
        """Tries the values of a label, those with most free capacity first."""
        free: Counter[str] = Counter()
        for missing, _, host_id in (each for some in candidates for each in some):
            if value := self._hosts[host_id].labels.get(label):
                # At least 1: even a host with nothing free counts, because its slots will end.
                free[value] += 1 + max(0, MILLION - missing)
        best_first = sorted(free, key=lambda value: (-free[value], value))
        for value in best_first[:LABEL_VALUES_MAX]:
            here = [
                [each for each in some if self._hosts[each[2]].labels.get(label) == value]
                for some in candidates
            ]
            if (found := self._fill(requests, here)) is not None:
                return found
        return None

    def _size(self, request: MemberRequest) -> int:
        return size_of(self._queue.class_for(request.key), self._hosts.indexes.main.sums)

    def _if_others_ended(self, host: Host) -> dict[str, int]:
        """Returns the amounts that a host would have free if only those slots were left that may
        never end.
        """
        stays = [slot.booked for key, slot in host.slots.items() if key in self._outlasting]
        # Less than the total, if processes outside slots use a part of it.
        total, could = host.total, add(host.free(), host.booked)
        most = {name: min(amount, total.get(name, 0)) for name, amount in could.items()}
        slots = host.executor.registration.slots_max or UNLIMITED
        return {**subtract(most, total_of(stays)), SLOTS: slots - len(stays)}

    def _cpus_if_others_ended(self, host: Host) -> CpuLedger | None:
        """Returns a copy of the host's cpu ledger that contains only the slots that may never end.
        None: the host has no cpu ledger.
        """
        if host.cpus is None:
            return None
        ledger = host.cpus.empty()
        for key in self._outlasting:
            if key in host.cpus.holdings:
                ledger.add(key, host.cpus.holdings[key])
        return ledger


def booked_by(host: Host, members: Members) -> dict[str, int]:
    """Returns what these members together book on a host, with their number as `SLOTS`."""
    booked = ((host.booking_for(request), count) for request, count in members)
    return total_of(
        {SLOTS: count, **{name: amount * count for name, amount in amounts.items()}}
        for amounts, count in booked
    )


def missing_part(need: Amounts, free: Amounts) -> int:
    """Returns the largest part of a need that is not free, in millionths."""
    parts = ((n - free.get(name, 0)) * MILLION // n for name, n in need.items() if n)
    return max((0, *parts))
