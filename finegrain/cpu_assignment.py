"""Which cpus and NUMA nodes a slot has: decided by the RM, enforced by the executor, shown to all.

Decides nothing; the value alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, QosClass
from finegrain.cpuset import EMPTY, CpuSet, NodeSet


class PoolName(NamedTuple):
    """A shared pool: the cpus of one NUMA node in one package. Every QoS class has its own."""

    package: int  # index in the host's topology
    node: int  # the NUMA node's id; -1 where the host does not tell


class NodeShare(NamedTuple):
    """What a slot takes of one NUMA node: (dimension, amount), sorted, without zeros."""

    node: int
    amounts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CpuAssignment:
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

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form without what is empty; the inverse of `from_dict`."""
        data: dict[str, Any] = {"qos": str(self.qos)}
        if self.cpus:
            data["cpus"] = str(self.cpus)
        if self.bind is not BindPolicy.NONE:
            data["bind"] = str(self.bind)
        if self.exclusive is not ExclusivePolicy.NONE:
            data["exclusive"] = str(self.exclusive)
        if self.numa:
            data["numa"] = [
                {"node": share.node, "amounts": dict(share.amounts)} for share in self.numa
            ]
        if self.memory_nodes:
            data["memory_nodes"] = str(self.memory_nodes)
        if self.pools:
            data["pools"] = [list(pool) for pool in self.pools]
        if self.notes:
            data["notes"] = list(self.notes)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CpuAssignment:
        """Reads what `to_dict` wrote. KeyError, TypeError or ValueError for anything else."""
        return cls(
            qos=QosClass(data["qos"]),
            cpus=CpuSet.parse(data.get("cpus", ""), "cpus"),
            bind=BindPolicy(data.get("bind", BindPolicy.NONE)),
            exclusive=ExclusivePolicy(data.get("exclusive", ExclusivePolicy.NONE)),
            numa=tuple(
                NodeShare(share["node"], tuple(sorted(share["amounts"].items())))
                for share in data.get("numa", ())
            ),
            memory_nodes=CpuSet.parse(data.get("memory_nodes", ""), "memory_nodes"),
            pools=tuple(PoolName(*pool) for pool in data.get("pools", ())),
            notes=tuple(data.get("notes", ())),
        )
