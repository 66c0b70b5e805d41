"""What a slot of a shape books and costs, before it is known where it goes."""

from __future__ import annotations

from finegrain.resources import Amounts
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.quotas import counted
from resource_manager.engine.hosts.bookings import shared_booking
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.scheduling_classes import SchedulingClass


def booked_at_most(hosts: Hosts, costs: Costs, shape: SchedulingClass) -> Amounts:
    """What one slot books, wherever it goes, as limits count it; of default slots, what the largest
    one books on any executor. Empty: no executor is known.
    """
    version = hosts.version
    if shape.need is None or shape.need[0] != version:
        shape.need = version, _booked_at_most(hosts, costs, shape)
    return shape.need[1]


def cost_of(hosts: Hosts, costs: Costs, shape: SchedulingClass) -> float:
    """What one slot costs per second, at most."""
    return costs.of(booked_at_most(hosts, costs, shape))


def _booked_at_most(hosts: Hosts, costs: Costs, shape: SchedulingClass) -> dict[str, int]:
    if shape.profile is not None:
        return counted(shared_booking(shape.profile, costs.in_parts, shape.best_effort))
    most: dict[str, int] = {}
    for host in hosts.values():
        for name, amount in counted(host.booking_for(shape)).items():
            most[name] = max(most.get(name, 0), amount)
    return most
