"""Computes the cpus to which best-effort slots are confined. The remaining cpus are then free for
other slots.

The rule is taken from Koordinator's node agent (cpu suppress). The budget is the part of the host
that can be busy, minus the CPU that other slots and the system use. The budget is rounded up to
whole cpus. These cpus are taken proportionally from the cpus of LSR slots and from the other cpus.
Pairs of hardware threads are taken first, alternating between NUMA nodes.

Example: a host has 16 cpus and a threshold of 65 %. Other slots use 4 cpus, and the system uses 1.
The budget is 10.4 - 4 - 1 = 5.4 cpus, rounded up to 6 cpus. But in one step, the number of cpus
grows by at most 2 (10 % of 16, rounded up).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import HostTopology

KeyT = TypeVar("KeyT", bound=Hashable)

CPUS_MIN: Final = 2
"""Best-effort slots always keep this number of cpus, if their pool has as many."""

CHANGE_PERCENT: Final = 1
"""In percent of the host's cpus: a smaller change of the budget does not change a quota."""

QUOTA_MILLI_MIN: Final = 10
"""Smallest quota of one slot, in thousandths of a cpu."""

GROWTH_PERCENT: Final = 10
"""Maximum growth in one step, in percent of the host's cpus. Shrinking is not limited."""


class CpuLocation(NamedTuple):
    """Core, NUMA node and package of a cpu.

    The numbers identify cores, nodes and packages. Cpus with a lower core number are taken first.
    """

    cpu: int
    core: int
    node: int
    package: int


def cpu_locations(topology: HostTopology) -> tuple[CpuLocation, ...]:
    """Returns the location of every online cpu. The node is -1 if no NUMA node lists the core."""
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
    """Returns the CPU time that best-effort slots can use, in thousandths of a cpu; never negative.

    Args:
        capacity_milli: 1000 for each cpu that was measured.
        threshold_percent: the part of the capacity that is allowed to be busy, in percent.
        others_milli: the CPU that slots of other classes use.
        system_milli: the CPU that processes outside of all slots use.
        reserved_milli: the CPU that is reserved for the system. The larger one of `system_milli`
            and `reserved_milli` is deducted.
    """
    # The result is rounded down, in favor of the other slots.
    may_be_busy = capacity_milli * threshold_percent // 100
    return max(may_be_busy - others_milli - max(system_milli, reserved_milli), 0)


def cpu_count(budget: int, *, previous: int, host_cpus: int) -> int:
    """Returns the number of cpus for a budget, rounded up. The result has a lower bound, and grows
    by a limited number of cpus in one step.

    Args:
        budget: the budget, in thousandths of a cpu.
        previous: the number of cpus in the step before.
        host_cpus: the number of cpus of the host.
    """
    # Both divisions round up. The first makes a whole cpu from a fraction of a cpu. With the
    # second, the number of cpus can always grow by at least one.
    wanted = max(-(-budget // 1000), CPUS_MIN)
    return min(wanted, previous + -(-host_cpus * GROWTH_PERCENT // 100))


def quota_milli(budget: int, *, previous: int, host_cpus: int) -> int:
    """Returns the CPU time that best-effort slots can use together, in thousandths of a cpu.

    The result grows by a limited amount in one step. A small change of the budget changes nothing.

    Args:
        budget: the budget, in thousandths of a cpu.
        previous: the result of the step before.
        host_cpus: the number of cpus of the host.
    """
    wanted = min(budget, previous + host_cpus * 10 * GROWTH_PERCENT)
    small = host_cpus * 10 * CHANGE_PERCENT
    return previous if abs(wanted - previous) < small else wanted


def quotas(milli: int, limits: Mapping[KeyT, int]) -> dict[KeyT, int]:
    """Divides CPU time among best-effort slots in proportion to their limits.

    Example: 3,000 thousandths are divided among two slots with limits of 4,000 and 2,000. The slots
    get 2,000 and 1,000.

    Args:
        milli: the CPU time of all slots together, in thousandths of a cpu.
        limits: the limit of CPU time of each slot.
    """
    together = sum(limits.values())
    return {
        # The kernel accepts no lower limit, and a slot without any CPU time could not even end.
        key: min(max(milli * limit // max(together, 1), QUOTA_MILLI_MIN), limit)
        for key, limit in limits.items()
    }


def pick(count: int, locations: Iterable[CpuLocation]) -> list[int]:
    """Returns `count` cpus, in the order in which they are taken; empty if there are too few cpus.

    The function groups the cpus by NUMA node and package, the largest group first. While at least
    two cpus are missing, it takes a pair of threads of one core from each group in turn. Then it
    takes single cpus, beginning with the group after the last pair.

    Example: cpus 0-3 are on node 0, cpus 4-7 are on node 1, and each core has two threads. With a
    count of 5, the function first takes 0 and 1, then 4 and 5, and then 2.
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
    """Moves pairs from the groups to `taken`. Returns the index of the group that is next."""
    while True:
        before = len(taken)
        # Taking one pair from each group spreads the load over NUMA nodes and their memory.
        for next_group, group in enumerate(groups):
            if count - len(taken) < 2:
                return next_group
            # The group is sorted by core, so the threads of one core follow each other.
            for at, (first, second) in enumerate(pairwise(group)):
                if first.core == second.core:
                    taken += [first.cpu, second.cpu]
                    del group[at : at + 2]
                    break
        # If no group has a pair left, single cpus are taken, beginning with the first group.
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
    """Returns the cpus that best-effort slots can use, in the sequence in which they are taken.

    If the pool is empty, the result is empty, and the caller must not move any slot.

    Args:
        count: the number of cpus. If the pool has fewer cpus, all of them are taken.
        locations: the locations of the host's cpus.
        pool: the best-effort pool.
        lsr_cpus: the dedicated cpus of LSR slots. Cpus outside the pool are ignored.
        first: cpus of the pool that are taken before all others: no slot can have them as dedicated
            cpus.
    """
    # Stage 1: take the cpus that cannot be dedicated to any slot. Pinned slots do not need these
    # cpus.
    set_aside = [location for location in locations if location.cpu in pool & first]
    taken = pick(min(count, len(set_aside)), set_aside)
    # Stage 2: take other cpus, in proportion from the cpus of LSR slots and from cpus that are not
    # dedicated.
    left = [location for location in locations if location.cpu in pool - first]
    lent = [location for location in left if location.cpu in lsr_cpus]
    others = [location for location in left if location.cpu not in lsr_cpus]
    if left:
        count = min(count - len(taken), len(left))
        # The number of cpus from LSR slots is rounded down, in favor of these slots. Because
        # `count` is at most the number of cpus in `left`, each part has enough cpus.
        from_lent = count * len(lent) // len(left)
        taken += pick(from_lent, lent) + pick(count - from_lent, others)
    return taken


def confined(cpus: CpuSet, squeezed: CpuSet) -> CpuSet:
    """Returns the part of `cpus` that a best-effort slot can use.

    If no cpu of `squeezed` is in `cpus` (the slot is bound to other NUMA nodes), the slot keeps the
    first two cpus of `cpus`. The result is empty only if `cpus` is empty.
    """
    return (cpus & squeezed) or cpus.first(CPUS_MIN)
