"""Why a host cannot give a slot its cpus: one code, the numbers, and a sentence for people.

Refuses to know how it was found out, and what becomes of the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CpuBlocker(StrEnum):
    """What stands in the way. The first group never changes while request, host and settings stay
    as they are; the second may pass when other slots go.
    """

    NO_CPU_TOPOLOGY = "NO_CPU_TOPOLOGY"  # the host does not tell what its cpus are made of
    BIND_POLICY_CONFLICT = "BIND_POLICY_CONFLICT"  # two different ones are required
    NUMA_POLICY_MISMATCH = "NUMA_POLICY_MISMATCH"  # likewise
    SMT_NEEDED = "SMT_NEEDED"  # spreading over hardware threads where there are none
    SMT_ALIGNMENT = "SMT_ALIGNMENT"  # not a number of whole cores

    CPU_NOT_ENOUGH = "CPU_NOT_ENOUGH"  # free ones that the slot could have for itself
    WHOLE_CORES_NOT_ENOUGH = "WHOLE_CORES_NOT_ENOUGH"
    DISTINCT_CORES_NOT_ENOUGH = "DISTINCT_CORES_NOT_ENOUGH"
    EXCLUSIVE_UNMET = "EXCLUSIVE_UNMET"  # cores or nodes that others claim likewise
    SHARED_POOL_EMPTY = "SHARED_POOL_EMPTY"  # it is, or would become so under slots that need it
    BEST_EFFORT_POOL_EMPTY = "BEST_EFFORT_POOL_EMPTY"  # likewise
    BURST_POOL_TOO_SMALL = "BURST_POOL_TOO_SMALL"  # no NUMA node's shared pool suits the cpu limit
    NUMA_UNALIGNED = "NUMA_UNALIGNED"  # only on more NUMA nodes than the policy admits
    NUMA_NOT_ENOUGH_CPU = "NUMA_NOT_ENOUGH_CPU"  # on all nodes together, as far as not shared out
    NUMA_NOT_ENOUGH_MEMORY = "NUMA_NOT_ENOUGH_MEMORY"
    NUMA_NOT_ENOUGH_RESOURCE = "NUMA_NOT_ENOUGH_RESOURCE"  # huge pages and the like


@dataclass(frozen=True, slots=True)
class CpuRefusal:
    """Why one host cannot serve one wish."""

    blocker: CpuBlocker
    text: str  # one sentence without a full stop, with both sides of it
    numbers: tuple[tuple[str, int], ...] = ()  # what the sentence counts, such as ("free", 3)

    @property
    def lasting(self) -> bool:
        """True if no slot that goes changes it."""
        return self.blocker in _LASTING

    def number(self, name: str) -> int:
        """One of the numbers; 0 if it is not told."""
        return dict(self.numbers).get(name, 0)


_LASTING = frozenset(
    (
        CpuBlocker.NO_CPU_TOPOLOGY,
        CpuBlocker.BIND_POLICY_CONFLICT,
        CpuBlocker.NUMA_POLICY_MISMATCH,
        CpuBlocker.SMT_NEEDED,
        CpuBlocker.SMT_ALIGNMENT,
    )
)
