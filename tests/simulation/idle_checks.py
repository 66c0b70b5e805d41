"""Checks that no request waits beside free capacity, independently of the engine's search."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import Amounts
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.state import State
from tests.simulation.fair_checks import Limits


def idle_capacity(state: State) -> Iterator[str]:
    """Yields requests that wait although a host has free, unreserved capacity within quotas."""
    if state.unfinished:
        return
    limits = Limits(state)
    heads = [
        (line.scheduling_class, state.requests.at(line.numbers.first))
        for line in state.queue.job_queues()
        if line.numbers
        and not limits.stop(line.job_id, [state.quotas.need_of(line.scheduling_class)])
    ]
    if not heads:
        return
    for host in state.hosts.values():
        if not host.eligible:
            continue
        free, slots = host.spare(), host.spare_slots()
        for shape, head in heads:
            if not _has_room(host, shape, free, slots) or host.refuses(shape):
                continue
            # A host with an older slot of the request does not count.
            if not any(name == head.allocation_id for name, _ in host.slots):
                yield f"{head.allocation_id} waits, but {host.host_id} has room for it"


def _has_room(host: Host, shape: SchedulingClass, free: Amounts, slots: int) -> bool:
    if slots < 1 or not all(host.labels.get(name) == value for name, value in shape.labels):
        return False
    if host.needs_topology(shape) and (host.reserved is not None or not host.suits(shape)):
        return False
    need = host.booking_for(shape)
    if DEFAULT_SLOTS in need:
        need = host.default_booking
    return all(free.get(name, 0) >= amount for name, amount in need.items() if name != SLOTS)
