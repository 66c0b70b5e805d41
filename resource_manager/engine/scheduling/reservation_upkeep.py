"""Whether a reservation can stay as it is, and whether there is room for its holder by now.

Nobody knows when a slot ends. A reservation that has waited for very long for slots to end, which
may be services and never end at all, is given up; they are noted, so that nobody else waits for
them. Refuses to know who gets a reservation (`reservations.py`).
"""

from __future__ import annotations

from finegrain.values.states import SlotState
from resource_manager.engine.context import EventContext
from resource_manager.engine.fairness.flows import GROUP, FlowTree
from resource_manager.engine.fairness.quotas import QuotaBlock, counted, quota_block, total_need
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.placement.reserved import Place, Reservation
from resource_manager.engine.scheduling.reservation_owners import (
    ReservationOwner,
    could_suit,
    held_for,
    owner_of,
)
from resource_manager.engine.state import State


def void(state: State, each: Reservation) -> str:
    """Why a reservation cannot stay; empty: it can."""
    if not owner_of(each).waits(state):
        return "it waits no more"
    if each.version != state.hosts.version:
        if unfit := _unfit(state.hosts, each):
            return unfit
        each.version = state.hosts.version
    if not owner_of(each).suits(state, each.place):
        return "it cannot be placed there any more"
    stop = stop_of(state.flows, owner_of(each), each.place)
    if stop is not None:
        return f"a maximum of group {stop.group_id.removeprefix(GROUP)} stops it"
    host = state.hosts[each.lacking]
    if not host.slots and not host.unowned and not _fits(state.hosts, each.lacking, each):
        return f"executor {each.lacking} has less than it says, even when empty"
    return ""


def outlasted(context: EventContext, each: Reservation) -> str:
    """Gives up what cannot come true before slots end that have not ended for very long, as
    services do not; they are noted, so that nobody else waits for them. Why, or empty: it stays.
    """
    state, books = context.state, context.state.reservations
    if context.now_ms < each.until_ms or has_room(state, each):
        return ""
    hosts = [state.hosts[name] for name in each.place.held if not _fits(state.hosts, name, each)]
    lasting = [
        (host.host_id, key)
        for host in hosts
        for key, slot in host.slots.items()
        if host.reserved is not None
        and key in host.reserved.before
        and slot.state is not SlotState.FREEING
        and key[0] != each.holder.allocation_id  # it grows
    ]
    if not lasting:
        each.until_ms = context.now_ms + state.settings.fairness.starvation_timeout_ms
        return ""
    books.outlasted_by = {key for key in books.outlasted_by if key in state.slots}
    books.outlasted_by.update(key for _, key in lasting)
    passed = state.starvation.of(each.holder.who)
    if passed is not None:
        passed.outlasted += 1
    where, (allocation_id, _) = lasting[0]
    more = f" and {len(lasting) - 1} more" if len(lasting) > 1 else ""
    return f"slot {allocation_id}{more} on executor {where} did not end for too long"


def _unfit(hosts: Hosts, each: Reservation) -> str:
    """Why one of the hosts cannot take the holder in; empty: all can, when empty."""
    place = each.place
    for name, held in place.held.items():
        host = hosts.get(name)
        if host is None:
            return f"executor {name} is not known any more"
        if not host.eligible:
            return f"nothing new may be placed on executor {name}"
        total, slots_max = host.total, host.executor.registration.slots_max
        too_small = any(amount > total.get(name, 0) for name, amount in held.amounts.items())
        if too_small or (slots_max and held.slots > slots_max):
            return f"executor {name} has become too small"
    for share in place.shares:
        if not carries(hosts[share.host_id], place.wishes[share.wish].labels):
            return f"executor {share.host_id} does not carry its labels any more"
    if place.shares and held_for(hosts, place.wishes, place.shares) != place.held:
        return "what it asks for is counted otherwise there now"
    if not could_suit(hosts, place):
        return "cpus and NUMA nodes there do not suit it any more"
    return ""


def has_room(state: State, each: Reservation) -> bool:
    """True if the holder fits where his share is kept."""
    if not _fits(state.hosts, each.lacking, each):
        return False
    for name in each.place.held:
        if not _fits(state.hosts, name, each):
            each.lacking = name
            return False
    return owner_of(each).is_suited(state, each.place)


def _fits(hosts: Hosts, name: str, each: Reservation) -> bool:
    missing, slots = each.place.held[name].missing(hosts[name])
    return not missing and not slots


def stop_of(flows: FlowTree, holder: ReservationOwner, place: Place) -> QuotaBlock | None:
    """The maximum that does not let a holder be placed."""
    job = flows.jobs.get(holder.job_id)
    groups = job.ancestors() if job is not None else ()
    return quota_block(
        groups, total_need((counted(held.amounts), 1) for held in place.held.values())
    )
