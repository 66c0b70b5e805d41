"""Takes cpus so that what is in use already is filled up first.

The algorithm is the kubelet's static policy (`takeByTopologyNUMAPacked`, pkg/kubelet/cm/cpumanager
of Kubernetes 1.33 and later), with its options to spread over cores and to align with last-level
caches. Refuses to know policies, and who holds what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from resource_manager.engine.cpus.layout import CpuLayout


def take_packed(
    layout: CpuLayout, free: int, need: int, *, spread: bool = False, align_caches: bool = False
) -> int | None:
    """So many of the free cpus, or None if there are fewer.

    Whole free NUMA nodes and packages come first, each only if it is not larger than what is
    needed, then whole cores, then single threads; among equals the one with the fewest free cpus.

    Args:
        layout: the host.
        free: the cpus to choose from.
        need: how many; none are taken for less than 1.
        spread: take single threads in order of their numbers instead of whole cores. Siblings
            usually have numbers that lie far apart.
        align_caches: prefer whole groups of cpus that share a last-level cache.
    """
    free &= layout.cpus
    if need < 1:
        return 0
    if need > free.bit_count():
        return None
    return _Packing(layout, free, need).pack(spread, align_caches)


def node_order(layout: CpuLayout, free: int) -> list[int]:
    """Masks of the NUMA nodes that have free cpus, those of the fullest package or node first."""
    packing = _Packing(layout, free, 0)
    return packing.outer() if packing.nodes_are_outer else packing.inner()


def bits_of(mask: int) -> Iterator[int]:
    """Each cpu of a set as a set of its own, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest
        mask ^= lowest


class _Packing:
    """What is still free and needed while cpus are taken."""

    def __init__(self, layout: CpuLayout, free: int, need: int) -> None:
        self._layout = layout
        self._free = free
        self._need = need
        self._taken = 0
        self._nodes = [layout.nodes[at].mask for at in layout.cpu_nodes]
        self._packages = [package.mask for package in layout.packages]
        # A NUMA node may span packages; else a package consists of nodes.
        self.nodes_are_outer = len(self._packages) >= len(self._nodes)

    def pack(self, spread: bool, align_caches: bool) -> int:
        self._take_whole(self.outer())
        if self._need:
            self._take_whole(self.inner())
        if self._need and align_caches:
            self._take_caches()
        if self._need and not spread:
            self._take_whole(self._cores())
        if self._need:
            groups = self._package_order() if spread else self._cores()
            for group in groups:
                self._take_single_cpus(group & self._free)
        return self._taken

    def outer(self) -> list[int]:
        """The larger groups that have free cpus, fullest first."""
        return self._fullest_first(self._nodes if self.nodes_are_outer else self._packages)

    def inner(self) -> list[int]:
        """The smaller groups, by the larger ones that they are in, then fullest first."""
        inner = self._packages if self.nodes_are_outer else self._nodes
        return _without_repeats(
            group
            for outer in self.outer()
            for group in self._fullest_first([each for each in inner if each & outer])
        )

    def _package_order(self) -> list[int]:
        return self.inner() if self.nodes_are_outer else self.outer()

    def _fullest_first(self, groups: Sequence[int]) -> list[int]:
        free = self._free
        return sorted(
            (group for group in groups if group & free),
            key=lambda group: (group & free).bit_count(),
        )

    def _cores(self) -> list[int]:
        layout = self._layout
        all_inner = (
            zip(self._packages, layout.cores_of_package, strict=True)
            if self.nodes_are_outer
            else zip((node.mask for node in layout.nodes), layout.cores_of_node, strict=True)
        )
        cores_of = dict(all_inner)
        return [core for group in self.inner() for core in self._fullest_first(cores_of[group])]

    def _take_whole(self, groups: Sequence[int]) -> None:
        """Each group that is free altogether and not larger than what is needed."""
        for group in groups:
            if not group & ~self._free and group.bit_count() <= self._need:
                self._take(group)

    def _take_single_cpus(self, cpus: int) -> None:
        for cpu in bits_of(cpus):
            if not self._need:
                return
            self._take(cpu)

    def _take(self, cpus: int) -> None:
        self._taken |= cpus
        self._free &= ~cpus
        self._need -= cpus.bit_count()

    def _take_caches(self) -> None:
        caches = self._caches()
        if not caches:
            return
        largest = max(cache.bit_count() for cache in caches.values())
        for cache in self._cache_order(caches):
            if self._need >= largest:
                self._take_whole(self._cache_order(caches))
            if self._need:
                self._take_part_of_cache(cache)
            if not self._need:
                return

    def _caches(self) -> dict[int, int]:
        caches: dict[int, int] = {}
        for core in self._layout.cores:
            if core.cache >= 0:
                caches[core.cache] = caches.get(core.cache, 0) | core.mask
        return dict(sorted(caches.items()))

    def _cache_order(self, caches: dict[int, int]) -> list[int]:
        nodes = self.outer() if self.nodes_are_outer else self.inner()
        return _without_repeats(
            cache
            for node in nodes
            for cache in self._fullest_first([each for each in caches.values() if each & node])
        )

    def _take_part_of_cache(self, cache: int) -> None:
        """The lowest cores that have free cpus, if they give all that is needed."""
        per_core = self._layout.per_core
        free = cache & self._free
        cores = [core & free for core in self._layout.core_masks if core & free]
        part = 0
        for core in cores[: -(-self._need // per_core)]:
            part |= core
        # Only the last core can have more threads than are still needed.
        for _ in range(part.bit_count() - self._need):
            part ^= 1 << part.bit_length() - 1
        if part.bit_count() == self._need:
            self._take(part)


def _without_repeats(groups: Iterable[int]) -> list[int]:
    """On irregular hosts a package may have parts of a node, and the other way round."""
    return list(dict.fromkeys(groups))
