"""How a slot wants its cpus, and how a host gives them: the words, and which of them holds.

Decides the vocabulary of CPU orchestration and the order of the layers that settings come from.
Refuses to know topologies, and what of it can be had on one host (the engine's `cpus` package).

The words are those of the field: QoS classes, bind policies, exclusive policies and NUMA alignment
policies of Koordinator, NUMA strategies of its scheduler, alignment policies of the kubelet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.mapping.value import Value


class QosClass(StrEnum):
    """How exclusive the cpus of a slot are."""

    LSE = "LSE"  # cpus of its own, shared with nobody
    LSR = "LSR"  # cpus of its own, shared with best-effort slots only
    LS = "LS"  # the shared pool: every cpu that no LSE or LSR slot has
    BE = "BE"  # the best-effort pool: every cpu that no LSE slot has

    @property
    def is_pinned(self) -> bool:
        """True if slots of this class have cpus of their own."""
        return self in (QosClass.LSE, QosClass.LSR)


class BindPolicy(StrEnum):
    """Which cpus a slot gets."""

    DEFAULT = "Default"  # as configured
    NONE = "None"  # any
    FULL_PCPUS = "FullPCPUs"  # as few physical cores as can be, whole ones
    SPREAD_BY_PCPUS = "SpreadByPCPUs"  # one hardware thread of each core, as far as there are cores
    CONSTRAINED_BURST = "ConstrainedBurst"  # LS: the pool of one NUMA node that suits its cpu limit


class ExclusivePolicy(StrEnum):
    """What a slot does not want to share with others that want the same."""

    DEFAULT = "Default"  # as configured
    NONE = "None"
    PCPU_LEVEL = "PCPULevel"  # physical cores
    NUMA_NODE_LEVEL = "NUMANodeLevel"  # NUMA nodes


class NumaPolicy(StrEnum):
    """How a slot's resources are to lie on NUMA nodes."""

    DEFAULT = "Default"  # as configured
    NONE = "None"  # anywhere
    BEST_EFFORT = "BestEffort"  # aligned if possible, else anywhere
    RESTRICTED = "Restricted"  # on as few nodes as the empty host would need, else not here
    SINGLE_NUMA_NODE = "SingleNUMANode"  # on one node, else not here

    @property
    def aligns(self) -> bool:
        """True if NUMA nodes are chosen at all."""
        return self not in (NumaPolicy.DEFAULT, NumaPolicy.NONE)


class NumaStrategy(StrEnum):
    """Which NUMA node is taken first."""

    MOST_ALLOCATED = "MostAllocated"  # the one with the least available: fill up
    LEAST_ALLOCATED = "LeastAllocated"  # the one with the most available
    DISTRIBUTE_EVENLY = "DistributeEvenly"  # the same on each, as few nodes as can hold it


class HostBindPolicy(StrEnum):
    """What a host demands of slots that have cpus of their own."""

    NONE = "None"
    FULL_PCPUS_ONLY = "FullPCPUsOnly"  # whole physical cores only
    SPREAD_BY_PCPUS = "SpreadByPCPUs"  # one hardware thread per core


@dataclass(frozen=True, slots=True)
class CpuPolicy(Value):
    """What a request says about its cpus. What is required is never relaxed; what is only preferred
    never keeps a slot from a host.
    """

    qos: QosClass = QosClass.LS
    bind: BindPolicy = BindPolicy.DEFAULT
    bind_required: bool = False
    exclusive: ExclusivePolicy = ExclusivePolicy.DEFAULT
    exclusive_required: bool = False
    numa: NumaPolicy = NumaPolicy.DEFAULT
    numa_required: bool = False

    @property
    def best_effort(self) -> bool:
        """True if it books against the best-effort capacity."""
        return self.qos is QosClass.BE

    @property
    def topology_constrained(self) -> bool:
        """True if amounts alone never say whether a host can serve it."""
        constrained = self.bind is BindPolicy.CONSTRAINED_BURST
        return self.qos.is_pinned or self.numa.aligns or constrained


PLAIN = CpuPolicy()
"""What a request says that says nothing."""


@dataclass(frozen=True, slots=True)
class HostPolicy(Value):
    """One layer of a host's settings. None: this layer does not say."""

    bind: HostBindPolicy | None = None
    numa_strategy: NumaStrategy | None = None
    alignment: NumaPolicy | None = None  # never DEFAULT
    reserved_cpus: CpuSet | None = None  # given to no slot of its own
    reserved_strict: bool | None = None  # True: nor are they in the shared pools
    default_bind: BindPolicy | None = None  # of requests that do not say
    default_exclusive: ExclusivePolicy | None = None  # likewise


class PolicyOrigin(StrEnum):
    """Where a setting of a host comes from; an earlier one goes before a later one."""

    OPERATOR = "operator"  # set at runtime, for this host
    CONFIGURATION = "configuration"  # the executor's own
    KUBELET = "kubelet"  # of the same host
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
"""What holds where no layer says anything."""


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """What holds on a host, and by whom."""

    bind: HostBindPolicy = HostBindPolicy.NONE
    numa_strategy: NumaStrategy = NumaStrategy.LEAST_ALLOCATED
    alignment: NumaPolicy = NumaPolicy.NONE
    shared_reserved_cpus: CpuSet = EMPTY  # in the shared pools, given to no slot of its own
    strictly_reserved_cpus: CpuSet = EMPTY  # in no pool
    default_bind: BindPolicy = BindPolicy.FULL_PCPUS
    default_exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    origins: tuple[tuple[str, PolicyOrigin], ...] = field(default=(), compare=False)

    @property
    def reserved_cpus(self) -> CpuSet:
        """All that no slot may have to itself."""
        return self.shared_reserved_cpus | self.strictly_reserved_cpus

    def origin(self, name: str) -> PolicyOrigin:
        """Which layer said it; the name is that of the field of `HostPolicy`."""
        return dict(self.origins).get(name, PolicyOrigin.BUILT_IN)


def settle(layers: Iterable[tuple[PolicyOrigin, HostPolicy]]) -> EffectivePolicy:
    """What holds, of layers that are given in their order: of each setting what the first layer
    says that says anything. Reserved cpus are those of all layers together; a layer reserves them
    strictly if it says so, or if it does not say and the next one that does, does.
    """
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
        says = (each.reserved_strict for _, each in given[at:] if each.reserved_strict is not None)
        if next(says, False):
            strict |= layer.reserved_cpus
        else:
            shared |= layer.reserved_cpus
        origins.setdefault("reserved_cpus", origin)
    return EffectivePolicy(
        **values,
        shared_reserved_cpus=shared - strict,
        strictly_reserved_cpus=strict,
        origins=tuple(sorted(origins.items())),
    )


_SETTLED = ("bind", "numa_strategy", "alignment", "default_bind", "default_exclusive")
