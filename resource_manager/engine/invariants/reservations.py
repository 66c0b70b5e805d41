"""Checks reserved capacity against reservations and their owners; part of `all.py`."""

from __future__ import annotations

from collections.abc import Iterator

from resource_manager.engine.placement.reserved import Held, Reservation
from resource_manager.engine.scheduling.reservation_owners import owner_of
from resource_manager.engine.state import State


def reservations(state: State) -> Iterator[str]:
    """Yields what is wrong with reservations. To be called right after a scheduling cycle."""
    reservations = state.reservations
    most = state.settings.fairness.reservations_max
    if len(reservations) > most:
        yield f"{len(reservations)} reservations, at most {most} are allowed"
    reserved: dict[str, Held] = {}
    jobs: list[str] = []
    for number, each in reservations.by_number.items():
        if each.holder.number != number:
            yield f"a reservation for {each.holder.title} is filed under {number}"
        jobs.append(each.holder.job_id)
        for name, kept in each.place.held.items():
            if name in reserved:
                yield f"executor {name} holds for {each.holder.title} and for somebody else"
            reserved[name] = kept
            if reservations.on_host.get(name) is not each:
                yield f"executor {name} is not known to hold for {each.holder.title}"
        yield from _one(state, each)
    if sorted(jobs) != sorted(reservations.by_job):
        yield f"jobs {sorted(jobs)} have reservations, {sorted(reservations.by_job)} are counted"
    if reserved.keys() != reservations.on_host.keys():
        yield f"{sorted(reserved)} have reserves, {sorted(reservations.on_host)} are counted"
    for name, host in state.hosts.items():
        wanted = reserved.get(name)
        holds = None if host.reserved is None else Held(host.reserved.amounts, host.reserved.slots)
        if holds != wanted:
            yield f"executor {name} holds {holds}, not {wanted}"


def _one(state: State, each: Reservation) -> Iterator[str]:
    """Compares one reservation with its owner and its hosts."""
    title = f"the reservation for {each.holder.title}"
    if not owner_of(each).waits(state):
        yield f"{title} is for somebody who does not wait"
    room = True
    for name, kept in each.place.held.items():
        host = state.hosts.get(name)
        if host is None or not host.eligible:
            yield f"{title} is on executor {name}, where nothing new may be placed"
            return
        total = host.total
        if any(amount > total.get(dim, 0) for dim, amount in kept.amounts.items()):
            yield f"{title} is on executor {name}, which is too small for it"
        missing, slots = kept.missing(host)
        room = room and not missing and not slots
    if room and owner_of(each).is_suited(state, each.place):
        yield f"{title} holds what is all free, and its holder was not placed"
