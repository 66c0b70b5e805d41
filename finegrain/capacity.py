"""Describes the total capacity that one executor has for slots.

`task_executor/host/capacity.py` computes this value. The value does not say how much of the
capacity is allocated.
"""

from dataclasses import dataclass
from typing import Any

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.mapping.json_form import from_json, to_json
from finegrain.topology import HugePages


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The part of the capacity that is on one NUMA node.

    The nodes' memory can add up to more than the executor's total, because a memory limit applies
    to all nodes together. So the total and the memory of each node are separate limits.
    """

    id: int
    cpus: CpuSet  # the cpus of `Capacity.cpus` that are on this node
    memory_bytes: int  # a multiple of 64 KiB; 0 if unknown or not usable
    default_memory: bool  # False for HBM, CXL, persistent or GPU memory, which is not in the total
    hugepages: tuple[HugePages, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    """Totals of one executor, after all reserves and limits."""

    cpus: CpuSet  # every cpu that slots may run on
    isolated_cpus: CpuSet  # the part of `cpus` that only exclusive slots may use
    core_count: int  # number of physical cores with at least one of `cpus`
    cpu_milli_total: int  # 1000 per cpu (hardware thread), or less under a CPU time quota
    memory_bytes_total: int  # a multiple of 64 KiB
    nodes: tuple[NodeCapacity, ...]
    reserved_cpus: CpuSet = EMPTY
    reserved_memory_bytes: int = 0
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON data, with cpu sets in the kernel's list notation."""
        encoded: dict[str, Any] = to_json(self)
        return encoded

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Capacity":
        """Returns the capacity from the data that `to_dict` returned.

        Raises:
            InvalidArgument: a field is wrong. The error names the field.
        """
        return from_json(cls, data)
