"""Which cpus and NUMA nodes a slot has: decided by the RM, enforced by the executor, shown to all.

Decides nothing; the value alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, QosClass
from finegrain.cpuset import EMPTY, CpuSet, NodeSet
from finegrain.mapping.value import Value


class PoolName(NamedTuple):
    """A shared pool: the cpus of one NUMA node in one package. Every QoS class has its own."""

    package: int  # index in the host's topology
    node: int  # the NUMA node's id; -1 where the host does not tell


class NodeShare(NamedTuple):
    """What a slot takes of one NUMA node: (dimension, amount), sorted, without zeros."""

    node: int
    amounts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CpuAssignment(Value):
    """The cpus, NUMA nodes and pools of one slot."""

    qos: QosClass = QosClass.LS
    cpus: CpuSet = EMPTY  # its own; empty: it runs in a shared pool
    bind: BindPolicy = BindPolicy.NONE  # what its cpus were chosen by
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE  # what was reached
    numa: tuple[NodeShare, ...] = ()  # by node; empty: it is bound to none
    memory_nodes: NodeSet = EMPTY  # whose memory it may use; empty: all
    pools: tuple[PoolName, ...] = ()  # those that it runs in; empty: all of its class
    notes: tuple[str, ...] = ()  # what was preferred and could not be had, a sentence each

    @property
    def nodes(self) -> tuple[int, ...]:
        """Ids of the NUMA nodes that it is bound to, ascending."""
        return tuple(sorted(share.node for share in self.numa))
