"""Defines the CPU policies of requests and hosts, and combines the layers of a host's settings.

The names of the policies come from three sources: Koordinator (QoS classes, bind policies,
exclusive policies, NUMA alignment policies), its scheduler (NUMA strategies), and the kubelet
(alignment policies). The engine's `cpus` package decides whether a host can satisfy a policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.mapping.value import Value
from finegrain.neighbors import NeighborRule, SlotLabels


class QosClass(StrEnum):
    """The QoS classes: how exclusive the cpus of a slot are."""

    LSE = "LSE"  # dedicated cpus that no other slot shares
    LSR = "LSR"  # dedicated cpus that are shared only with best-effort slots
    LS = "LS"  # the shared pool: every cpu that no LSE or LSR slot has
    BE = "BE"  # the best-effort pool: every cpu that no LSE slot has

    @property
    def is_pinned(self) -> bool:
        """True if slots of this class have dedicated cpus."""
        return self in (QosClass.LSE, QosClass.LSR)


class BindPolicy(StrEnum):
    """Which cpus a slot gets."""

    DEFAULT = "Default"  # as configured
    NONE = "None"  # any cpus may be used
    FULL_PCPUS = "FullPCPUs"  # whole physical cores, as few as possible
    SPREAD_BY_PCPUS = "SpreadByPCPUs"  # one hardware thread of each core, while cores are free
    # class LS only: the pool of one NUMA node that fits the slot's CPU limit
    CONSTRAINED_BURST = "ConstrainedBurst"


class ExclusivePolicy(StrEnum):
    """The parts of a host that a slot does not share with other slots of the same policy."""

    DEFAULT = "Default"  # as configured
    NONE = "None"
    PCPU_LEVEL = "PCPULevel"  # physical cores
    NUMA_NODE_LEVEL = "NUMANodeLevel"  # NUMA nodes


class NumaPolicy(StrEnum):
    """The rules by which a slot's resources are placed on NUMA nodes."""

    DEFAULT = "Default"  # the configured policy
    NONE = "None"  # on any nodes
    BEST_EFFORT = "BestEffort"  # aligned to nodes if possible, otherwise on any nodes
    RESTRICTED = "Restricted"  # on as few nodes as the slot would need on an empty host
    SINGLE_NUMA_NODE = "SingleNUMANode"  # all cpus on one node

    @property
    def aligns(self) -> bool:
        """True if the policy selects NUMA nodes."""
        return self not in (NumaPolicy.DEFAULT, NumaPolicy.NONE)


class NumaStrategy(StrEnum):
    """Which NUMA node is used first."""

    MOST_ALLOCATED = "MostAllocated"  # first the node with the least available capacity
    LEAST_ALLOCATED = "LeastAllocated"  # first the node with the most available capacity
    DISTRIBUTE_EVENLY = "DistributeEvenly"  # equal parts on each node, on as few nodes as possible


class HostBindPolicy(StrEnum):
    """The bind policy that a host requires for all slots with dedicated cpus."""

    NONE = "None"
    FULL_PCPUS_ONLY = "FullPCPUsOnly"  # whole physical cores only
    SPREAD_BY_PCPUS = "SpreadByPCPUs"  # one hardware thread of each core


@dataclass(frozen=True, slots=True)
class CpuPolicy(Value):
    """The CPU policies of a request.

    A slot is placed only on hosts that satisfy its required policies. If a host cannot satisfy a
    preferred policy, the policy is ignored on this host, and the slot gets a note.

    Attributes:
        slot_labels: labels of the slot, for the rules of other slots of the job.
        neighbors: rules that place the slot near to other slots of the job, or apart from them.
        neighbor_job: the id of the job whose slots count for `neighbors`; set by the resource
            manager. Empty: the policy has no labels and no rules.
    """

    HIDDEN = "neighbor_job"

    qos: QosClass = QosClass.LS
    bind: BindPolicy = BindPolicy.DEFAULT
    bind_required: bool = False
    exclusive: ExclusivePolicy = ExclusivePolicy.DEFAULT
    exclusive_required: bool = False
    numa: NumaPolicy = NumaPolicy.DEFAULT
    numa_required: bool = False
    slot_labels: SlotLabels = ()
    neighbors: tuple[NeighborRule, ...] = ()
    neighbor_job: str = ""

    @property
    def best_effort(self) -> bool:
        """True if the CPU of the slot is booked against the best-effort capacity."""
        return self.qos is QosClass.BE

    @property
    def topology_constrained(self) -> bool:
        """True if amounts alone do not show whether a host can serve the request."""
        constrained = self.bind is BindPolicy.CONSTRAINED_BURST
        return self.qos.is_pinned or self.numa.aligns or constrained or bool(self.neighbor_job)


