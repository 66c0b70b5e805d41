"""Checks resizes against bookings, orders and the queue; part of `all.py`."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import larger_of
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Slot, SlotKey


def size_problems(host: Host) -> Iterator[str]:
    """Yields problems of the bookings and the resizes of a host's slots.

    Each ordered resize must be queued for a command, or be part of the command in flight.
    """
    for key, slot in host.slots.items():
        yield from _booking(host, key, slot)
        yield from _numbers(key, slot)
        if host.executor.state is ExecutorState.ACTIVE:
            yield from _order(host, key, slot)
    for key in (*host.to_resize, *host.resize_backoffs):
        if key not in host.slots:
            yield f"executor {host.host_id} is to resize slot {key}, which is not there"


def is_waiting_in_queue(host: Host, slot: Slot) -> bool:
    """Returns True if the waiting resize of a slot must be queued: no other resize is ordered, and
    it is not in back-off.
    """
    key = (slot.allocation_id, slot.generation)
    backoff = host.resize_backoffs.get(key)
    pauses = backoff is not None and backoff.active
    return slot.state is SlotState.ALLOCATED and slot.ordered is None and not pauses


def _booking(host: Host, key: SlotKey, slot: Slot) -> Iterator[str]:
    best_effort = slot.best_effort
    booked = host.booking_of(slot.profile, best_effort=best_effort)
    if slot.ordered is not None:
        ordered = host.booking_of(slot.ordered.profile, best_effort=best_effort)
        booked = larger_of(booked, ordered)
    if slot.booked != booked:
        yield f"slot {key} books {slot.booked}, its sizes say {booked}"


def _numbers(key: SlotKey, slot: Slot) -> Iterator[str]:
    ordered, wanted = slot.ordered, slot.wanted
    numbers = [each.number for each in (ordered, wanted) if each is not None]
    # The ordered resize was requested before the waiting one, so its number must be lower.
    if numbers != sorted(set(numbers)) or any(n > slot.resize_number or n < 1 for n in numbers):
        yield f"slot {key} has changes {numbers}, the last number given is {slot.resize_number}"


def _order(host: Host, key: SlotKey, slot: Slot) -> Iterator[str]:
    command = host.in_flight
    queued = key in host.to_resize
    sent = command is not None and command.resizes and key in command.keys
    # `ordered` stays set while a slot is being freed, but the order is not sent again.
    due = slot.ordered is not None and slot.state is SlotState.ALLOCATED
    if due and not (queued or sent):
        yield f"slot {key} has a new size, and no order for its executor"
    if queued and not due:
        yield f"slot {key} is {slot.state} and queued for a resize that was not ordered"
