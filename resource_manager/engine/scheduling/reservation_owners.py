"""Functions for the owner of a reservation, which is a request, a gang, or a slot that must grow.
They return what the owner requests and which hosts could serve it, and place it there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from finegrain.errors import InvariantBroken
from finegrain.resources import Amounts, fits, total_of
from finegrain.values.states import GangPlacement
from resource_manager.engine.fairness.quotas import QuotaBlock
from resource_manager.engine.lifecycle.resizes import growth
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.scheduling_key import SLOTS
from resource_manager.engine.placement.reserved import HostChoice, Reservation, ReservationOwner
from resource_manager.engine.placement.tentative_cpus import TentativeCpus
from resource_manager.engine.queue.gangs import MemberRequest, Where
from resource_manager.engine.queue.non_batchable import Kind
from resource_manager.engine.queue.starvation import Waiter
from resource_manager.engine.scheduling.reservation_search import ReservationSearch, booked_by
from resource_manager.engine.state import State


def owner_of(state: State, waiter: Waiter) -> ReservationOwner | None:
    """Returns the owner that a reservation for a waiter would have. If the waiter is a job's
    requests of one class, the owner is the oldest of them. None: nothing is pending any more.
    """
    if isinstance(waiter, int):
        item = state.queue.non_batchables.get(waiter)
        if item is None:
            return None
        if item.kind is Kind.RESIZE:
            slot = item.name, item.generation
            return ReservationOwner(waiter, item.job_id, item.name, waiter, slot=slot)
        first = state.gangs.waiting[item.name].members[0].allocation_id
        return ReservationOwner(waiter, item.job_id, first, waiter, item.name)
    scheduling_class, job_id = waiter
    job_queue = scheduling_class.job_queues.get(job_id)
    if job_queue is None:
        return None
    number = job_queue.numbers.first
    return ReservationOwner(number, job_id, state.requests.at(number).allocation_id, waiter)


def quota_block_of(state: State, waiter: Waiter) -> QuotaBlock | None:
    """Returns the maximum that blocks a waiter; None: no maximum blocks it."""
    if not isinstance(waiter, int):
        return state.quotas.request_block(*waiter)
    item = state.queue.non_batchables.get(waiter)
    return state.quotas.non_batchable_block(item) if item is not None else None


def still_waits(state: State, owner: ReservationOwner) -> bool:
    """Returns True if the owner is still queued."""
    if isinstance(owner.waiter, int):
        return owner.number in state.queue.non_batchables
    scheduling_class, job_id = owner.waiter
    job_queue = scheduling_class.job_queues.get(job_id)
    return job_queue is not None and owner.number in job_queue.numbers


def need_of(state: State, owner: ReservationOwner) -> Amounts:
    """Returns the most that the owner would book on any hosts."""
    if not isinstance(owner.waiter, int):
        return state.quotas.largest_booking(owner.waiter[0])
    if owner.slot is None:
        return state.quotas.gang_need(state.gangs.waiting[owner.gang_id])
    slot = state.slots[owner.slot]
    return growth(state.hosts.of(slot), slot)


def choose_hosts(
    state: State, owner: ReservationOwner, taken: Collection[str]
) -> HostChoice | None:
    """Returns the hosts to reserve for an owner. None: no suitable hosts exist.

    Args:
        state: the state.
        owner: the owner.
        taken: hosts that must not be chosen.
    """
    if owner.slot is not None:
        return _own_host(state, owner, taken)
    # A single request is a gang of one.
    requests, where = requests_of(state, owner), Where(GangPlacement.ANYWHERE)
    if owner.gang_id:
        where = state.gangs.waiting[owner.gang_id].kind.where
    search = ReservationSearch(state.hosts, state.queue, state.reservations)
    shares = search.choose(where, requests, taken)
    if shares is None:
        return None
    by_host: dict[str, list[tuple[MemberRequest, int]]] = {}
    for share in shares:
        by_host.setdefault(share.host_id, []).append((requests[share.request_index], share.count))
    booked = {name: booked_by(state.hosts[name], some) for name, some in by_host.items()}
    return HostChoice(booked, requests, shares, by_host)


def requests_of(state: State, owner: ReservationOwner) -> Sequence[MemberRequest]:
    """Returns the owner's member requests, with the hosts that they must avoid now. A single
    request counts as a gang of one; a resize has none.
    """
    if not isinstance(owner.waiter, int):
        profile, labels, cpus = owner.waiter[0].key
        superseded = state.slots.superseded.get(owner.allocation_id, ())
        elsewhere = frozenset(slot.executor_id for slot in superseded)
        return (MemberRequest(profile, labels, 1, elsewhere, cpus),)
    if owner.slot is None:
        return state.gang_moves.current_requests(state.gangs.waiting[owner.gang_id])
    return ()


def can_stay(state: State, each: Reservation, names: Collection[str]) -> bool:
    """Returns True if these hosts of a reservation could still serve the owner if all other slots
    there ended, and the owner's request has not changed.
    """
    if each.owner.slot is not None:
        choice = _own_host(state, each.owner, ())
        return choice is not None and choice.booked == each.choice.booked
    # Older slots may have ended since, so the hosts to avoid may differ.
    if requests_of(state, each.owner) != each.choice.requests:
        return False
    search = ReservationSearch(state.hosts, state.queue, state.reservations)
    return all(search.suits(each, name) for name in names)


def can_be_placed(state: State, each: Reservation) -> bool:
    """Returns True if the owner can get cpus and NUMA nodes on its hosts now. The caller has
    checked that the amounts are free.
    """
    if each.owner.slot is not None:
        slot = state.slots[each.owner.slot]
        found = state.resizes.assignment_for(state.hosts.of(slot), slot)
        return not isinstance(found, HostRefusal)
    trials = TentativeCpus()
    members = each.choice.members.items()
    return all(trials.fit_all(some, state.hosts[name]) for name, some in members)


def place_owner(state: State, each: Reservation) -> None:
    """Places the owner on its hosts. The caller has checked that everything is free there.

    Raises:
        InvariantBroken: the cpus of a slot that must grow are not there.
    """
    owner = each.owner
    if owner.slot is not None:
        slot = state.slots[owner.slot]
        found = state.resizes.assignment_for(state.hosts.of(slot), slot)
        if isinstance(found, HostRefusal):
            raise InvariantBroken(f"the placement of {owner.title} was due, and {found.text}")
        state.resizes.order(slot, found)
        state.queue.non_batchables.remove(owner.number)
    elif owner.gang_id:
        waiting = state.gangs.waiting[owner.gang_id]
        state.gang_moves.place_together(waiting, each.choice.requests, each.choice.shares)
    elif not isinstance(owner.waiter, int):
        request = state.requests.at(owner.number)
        state.moves.place([request], state.hosts[each.choice.shares[0].host_id])
        state.queue.served(owner.waiter[0], [request])


def _own_host(state: State, owner: ReservationOwner, taken: Collection[str]) -> HostChoice | None:
    """Returns the host of a slot that must grow, if it is large enough and not `taken`; else
    None.
    """
    slot = state.slots[owner.slot] if owner.slot is not None else None
    if slot is None or slot.wanted is None or slot.executor_id in taken:
        return None
    host, outlasting = state.hosts.of(slot), state.reservations.outlasting
    stays = [
        other.booked for key, other in host.slots.items() if key in outlasting and other is not slot
    ]
    # The slot, its growth and slots that may never end must fit together on the host.
    more = growth(host, slot)
    if not host.eligible or not fits(total_of((slot.booked, more, *stays)), host.total):
        return None
    if state.resizes.unsuited(host, slot, slot.wanted) is not None:
        return None
    return HostChoice({host.host_id: {**more, SLOTS: 0}})
