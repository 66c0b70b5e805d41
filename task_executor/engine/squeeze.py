"""How far best-effort slots are squeezed together, so that the others find their cpus idle.

Decides, of what was measured, how many cpus best-effort work may use, and which ones. Pure: refuses
to know who measures, how often, and who writes the result where.

The rule is that of Koordinator's node agent. The budget is the part of the host that may be busy,
less what everybody else uses. It is turned into whole cpus; those are taken from the cpus of LSR
slots and from the rest in proportion, pairs of hardware threads first, one NUMA node after the
other, so that what is left to best-effort work lies evenly on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import HostTopology

CPUS_MIN: Final = 2
"""Best-effort work always keeps that many cpus, as far as its pool has them."""

GROWTH_PERCENT: Final = 10
"""Of the host's cpus: by so many it may grow in one step. It shrinks at once."""


class CpuLocation(NamedTuple):
    """Where a cpu lies. Numbers only tell equal from different, those of cores also the order."""

    cpu: int
    core: int
    node: int
    package: int


def cpu_locations(topology: HostTopology) -> tuple[CpuLocation, ...]:
    """Every online cpu of a host; of a core that no NUMA node lists the node is -1."""
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
    """CPU time that best-effort work may use, in thousandths of a cpu; never negative.

    Args:
        capacity_milli: 1000 for each cpu that was measured.
        threshold_percent: how much of that may be busy.
        others_milli: what slots that are not best-effort use.
        system_milli: what no slot of ours uses.
        reserved_milli: what is set aside for the system, used or not.
    """
    may_be_busy = capacity_milli * threshold_percent // 100
    return max(may_be_busy - others_milli - max(system_milli, reserved_milli), 0)


def cpu_count(budget: int, *, previous: int, host_cpus: int) -> int:
    """Whole cpus for a budget in milli: at least two, and not many more than before."""
    wanted = max(-(-budget // 1000), CPUS_MIN)
    return min(wanted, previous + -(-host_cpus * GROWTH_PERCENT // 100))


def pick(count: int, locations: Iterable[CpuLocation]) -> list[int]:
    """So many cpus, in the order in which they are taken; none if there are too few.

    The largest group of one NUMA node and package comes first. Pairs of threads of one core are
    taken from the groups in turn while more than one cpu is missing, then single ones, beginning
    with the group whose turn it is.
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
    """Moves pairs from the groups to `taken`; returns whose turn it is then."""
    while True:
        before = len(taken)
        for next_group, group in enumerate(groups):
            if count - len(taken) < 2:
                return next_group
            for at, (first, second) in enumerate(pairwise(group)):
                if first.core == second.core:
                    taken += [first.cpu, second.cpu]
                    del group[at : at + 2]
                    break
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
    """The cpus that best-effort work is confined to, in the order in which they are taken.

    Args:
        count: how many; what the pool does not have is not missed.
        locations: where cpus lie.
        pool: the best-effort pool.
        lsr_cpus: cpus that LSR slots have; those outside of the pool do not matter.
        first: cpus of the pool that are taken before all others: no slot ever has them to itself.

    Empty only if the pool is: whoever calls then leaves everything as it is.
    """
    set_aside = [location for location in locations if location.cpu in pool & first]
    taken = pick(min(count, len(set_aside)), set_aside)
    left = [location for location in locations if location.cpu in pool - first]
    lent = [location for location in left if location.cpu in lsr_cpus]
    others = [location for location in left if location.cpu not in lsr_cpus]
    if left:
        count = min(count - len(taken), len(left))
        from_lent = count * len(lent) // len(left)
        taken += pick(from_lent, lent) + pick(count - from_lent, others)
    return taken


def confined(cpus: CpuSet, squeezed: CpuSet) -> CpuSet:
    """What of its cpus a best-effort slot may use. One that is bound to NUMA nodes of which nothing
    was picked keeps the first two of its own. Empty only if its cpus are.
    """
    return (cpus & squeezed) or cpus.first(CPUS_MIN)
