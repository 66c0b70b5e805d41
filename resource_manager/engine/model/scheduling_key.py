"""Which requests are equal, and the columns of the capacity index that are known everywhere.

The index counts memory in grains. Each kind of constraint has columns of its own: see
`placement/constraint.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from finegrain.cpu_policy import PLAIN, BindPolicy, CpuPolicy
from finegrain.resources import (
    MEMORY_BYTES,
    MEMORY_GRAIN_BYTES,
    MEMORY_PARTS,
    Amounts,
    ResourceProfile,
)

if TYPE_CHECKING:
    from resource_manager.engine.model.entities import RequestSpec

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted."""

SLOTS = "slots"
"""Index column: slots that a host may still take."""

DEFAULT_SLOTS = "default_slots"
"""Index column: default slots that a host may still take."""

IN_USE = "in_use"
"""Index column: 1 if the host has slots. One that gets its first slots in a pass has neither this
nor `EMPTY` until the pass ends.
"""

EMPTY = "empty"
"""Index column: 1 if the host has no slots."""

ALIGNING = "aligning"
"""Index column: 1 if the host aligns every slot to NUMA nodes."""

_MEMORY = frozenset({MEMORY_BYTES, *MEMORY_PARTS})


class Needs(NamedTuple):
    """What a host must have at least for one request, in columns of the index: necessary, and
    sufficient unless the request is `topology_constrained`.

    Attributes:
        pooled: on a host with one memory pool.
        separate: on a host with a pool for each memory part.
        amounts: the part of both that can be compared with sums over hosts, and with executors that
            have not started yet.
        preferred: for each preferred policy, the columns without which no host can meet it; empty:
            the index does not tell.
        never_met: how many preferred policies no host can meet, whatever it has.
    """

    pooled: dict[str, int]
    separate: dict[str, int]
    amounts: tuple[dict[str, int], dict[str, int]]
    preferred: tuple[tuple[tuple[str, int], ...], ...]
    never_met: int

    @property
    def kinds(self) -> list[dict[str, int]]:
        """What hosts must have, by kind of memory pools, where that differs."""
        return [self.pooled] if self.pooled == self.separate else [self.pooled, self.separate]


CpuKey = tuple[CpuPolicy, int]
"""CPU policy of a request, and its cpu limit if the choice of a host depends on it."""

SchedulingKey = tuple[ResourceProfile | None, Labels, CpuKey | None]
"""Everything that a host is chosen by. The last item is None for requests without a CPU policy."""


def cpu_key(policy: CpuPolicy, cpu_limit_milli: int) -> CpuKey | None:
    """Returns what distinguishes requests for the same amounts by their cpus; None: nothing."""
    if policy is PLAIN or policy == PLAIN:
        return None
    burst = policy.bind is BindPolicy.CONSTRAINED_BURST
    return policy, cpu_limit_milli if burst else 0


def scheduling_key(spec: RequestSpec) -> SchedulingKey:
    """Returns the key of a request. Requests with equal keys are in the same scheduling class."""
    policy = spec.cpu_policy
    cpus = None if policy is PLAIN else cpu_key(policy, spec.cpu_limit_milli)
    return spec.profile, spec.required_labels, cpus


def is_topology_constrained(profile: ResourceProfile | None, cpus: CpuKey | None) -> bool:
    """Returns True if amounts alone can never decide whether a host can serve the request. That
    includes default slots of best-effort cpu, since the index counts only default slots of normal
    cpu.
    """
    if profile is not None and profile.devices:
        return True
    if cpus is None:
        return False
    return cpus[0].topology_constrained or (cpus[0].best_effort and profile is None)


def in_grains(amounts: Amounts) -> dict[str, int]:
    """Returns amounts as the index counts them: memory in whole `MEMORY_GRAIN_BYTES`.

    Small numbers are faster to compute with. Nothing is lost, because bookings are multiples of the
    grain.
    """
    return {
        name: amount // MEMORY_GRAIN_BYTES if name in _MEMORY else amount
        for name, amount in amounts.items()
    }
