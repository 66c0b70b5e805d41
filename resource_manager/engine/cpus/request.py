"""Defines what one slot needs on a host (cpus, NUMA nodes and devices), and the reasons for which a
host refuses a slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.cpu_policy import CpuPolicy
from finegrain.devices.request import DeviceRequest
from finegrain.neighbors import NeighborRule
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, Amounts
from resource_manager.engine.cpus.numa import aligned_amounts
from resource_manager.engine.model.host_refusal import HostBlocker


@dataclass(frozen=True, slots=True)
class CpuRequest:
    """The cpus, NUMA nodes and devices that one slot needs on a host."""

    policy: CpuPolicy
    # the amounts that the slot books, sorted; memory parts are added up
    amounts: tuple[tuple[str, int], ...]
    cpu_limit_milli: int = 0  # the cpu that the slot may use; 0 if it may use only what it books
    devices: tuple[DeviceRequest, ...] = ()
    # the set of GPUs that whole GPUs must come from, as bits; None allows any GPUs
    among: int | None = None
    # rules `near` that the slot meets without a neighbor
    without_neighbor: tuple[NeighborRule, ...] = ()

    @classmethod
    def of(
        cls,
        policy: CpuPolicy,
        booking: Amounts,
        cpu_limit_milli: int = 0,
        devices: tuple[DeviceRequest, ...] = (),
        without_neighbor: tuple[NeighborRule, ...] = (),
    ) -> CpuRequest:
        """Makes the request of a slot.

        Args:
            policy: the CPU policy of the slot.
            booking: the amounts that the slot books on the host; see `finegrain.resources.booking`.
            cpu_limit_milli: the cpu that the slot may use, in thousandths. It is 0 if the slot may
                use only what it books.
            devices: the devices that the slot requests.
            without_neighbor: rules `near` that the slot meets without a neighbor.
        """
        amounts = tuple(sorted(aligned_amounts(booking).items()))
        return cls(policy, amounts, cpu_limit_milli, devices, without_neighbor=without_neighbor)

    @property
    def cpu_milli(self) -> int:
        """The cpu that the slot books, normal or best-effort, in thousandths."""
        # Best-effort slots book their cpu in a separate dimension.
        name = BEST_EFFORT_CPU_MILLI if self.policy.best_effort else CPU_MILLI
        return dict(self.amounts).get(name, 0)


class CpuBlocker(HostBlocker):
    """The reason why a host refuses a slot. Reasons of the first group do not change while request,
    host and settings are the same. Reasons of the second group can disappear when other slots end.
    """

    NO_CPU_TOPOLOGY = "NO_CPU_TOPOLOGY"  # the host does not report its cores and NUMA nodes
    BIND_POLICY_CONFLICT = "BIND_POLICY_CONFLICT"  # request and host require different policies
    NUMA_POLICY_MISMATCH = "NUMA_POLICY_MISMATCH"  # request and host require different policies
    SMT_NEEDED = "SMT_NEEDED"  # the policy needs cores with several threads
    SMT_ALIGNMENT = "SMT_ALIGNMENT"  # no whole cores have exactly this number of threads

    CPU_NOT_ENOUGH = "CPU_NOT_ENOUGH"  # too few free cpus that can be dedicated
    WHOLE_CORES_NOT_ENOUGH = "WHOLE_CORES_NOT_ENOUGH"
    DISTINCT_CORES_NOT_ENOUGH = "DISTINCT_CORES_NOT_ENOUGH"
    # the host has no slot that a rule `near` selects, or too few free cpus near such a slot
    NOT_NEAR = "NOT_NEAR"
    NOT_APART = "NOT_APART"  # a slot that must be apart is on the host, or leaves too few cpus
    EXCLUSIVE_UNMET = "EXCLUSIVE_UNMET"  # other slots claim the same cores or nodes
    SHARED_POOL_EMPTY = "SHARED_POOL_EMPTY"  # the pool has, or would have, no cpu for its slots
    # the best-effort pool has, or would have, no cpu for its slots
    BEST_EFFORT_POOL_EMPTY = "BEST_EFFORT_POOL_EMPTY"
    BURST_POOL_TOO_SMALL = "BURST_POOL_TOO_SMALL"  # no NUMA node's shared pool is large enough
    NUMA_UNALIGNED = "NUMA_UNALIGNED"  # the slot needs more NUMA nodes than the policy admits
    # all nodes together have too little cpu that is not promised to slots in pools
    NUMA_NOT_ENOUGH_CPU = "NUMA_NOT_ENOUGH_CPU"
    NUMA_NOT_ENOUGH_MEMORY = "NUMA_NOT_ENOUGH_MEMORY"
    # all nodes together have too little of a countable resource, such as huge pages
    NUMA_NOT_ENOUGH_RESOURCE = "NUMA_NOT_ENOUGH_RESOURCE"

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
