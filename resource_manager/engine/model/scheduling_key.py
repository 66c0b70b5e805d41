"""By what requests are equal, and what equal requests need of a host at least, in columns of the
index of hosts.

Amounts of memory are counted in grains there. What is said of cpus is counted in numbers that are
*necessary*, never sufficient; hosts without a known topology have none of these columns.
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
"""Cpus that one more slot could have to itself."""

PIN_CORE_CPUS = "pin.core_cpus"
"""Those of them that belong to cores which are free altogether."""

PIN_NODE_CPUS = "pin.node_cpus"
"""Those of one NUMA node, where they are the most."""

NODE_CPU_MILLI = "node.cpu_milli"
"""What slots in the shared pools could still have of one NUMA node, where that is the most."""

CPU_COLUMNS = (PIN_CPUS, PIN_CORE_CPUS, PIN_NODE_CPUS, NODE_CPU_MILLI)

CPU_MILLI_EACH = 1_000

_MEMORY = frozenset({MEMORY_BYTES, *MEMORY_PARTS})

CpuKey = tuple[CpuPolicy, int]
"""What a request says of its cpus: its policy, and its cpu limit where a host is chosen by that."""

SchedulingKey = tuple[ResourceProfile | None, Labels, CpuKey | None]
"""All by which a host is chosen. Requests that say nothing of their cpus have None there."""


def cpu_key(policy: CpuPolicy, cpu_limit_milli: int) -> CpuKey | None:
    """What tells requests apart that ask for the same amounts; None: nothing."""
    if policy is PLAIN or policy == PLAIN:
        return None
    burst = policy.bind is BindPolicy.CONSTRAINED_BURST
    return policy, cpu_limit_milli if burst else 0


def scheduling_key(spec: RequestSpec) -> SchedulingKey:
    """Requests with the same key are of one shape."""
    policy = spec.cpu_policy
    cpus = None if policy is PLAIN else cpu_key(policy, spec.cpu_limit_milli)
    return spec.profile, spec.required_labels, cpus


def is_topology_constrained(profile: ResourceProfile | None, cpus: CpuKey | None) -> bool:
    """True if amounts alone never say whether a host can serve who asks for this. (Nor do they of a
    default slot of best-effort cpu: the index counts those of the other kind.)
    """
    if cpus is None:
        return False
    return cpus[0].topology_constrained or (cpus[0].best_effort and profile is None)


def need_of(
    profile: ResourceProfile | None, cpus: CpuKey | None, *, separate_pools: bool
) -> dict[str, int]:
    """Columns of the index, and amounts, that a host must have at least for one of these, with one
    memory pool or with one for each memory part.
    """
    best_effort = cpus is not None and cpus[0].best_effort
    if profile is None:
        return {SLOTS: 1} if best_effort else {DEFAULT_SLOTS: 1}
    booked = booking(profile, separate_pools=separate_pools, best_effort=best_effort)
    need = {**in_grains(booked), SLOTS: 1}
    return need if cpus is None else {**need, **cpu_need(profile, cpus[0])}


def in_grains(amounts: Amounts) -> dict[str, int]:
    """Amounts as the index counts them: memory in whole `MEMORY_GRAIN_BYTES`.

    Small numbers are quicker to reckon with. Nothing is lost by it: bookings are multiples of the
    grain.
    """
    return {
        name: amount // MEMORY_GRAIN_BYTES if name in _MEMORY else amount
        for name, amount in amounts.items()
    }


def cpu_need(profile: ResourceProfile, policy: CpuPolicy) -> dict[str, int]:
    """What a host must have at least, beside the amounts of the profile."""
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
    """A need without what is said of cpus here: what sums and executors yet to come can tell."""
    if not any(name in need for name in CPU_COLUMNS):
        return need
    return {name: amount for name, amount in need.items() if name not in CPU_COLUMNS}
