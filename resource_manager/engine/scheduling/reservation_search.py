"""Chooses the hosts to reserve for an owner, and places the owner on them. An owner is a request, a
gang, or a slot that must grow. Candidates are the hosts that could serve the owner if all other
slots on them ended. The search chooses the candidates with the smallest missing part.

The missing part of a host is the fraction of the need that is not free, in the dimension in which
this fraction is largest. Example: a slot needs 4 cpus and 8 GiB. The host has 1 cpu and 6 GiB free.
So 75 % of the cpus and 25 % of the memory are missing, and the missing part is 75 %.

A request is treated like a gang with one member. The members of a gang get hosts one after another,
the largest member first. If a member gets no host, the search that places gangs
(`placement/gangs.py`) is tried. A slot that must grow has one candidate, its own host. The search
assumes that a slot never ends if it did not end during an earlier reservation.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

from finegrain.errors import InvariantBroken
from finegrain.resources import Amounts, add, fits, subtract, total_of
from finegrain.values.states import GangPlacement
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.hosts.host import ONLINE, UNLIMITED, Host
from resource_manager.engine.lifecycle.growth import assignment_for, growth, unsuited
from resource_manager.engine.lifecycle.run_times import RunTimes
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.scheduling_key import SLOTS, kinds_of
from resource_manager.engine.placement.columns import needs_of, size_of
from resource_manager.engine.placement.fit import conditions_of, meets
from resource_manager.engine.placement.gangs import seek
from resource_manager.engine.placement.reserved import Reservation, ReservationOwner
from resource_manager.engine.placement.tentative_cpus import TentativeCpus
from resource_manager.engine.queue.gangs import MemberRequest, Share, Where
from resource_manager.engine.state import State

MILLION = 1_000_000

CANDIDATES_MAX = 50_000
"""The limit for hosts that are compared for one reservation. A host that is compared for two member
requests counts twice.
"""

LABEL_VALUES_MAX = 32
"""The limit for values of a label that are tried for a gang. The value whose hosts have the most
free capacity is tried first.
"""

NEVER = 2**62
"""Stands for a moment that is not known. `NEVER` is later than any known moment."""

Candidate = tuple[int, int, str]
"""A host, as (missing part in millionths, negative number of its slots, id). The lowest tuple is
best. If run times are known, the moment at which the host will have room replaces the missing part
(see `ReservationSearch._best`).

