"""Computes the shared pools of a host: the cpus on which slots without dedicated cpus run.

Each NUMA node of each package has a shared pool (LS) and a best-effort pool (BE). The rules for the
pools come from Koordinator's node agent. The shared pool has every cpu that is not dedicated to a
slot. The best-effort pool has these cpus, and also the cpus of LSR slots. A pool can be empty. With
this module, the resource manager shows pools, and the executor enforces pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from finegrain.cpu_assignment import CpuAssignment, PoolName
from finegrain.cpu_policy import EffectivePolicy, QosClass
from finegrain.cpuset import EMPTY, CpuSet, union
from finegrain.topology import HostTopology

NODE_UNKNOWN = -1
"""The node id of cpus whose NUMA node is unknown."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """The cpus from which the pools of a host are made: `places` without the cpus in the fields
    below.

    Some cpus are reserved, but not strictly. They are in the pools like all other cpus, but are
    never dedicated to a slot. No field names these cpus.
    """

    places: tuple[tuple[PoolName, CpuSet], ...]  # the executor's cpus; see `places_of`
    kubelet_pinned: CpuSet = EMPTY  # dedicated to pods by a kubelet of the same host
    strictly_reserved: CpuSet = EMPTY
    isolated: CpuSet = EMPTY  # isolated from the kernel's load balancing
    offline: CpuSet = EMPTY

    @classmethod
    def of(
        cls,
        cores: Iterable[tuple[PoolName, CpuSet]],
        slot_cpus: CpuSet,
        policy: EffectivePolicy,
        *,
        kept_back: CpuSet = EMPTY,
        isolated: CpuSet = EMPTY,
        kubelet_pinned: CpuSet = EMPTY,
        offline: CpuSet = EMPTY,
    ) -> Pooled:
        """Combines the cpus that an executor registers and reports with the effective settings.

        Args:
            cores: the pool name and the cpus of every core of the host.
            slot_cpus: the executor's cpus for slots, as it registered them.
            policy: the settings in effect, which can reserve cpus.
            kept_back: cpus that the executor's own configuration reserves. `slot_cpus` does not
                contain these cpus. They are in the pools if `policy` reserves them too, but not
                strictly.
            isolated: cpus isolated from the kernel's load balancing.
            kubelet_pinned: cpus that a kubelet has dedicated to pods.
            offline: cpus that are offline.
        """
        return cls(
            places=places_of(cores, slot_cpus | (kept_back & policy.shared_reserved_cpus)),
            kubelet_pinned=kubelet_pinned,
            strictly_reserved=policy.strictly_reserved_cpus,
            isolated=isolated,
            offline=offline,
        )

    @property
    def excluded(self) -> CpuSet:
        """Cpus that are never in a pool."""
        return union((self.kubelet_pinned, self.strictly_reserved, self.isolated, self.offline))


class Pool(NamedTuple):
    """The shared cpus of one NUMA node within one package."""

    name: PoolName
    shared: CpuSet  # cpus for slots of class LS
    best_effort: CpuSet  # cpus for slots of class BE


@dataclass(frozen=True, slots=True)
class Pools:
    """All pools of a host, ordered by package and node."""

    members: tuple[Pool, ...]
    offline: CpuSet = EMPTY

    @property
    def shared(self) -> CpuSet:
        """All cpus that LS slots share."""
        return union(pool.shared for pool in self.members)

    @property
    def best_effort(self) -> CpuSet:
        """All cpus that BE slots share."""
        return union(pool.best_effort for pool in self.members)

    def of_class(self, qos: QosClass, names: Iterable[PoolName] = ()) -> CpuSet:
        """Returns the cpus of the named pools of a class. Without names, returns the cpus of all
        pools.

        Names that this host does not have are ignored.
        """
        wanted = frozenset(names)
        return union(
            pool.best_effort if qos is QosClass.BE else pool.shared
            for pool in self.members
            if not wanted or pool.name in wanted
        )

    def cpus_of(self, assignment: CpuAssignment | None) -> CpuSet:
        """Returns the cpus that a slot is confined to. If `assignment` is None, the slot is a plain
        LS slot.

        The result is the first of these sets that is not empty:
        1. the slot's dedicated cpus that are online;
        2. the pools to which the slot is bound (this set is empty if the cpus of these pools are
           offline, or if a kubelet uses them);
        3. all pools of the slot's class; for a slot that had dedicated cpus, all LS pools.

        If all sets are empty, the caller must leave the slot's cpus unchanged.
        """
        if assignment is None:
            return self.shared
        if own := assignment.cpus - self.offline:
            return own
        qos = QosClass.BE if assignment.qos is QosClass.BE else QosClass.LS
        # A slot needs cpus to run on. If its own pools are empty, return all pools of its class.
        return self.of_class(qos, assignment.pools) or self.of_class(qos)


def pools_of(host: Pooled, assignments: Iterable[tuple[QosClass, CpuSet]]) -> Pools:
    """Returns the pools of a host, which contain the cpus that are not dedicated.

    Args:
        host: the cpus of the host.
        assignments: the class and the dedicated cpus of each slot. Slots without dedicated cpus
            have no effect. Cpus that the host does not have are ignored.
    """
    # Best-effort slots may use the cpus of LSR slots, but not the cpus of LSE slots.
    taken, exclusive = EMPTY, EMPTY
    for qos, cpus in assignments:
        taken |= cpus
        if qos is QosClass.LSE:
            exclusive |= cpus
    excluded = host.excluded
    best_effort_lacks, shared_lacks = excluded | exclusive, excluded | taken
    return Pools(
        members=tuple(
            Pool(name, cpus - shared_lacks, cpus - best_effort_lacks)
            # Sort by name only, because `<` between cpu sets means subset, which is not an order.
            for name, cpus in sorted(host.places, key=lambda place: place[0])
        ),
        offline=host.offline,
    )


def places_of(
    cores: Iterable[tuple[PoolName, CpuSet]], own: CpuSet
) -> tuple[tuple[PoolName, CpuSet], ...]:
    """Groups the executor's cpus by NUMA node and package.

    Args:
        cores: the pool name and the cpus of every core, or of other parts of the host that do not
            overlap.
        own: the executor's cpus. Cpus that belong to no core are left out.
    """
    found: dict[PoolName, CpuSet] = {}
    for name, cpus in cores:
        # If none of the executor's cpus is in a place, the place has no pool. If slots get all cpus
        # of a place later, the pool of the place is empty.
        if included := cpus & own:
            found[name] = found.get(name, EMPTY) | included
    return tuple(sorted(found.items(), key=lambda place: place[0]))


def cores_of(topology: HostTopology) -> Iterator[tuple[PoolName, CpuSet]]:
    """Yields the pool name and the cpus of every core of a detected host."""
    for core in topology.cores:
        yield PoolName(core.package, _known(core.numa_node)), core.cpus


def _known(node: int | None) -> int:
    return NODE_UNKNOWN if node is None else node
