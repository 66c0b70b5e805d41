"""Defines values about the cpus and NUMA nodes of one executor. `status.py` describes the form of
all values.

Sets of cpus and nodes are texts in the kernel's list form ("0-3,8").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finegrain.mapping.value import Value
from finegrain.values.usage import Zone
from finegrain_client.types.status import SlotStatus


@dataclass(frozen=True, slots=True)
class Cpu(Value):
    """One logical cpu that is online."""

    cpu: int
    core: int  # the cpu's core, as a number; cores are numbered in the order of their first cpu
    node: int  # id of the cpu's NUMA node; -1 if it is unknown
    package: int  # index of the cpu's package
    kind: str  # the kind of the cpu's core: "core", "atom", ...; empty if all cores are of one kind


@dataclass(frozen=True, slots=True)
class Pool(Value):
    """The shared pools of one NUMA node within one package."""

    package: int
    node: int  # the id of a node; -1 if it is not known
    shared_cpus: str  # for LS slots
    best_effort_cpus: str  # for BE slots


@dataclass(frozen=True, slots=True)
class LostCpus(Value):
    """Dedicated cpus that a slot has lost: they are offline, or a kubelet has assigned them."""

    allocation_id: str
    generation: int
    cpus: str


@dataclass(frozen=True, slots=True)
class HostSettings(Value):
    """The policy settings in effect on a host.

    `origins` contains the source of each other field: "operator", "configuration", "kubelet",
    "cluster" or "built-in".
    """

    bind: str
    numa_strategy: str
    alignment: str
    reserved_cpus: str
    strictly_reserved_cpus: str  # the reserved cpus on which no slot runs
    default_bind: str
    default_exclusive: str
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeCapacity(Value):
    """The capacity of one NUMA node that an executor registered for slots."""

    node: int
    memory_bytes: int
    extended: Mapping[str, int]  # hugepages
    default_memory: bool  # False for special memory, which a slot gets only on request


@dataclass(frozen=True, slots=True)
class AnnouncedCpus(Value):
    """The cpus that an executor registered for slots."""

    slot_cpus: str  # the executor's total counts these cpus
    # cpus that the executor's configuration reserves and that are not in the executor's total
    reserved_cpus: str
    isolated_cpus: str
    nodes: tuple[NodeCapacity, ...]


@dataclass(frozen=True, slots=True)
class KubeletContainer(Value):
    """A container to which a kubelet gave dedicated cpus or memory."""

    pod_uid: str
    container: str
    cpus: str
    memory_bytes: Mapping[int, int]  # bytes by node


@dataclass(frozen=True, slots=True)
class Kubelet(Value):
    """A kubelet on the same host, as read from its files."""

    cpu_manager_policy: str
    cpu_manager_options: Mapping[str, str]
    topology_manager_policy: str
    topology_manager_scope: str
    memory_manager_policy: str
    reserved_cpus: str
    containers: tuple[KubeletContainer, ...]


@dataclass(frozen=True, slots=True)
class CpusNow(Value):
    """The current state of an executor's cpus, as the executor reports it."""

    offline_cpus: str
    squeezed_cpus: str  # best-effort slots may run only on these cpus; empty if there is no squeeze
    # `HostPolicyStatus.number` of the settings that the executor uses; 0 if there are no settings
    host_policy_number: int
    notes: tuple[str, ...]
    kubelet: Kubelet | None


@dataclass(frozen=True, slots=True)
class TopologyReport(Value):
    """All known facts about the cpus and NUMA nodes of one executor.

    `topology` has the fields of the protocol's HostTopology. `announced` is None if slots cannot
    have dedicated cpus. `now` is None if the executor reports nothing unusual.
    """

    executor_id: str
    topology: Mapping[str, Any]
    cpus: tuple[Cpu, ...]
    announced: AnnouncedCpus | None
    now: CpusNow | None
    settings: HostSettings
    zones: tuple[Zone, ...]
    pools: tuple[Pool, ...]
    slots: tuple[SlotStatus, ...]
    lost_cpus: tuple[LostCpus, ...]
