"""Takes cpus for a slot by the algorithms of the kubelet's static policy (pkg/kubelet/cm/cpumanager
of Kubernetes 1.33 and later). The cpus are packed, or distributed evenly over as few NUMA nodes as
possible.

Packed (`takeByTopologyNUMAPacked`): groups of cpus that are partly in use are filled first. This
module also has the kubelet's options to spread cpus over cores and to align them with last-level
caches.

Distributed (`takeByTopologyNUMADistributed`, the option distribute-cpus-across-numa): the kubelet
tries all combinations of nodes, and all choices of the nodes that give the remainder. The kubelet
chooses the result that leaves the most equal numbers of free cpus on the nodes (the lowest standard
deviation). This result always uses the nodes with the most free cpus, because a cpu from such a
node lowers the sum of squares most. So this module chooses the nodes with the most free cpus
directly. If several nodes have equally many free cpus, the module chooses the earlier nodes.

There is one difference. In this module, each node gives at most one group of the remainder, so the
numbers of cpus of two nodes differ by at most one group. The kubelet loops over the nodes, so one
node can give two or more groups of the remainder. If no node has a group left, the kubelet's loop
does not end. The results differ for 1.2 % of random requests, always for this reason (decision 14
has the numbers).

Example: 10 cpus in groups of 2 from two free nodes with 8 cpus each. The 10 cpus are 5 groups. Each
node gives 2 groups, and the first node also gives the remaining group. So the first node gives 6
cpus, and the second node gives 4 cpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from resource_manager.engine.cpus.layout import CpuLayout


def take_packed(
    layout: CpuLayout, free: int, need: int, *, spread: bool = False, align_caches: bool = False
) -> int | None:
    """Takes `need` free cpus, and returns the cpus. The result is None if fewer cpus are free.

    The function first takes NUMA nodes and packages that are completely free and not larger than
    the need. Then it takes whole cores, then single threads. Among groups of one kind, the group
    with the fewest free cpus comes first.

    Args:
        layout: the host.
        free: the cpus to choose from.
        need: number of cpus. No cpus are taken if the number is below 1.
        spread: if True, the function takes single threads in the order of their numbers instead of
            whole cores. The threads of one core usually have numbers that are far apart, so the
            slot gets several cores.
        align_caches: if True, the function prefers whole groups of cpus that share a last-level
            cache.
    """
    free &= layout.cpus
    if need < 1:
        return 0
    if need > free.bit_count():
        return None
    return _Packing(layout, free, need).pack(spread, align_caches)


def node_order(layout: CpuLayout, free: int) -> list[int]:
    """Returns the masks of the NUMA nodes with free cpus, in the order in which cpus are packed.
    Nodes with few free cpus come first, but nodes of one package stay together.
    """
    packing = _Packing(layout, free, 0)
    return packing.outer() if packing.nodes_are_outer else packing.inner()


class NodeShare(NamedTuple):
    """The number of cpus that one node gives."""

    node: int  # the node's cpus, as bits
    even: int  # the part that every node gives
    more: int  # the node's part of the remainder (one group or no cpus), taken after `even`


def take_share(layout: CpuLayout, free: int, share: NodeShare) -> int:
    """Takes the cpus that one node gives, packed within the node.

    Args:
        layout: the host.
        free: the cpus to choose from.
        share: the node, and the number of cpus that it gives.
    """
    free &= share.node
    # `even_shares` has checked that the node has enough free cpus. `or 0` is only for the type
    # checker.
    even = take_packed(layout, free, share.even) or 0
    return even | (take_packed(layout, free & ~even, share.more) or 0)


def even_shares(
    layout: CpuLayout, free: int, need: int, group: int
) -> tuple[NodeShare, ...] | None:
    """Returns the number of cpus that each NUMA node gives. The numbers of two nodes differ by at
    most `group`. The result is None if such even shares are impossible.

    Args:
        layout: the host.
        free: the cpus to choose from.
        need: number of cpus.
        group: the number of cpus that are taken together.
    """
    # Each share is a multiple of the group, so the need must be a multiple, too.
    if need < 1 or need % group or need > free.bit_count():
        return None
    masks = node_order(layout, free)
    nodes = [(free & mask).bit_count() for mask in masks]
    # The sort is stable: on a tie, the first node in the order of packing comes first.
    freest = sorted(range(len(nodes)), key=lambda at: -nodes[at])
    groups = need // group
    # The quotient is rounded up, because fewer nodes would not have enough groups even if all their
    # cpus were free.
    fewest = -(-groups // max(layout.per_node // group, 1))
    for size in range(fewest, min(groups, len(nodes)) + 1):
        members = freest[:size]
        even = groups // size * group
        more = (need - even * size) // group
        # The first `more` nodes, with the most free cpus, each give one group of the remainder.
        if all(nodes[at] >= even + (group if n < more else 0) for n, at in enumerate(members)):
            return tuple(
                NodeShare(masks[at], even, group if n < more else 0) for n, at in enumerate(members)
            )
    return None


def bits_of(mask: int) -> Iterator[int]:
    """Yields each cpu of a set as a set with one cpu, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest
        mask ^= lowest


