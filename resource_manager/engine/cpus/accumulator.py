"""Takes free cpus for one slot in Koordinator's order: whole cores, or threads spread over cores.

The algorithm is the cpu accumulator of Koordinator's scheduler (`takeCPUs` in the plug-in
nodenumaresource, commit a7a1b76). This module uses the algorithm only for cpus that no two slots
share. The lists have Koordinator's names:

- A and B: whole free cores, per NUMA node and per package
- C and D: free cpus, per NUMA node and per package
- E: all free cpus

Small groups of cpus are tried before large groups: first nodes, then packages, then the whole host.
The strategy orders the groups of one kind: LeastAllocated begins with the group with the most free
cpus. MostAllocated begins with the group with the fewest free cpus.

Example: one package with two NUMA nodes of four cores with two threads each. Node 0 has cpus 0-3
and 8-11, node 1 has 4-7 and 12-15; cpu n and cpu n + 8 share a core. Cpus 0, 1 and 8 are taken. So
node 0 has two whole free cores (2 and 3), and node 1 has four whole free cores.

    need                  list   LeastAllocated    MostAllocated
    4 in whole cores      A      4-5, 12-13        2-3, 10-11
    4 spread              C      4-7               4-7
    10 in whole cores     B      2-6, 10-14        2-6, 10-14

In the second row, only one thread of each core is offered. So node 0 offers three cpus (2, 3 and
9), and both strategies take node 1. In the third row, no node has ten free cpus, so the cpus come
from the whole package.

There are two differences from Koordinator. First, if a slot must use NUMA nodes that other slots
claim, it still avoids the claimed cores on these nodes. Second, cores can have different numbers of
threads. So a number such as "cpus per node" is the number of the largest node, not the average over
all nodes. On regular hosts, the two numbers are equal.

The caller must pass only cpus that all required policies allow, because this module does not check
the required policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from finegrain.cpu_policy import ExclusivePolicy, NumaStrategy
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.packed import bits_of


class _Pass(NamedTuple):
    """One attempt with list C or D. The cpus in `barred` are not taken. If `one_per_core` is set,
    only one thread of each core is offered.
    """

    barred: int = 0
    one_per_core: bool = False


class Accumulator:
    """Takes cpus for one slot. The object keeps the free cpus, and the number of cpus that the slot
    still needs.

    `core_claimed` contains the cpus of other slots that claim their cores. `node_claimed` contains
    the cpus of other slots that claim their NUMA nodes (see `ExclusivePolicy`).
    """

    def __init__(
        self,
        layout: CpuLayout,
        free: int,
        *,
        core_claimed: int = 0,
        node_claimed: int = 0,
        strategy: NumaStrategy = NumaStrategy.LEAST_ALLOCATED,
        exclusive: ExclusivePolicy = ExclusivePolicy.NONE,
    ) -> None:
        self._layout = layout
        self._free = free
        self._core_claimed = core_claimed
        self._node_claimed = node_claimed
        # Groups are sorted in ascending order of their free cpus, multiplied by this sign. So
        # MostAllocated begins with the group that has the fewest free cpus, and LeastAllocated with
        # the group that has the most.
        self._sign = 1 if strategy is NumaStrategy.MOST_ALLOCATED else -1
        self._exclusive = exclusive
        self._need = 0
        self._taken = 0

    def take(self, need: int, whole_cores: bool) -> int:
        """Takes `need` cpus, and returns the cpus. At least `need` cpus must be free."""
        self._need = need
        layout = self._layout
        # Without SMT, each core is one cpu, so lists A and B can be used for single threads, too.
        if (whole_cores or layout.per_core == 1) and self._take_whole_cores():
            return self._taken
        # If whole cores are preferred, but lists A and B have too few, lists C and D are skipped.
        if not whole_cores and self._take_from_one_group():
            return self._taken
        # Each attempt keeps the cpus that stricter attempts took, and adds missing cpus.
        for barred in self._barred_anywhere():
            self._take_in_order(self.spread_anywhere(barred))
            if not self._need:
                break
        return self._taken

    def take_whole_cores_only(self, need: int) -> int | None:
        """Returns the cpus of free whole cores of the host that together have exactly `need`
        threads. The result is None if there are no such cores.
        """
        cores = [
            core for group in self._packages_of_whole_cores() for core in _largest_first(group)
        ]
        return whole_cores_of(cores, need)

    # Lists A and B: whole cores.

    def _take_whole_cores(self) -> bool:
        layout, need = self._layout, self._need
        # A slot with an exclusive policy first avoids the nodes that other slots claim. The second
        # attempt allows these nodes.
        if need <= layout.per_node:
            exclusive = self._exclusive is ExclusivePolicy.NUMA_NODE_LEVEL
            for barred in (self._claimed_nodes(), 0) if exclusive else (0,):
                for group in self._nodes_of_whole_cores(barred):
                    if self._take_cores(group):
                        return True
        if need <= layout.per_package:
            for group in self._packages_of_whole_cores():
                if self._take_cores(group):
                    return True
        return self._take_whole_groups()

    def _take_whole_groups(self) -> bool:
        """Takes all whole cores of one package after the other while the slot needs at least that
        many cpus. Then it takes single cores of the smallest remaining package.
        """
        left = []
        by_size = sorted(self._packages_of_whole_cores(), key=_size, reverse=True)
        for group in by_size:
            if self._need < _size(group):
                left.append(group)
            else:
                for core in group:
                    self._take(core)
                if not self._need:
                    return True
        # Single cores are taken from the smallest remaining package first, so that larger packages
        # keep their whole cores.
        for group in sorted(left, key=_size):
            for core in group:
                # A core with more threads than the remaining need would give too many cpus.
                if core.bit_count() <= self._need:
                    self._take(core)
            if not self._need:
                return True
        return False

    def _take_cores(self, cores: Sequence[int]) -> bool:
        """Takes the first cpus of these cores, and returns True. Takes no cpus, and returns False,
        if the cores have too few cpus. If cores have different numbers of threads, the method
        prefers cores whose threads add up exactly to the need.
        """
        if _size(cores) < self._need:
            return False
        exact = None
        if not self._layout.uniform_cores:
            exact = whole_cores_of(_largest_first(cores), self._need)
        if exact is not None:
            self._take(exact)
        else:
            self._take_in_order(cpu for core in cores for cpu in bits_of(core))
        return True

    def _nodes_of_whole_cores(self, barred: int) -> list[list[int]]:
        layout, sign = self._layout, self._sign
        free = self._free & ~barred
        groups = []
        for at in layout.cpu_nodes:
            # Only cores whose threads are all free are taken as whole cores.
            cores = [core for core in layout.cores_of_node[at] if not core & ~free]
            if cores:
                around = (free & layout.around_node[at]).bit_count()
                groups.append((sign * _size(cores), sign * around, at, cores))
        # `at` is unique, so the sort never compares the groups themselves.
        return [group[-1] for group in sorted(groups)]

    def _packages_of_whole_cores(self) -> list[list[int]]:
        free = self._free
        groups = []
        for at, all_cores in enumerate(self._layout.cores_of_package):
            cores = [core for core in all_cores if not core & ~free]
            if cores:
                groups.append((self._sign * _size(cores), at, cores))
        return [group[-1] for group in sorted(groups)]

    # Lists C and D: threads.

    def _take_from_one_group(self) -> bool:
        layout, need = self._layout, self._need
        if need <= layout.per_node:
            for each in self._passes((self._claimed_nodes(), self._claimed_cores())):
                if self._take_from(self._nodes_of_cpus(each)):
                    return True
        if need <= layout.per_package:
            for each in self._passes((self._claimed_cores(), 0)):
                if self._take_from(self._packages_of_cpus(each)):
                    return True
        return False

    def _passes(self, at_node_level: tuple[int, int]) -> list[_Pass]:
        # The attempts are ordered, the strictest first. The first attempts avoid the claimed nodes
        # or cores. The last attempt avoids nothing.
        if self._exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
            barred: tuple[int, ...] = at_node_level
        elif self._exclusive is ExclusivePolicy.PCPU_LEVEL:
            barred = (self._claimed_cores(),)
        else:
            barred = (0,)
        return [*(_Pass(each, True) for each in barred), _Pass()]

    def _take_from(self, groups: Sequence[int]) -> bool:
        for group in groups:
            if group.bit_count() >= self._need:
                self._take_in_order(self._spread(group))
                return True
        return False

    def _nodes_of_cpus(self, each: _Pass) -> list[int]:
        layout, sign = self._layout, self._sign
        free = self._free & ~each.barred
        offered = layout.first_threads(free) if each.one_per_core else free
        groups = []
        for at in layout.cpu_nodes:
            node = layout.nodes[at].mask
            around = (free & layout.around_node[at]).bit_count()
            # Nodes are ranked by all their free cpus, even if only one thread of each core is
            # offered.
            groups.append((sign * (free & node).bit_count(), sign * around, at, offered & node))
        return [group[-1] for group in sorted(groups)]

    def _packages_of_cpus(self, each: _Pass) -> list[int]:
        layout = self._layout
        free = self._free & ~each.barred
        offered = layout.first_threads(free) if each.one_per_core else free
        groups = []
        for at, package in enumerate(layout.packages):
            group = offered & package.mask
            groups.append((self._sign * group.bit_count(), at, group))
        return [group[-1] for group in sorted(groups)]

    def _spread(self, group: int) -> Iterator[int]:
        """Yields the cpus of a group: the lowest cpu of each core, then the next cpu of each core,
        and so on. A group that is not larger than one core is not spread.
        """
        if group.bit_count() <= self._layout.per_core:
            yield from bits_of(group)
            return
        while group:
            round_of_cores = self._layout.first_threads(group)
            yield from bits_of(round_of_cores)
            group &= ~round_of_cores

    # List E: all free cpus.

    def _barred_anywhere(self) -> Iterator[int]:
        if self._exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
            yield self._claimed_nodes()
        if self._exclusive is not ExclusivePolicy.NONE:
            yield self._claimed_cores()
        yield 0

    def spread_anywhere(self, barred: int) -> Iterator[int]:
        free = self._free & ~barred
        cores = self._cores_in_order(free)
        if free.bit_count() <= self._layout.per_core:
            for core in cores:
                yield from bits_of(core)
            return
        while cores:
            left = []
            for core in cores:
                lowest = core & -core  # the lowest bit is the lowest cpu
                yield lowest
                if core != lowest:
                    left.append(core ^ lowest)
            cores = left

    def _cores_in_order(self, free: int) -> list[int]:
        """Returns the free threads of each core. Cores of the package that has given the slot the
        most cpus so far come first.
        """
        layout, sign, taken = self._layout, self._sign, self._taken
        of_package = [
            # The number is negative, so that packages that gave the most cpus come first. This
            # order keeps the slot's cpus close together.
            (-(taken & package.mask).bit_count(), sign * (free & package.mask).bit_count())
            for package in layout.packages
        ]
        of_node = [sign * (free & node.mask).bit_count() for node in layout.nodes]
        keyed = []
        for at, core in enumerate(layout.cores):
            here = core.mask & free
            if here:
                package = core.package
                first = of_package[package]
                keyed.append((first, of_node[core.node], here.bit_count(), package, at, here))
        return [each[-1] for each in sorted(keyed)]

    # Claims, and taking.

    def _claimed_cores(self) -> int:
        """Returns all cpus of the cores that slots claim, as far as the claims matter for the
        exclusive level of the new slot. The cores of cpus that were taken so far are included,
        because the new slot claims them, too.
        """
        claimed = self._core_claimed | self._taken
        if self._exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
            claimed |= self._node_claimed
        return self._layout.cores_touched(claimed)

    def _claimed_nodes(self) -> int:
        return self._layout.nodes_touched(self._node_claimed | self._taken)

    def _take(self, cpus: int) -> None:
        self._taken |= cpus
        self._free &= ~cpus
        self._need -= cpus.bit_count()

    def _take_in_order(self, order: Iterator[int]) -> None:
        need, taken = self._need, 0
        for cpu in order:
            if not need:
                break
            taken |= cpu
            need -= 1
        self._take(taken)


def whole_cores_of(cores: Sequence[int], need: int) -> int | None:
    """Returns the cpus of some cores that together have exactly `need` threads. The result is None
    if no choice of cores has this number of threads. Cores near the start of `cores` are preferred.

    The function solves the subset-sum problem by dynamic programming. A set of possible sums is an
    integer with one bit for each sum.
    """
    # Bit n of sums[i] is set if some of the cores at positions >= i have n cpus together.
    sums = [1]
    for core in reversed(cores):
        sums.append(sums[-1] | sums[-1] << core.bit_count())
    sums.reverse()
    if not sums[0] >> need & 1:
        return None
    cpus = 0
    for core, rest in zip(cores, sums[1:], strict=True):
        left = need - core.bit_count()
        if left >= 0 and rest >> left & 1:
            cpus |= core
            need = left
    return cpus


def _size(cores: Sequence[int]) -> int:
    return sum(core.bit_count() for core in cores)


def _largest_first(cores: Sequence[int]) -> list[int]:
    return sorted(cores, key=int.bit_count, reverse=True)
