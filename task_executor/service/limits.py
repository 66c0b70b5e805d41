"""Converts between a slot's spec and the limits that the helper enforces."""

from __future__ import annotations

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.hugepages import kernel_limits
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, MEMORY_BYTES
from task_executor.engine.cpu_ledger import CpuBinding
from task_executor.engine.slots import SlotSpec
from task_executor.host.helper_messages import SlotLimits

NO_CAP = -1
"""The CPU time of slots with dedicated cpus has no limit. No other slot runs on these cpus, so a
quota would only slow the slot down.
"""


def dedicated_cpus(limits: SlotLimits) -> CpuSet:
    """Returns the dedicated cpus of a slot that is on the host but not in the slot table."""
    return CpuSet.parse(limits.cpus) if limits.cpu_limit_milli == NO_CAP else EMPTY


def amounts_of(limits: SlotLimits) -> dict[str, int]:
    """Returns the CPU and memory of a slot with these limits. The limits contain no other
    dimensions.
    """
    # Name both CPU dimensions: `withhold` withholds the whole capacity of each dimension that is
    # missing here.
    cpu = {CPU_MILLI: 0, BEST_EFFORT_CPU_MILLI: 0}
    cpu[BEST_EFFORT_CPU_MILLI if limits.best_effort else CPU_MILLI] = limits.cpu_milli
    return cpu | {MEMORY_BYTES: limits.memory_bytes}


def limits_of(spec: SlotSpec, binding: CpuBinding) -> SlotLimits:
    """Returns the limits of a slot that is bound to these cpus and memory nodes.

    The result does not contain device files. `SlotKeeper.with_devices` adds them.
    """
    return SlotLimits(
        allocation_id=spec.allocation_id,
        generation=spec.generation,
        cpu_milli=spec.profile.cpu_milli,
        cpu_limit_milli=NO_CAP if spec.is_pinned else spec.cpu_limit_milli,
        memory_bytes=spec.memory_bytes,
        cpus=str(binding.cpus),
        mems=str(binding.memory_nodes),
        pids_max=spec.pids_max or None,
        best_effort=spec.is_best_effort,
        hugepages=kernel_limits(spec.profile.extended),
    )
