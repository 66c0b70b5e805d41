"""Computes which cpus best-effort slots are confined to, so that other slots can use the rest.

Pure arithmetic on measurements. The rule is that of Koordinator's node agent (cpu suppress). The
budget is the part of the host that may be busy, minus what everything else uses, rounded up to
whole cpus. These cpus are taken proportionally from those of LSR slots and from the rest, pairs of
hardware threads first, alternating between NUMA nodes.

Example: 16 cpus and a threshold of 65 %, while other slots use 4 cpus and the system 1. The budget
is 10.4 - 4 - 1 = 5.4 cpus. That is 6 whole cpus, but at most 2 more (10 % of 16, rounded up) than
in the step before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import HostTopology

CPUS_MIN: Final = 2
"""Best-effort slots always keep this many cpus, if their pool has them."""

GROWTH_PERCENT: Final = 10
"""The most that the cpus may grow in one step, in percent of the host's cpus. They shrink at once.
"""


class CpuLocation(NamedTuple):
    """Core, NUMA node and package of a cpu.

    The numbers only identify cores, nodes and packages. Core numbers also define the order of cpus.
    """

    cpu: int
    core: int
    node: int
    package: int


def cpu_locations(topology: HostTopology) -> tuple[CpuLocation, ...]:
    """Returns the location of every online cpu; node -1 for a core that no NUMA node lists."""
    return tuple(
        CpuLocation(cpu, index, -1 if core.numa_node is None else core.numa_node, core.package)
        for index, core in enumerate(topology.cores)
        for cpu in core.cpus
    )


def budget_milli(
    capacity_milli: int,
    threshold_percent: int,
    *,
    others_milli: int,
    system_milli: int,
    reserved_milli: int,
) -> int:
    """Returns the CPU time that best-effort slots may use, in thousandths of a cpu; never negative.

    Args:
        capacity_milli: 1000 for each cpu that was measured.
        threshold_percent: how much of the capacity may be busy.
        others_milli: what slots of other classes use.
        system_milli: what processes outside all slots use.
        reserved_milli: what is reserved for the system, used or not. The larger of this and
            `system_milli` is deducted.
    """
    # Rounded down, in favor of the other slots.
    may_be_busy = capacity_milli * threshold_percent // 100
    return max(may_be_busy - others_milli - max(system_milli, reserved_milli), 0)


def cpu_count(budget: int, *, previous: int, host_cpus: int) -> int:
    """Returns the whole cpus for a budget, rounded up, with a lower bound and limited growth.

    Args:
        budget: CPU time in thousandths of a cpu.
        previous: number of cpus in the step before.
        host_cpus: number of cpus of the host.
    """
    # Both divisions round up: best-effort slots get a whole cpu for the fraction, and can always
    # grow.
    wanted = max(-(-budget // 1000), CPUS_MIN)
    return min(wanted, previous + -(-host_cpus * GROWTH_PERCENT // 100))


def pick(count: int, locations: Iterable[CpuLocation]) -> list[int]:
    """Returns `count` cpus in the order in which they are taken; none if there are too few.

    Cpus are grouped by NUMA node and package, and the largest group comes first. While two or more
    cpus are missing, pairs of threads of one core are taken from the groups in turn. Then single
    cpus are taken, starting with the next group in turn.

    Example: of the cpus 0-3 (node 0) and 4-7 (node 1), with two threads per core, a count of 5
    takes 0, 1, then 4, 5, then 2.
    """
    groups = _groups(locations)
    if count < 1 or count > sum(map(len, groups)):
        return []
    taken: list[int] = []
    next_group = _take_pairs(groups, count, taken)
    while len(taken) < count:
        if groups[next_group]:
            taken.append(groups[next_group].pop(0).cpu)
        next_group = (next_group + 1) % len(groups)
    return taken


def _groups(locations: Iterable[CpuLocation]) -> list[list[CpuLocation]]:
    found: dict[tuple[int, int], list[CpuLocation]] = {}
    for location in locations:
        found.setdefault((location.node, location.package), []).append(location)
    groups = [
        sorted(group, key=lambda location: (location.core, location.cpu))
        for group in found.values()
    ]
    return sorted(groups, key=lambda group: (-len(group), group[0].cpu))


def _take_pairs(groups: list[list[CpuLocation]], count: int, taken: list[int]) -> int:
    """Moves pairs from the groups to `taken`; returns the index of the next group in turn."""
    while True:
        before = len(taken)
        # One pair from each group in turn spreads the load over NUMA nodes and their memory.
        for next_group, group in enumerate(groups):
            if count - len(taken) < 2:
                return next_group
            # The group is sorted by core, so threads of one core are neighbors.
            for at, (first, second) in enumerate(pairwise(group)):
                if first.core == second.core:
                    taken += [first.cpu, second.cpu]
                    del group[at : at + 2]
                    break
        # No group has a pair left. Single cpus are taken from the first group on.
        if len(taken) == before:
            return 0


def squeeze(
    count: int,
    locations: Sequence[CpuLocation],
    *,
    pool: CpuSet,
    lsr_cpus: CpuSet,
    first: CpuSet = EMPTY,
) -> list[int]:
    """Returns the cpus that best-effort slots are confined to, in the order of taking them.

    The result is empty only if the pool is; the caller must then leave all slots where they are.

    Args:
        count: how many cpus; if the pool has fewer, all of them are taken.
        locations: the locations of the host's cpus.
        pool: the best-effort pool.
        lsr_cpus: cpus of LSR slots; those outside the pool are ignored.
        first: cpus of the pool to take before all others, because no slot can have them as
            dedicated ones.
    """
    # Stage 1: cpus that no slot can have as dedicated ones cost the least.
    set_aside = [location for location in locations if location.cpu in pool & first]
    taken = pick(min(count, len(set_aside)), set_aside)
    # Stage 2: the other cpus, in proportion: those of LSR slots, and those that are not dedicated.
    left = [location for location in locations if location.cpu in pool - first]
    lent = [location for location in left if location.cpu in lsr_cpus]
    others = [location for location in left if location.cpu not in lsr_cpus]
    if left:
        count = min(count - len(taken), len(left))
        # Rounded down, so the larger part does not come from LSR slots. Because `count` <= `left`,
        # each part has enough cpus.
        from_lent = count * len(lent) // len(left)
        taken += pick(from_lent, lent) + pick(count - from_lent, others)
    return taken


def confined(cpus: CpuSet, squeezed: CpuSet) -> CpuSet:
    """Returns the part of `cpus` that a best-effort slot may use.

    A slot that is bound to NUMA nodes without any squeezed cpu keeps the first two of its own. The
    result is empty only if `cpus` is.
    """
    return (cpus & squeezed) or cpus.first(CPUS_MIN)
