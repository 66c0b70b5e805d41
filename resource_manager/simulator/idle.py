"""Checks after every moment of a run whether capacity is idle although a waiting request fits.

The check does not use the engine's index. For each kind of waiting requests, the check keeps the
number of slots that fit on each node. It recomputes this number only for nodes that have changed.
So the cost of a check is the number of these kinds times the number of changed nodes. Two kinds
of capacity do not count as idle: capacity that is reserved for a starved request, and capacity
beyond the maximum of a group. A node with a reservation does not count for requests with devices.
Amounts do not show which devices the reservation needs, so the engine places these requests
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from finegrain.devices.request import DeviceRequest
from finegrain.resources import Amounts, ResourceProfile, booking, total_of
from resource_manager.engine.fairness.groups import above
from resource_manager.engine.hosts.notes import ReservedCapacity
from resource_manager.simulator.cluster import Cluster
from resource_manager.simulator.nodes import Labels, SimulatedExecutor
from resource_manager.simulator.plan import Kind


@dataclass(slots=True, eq=False)
class _Room:
    """The number of slots of one profile that fit on each node. Nodes without the labels are left
    out.
    """

    need: dict[str, int]
    devices: tuple[DeviceRequest, ...] = ()
    by_node: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def update(self, node: str, free: Amounts, executor: SimulatedExecutor) -> None:
        """Recomputes one node."""
        # Round down, because only whole slots count.
        fit = min(free.get(each, 0) // amount for each, amount in self.need.items())
        for request in self.devices:
            fit = min(fit, _device_room(executor, request))
        self.total += fit - self.by_node.get(node, 0)
        self.by_node[node] = fit


class IdleCheck:
    """Watches a cluster for idle capacity.

    Attributes:
        checks: number of moments that were checked.
        findings: a sentence for each kind of request that waits although it fits. Only the first
            `FINDINGS_MAX` are kept.
        idle_moments: number of moments with at least one finding.
    """

    FINDINGS_MAX = 20

    def __init__(self, cluster: Cluster) -> None:
        self.checks = 0
        self.idle_moments = 0
        self.findings: list[str] = []
        self._rooms: dict[tuple[ResourceProfile, Labels], _Room] = {}
        self._held: dict[str, ReservedCapacity] = {}
        cluster.on_settled.append(self.check)

    def check(self, cluster: Cluster) -> None:
        """Checks the current moment."""
        self.checks += 1
        changed = cluster.changed_nodes | self._holds(cluster)
        cluster.changed_nodes = set()
        found = [kind for kind in self._fitting(cluster, changed) if _allowed(cluster, kind)]
        self.idle_moments += bool(found)
        for kind in found[: self.FINDINGS_MAX - len(self.findings)]:
            self.findings.append(
                f"at {cluster.now_ms} ms {kind.together} x {kind.profile.to_dict()} of group"
                f" {kind.group} wait with labels {dict(kind.labels)} beside room for them"
            )

    def _holds(self, cluster: Cluster) -> set[str]:
        """Returns the nodes whose reserved capacity has changed since the last check."""
        # Most runs reserve nothing, so this test usually saves a pass over the hosts.
        if not cluster.events["reservation_made"]:
            return set()
        hosts = cluster.state.hosts.items()
        held = {name: host.reserved for name, host in hosts if host.reserved is not None}
        changed = {
            name
            for name in held.keys() | self._held.keys()
            # Compare by identity: the engine replaces the object when a reservation changes.
            if held.get(name) is not self._held.get(name)
        }
        self._held = held
        return changed

    def _fitting(self, cluster: Cluster, changed: Iterable[str]) -> Iterator[Kind]:
        """Yields waiting kinds of requests that fit by capacity alone."""
        needed = {(kind.profile, kind.labels) for kind in cluster.waiting_kinds}
        self._rooms = {key: room for key, room in self._rooms.items() if key in needed}
        # Update known kinds on the changed nodes. New kinds are measured on all nodes below.
        for name in changed:
            free = self._free(cluster, name)
            for room in self._rooms.values():
                if name in room.by_node:
                    self._update(room, name, free, cluster.executors[name])
        for profile, labels in needed - self._rooms.keys():
            self._rooms[profile, labels] = self._measured(cluster, profile, labels)
        for kind in cluster.waiting_kinds:
            if self._rooms[kind.profile, kind.labels].total >= kind.together:
                yield kind

    def _free(self, cluster: Cluster, name: str) -> Amounts:
        """Returns the free amounts of a node that are not reserved."""
        free = cluster.executors[name].free
        if name not in self._held:
            return free
        # Reserved capacity is idle on purpose.
        spare = cluster.state.hosts[name].spare()
        return {each: min(amount, spare.get(each, 0)) for each, amount in free.items()}

    def _measured(self, cluster: Cluster, profile: ResourceProfile, labels: Labels) -> _Room:
        room = _Room(booking(profile, separate_pools=False), profile.devices)
        wanted = set(labels)
        for name, executor in cluster.executors.items():
            if room.need and wanted <= set(executor.node.labels):
                self._update(room, name, self._free(cluster, name), executor)
        return room

    def _update(self, room: _Room, name: str, free: Amounts, executor: SimulatedExecutor) -> None:
        room.update(name, {} if room.devices and name in self._held else free, executor)


def _device_room(executor: SimulatedExecutor, request: DeviceRequest) -> int:
    """Returns how many such requests a node's devices could serve at the same time."""
    parts = [
        min(executor.shares[each.type, each.uuid].get(name, 0) // part for name, part in needed)
        for each in executor.node.devices.devices
        if each.type == request.type and request.accepts(each) and (needed := request.amounts)
    ]
    # The parts of one slot must be on different devices, so a device gives at most one part to a
    # slot.
    slots = sum(parts) // request.count
    while slots and sum(min(part, slots) for part in parts) < slots * request.count:
        slots -= 1
    return slots


def _allowed(cluster: Cluster, kind: Kind) -> bool:
    """Returns True if the maxima of the kind's group, and of all groups above it, allow
    `kind.together` more slots.
    """
    limited = [each for each in above(cluster.state.groups, kind.group) if each.maximum]
    if not limited:
        return True
    # Slots of all groups below count against the maximum of a group above.
    need = booking(kind.profile, separate_pools=False)
    below: dict[str, list[Amounts]] = {each.name: [] for each in limited}
    for slot in cluster.state.slots.values():
        for each in above(cluster.state.groups, cluster.state.jobs[slot.job_id].group):
            if each.name in below:
                below[each.name].append(slot.booked)
    for each in limited:
        used = total_of(below[each.name])
        for name, most in each.maximum.items():
            if used.get(name, 0) + need.get(name, 0) * kind.together > most:
                return False
    return True
