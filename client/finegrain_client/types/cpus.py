"""What the client says about cpus and NUMA nodes of requests and slots; see `status.py` for the
shape of all values. Sets of cpus and nodes are texts in the kernel's list form ("0-3,8").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaPolicy, QosClass
from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class CpuWish(Value):
    """What a request says about its cpus. "Default": as its host or the cluster is configured."""

    qos: QosClass = QosClass.LS
    bind: BindPolicy = BindPolicy.DEFAULT
    bind_required: bool = False
    exclusive: ExclusivePolicy = ExclusivePolicy.DEFAULT
    exclusive_required: bool = False
    numa: NumaPolicy = NumaPolicy.DEFAULT
    numa_required: bool = False


NO_WISH = CpuWish()


@dataclass(frozen=True, slots=True)
class SlotNodeShare(Value):
    """What a slot takes of one NUMA node."""

    node: int
    amounts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SlotPool(Value):
    """A shared pool that a slot runs in: the cpus of one NUMA node in one package."""

    package: int
    node: int  # -1: the host does not tell


@dataclass(frozen=True, slots=True)
class SlotCpus(Value):
    """The cpus, NUMA nodes and shared pools of a slot."""

    qos: QosClass
    cpus: str  # its own; empty: it runs in shared pools
    bind: BindPolicy  # what they were chosen by
    exclusive: ExclusivePolicy  # what was reached
    numa: tuple[SlotNodeShare, ...]  # empty: it is bound to no NUMA node
    memory_nodes: str  # whose memory it may use; empty: all
    pools: tuple[SlotPool, ...]  # empty: all of its class
    notes: tuple[str, ...]  # what was preferred and could not be had, a sentence each
