"""What a slot of a shape books and costs, before it is known where it goes."""

from __future__ import annotations

from finegrain.resources import Amounts
from resource_manager.engine.fairness.quotas import counted
from resource_manager.engine.hosts.bookings import shared_booking
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.state import State


def booked_at_most(state: State, shape: SchedulingClass) -> Amounts:
    """What one slot books, wherever it goes, as limits count it; of default slots, what the largest
    one books on any executor. Empty: no executor is known.
    """
    version = state.hosts.version
    if shape.need is None or shape.need[0] != version:
        shape.need = version, _booked_at_most(state, shape)
    return shape.need[1]


def cost_of(state: State, shape: SchedulingClass) -> float:
    """What one slot costs per second, at most."""
    return state.costs.of(booked_at_most(state, shape))


def _booked_at_most(state: State, shape: SchedulingClass) -> dict[str, int]:
    if shape.profile is not None:
        return counted(shared_booking(shape.profile, state.costs.in_parts, shape.best_effort))
    most: dict[str, int] = {}
    for host in state.hosts.values():
        for name, amount in counted(host.booking_for(shape)).items():
            most[name] = max(most.get(name, 0), amount)
    return most
