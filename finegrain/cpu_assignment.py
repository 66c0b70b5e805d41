"""Describes the cpus, NUMA nodes and devices of a slot.

The resource manager chooses these resources, and the executor enforces the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, QosClass
from finegrain.cpuset import EMPTY, CpuSet, NodeSet
from finegrain.devices.device import DeviceShare
from finegrain.mapping.value import Value


class PoolName(NamedTuple):
    """A shared pool: the cpus of one NUMA node in one package.

    Every QoS class has its own pools.
    """

    package: int  # index in the host's topology
    node: int  # id of the NUMA node; -1: it is not known


class NodeShare(NamedTuple):
    """The amounts that a slot has on one NUMA node: (dimension, amount) pairs, sorted, no zeros."""

    node: int
    amounts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CpuAssignment(Value):
    """The cpus, NUMA nodes, pools and devices of one slot."""

    qos: QosClass = QosClass.LS
    cpus: CpuSet = EMPTY  # dedicated cpus; empty: the slot runs in shared pools
    bind: BindPolicy = BindPolicy.NONE  # the policy by which the cpus were chosen
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE  # the exclusiveness that was achieved
    numa: tuple[NodeShare, ...] = ()  # amounts by node; empty: the slot is bound to no node
    memory_nodes: NodeSet = EMPTY  # nodes whose memory the slot may use; empty: all nodes
    pools: tuple[PoolName, ...] = ()  # pools in which the slot runs; empty: all pools of its class
    notes: tuple[str, ...] = ()  # one sentence for each preference that could not be satisfied
    devices: tuple[DeviceShare, ...] = ()  # sorted by type and minor number
    parked_devices: tuple[DeviceShare, ...] = ()  # GPUs of the slot before it was parked

    @property
    def nodes(self) -> tuple[int, ...]:
        """Ids of the NUMA nodes that the slot is bound to, ascending."""
        return tuple(sorted(share.node for share in self.numa))