class _Packing:
    """Takes cpus. The object keeps the free cpus, and the number of cpus that are still needed."""

    def __init__(self, layout: CpuLayout, free: int, need: int) -> None:
        self._layout = layout
        self._free = free
        self._need = need
        self._taken = 0
        self._nodes = [layout.nodes[at].mask for at in layout.cpu_nodes]
        self._packages = [package.mask for package in layout.packages]
        # Usually a package contains several NUMA nodes. On some hosts a NUMA node spans packages.
        self.nodes_are_outer = len(self._packages) >= len(self._nodes)

    def pack(self, spread: bool, align_caches: bool) -> int:
        # The stages go from the largest groups to single threads. Each stage takes only groups that
        # are completely free and not too large.
        self._take_whole(self.outer())
        if self._need:
            self._take_whole(self.inner())
        if self._need and align_caches:
            self._take_caches()
        # If threads are spread, whole cores are not preferred.
        if self._need and not spread:
            self._take_whole(self._cores())
        if self._need:
            groups = self._package_order() if spread else self._cores()
            for group in groups:
                self._take_single_cpus(group & self._free)
        return self._taken

    def outer(self) -> list[int]:
        """Returns the groups of the larger kind (nodes or packages) with free cpus. The group with
        the fewest free cpus comes first.
        """
        return self._fullest_first(self._nodes if self.nodes_are_outer else self._packages)

    def inner(self) -> list[int]:
        """Returns the groups of the smaller kind that have free cpus. The groups are sorted first
        by the larger groups that contain them, and then by the number of free cpus.
        """
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
            # If nodes span packages, the package is the smaller group.
            if self.nodes_are_outer
            else zip((node.mask for node in layout.nodes), layout.cores_of_node, strict=True)
        )
        cores_of = dict(all_inner)
        return [core for group in self.inner() for core in self._fullest_first(cores_of[group])]

    def _take_whole(self, groups: Sequence[int]) -> None:
        """Takes each group that is completely free, unless the group is larger than the need."""
        for group in groups:
            # Groups that are larger or not completely free are skipped. Later stages take smaller
            # units of the skipped groups.
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
        """Takes free cpus of the lowest cores of a cache, if these cpus are enough for the whole
        need.
        """
        per_core = self._layout.per_core
        free = cache & self._free
        cores = [core & free for core in self._layout.core_masks if core & free]
        part = 0
        # The number of cores is rounded up, because possibly only a part of the last core is
        # needed.
        for core in cores[: -(-self._need // per_core)]:
            part |= core
        # Only the last core can have more threads than needed. The highest threads of this core are
        # not taken.
        for _ in range(part.bit_count() - self._need):
            part ^= 1 << part.bit_length() - 1
        if part.bit_count() == self._need:
            self._take(part)


def _without_repeats(groups: Iterable[int]) -> list[int]:
    """Removes repeated groups. Groups are repeated only on irregular hosts, where a package has
    parts of several nodes and a node has parts of several packages.
    """
    return list(dict.fromkeys(groups))
