"""What one executor may promise to slots: the value that planning makes and people look at.

Refuses to know how it was planned (`task_executor/host/capacity.py`) and what is taken of it.
"""

from dataclasses import dataclass
from typing import Any

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.mapping.json_form import from_json, to_json
from finegrain.topology import HugePages


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """One NUMA node's part.

    The nodes' memory may add up to more than the executor's total (a memory limit holds for all
    nodes together), so both are limits of their own.
    """

    id: int
    cpus: CpuSet  # those of Capacity.cpus that are on this node
    memory_bytes: int  # a multiple of 64 KiB; 0 if unknown or not ours
    default_memory: bool  # False: apart from the total; HBM, CXL, persistent or GPU memory
    hugepages: tuple[HugePages, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    """Totals of one executor, after all reserves and limits."""

    cpus: CpuSet  # every CPU that slots may run on
    isolated_cpus: CpuSet  # those of cpus that only exclusive slots may use
    core_count: int  # physical cores that cpus touches
    cpu_milli_total: int  # 1000 per CPU (hardware thread), or less under a CPU time quota
    memory_bytes_total: int  # a multiple of 64 KiB
    nodes: tuple[NodeCapacity, ...]
    reserved_cpus: CpuSet = EMPTY
    reserved_memory_bytes: int = 0
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able data, CPU sets in the kernel's list notation."""
        encoded: dict[str, Any] = to_json(self)
        return encoded

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Capacity":
        """The inverse of to_dict.  Raises InvalidArgument that names the wrong field."""
        return from_json(cls, data)
