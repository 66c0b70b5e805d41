"""What the client returns about the cpus and NUMA nodes of one executor; see `status.py` for the
shape of all values. Sets of cpus and nodes are texts in the kernel's list form ("0-3,8").
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
    """One logical cpu that runs."""

    cpu: int
    core: int  # its position among the cores of the host, in order of their first cpus
    node: int  # id of its NUMA node; -1: the host does not tell
    package: int  # index of its package
    kind: str  # "core", "atom", ...; empty where all are alike


@dataclass(frozen=True, slots=True)
class Pool(Value):
    """The shared pools of one NUMA node within one package."""

    package: int
    node: int  # -1: the host does not tell
    shared_cpus: str  # LS slots run there
    best_effort_cpus: str  # BE slots run there


@dataclass(frozen=True, slots=True)
class LostCpus(Value):
    """Cpus that a slot was given and that are not there any more."""

    allocation_id: str
    generation: int
    cpus: str


@dataclass(frozen=True, slots=True)
class HostSettings(Value):
    """What holds on a host, and by whom: `origins` names for each of the others "operator",
    "configuration", "kubelet", "cluster" or "built-in".
    """

    bind: str
    numa_strategy: str
    alignment: str
    reserved_cpus: str
    strictly_reserved_cpus: str  # of them those on which no slot runs at all
    default_bind: str
    default_exclusive: str
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeCapacity(Value):
    """What an executor announced for slots of one NUMA node."""

    node: int
    memory_bytes: int
    extended: Mapping[str, int]  # hugepages
    default_memory: bool  # False: of a kind of its own, which no slot gets unasked


@dataclass(frozen=True, slots=True)
class AnnouncedCpus(Value):
    """What an executor announced for slots."""

    slot_cpus: str  # counted in its total
    reserved_cpus: str  # kept back by its configuration, not counted
    isolated_cpus: str
    nodes: tuple[NodeCapacity, ...]


@dataclass(frozen=True, slots=True)
class KubeletContainer(Value):
    """A container to which a kubelet gave cpus or memory of its own."""

    pod_uid: str
    container: str
    cpus: str
    memory_bytes: Mapping[int, int]  # by node


@dataclass(frozen=True, slots=True)
class Kubelet(Value):
    """A kubelet on the same host, as its files tell."""

    cpu_manager_policy: str
    cpu_manager_options: Mapping[str, str]
    topology_manager_policy: str
    topology_manager_scope: str
    memory_manager_policy: str
    reserved_cpus: str
    containers: tuple[KubeletContainer, ...]


@dataclass(frozen=True, slots=True)
class CpusNow(Value):
    """What an executor sees of its cpus at present."""

    offline_cpus: str
    squeezed_cpus: str  # best-effort slots are confined to these; empty: they are not
    host_policy_number: int  # of the operator's settings that it follows; 0: none
    notes: tuple[str, ...]
    kubelet: Kubelet | None


@dataclass(frozen=True, slots=True)
class TopologyReport(Value):
    """All that is known of the cpus and NUMA nodes of one executor.

    `topology` has the fields of the protocol's HostTopology. `announced` is None where slots cannot
    have cpus of their own, `now` where there is nothing out of the ordinary to see.
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
