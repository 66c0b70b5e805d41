"""Checks whether a resize fits on the host of its slot: the amounts by which the slot grows, and
its cpus, NUMA nodes and devices. `resizes.py` moves resizes through their states.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN
from finegrain.resources import Amounts, ResourceProfile, shortfall
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.cpus.resizing import fits_alone, resized
from resource_manager.engine.devices.resizing import with_devices_of
from resource_manager.engine.hosts.cpu_allocator import NO_TOPOLOGY
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Resize, Slot
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.scheduling_key import CpuKey, Labels, SchedulingKey
from resource_manager.engine.placement.constraint import HostView, Obstacle
from resource_manager.engine.placement.fit import AMOUNTS, AVAILABLE, NOT_RESERVED
from resource_manager.engine.queue.requests import Requests


def growth(host: Host, slot: Slot) -> Amounts:
    """Returns the amounts that the waiting resize needs in addition to the slot's booking. The
    result is empty if the resize needs no more capacity.
    """
    if slot.wanted is None:
        return {}
    need = host.booking_of(slot.wanted.profile, best_effort=slot.best_effort)
    return shortfall(need, slot.booked)


@dataclass(frozen=True, slots=True)
class _Growing:
    """A slot that grows, in the form of a request, so that placement constraints can check the
    growth.
    """

    profile: ResourceProfile | None
    best_effort: bool
    topology_constrained: bool  # the slot has dedicated cpus, is bound to NUMA nodes, or is parked
    labels: Labels = ()
    cpus: CpuKey | None = None

    @property
    def key(self) -> SchedulingKey:
        """The scheduling key: all attributes that matter for the choice of a host."""
        return self.profile, self.labels, self.cpus


def growth_obstacles(host: Host, slot: Slot) -> tuple[Obstacle, ...]:
    """Returns the obstacles to the growth of a slot's waiting resize; empty if the resize needs no
    growth.

    This function does not check quotas and cpus; see `QuotaChecks` and `assignment_for`. Do not
    call this function for a host that is reserved for this resize: the reservation would be an
    obstacle.
    """
    needed = growth(host, slot)
    if slot.wanted is None or not needed:
        return ()
    # A slot without an assignment runs in the whole shared pool, so only amounts must be checked.
    had = slot.assignment
    is_constrained = had is not None and bool(had.cpus or had.numa or had.parked_devices)
    request = _Growing(slot.wanted.profile, slot.best_effort, is_constrained)
    at = HostView.growing(host, slot)
    return tuple(
        obstacle
        for constraint in (AVAILABLE, AMOUNTS, NOT_RESERVED)
        for obstacle in constraint.obstacles(request, needed, at)
    )


def assignment_for(
    requests: Requests, host: Host, slot: Slot
) -> CpuAssignment | HostRefusal | None:
    """Returns the cpus and NUMA nodes that the slot gets with the waiting resize.

    Returns:
        The assignment. A `HostRefusal` means that no assignment is possible now. None means
        that the slot has no assignment and needs none.
    """
    current, wanted = slot.assignment, slot.wanted
    # A slot without an assignment has no cpus, NUMA nodes or devices that the resize could
    # change.
    if current is None or wanted is None:
        return current
    if host.cpus is None:
        # The host does not report its cores any more. So a slot that depends on cores cannot
        # change its size.
        depends = current.cpus or current.numa or current.devices or current.parked_devices
        return NO_TOPOLOGY if depends else current
    found = resized(
        host.cpus,
        (slot.allocation_id, slot.generation),
        current,
        _cpu_request_of(requests, host, slot, wanted),
    )
    if isinstance(found, HostRefusal):
        return found
    return with_devices_of(found, slot.profile, wanted.profile, host.cpus.devices)


def unsuited(requests: Requests, host: Host, slot: Slot, size: Resize) -> HostRefusal | None:
    """Returns the reason why the slot could not have this size even if the host had no other
    slots: the cpus, NUMA nodes or devices of the host do not suffice.

    Args:
        requests: all requests.
        host: the slot's host.
        slot: the slot, which keeps its cpus and nodes.
        size: the new size.

    Returns:
        The refusal. None if the cpus, nodes and devices could suffice.
    """
    # The new size is ordered only after the present order has ended. At that time, the slot
    # possibly has the cpus and devices of the present order.
    current, profile = slot.assignment, slot.profile
    if slot.ordered is not None:
        current, profile = slot.ordered.assignment or current, slot.ordered.profile
    if current is None or host.cpus is None:
        return None
    key = (slot.allocation_id, slot.generation)
    refusal = fits_alone(host.cpus, key, current, _cpu_request_of(requests, host, slot, size))
    position = host.cpus.devices.layout.position
    # If a device of the slot is absent, the following check is not possible. The device can
    # return later, so its absence is no reason for a refusal.
    if refusal or not all((each.type, each.uuid) in position for each in current.devices):
        return refusal
    alone = host.cpus.devices.empty()
    alone.add(current.devices)
    found = with_devices_of(current, profile, size.profile, alone)
    # A parked slot can wait until its GPUs are available. So a resize of a parked slot is never
    # refused because of GPUs.
    return found if isinstance(found, HostRefusal) and not current.parked_devices else None


def _cpu_request_of(requests: Requests, host: Host, slot: Slot, size: Resize) -> CpuRequest:
    """Returns what the slot would request from the cpu ledger of its host with this size."""
    request = requests.get(slot.allocation_id)
    policy = request.spec.cpu_policy if request is not None else PLAIN
    booked = host.booking_of(size.profile, best_effort=slot.best_effort)
    return CpuRequest.of(policy, booked, size.cpu_limit_milli, size.profile.devices)
