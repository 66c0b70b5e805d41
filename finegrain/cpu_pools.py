"""The shared pools of a host: which cpus the slots without cpus of their own run on.

Decides, of what is known about a host's cpus and of who has cpus of his own, what is left to the
shared pool (LS) and what to the best-effort pool (BE), for every NUMA node of every package, and
which cpus one slot is confined to. Refuses to know where the facts come from and what is written
where: the RM shows by it what executors enforce by it.

The arithmetic is that of Koordinator's node agent: the shared pool is every cpu that nobody has to
himself; the best-effort pool is that and the cpus of LSR slots. A pool that has been emptied stays.
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
"""Number of the NUMA node of cpus of which the host does not tell it."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """What of a host the pools are made of; later fields are taken out of `places`.

    Cpus that are reserved without being reserved strictly are no part of this: they are in the
    pools like all others, only that no slot ever gets them for itself.
    """

    places: tuple[tuple[PoolName, CpuSet], ...]  # the executor's own cpus; see `places_of`
    kubelet_pinned: CpuSet = EMPTY  # given to pods of their own by a kubelet of the same host
    strictly_reserved: CpuSet = EMPTY
    isolated: CpuSet = EMPTY  # from the kernel's load balancing: nothing is spread over them
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
        """What an executor announces and sees, under the settings that hold.

        Args:
            cores: place and cpus of every core of the host.
            slot_cpus: the executor's cpus as it announced them.
            policy: reserves cpus, strictly or not.
            kept_back: reserved by the executor's own configuration and no part of `slot_cpus`; they
                are in the pools if the settings reserve them, and not strictly.
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
        """In no pool, whoever has what."""
        return union((self.kubelet_pinned, self.strictly_reserved, self.isolated, self.offline))


class Pool(NamedTuple):
    """The cpus that are shared on one NUMA node within one package."""

    name: PoolName
    shared: CpuSet  # for LS
    best_effort: CpuSet  # for BE


@dataclass(frozen=True, slots=True)
class Pools:
    """All pools of a host, in order of package and node."""

    members: tuple[Pool, ...]
    offline: CpuSet = EMPTY

    @property
    def shared(self) -> CpuSet:
        """All that LS slots share."""
        return union(pool.shared for pool in self.members)

    @property
    def best_effort(self) -> CpuSet:
        """All that BE slots share."""
        return union(pool.best_effort for pool in self.members)

    def of_class(self, qos: QosClass, names: Iterable[PoolName] = ()) -> CpuSet:
        """The cpus of the pools of a class: of these, or without names of all.

        Names that this host does not have are passed over.
        """
        wanted = frozenset(names)
        return union(
            pool.best_effort if qos is QosClass.BE else pool.shared
            for pool in self.members
            if not wanted or pool.name in wanted
        )

    def cpus_of(self, assignment: CpuAssignment | None) -> CpuSet:
        """The cpus that a slot is confined to; without an assignment it is a plain LS slot.

        Its own cpus as far as they run; else the pools that it is bound to; and where nothing is
        left of those (cpus went offline, a kubelet took them), all pools of its class: LS for one
        that had cpus of its own. Empty only if those are empty, too; what the slot has then is to
        be left as it is.
        """
        if assignment is None:
            return self.shared
        if own := assignment.cpus - self.offline:
            return own
        qos = QosClass.BE if assignment.qos is QosClass.BE else QosClass.LS
        return self.of_class(qos, assignment.pools) or self.of_class(qos)


def pools_of(host: Pooled, assignments: Iterable[tuple[QosClass, CpuSet]]) -> Pools:
    """The pools that remain, beside those who have cpus of their own.

    Args:
        assignments: class and dedicated cpus of each slot; without cpus they change nothing. Cpus
            that the host does not have are left out.
    """
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
            for name, cpus in sorted(host.places, key=lambda place: place[0])
        ),
        offline=host.offline,
    )


def places_of(
    cores: Iterable[tuple[PoolName, CpuSet]], own: CpuSet
) -> tuple[tuple[PoolName, CpuSet], ...]:
    """Where the executor's own cpus lie: those of each NUMA node in each package.

    Args:
        cores: place and cpus of every core, or of any other parts that do not overlap.
        own: the executor's own cpus; what no core has belongs nowhere.
    """
    found: dict[PoolName, CpuSet] = {}
    for name, cpus in cores:
        if included := cpus & own:
            found[name] = found.get(name, EMPTY) | included
    return tuple(sorted(found.items(), key=lambda place: place[0]))


def cores_of(topology: HostTopology) -> Iterator[tuple[PoolName, CpuSet]]:
    """Place and cpus of every core of a host as it was detected."""
    for core in topology.cores:
        yield PoolName(core.package, _known(core.numa_node)), core.cpus


def _known(node: int | None) -> int:
    return NODE_UNKNOWN if node is None else node
