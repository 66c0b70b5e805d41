"""Which requests are equal, and what they need of a host at least, in columns of the index of
hosts.

The index counts memory in grains. Its columns about cpus are *necessary* and never sufficient.
Hosts that do not report their cores have none of these columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from finegrain.cpu_policy import PLAIN, BindPolicy, CpuPolicy, NumaPolicy
from finegrain.resources import (
    MEMORY_BYTES,
    MEMORY_GRAIN_BYTES,
    MEMORY_PARTS,
    Amounts,
    ResourceProfile,
    booking,
)

if TYPE_CHECKING:
    from resource_manager.engine.model.entities import RequestSpec

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted."""

SLOTS = "slots"
"""Index column: slots that a host may still take."""

DEFAULT_SLOTS = "default_slots"
"""Index column: default slots that a host may still take."""

PIN_CPUS = "pin.cpus"
"""Index column: cpus that could be dedicated to one more slot."""

PIN_CORE_CPUS = "pin.core_cpus"
"""Index column: those of them whose cores are entirely free."""

PIN_NODE_CPUS = "pin.node_cpus"
"""Index column: those of them on the NUMA node with the most."""

NODE_CPU_MILLI = "node.cpu_milli"
"""Index column: what slots in shared pools could still have of the NUMA node with the most."""

CPU_COLUMNS = (PIN_CPUS, PIN_CORE_CPUS, PIN_NODE_CPUS, NODE_CPU_MILLI)

CPU_MILLI_EACH = 1_000

_MEMORY = frozenset({MEMORY_BYTES, *MEMORY_PARTS})

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
    """Returns True if amounts alone can never decide whether a host can serve such a request. That
    includes default slots of best-effort cpu, since the index counts only default slots of normal
    cpu.
    """
    if cpus is None:
        return False
    return cpus[0].topology_constrained or (cpus[0].best_effort and profile is None)


def need_of(
    profile: ResourceProfile | None, cpus: CpuKey | None, *, separate_pools: bool
) -> dict[str, int]:
    """Returns what a host must have at least for one such request, in columns of the index.

    Args:
        profile: None: a default slot.
        cpus: CPU policy; None: none.
        separate_pools: the host has a pool for each memory part.
    """
    best_effort = cpus is not None and cpus[0].best_effort
    if profile is None:
        return {SLOTS: 1} if best_effort else {DEFAULT_SLOTS: 1}
    booked = booking(profile, separate_pools=separate_pools, best_effort=best_effort)
    need = {**in_grains(booked), SLOTS: 1}
    return need if cpus is None else {**need, **cpu_need(profile, cpus[0])}


def in_grains(amounts: Amounts) -> dict[str, int]:
    """Returns amounts as the index counts them: memory in whole `MEMORY_GRAIN_BYTES`.

    Small numbers are faster to compute with. Nothing is lost, because bookings are multiples of the
    grain.
    """
    return {
        name: amount // MEMORY_GRAIN_BYTES if name in _MEMORY else amount
        for name, amount in amounts.items()
    }


def cpu_need(profile: ResourceProfile, policy: CpuPolicy) -> dict[str, int]:
    """Returns what a host must have at least because of the CPU policy."""
    one_node = policy.numa is NumaPolicy.SINGLE_NUMA_NODE and policy.numa_required
    if not policy.qos.is_pinned:
        lies_on_one = one_node and not policy.best_effort and profile.cpu_milli
        return {NODE_CPU_MILLI: profile.cpu_milli} if lies_on_one else {}
    cpus = -(-profile.cpu_milli // CPU_MILLI_EACH)
    need = {PIN_CPUS: cpus}
    if policy.bind is BindPolicy.FULL_PCPUS and policy.bind_required:
        need[PIN_CORE_CPUS] = cpus
    if one_node:
        need[PIN_NODE_CPUS] = cpus
    return need


def amounts_only(need: dict[str, int]) -> dict[str, int]:
    """Returns a need without columns of cpus, for comparison with sums and with executors that have
    not started yet.
    """
    if not any(name in need for name in CPU_COLUMNS):
        return need
    return {name: amount for name, amount in need.items() if name not in CPU_COLUMNS}
