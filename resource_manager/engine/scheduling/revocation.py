"""Takes revocable slots back for requests that fit on no executor.

A request can allow its slot to be *revocable*. A revocable slot is booked like any other slot. If a
request or gang that is not revocable fits on no host, the engine looks for the least costly set of
revocable slots whose capacity is sufficient. The least costly set is the set with the fewest slots.
If several sets have the fewest slots, the set with the least service (cost times run time) is
chosen. The slots of this set are *revoked*: their requests return to their places in the queue, and
their tasks get a signal and a grace time. (A member of a gang follows the rules of its gang for a
lost slot, see `GangMoves.revoke`.) The request that needs the capacity is placed in the same
step, so that no other request gets the capacity. When the revoked slots have ended, the executor
gets the order to carve the new slot. Until then, the executor gets no order to carve a slot.

Slots that are not revocable are never taken back, and no slot is taken back because of fairness.
Free capacity, and capacity that becomes free without a revocation, is used first.

Example: a host has 8 cpus, three revocable slots of 2 cpus and another slot of 2 cpus. A request
for 4 cpus arrives. The two revocable slots that were placed last are revoked for it.

A request has at most one revocation in flight, because a placed request does not wait any more. If
the placed request ends before its executor has got the order to free a revoked slot, the revoked
slot stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import combinations, islice

from finegrain.resources import Amounts, add, fits, total_of
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.hosts.cpu_allocator import cpus_booked
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Request, Slot, SlotKey
from resource_manager.engine.placement.columns import columns_of
from resource_manager.engine.placement.constraint import HostView
from resource_manager.engine.placement.fit import Fit
from resource_manager.engine.placement.gangs import seek
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.gangs import WaitingGang, living
from resource_manager.engine.queue.non_batchable import Kind
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.queue.starvation import Waiter
from resource_manager.engine.scheduling.backfill import in_order
from resource_manager.engine.scheduling.owners import owner_of
from resource_manager.engine.state import State

RETRY_MS = 1_000
"""After this time, a search without result is repeated."""

TRIED_MAX = 32
"""In one cycle, the search runs for at most this many waiters."""

PLACED_MAX = 64
"""At most this many requests of one waiter are placed in one cycle."""

HOSTS_MAX = 512
"""At most this many hosts with revocable slots are compared for one request."""

SETS_MAX = 256
"""At most this many sets of slots are compared on one host. If no set was found among them, the
search ends with a set in which every slot is necessary.
"""

Found = tuple[Host, tuple[Slot, ...]]
"""A host, and the slots to revoke on it."""


class Revocation:
    """Revokes slots in one scheduling cycle."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._now_ms = state.journal.now_ms
        self._ending: list[HostView] | None = None

    def run(self) -> bool:
        """Revokes slots for the waiters that are first in order and fit on no host.

        Returns:
            True if other requests possibly have room now.
        """
        state, retry = self._state, self._state.revocation_retries
        hosts = self._hosts()
        if not hosts or not state.queue.starvation:
            retry.clear()
            return False
        for each in [each for each, at_ms in retry.items() if at_ms <= self._now_ms]:
            del retry[each]
        state.hosts.refresh(state.queue)
        tried = 0
        for waiter in in_order(state):
            if retry.keys() & _names(waiter) or not self._is_stuck(waiter):
                continue
            if tried == TRIED_MAX or state.journal.is_full:
                break
            tried += 1
            if (failed := self._serve(waiter, hosts)) is not None:
                retry[failed] = self._now_ms + RETRY_MS
        state.hosts.refresh(state.queue)
        return True

    def least_set(self, request: Request) -> Found | None:
        """Returns the least costly set of revocable slots whose capacity is sufficient for a
        request. Returns None if there is no such set, or if the request fits without a revocation.
        """
        scheduling_class = self._state.queue.class_of(request.spec)
        return self._least(scheduling_class, request, self._hosts())

    def _hosts(self) -> list[Host]:
        hosts = self._state.hosts.values()
        return list(islice((h for h in hosts if h.revocable and h.eligible), HOSTS_MAX))

    def _is_stuck(self, waiter: Waiter) -> bool:
        """Returns whether a waiter is allowed to revoke slots, and could not be placed without a
        revocation.
        """
        state = self._state
        if not isinstance(waiter, int):
            return not waiter[0].lane.revocable and state.queue.is_blocked(waiter[0])
        item = state.queue.non_batchables.get(waiter)
        if item is None or item.kind is not Kind.GANG:
            return False
        waiting = state.gangs.waiting[item.name]
        return waiting.tried and not waiting.members[0].spec.revocable

    def _serve(self, waiter: Waiter, hosts: Sequence[Host]) -> Hashable | None:
        """Revokes slots for a waiter.

        Returns:
            What to try again later, because no further slots can be revoked for it: this waiter, or
            the scheduling key of all waiters with equal needs. The latter prevents that a later
            waiter overtakes an equal one. None if there is nothing to try again.
        """
        state = self._state
        for _ in range(PLACED_MAX):
            owner = owner_of(state, waiter)
            if owner is None:  # the waiter is not pending any more, or a maximum blocks it
                return waiter
            if owner.gang_id:
                served = self._serve_gang(state.gangs.waiting[owner.gang_id], hosts)
                return None if served else waiter
            if isinstance(waiter, int):
                return waiter
            request = state.requests.at(owner.number)
            found = self._least(waiter[0], request, hosts)
            if found is None:
                return waiter[0].key
            host, victims = found
            for slot in victims:
                self._revoke(slot, request)
            state.moves.place([request], host)
            state.queue.served(waiter[0], [request])
            state.hosts.touch(host)
            if state.journal.is_full:
                break
        return None

    def _revoke(self, slot: Slot, owner: Request) -> None:
        grace_ms = self._state.settings.revocation_grace_ms
        self._state.gang_moves.revoke(slot, owner, grace_ms=grace_ms)

    # The search for one request.

    def _least(
        self, scheduling_class: SchedulingClass, request: Request, hosts: Sequence[Host]
    ) -> Found | None:
        fit, best = Fit(scheduling_class), None
        older = self._state.slots.superseded.get(request.allocation_id, ())
        avoided = {slot.executor_id for slot in older}
        cost: tuple[int, float, str] | None = None
        if not hosts:
            return None  # no slot can be revoked
        if any(fit.fits(at) for at in self._soon() if at.host.host_id not in avoided):
            return None  # enough capacity becomes free without a revocation
        for host in hosts:
            if host.host_id in avoided:
                continue
            candidates = self._candidates(host)
            most = len(candidates) if cost is None else min(cost[0], len(candidates))
            victims = self._least_on(host, fit, candidates, most)
            if victims is None:
                continue
            found = *self._cost(victims), host.host_id
            if cost is None or found < cost:
                cost, best = found, (host, victims)
        return best

    def _soon(self) -> list[HostView]:
        """Returns the hosts with slots that are being freed, in the state that they will have when
        these slots have ended. Slots whose capacity another request has already booked are not
        counted.
        """
        if self._ending is None:
            ending: dict[str, list[Slot]] = {}
            for slot in self._state.slots.values():
                if slot.state is SlotState.FREEING and not slot.revoked_for:
                    ending.setdefault(slot.executor_id, []).append(slot)
            hosts = self._state.hosts
            self._ending = [
                HostView.without(hosts[name], slots)
                for name, slots in ending.items()
                if hosts[name].eligible
            ]
        return self._ending

    def _least_on(
        self, host: Host, fit: Fit, candidates: Sequence[Slot], most: int
    ) -> tuple[Slot, ...] | None:
        """Returns the least costly set of at most `most` slots of a host, or None if there is no
        such set.
        """

        def suffices(slots: Collection[Slot]) -> bool:
            # Compare the amounts first, because this comparison is much cheaper than a check of all
            # constraints.
            free = add(free_now, total_of(slot.booked for slot in slots))
            return fits(requested, free) and fit.fits(HostView.without(host, slots))

        free_now: Amounts = host.free(even_without_pool=True)
        requested = fit.requested(host)
        if not candidates or not suffices(candidates):
            return None
        compared = 0
        least: tuple[tuple[int, float], tuple[Slot, ...]] | None = None
        for count in range(1, most + 1):
            # A set with more slots than the least costly set ends is never less costly.
            if compared > SETS_MAX or (least is not None and count > least[0][0]):
                break
            for slots in combinations(self._distinct(candidates, count), count):
                compared += 1
                if compared > SETS_MAX:
                    break
                cost = self._cost(slots)
                if (least is None or cost < least[0]) and suffices(slots):
                    least = cost, slots
        if least is not None:
            return least[1]
        if compared <= SETS_MAX:
            return None
        kept = list(candidates)
        for slot in reversed(candidates):  # first try to keep the slots with the most service
            without = [each for each in kept if each is not slot]
            if without and suffices(without):
                kept = without
        return tuple(kept) if len(kept) <= most else None

    def _candidates(self, host: Host) -> list[Slot]:
        """Returns the slots of a host that are allowed to be revoked. The slots with the least
        service come first.
        """
        state = self._state
        slots = (host.slots[key] for key in host.revocable)
        found = [
            slot
            for slot in slots
            if slot.state is SlotState.ALLOCATED
            and slot.ordered is None
            and not slot.is_parked
            and (request := state.requests.served_by(slot)) is not None
            and request.state is RequestState.GRANTED
        ]
        return sorted(found, key=lambda each: (self._service(each), each.allocation_id))

    def _cost(self, victims: Iterable[Slot]) -> tuple[int, float]:
        """Returns the number and the total service of the slots that end if these slots are
        revoked. If a gang would be queued again, all its slots end.
        """
        ending: dict[SlotKey, Slot] = {}
        for slot in victims:
            for each in self._ending_with(slot):
                ending[each.allocation_id, each.generation] = each
        return len(ending), sum(map(self._service, ending.values()))

    def _ending_with(self, slot: Slot) -> Collection[Slot]:
        state = self._state
        request = state.requests[slot.allocation_id]
        gang = state.gangs.of(request)
        if gang is None or not request.spec.restart_on_loss:
            return (slot,)
        return [
            state.slots[member.allocation_id, member.generation]
            for member in living(state.requests, gang)
        ]

    def _distinct(self, candidates: Sequence[Slot], most: int) -> list[Slot]:
        """Returns the candidates without slots that cannot be better than other slots. Of plain
        slots with equal bookings, only the `most` slots with the least service matter. `candidates`
        must be sorted by service.
        """
        seen: Counter[tuple[tuple[str, int], ...]] = Counter()
        found = []
        for slot in candidates:
            assignment = slot.assignment
            if assignment is None or not (assignment.cpus or assignment.numa or assignment.devices):
                kind = tuple(sorted(slot.booked.items()))
                # The end of a slot possibly ends other slots of its gang, which cost more.
                if len(self._ending_with(slot)) == 1:
                    seen[kind] += 1
                    if seen[kind] > most:
                        continue
            found.append(slot)
        return found

    def _service(self, slot: Slot) -> float:
        """Returns the service of a slot: its cost times the time for which it has existed."""
        since_ms = slot.allocated_time_ms or self._state.journal.at.time_ms
        return slot.cost * max(0, self._state.journal.at.time_ms - since_ms)

    # The search for a gang.

    def _serve_gang(self, waiting: WaitingGang, hosts: Sequence[Host]) -> bool:
        """Revokes slots for all members of a gang and places the gang, or does nothing. Returns
        whether the gang was placed.
        """
        state, where = self._state, waiting.kind.where
        candidates = [slot for host in hosts for slot in self._candidates(host)]
        candidates.sort(key=self._service, reverse=True)
        requests = state.gang_moves.current_requests(waiting)
        trial = _Trial(state.hosts)
        trial.take(candidates)
        found = seek(state.hosts, where, requests)
        if found is not None:
            used = {share.host_id for share in found}
            trial.spare([slot for slot in candidates if slot.executor_id not in used])
            # Keep each slot that the gang does not need. Check the slots with the most service
            # first.
            for slot in list(trial.taken.values())[:SETS_MAX]:
                trial.spare([slot])
                again = seek(state.hosts, where, requests)
                if again is None:
                    trial.take([slot])
                found = again or found
        taken = trial.end()
        if found is None or not taken:
            return False
        # On each host, one member stands for the gang as the request for which the slots are
        # revoked. This is correct, because all members are placed and end together.
        owners: dict[str, Request] = {}
        groups = state.gang_moves.by_request(waiting)
        members = [iter(groups[each]) for each in requests]
        for share in found:
            first, *_ = islice(members[share.request_index], share.count)
            owners.setdefault(share.host_id, first)
        for slot in taken:
            if slot.executor_id in owners:
                self._revoke(slot, owners[slot.executor_id])
        state.gang_moves.place_together(waiting, requests, found)
        for host_id in owners:
            state.hosts.touch(state.hosts[host_id])
        return True


