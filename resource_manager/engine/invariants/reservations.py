"""Checks reserved capacity against reservations and their owners. `all.py` runs these checks."""

from __future__ import annotations

from collections.abc import Iterator

from resource_manager.engine.hosts.notes import ReservedCapacity
from resource_manager.engine.placement.reserved import Reservation
from resource_manager.engine.scheduling.reservations import has_room
from resource_manager.engine.state import State


def reservations(state: State) -> Iterator[str]:
    """Yields problems of reservations. Must be called right after a scheduling cycle."""
    reservations = state.reservations
    most = state.settings.fairness.reservations_max
    if len(reservations) > most:
        yield f"there are {len(reservations)} reservations, but at most {most} are allowed"
    reserved: dict[str, ReservedCapacity] = {}
    jobs: set[str] = set()
    for number, each in reservations.by_number.items():
        if each.owner.number != number:
            yield f"a reservation for {each.owner.title} is stored under {number}"
        # Each job is allowed one reservation, so that no job can reserve most of the cluster.
        if each.owner.job_id in jobs:
            yield f"job {each.owner.job_id} has another reservation beside {each.owner.title}"
        jobs.add(each.owner.job_id)
        for name in each.hosts.keys() & reserved.keys():
            yield f"executor {name} is reserved for {each.owner.title} and for another owner"
        reserved.update(each.hosts)
        yield from _one(state, each)
    # The host and the reservation must share one `ReservedCapacity` object, so the objects are
    # compared by identity.
    for name, host in state.hosts.items():
        if host.reserved is not reserved.get(name):
            yield f"executor {name} has reserved {host.reserved}, expected {reserved.get(name)}"


def _one(state: State, each: Reservation) -> Iterator[str]:
    """Compares one reservation with its owner and its hosts."""
    title = f"the reservation for {each.owner.title}"
    if not each.owner.waits_in(state.queue):
        yield f"{title} is for an owner that does not wait"
        return
    for name, kept in each.hosts.items():
        host = state.hosts.get(name)
        if host is None or not host.eligible:
            yield f"{title} is on executor {name}, where no new slots may be placed"
            return
        if any(amount > host.total.get(dim, 0) for dim, amount in kept.amounts.items()):
            yield f"{title} is on executor {name}, which is too small for it"
    # If all reserved capacity is free, the cycle should have placed the owner.
    if has_room(state, each):
        yield f"{title} has all its capacity free, but its owner was not placed"