If two hosts have the same missing part, the host with more slots is better, because its slots are
smaller. On a host with large slots, the end of one slot makes enough capacity free even without a
reservation.
"""

Members = Sequence[tuple[MemberRequest, int]]
"""Member requests, each with its number of members on one host."""


class _Unit(NamedTuple):
    """Members that must get the same host. If all members of a gang must share a host, they are one
    unit. Otherwise each member is a unit. `members` contains pairs (index of the request, count),
    and `times` is the number of such units.
    """

    members: Sequence[tuple[int, int]]
    times: int


def own_job_of(owner: ReservationOwner) -> str:
    """Returns the job whose slots count as if they never ended. The result is empty if there is no
    such job.

    If the owner is a request, this is the owner's job: its requests are served one after another,
    so slots of earlier requests end all the time. A gang or a slot that grows is served only once,
    so there is no such job.
    """
    return "" if isinstance(owner.waiter, int) else owner.job_id


class ReservationSearch:
    """A search for hosts that can be reserved for one owner. The indexes must be up to date."""

    def __init__(
        self, state: State, owner: ReservationOwner, times: RunTimes | None = None
    ) -> None:
        """Prepares a search.

        Args:
            state: the state.
            owner: the owner.
            times: estimates of run times, with which the owner gets the earliest start. If it is
                None, the hosts with the smallest missing part are best.
        """
        self._times = times
        self.state, self._hosts, self.owner = state, state.hosts, owner
        self._slot = state.slots[owner.slot] if owner.slot is not None else None
        self._waiting = state.gangs.waiting[owner.gang_id] if owner.gang_id else None
        self._outlasting = state.reservations.outlasting
        self._own_job = own_job_of(owner)
        self._trials = TentativeCpus(self._cpus_if_others_ended)
        # The planned start, once the search has found it.
        self._start_ms: int | None = None
        # For each host, the amounts of the members to which the search has already given this host.
        self._chosen: dict[str, Amounts] = {}
        self._everywhere: list[list[Candidate]] | None = None
        # For each host, the result of `_if_others_ended`, which does not change during the search.
        self._could: dict[str, Amounts] = {}

    @cached_property
    def requests(self) -> Sequence[MemberRequest]:
        """The member requests of the owner, with the hosts that they must avoid now. There are none
        if the owner is a slot that must grow.
        """
        owner, state = self.owner, self.state
        if self._waiting is not None:
            return state.gang_moves.current_requests(self._waiting)
        if isinstance(owner.waiter, int):
            return ()
        profile, labels, cpus = owner.waiter[0].key
        superseded = state.slots.superseded.get(owner.allocation_id, ())
        elsewhere = frozenset(slot.executor_id for slot in superseded)
        return (MemberRequest(profile, labels, 1, elsewhere, cpus),)

    def choose(self, taken: Collection[str]) -> dict[str, list[Share]] | None:
        """Returns the hosts to reserve, each with the members that it would get. Returns None if
        there are no suitable hosts.

        Args:
            taken: the hosts that must not be used.
        """
        if self._slot is not None:
            own = self._slot.executor_id
            return {own: []} if own not in taken and self._may_grow() else None
        where = Where(GangPlacement.ANYWHERE) if self._waiting is None else self._waiting.kind.where
        counts = [(at, request.count) for at, request in enumerate(self.requests)]
        units = [_Unit([(at, 1)], count) for at, count in counts]
        if where.placement is GangPlacement.SAME_EXECUTOR:
            units = [_Unit(counts, 1)]
        # The stored list of candidates includes the hosts of `taken`, because the caller can call
        # `choose` again with fewer hosts in `taken`.
        if self._everywhere is None:
            most = CANDIDATES_MAX // len(units)
            self._everywhere = [self._candidates(unit, most) for unit in units]
        candidates = [[each for each in some if each[2] not in taken] for some in self._everywhere]
        tries = (
            self._by_value(units, candidates, where.label)
            if where.placement is GangPlacement.SAME_LABEL
            else [candidates]
        )
        spread = where.placement is GangPlacement.SPREAD
        each = (self._best(units, some, one_each=spread) for some in tries)
        found = next((shares for shares in each if shares is not None), None)
        # For one slot the search above is complete, so another search would find nothing.
        if found is None and sum(count for _, count in counts) > 1:
            # `seek` assumes that all slots end. So it must avoid the hosts of slots that possibly
            # never end.
            away = {
                name
                for name, host in self._hosts.items()
                if name in taken or not host.takes_slots or self._outlasting & host.slots.keys()
            }
            barred = [request.elsewhere.union(away) for request in self.requests]
            found = seek(self._hosts, where, self.requests, prefix=ONLINE, barred=barred)
        if found is None:
            return None
        by_host: dict[str, list[Share]] = {}
        for share in found:
            by_host.setdefault(share.host_id, []).append(share)
        return by_host

    def booked(self, host: Host, shares: Iterable[Share]) -> dict[str, int]:
        """Returns the amounts that the owner would book on a host. The key `SLOTS` stands for the
        number of slots.
        """
        if self._slot is not None:
            return {**growth(host, self._slot)}
        return _booked_by(host, _members(self.requests, shares))

    def suits(self, each: Reservation, names: Iterable[str]) -> bool:
        """Returns whether a reservation is still suitable for the owner. The owner's requests must
        be unchanged, and the given hosts must be able to serve the owner if all other slots on them
        ended.
        """
        # The requests also contain the hosts to avoid, which change when older slots end.
        if self.requests != each.requests:
            return False
        return all(self._suits(each, name) for name in names)

    def fits_now(self, each: Reservation) -> bool:
        """Returns whether the owner can get cpus and NUMA nodes on its reserved hosts now. The
        caller must check before the call that the amounts are free.
        """
        if self._slot is not None:
            found = assignment_for(self.state.requests, self._hosts.of(self._slot), self._slot)
            return not isinstance(found, HostRefusal)
        trials = TentativeCpus()
        return all(
            trials.fit_all(_members(each.requests, shares), self._hosts[name])
            for name, shares in each.shares.items()
        )

    def place(self, each: Reservation) -> None:
        """Places the owner on its reserved hosts. The caller must check before the call that all
        needed capacity is free on these hosts.

        Raises:
            InvariantBroken: the host has too few suitable cpus for a slot that must grow.
        """
        state, owner = self.state, self.owner
        if self._slot is not None:
            found = assignment_for(state.requests, self._hosts.of(self._slot), self._slot)
            if isinstance(found, HostRefusal):
                raise InvariantBroken(f"{owner.title} should fit on its host, but {found.text}")
            state.resizes.order(self._slot, found)
            state.queue.non_batchables.remove(owner.number)
        elif self._waiting is not None:
            shares = chain.from_iterable(each.shares.values())
            state.gang_moves.place_together(self._waiting, each.requests, shares)
        elif not isinstance(owner.waiter, int):
            request = state.requests.at(owner.number)
            state.moves.place([request], self._hosts[next(iter(each.hosts))])
            state.queue.served(owner.waiter[0], [request])

    def _may_grow(self) -> bool:
        """Returns whether the slot, its growth, and the slots that possibly never end fit together
        on the host of the slot.
        """
        slot = self._slot
        if slot is None or slot.wanted is None:
            return False
        host = self._hosts.of(slot)
        stays = [
            other.booked
            for key, other in host.slots.items()
            if key in self._outlasting and other is not slot
        ]
        need = total_of((slot.booked, growth(host, slot), *stays))
        requests = self.state.requests
        return (
            host.eligible
            and fits(need, host.total)
            and not unsuited(requests, host, slot, slot.wanted)
        )

    def _suits(self, each: Reservation, name: str) -> bool:
        host, kept = self._hosts.get(name), each.hosts[name]
        if host is None:
            return False
        # The need possibly changed after the reservation was made. For example, the default slot of
        # the host now has another size.
        need = self.booked(host, each.shares[name])
        if need != ({**kept.amounts, SLOTS: kept.slots} if kept.slots else kept.amounts):
            return False
        if self._slot is not None:
            return self._may_grow()
        # Processes outside slots can use a part of the host for some time. These processes will
        # end, so the total of the host counts. But if the host has no slots, only its free capacity
        # counts.
        most = host.total if host.slots or host.unowned else host.free()
        slots = host.executor.registration.slots_max or UNLIMITED
        members = _members(each.requests, each.shares[name])
        return (
            _admission(members)(host)
            and fits(need, {**most, SLOTS: slots})
            and self._trials.fit_all(members, host)
        )

    def _candidates(self, unit: _Unit, most: int) -> list[Candidate]:
        """Returns up to `most` hosts whose total amounts are enough for a unit. A host can be
        unsuitable for other reasons: `_admission` checks these reasons later, and only for the best
        hosts.
        """
        members = self._of(unit)
        class_for = self.state.queue.class_for
        needs = [(needs_of(class_for(request.key)).amounts, n) for request, n in members]
        pooled, separate = (_sum((need[kind], n) for need, n in needs) for kind in (0, 1))
        # In the index, reserved capacity does not count as free. So hosts without reservations are
        # preferred.
        index = self._hosts.indexes.main
        none = [[0] * len(index)]
        free_of = [
            [(n, index.columns.get(name, none)[0]) for name, n in need.items()]
            for need in (pooled, separate)
        ]
        wanted = [
            {ONLINE + name: n for name, n in need.items()} for need in kinds_of(pooled, separate)
        ]
        found: list[Candidate] = []
        for at in islice(index.covering(wanted), most):
            host_id = index.ids[at]
            host = self._hosts[host_id]
            # These lines compute `_missing_part`. The code is inlined for speed, because it runs
            # for all hosts.
            part = 0
            for n, free in free_of[host.separate_pools]:
                if n and (missing := (n - free[at]) * MILLION // n) > part:
                    part = missing
            found.append((part, -len(host.slots), host_id))
        if self._times is None:
            return found
        hosts = self._hosts
        needs_of_all = ((each, _booked_by(hosts[each[2]], members)) for each in found)
        return [
            (self._ready(hosts[host_id], need), slots, host_id)
            for (_, slots, host_id), need in needs_of_all
        ]

    def _by_value(
        self, units: Sequence[_Unit], candidates: Sequence[Sequence[Candidate]], label: str
    ) -> Iterator[list[list[Candidate]]]:
        """Yields the candidates for one value of the label after another. The value whose hosts
        have the most free capacity comes first.
        """
        admissions = [_admission(self._of(unit)) for unit in units]
        # A host that is not allowed to serve a member must not influence the order of the values.
        candidates = [
            [each for each in some if admits(self._hosts[each[2]])]
            for admits, some in zip(admissions, candidates, strict=True)
        ]
        free: Counter[str] = Counter()
        for missing, _, host_id in chain.from_iterable(candidates):
            if value := self._hosts[host_id].labels.get(label):
                # Count at least 1 for each host, because the slots of a full host will end, too.
                free[value] += 1 + max(0, MILLION - missing)
        for value in sorted(free, key=lambda value: (-free[value], value))[:LABEL_VALUES_MAX]:
            yield [
                [each for each in some if self._hosts[each[2]].labels.get(label) == value]
                for some in candidates
            ]

    def _best(
        self,
        units: Sequence[_Unit],
        candidates: Sequence[Sequence[Candidate]],
        *,
        one_each: bool,
    ) -> list[Share] | None:
        """Returns the best hosts for all units, or None if a unit gets no host.

        With estimates of run times, the hosts that will be the first to have room determine the
        start. Of all hosts that will have room by this start, the last ones are best: other
        requests can use the earlier ones without delay of the owner.
        """
        self._start_ms = None
        found = self._fill(units, candidates, one_each=one_each)
        if found is None or self._times is None:
            return found
        start_ms = self._start()
        if start_ms in (NEVER, self._times.now_ms):
            return found
        self._start_ms = start_ms
        in_time = [
            [
                (start_ms - at_ms, slots, host_id)
                for at_ms, slots, host_id in some
                if at_ms <= start_ms
            ]
            for some in candidates
        ]
        last = self._fill(units, in_time, one_each=one_each)
        return last if last is not None and self._start() <= start_ms else found

    def _fill(
        self,
        units: Sequence[_Unit],
        candidates: Sequence[Sequence[Candidate]],
        *,
        one_each: bool,
    ) -> list[Share] | None:
        """Gives each unit the host with the smallest missing part, beginning with the largest unit.
        Returns None if a unit gets no host.
        """
        # Forget the hosts that members got when another value of the label was tried.
        self._chosen.clear()
        self._trials.roll_back()
        counts: Counter[tuple[int, str]] = Counter()
        largest_first = sorted(range(len(units)), key=lambda at: -self._size(units[at]))
        for number in largest_first:
            members = self._of(units[number])
            left, heap = units[number].times, list(candidates[number])
            admits = _admission(members)
            heapq.heapify(heap)
            while left and heap:
                _, slots, host_id = heapq.heappop(heap)
                host = self._hosts[host_id]
                if (
                    (one_each and host_id in self._chosen)
                    or not admits(host)
                    or (need := self._need_with(host, members)) is None
                ):
                    # The host is not put back into the list, because the room on a host only
                    # shrinks during the search.
                    continue
                self._chosen[host_id] = need
                for request, count in members:
                    self._trials.take(request, host, count)
                counts[number, host_id] += 1
                left -= 1
                if left and not one_each and (more := self._missing(host, members)) is not None:
                    heapq.heappush(heap, (more, slots, host_id))
            if left:
                return None
        return [
            Share(at, host_id, count * times)
            for (number, host_id), times in counts.items()
            for at, count in units[number].members
        ]

    def _of(self, unit: _Unit) -> Members:
        return [(self.requests[at], count) for at, count in unit.members]

    def _size(self, unit: _Unit) -> int:
        request, sums = self.requests[unit.members[0][0]], self._hosts.indexes.main.sums
        return size_of(self.state.queue.class_for(request.key), sums)

    def _need_with(self, host: Host, members: Members) -> Amounts | None:
        """Returns the amounts that these members book on a host, plus the amounts of the members
        that the search has already put there. Returns None if all these members would not fit even
        if all other slots on the host ended.
        """
        need: Amounts = _booked_by(host, members)
        if (chosen := self._chosen.get(host.host_id)) is not None:
            need = add(need, chosen)
        if not fits(need, self._if_others_ended(host)) or not self._trials.fit_all(members, host):
            return None
        return need

    def _missing(self, host: Host, members: Members) -> int | None:
        """Returns the missing part of a host for these members plus the members to which the search
        has already given the host. With estimates of run times, returns the moment when the host
        will have room for all of them instead. Returns None if they do not fit.
        """
        need = self._need_with(host, members)
        if need is None:
            return None
        if self._times is not None:
            ready_ms, start_ms = self._ready(host, need), self._start_ms
            if start_ms is None:
                return ready_ms
            return start_ms - ready_ms if ready_ms <= start_ms else None
        free = {**host.free(), SLOTS: host.slots_left()}
        return _missing_part((n, free.get(name, 0)) for name, n in need.items())

    def _start(self) -> int:
        """Returns when all hosts that `_fill` has chosen will probably have room."""
        return max(self._ready(self._hosts[name], need) for name, need in self._chosen.items())

    def _ready(self, host: Host, need: Amounts) -> int:
        """Returns when a host will probably have these amounts free, or `NEVER` if this moment is
        not known.
        """
        ready_ms = self._times.ready_ms(host, need) if self._times is not None else None
        return NEVER if ready_ms is None else ready_ms

    def _if_others_ended(self, host: Host) -> Amounts:
        """Returns the amounts that would be free on a host if all its slots ended, except for slots
        that possibly never end.
        """
        known = self._could.get(host.host_id)
        if known is not None:
            return known
        # The owner's job must get more capacity than it has now. The capacity of its present slots
        # already belongs to the job, so these slots count as if they never ended.
        stays = [
            slot.booked
            for key, slot in host.slots.items()
            if key in self._outlasting or slot.job_id == self._own_job
        ]
        # The sum `could` is lower than the total if processes outside slots use a part of the host.
        total, could = host.total, add(host.free(), host.booked)
        most = {name: min(amount, total.get(name, 0)) for name, amount in could.items()}
        slots = host.executor.registration.slots_max or UNLIMITED
        known = {**subtract(most, total_of(stays)), SLOTS: slots - len(stays)}
        self._could[host.host_id] = known
        return known

    def _cpus_if_others_ended(self, host: Host) -> CpuLedger | None:
        """Returns a copy of the host's cpu ledger with only the slots that possibly never end.
        Returns None if the host has no cpu ledger.
        """
        if host.cpus is None:
            return None
        ledger = host.cpus.empty()
        for key in self._outlasting & host.cpus.holdings.keys():
            ledger.add(key, host.cpus.holdings[key], host.cpus.neighbors.get(key))
        return ledger


def _admission(members: Members) -> Callable[[Host], bool]:
    """Returns a function that returns whether a host is allowed to serve these members. That
    function does not compare capacity.
    """
    checked = [(request, conditions_of(request)) for request, _ in members]

    def admits(host: Host) -> bool:
        if not host.takes_slots:
            return False
        for request, conditions in checked:
            if host.host_id in request.elsewhere or (host.refusals and host.refuses(request)):
                return False
            if conditions and not meets(request, host, conditions):
                return False
        return True

    return admits


def _members(requests: Sequence[MemberRequest], shares: Iterable[Share]) -> Members:
    return [(requests[each.request_index], each.count) for each in shares]


def _booked_by(host: Host, members: Members) -> dict[str, int]:
    # One member on a host is the most frequent case, and it needs no sum.
    if len(members) == 1 and members[0][1] == 1:
        booked = host.booking_for(members[0][0])
        return {**{name: amount for name, amount in booked.items() if amount}, SLOTS: 1}
    return _sum(({**host.booking_for(request), SLOTS: 1}, count) for request, count in members)


def _sum(many: Iterable[tuple[Amounts, int]]) -> dict[str, int]:
    return total_of({name: n * count for name, n in amounts.items()} for amounts, count in many)


def _missing_part(needs: Iterable[tuple[int, int]]) -> int:
    """Returns the missing part, in millionths of the need. `needs` contains a pair (needed, free)
    for each dimension.
    """
    return max((0, *((n - free) * MILLION // n for n, free in needs)))
