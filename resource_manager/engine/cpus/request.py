"""What one slot needs of a host's cpus, NUMA nodes and devices, and why a host cannot give it."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.cpu_policy import CpuPolicy
from finegrain.devices.request import DeviceRequest
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, Amounts
from resource_manager.engine.cpus.numa import aligned_amounts
from resource_manager.engine.model.host_refusal import HostBlocker


@dataclass(frozen=True, slots=True)
class CpuRequest:
    """What one slot needs of a host's cpus, NUMA nodes and devices."""

    policy: CpuPolicy
    amounts: tuple[tuple[str, int], ...]  # what it books, sorted; memory parts added up
    cpu_limit_milli: int = 0  # 0: it may use no more than it books
    devices: tuple[DeviceRequest, ...] = ()
    among: int | None = None  # GPUs that whole ones must come from, as a set; None: any

    @classmethod
    def of(
        cls,
        policy: CpuPolicy,
        booking: Amounts,
        cpu_limit_milli: int = 0,
        devices: tuple[DeviceRequest, ...] = (),
    ) -> CpuRequest:
        """Makes the request of a slot.

        Args:
            policy: its CPU policy.
            booking: what it books on the host, see `finegrain.resources.booking`.
            cpu_limit_milli: thousandths of a cpu that it may use; 0: no more than it books.
            devices: what it requests of them.
        """
        amounts = tuple(sorted(aligned_amounts(booking).items()))
        return cls(policy, amounts, cpu_limit_milli, devices)

    @property
    def cpu_milli(self) -> int:
        """Cpu that it books, best-effort or not."""
        # Best-effort slots book their cpu in a dimension that guarantees nothing.
        name = BEST_EFFORT_CPU_MILLI if self.policy.best_effort else CPU_MILLI
        return dict(self.amounts).get(name, 0)


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