PLAIN = CpuPolicy()
"""The policy of a request without any CPU policy."""


@dataclass(frozen=True, slots=True)
class HostPolicy(Value):
    """One layer of a host's settings. A field is None if the layer does not set it."""

    bind: HostBindPolicy | None = None
    numa_strategy: NumaStrategy | None = None
    alignment: NumaPolicy | None = None  # any policy except DEFAULT
    reserved_cpus: CpuSet | None = None  # cpus that are never dedicated to a slot
    reserved_strict: bool | None = None  # True if reserved cpus are in no shared pool
    default_bind: BindPolicy | None = None  # for requests without a bind policy
    default_exclusive: ExclusivePolicy | None = None  # for requests without an exclusive policy


class PolicyOrigin(StrEnum):
    """Origins of a setting of a host. An earlier origin in this list has priority over a later
    origin.
    """

    OPERATOR = "operator"  # set at runtime, for this host
    CONFIGURATION = "configuration"  # the configuration file of the executor
    KUBELET = "kubelet"  # the settings of a kubelet on the same host
    CLUSTER = "cluster"  # set at runtime, for all hosts
    BUILT_IN = "built-in"


BUILT_IN = HostPolicy(
    bind=HostBindPolicy.NONE,
    numa_strategy=NumaStrategy.LEAST_ALLOCATED,
    alignment=NumaPolicy.NONE,
    reserved_cpus=EMPTY,
    reserved_strict=False,
    default_bind=BindPolicy.FULL_PCPUS,
    default_exclusive=ExclusivePolicy.NONE,
)
"""The settings in effect if no layer sets anything."""


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The settings in effect on a host, and the origin of each setting."""

    bind: HostBindPolicy = HostBindPolicy.NONE
    numa_strategy: NumaStrategy = NumaStrategy.LEAST_ALLOCATED
    alignment: NumaPolicy = NumaPolicy.NONE
    shared_reserved_cpus: CpuSet = EMPTY  # cpus in the shared pools that are never dedicated
    strictly_reserved_cpus: CpuSet = EMPTY  # cpus that are in no pool
    default_bind: BindPolicy = BindPolicy.FULL_PCPUS
    default_exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    origins: tuple[tuple[str, PolicyOrigin], ...] = field(default=(), compare=False)

    @property
    def reserved_cpus(self) -> CpuSet:
        """All cpus that are never dedicated to a slot."""
        return self.shared_reserved_cpus | self.strictly_reserved_cpus

    def origin(self, name: str) -> PolicyOrigin:
        """Returns the layer that a setting comes from. `name` is the name of a field of
        `HostPolicy`."""
        return dict(self.origins).get(name, PolicyOrigin.BUILT_IN)


def settle(layers: Iterable[tuple[PolicyOrigin, HostPolicy]]) -> EffectivePolicy:
    """Combines layers of settings. The layer with the highest priority comes first.

    For each setting, the first layer that sets it decides. Only the reserved cpus of all layers are
    combined. The reserved cpus of a layer are strict if `reserved_strict` of this layer is True. If
    the layer does not set `reserved_strict`, the next layer that sets it decides.
    """
    # The built-in layer sets every setting, so each setting has a value below.
    given = [*layers, (PolicyOrigin.BUILT_IN, BUILT_IN)]
    values: dict[str, Any] = {}
    origins: dict[str, PolicyOrigin] = {}
    for origin, layer in given:
        for name in _SETTLED:
            if name not in values and (value := getattr(layer, name)) is not None:
                values[name], origins[name] = value, origin
    shared, strict = EMPTY, EMPTY
    for at, (origin, layer) in enumerate(given):
        if not layer.reserved_cpus:
            continue
        # `reserved_strict` of a layer with a higher priority does not apply to the cpus of this
        # layer.
        says = (each.reserved_strict for _, each in given[at:] if each.reserved_strict is not None)
        if next(says, False):
            strict |= layer.reserved_cpus
        else:
            shared |= layer.reserved_cpus
        origins.setdefault("reserved_cpus", origin)
    return EffectivePolicy(
        **values,
        # If two layers reserve the same cpu, and one is strict, the cpu is strictly reserved.
        shared_reserved_cpus=shared - strict,
        strictly_reserved_cpus=strict,
        origins=tuple(sorted(origins.items())),
    )


_SETTLED = ("bind", "numa_strategy", "alignment", "default_bind", "default_exclusive")
