"""Codes for why a host cannot give a slot its cpus or NUMA nodes."""

from __future__ import annotations

from resource_manager.engine.model.host_refusal import HostBlocker


class CpuBlocker(HostBlocker):
    """The reason of a refusal. Those of the first group stay while request, host and settings are
    the same. Those of the second may pass when other slots end.
    """

    NO_CPU_TOPOLOGY = "NO_CPU_TOPOLOGY"  # the host does not report its cores and NUMA nodes
    BIND_POLICY_CONFLICT = "BIND_POLICY_CONFLICT"  # request and host require different ones
    NUMA_POLICY_MISMATCH = "NUMA_POLICY_MISMATCH"  # request and host require different ones
    SMT_NEEDED = "SMT_NEEDED"  # spreading over threads, but no core has several
    SMT_ALIGNMENT = "SMT_ALIGNMENT"  # the count is not that of any whole cores

    CPU_NOT_ENOUGH = "CPU_NOT_ENOUGH"  # free ones that could be dedicated to the slot
    WHOLE_CORES_NOT_ENOUGH = "WHOLE_CORES_NOT_ENOUGH"
    DISTINCT_CORES_NOT_ENOUGH = "DISTINCT_CORES_NOT_ENOUGH"
    EXCLUSIVE_UNMET = "EXCLUSIVE_UNMET"  # others claim the same cores or nodes
    SHARED_POOL_EMPTY = "SHARED_POOL_EMPTY"  # it is, or would be, while slots need it
    BEST_EFFORT_POOL_EMPTY = "BEST_EFFORT_POOL_EMPTY"  # it is, or would be, while slots need it
    BURST_POOL_TOO_SMALL = "BURST_POOL_TOO_SMALL"  # no NUMA node's shared pool suits the cpu limit
    NUMA_UNALIGNED = "NUMA_UNALIGNED"  # it fits only on more NUMA nodes than the policy admits
    # on all nodes together, after what pools have promised
    NUMA_NOT_ENOUGH_CPU = "NUMA_NOT_ENOUGH_CPU"
    NUMA_NOT_ENOUGH_MEMORY = "NUMA_NOT_ENOUGH_MEMORY"
    NUMA_NOT_ENOUGH_RESOURCE = "NUMA_NOT_ENOUGH_RESOURCE"  # huge pages and the like

    @property
    def lasting(self) -> bool:
        """See `HostBlocker`."""
        return self in _LASTING


_LASTING = frozenset(
    (
        CpuBlocker.NO_CPU_TOPOLOGY,
        CpuBlocker.BIND_POLICY_CONFLICT,
        CpuBlocker.NUMA_POLICY_MISMATCH,
        CpuBlocker.SMT_NEEDED,
        CpuBlocker.SMT_ALIGNMENT,
    )
)