def _names(waiter: Waiter) -> set[Hashable]:
    """Returns the names of a waiter in `State.revocation_retries`."""
    return {waiter} if isinstance(waiter, int) else {waiter, waiter[0].key}


class _Trial:
    """Takes slots out of the ledgers of their hosts for some time, to find out what would fit
    without these slots.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.taken: dict[SlotKey, Slot] = {}

    def take(self, slots: Iterable[Slot]) -> None:
        """Takes slots out of the ledgers."""
        for slot in slots:
            key = (slot.allocation_id, slot.generation)
            self.taken[key] = slot
            self._book(self._hosts[slot.executor_id], key, slot, -1)
        self._follow(slots)

    def spare(self, slots: Iterable[Slot]) -> None:
        """Puts slots back into the ledgers."""
        for slot in slots:
            key = (slot.allocation_id, slot.generation)
            del self.taken[key]
            self._book(self._hosts[slot.executor_id], key, slot, 1)
        self._follow(slots)

    def end(self) -> list[Slot]:
        """Puts all slots back into the ledgers, and returns the slots that were still out."""
        taken = list(self.taken.values())
        self.spare(taken)
        return taken

    def _book(self, host: Host, key: SlotKey, slot: Slot, sign: int) -> None:
        if sign < 0:
            host.revoked[key] = slot.allocation_id
        else:
            del host.revoked[key]
        host.lend(slot, sign)
        if host.cpus is not None and sign < 0:
            host.cpus.remove(key)
        elif host.cpus is not None:
            host.cpus.add(key, cpus_booked(slot), slot.policy)
            # If the host has become too small for its slots, they still keep their amounts.
            host.cpus.tolerate()

    def _follow(self, slots: Iterable[Slot]) -> None:
        strategy = self._hosts.settings.strategy
        for name in dict.fromkeys(slot.executor_id for slot in slots):
            columns = columns_of(self._hosts[name], strategy)
            for index in self._hosts.indexes.all().values():
                if index.knows(name):
                    index.put(name, columns)
