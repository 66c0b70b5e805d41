"""Describes the layout of one host's cpus: cores, NUMA nodes and packages.

`Core.mask` has those threads of a core that are online and that the executor is allowed to use. A
core can have any number of threads. Reserved threads stay in the mask of their core. So a core with
a reserved thread is never a *whole* core for a slot.

A layout never changes. Equal hosts share one layout object, so the object can be the key of caches.
A set of cpus is an integer whose bit n stands for cpu n. With such sets, a choice among hundreds of
cpus takes only microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from finegrain.cpu_assignment import PoolName
from finegrain.cpu_pools import NODE_UNKNOWN
from finegrain.cpuset import CpuSet

LAYOUTS_KNOWN_MAX: Final = 1_024  # number of cached layouts; a cluster has few different layouts

Row = tuple[int, int, int, int] | tuple[int, int, int, int, int]
"""The number of a cpu, of its core, of its NUMA node and of its package. The optional last number
is the number of the group of cpus that share a last-level cache.
"""

_ONLY: Final = PoolName(0, 0)


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core. `package` and `node` are positions in the layout."""

    mask: int
    package: int
    node: int
    # number of the core's kind; the kind with the lowest cpu has the number 0
    kind: int = 0
    cache: int = -1  # label of the core's last-level cache; -1 if the cache is unknown
    place: PoolName = _ONLY  # the shared pool that the core's cpus belong to


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node. `mask` is empty if the node has no cpus, or only cpus that the executor is not
    allowed to use.
    """

    id: int
    mask: int
    # positions of the node's packages; a node can span several packages
    packages: tuple[int, ...] = ()
    memory_bytes: int = 0  # memory that slots may have
    extended: tuple[tuple[str, int], ...] = ()  # the node's countable resources, by name
    distances: tuple[int, ...] = ()  # distance to each node of the layout, in order; () if unknown
    # position of the node whose memory the cpus of this node use: this node, or the nearest node
    # with memory
    memory_node: int = 0


@dataclass(frozen=True, slots=True)
class Package:
    """One socket. `nodes` are positions of the nodes that contain cpus of the package."""

    mask: int
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class CpuLayout:
    """The cpus of one host. Layouts are compared by identity, because `layout_of` returns the same
    object for equal hosts.

    Attributes:
        cores: all cores. `layout_of` orders them by lowest cpu.
        nodes: all NUMA nodes, sorted by id.
        packages: all packages, sorted by label.
        pinnable: cpus that can be dedicated to slots.
        isolated: pinnable cpus that are in no shared pool.
        kept_back: cpus that are in shared pools but cannot be dedicated (are not pinnable), because
            the executor's configuration reserves them.
    """

    cores: tuple[Core, ...]
    nodes: tuple[Node, ...]
    packages: tuple[Package, ...]
    pinnable: int
    isolated: int = 0
    kept_back: int = 0

    @cached_property
    def cpus(self) -> int:
        """All cpus of all cores."""
        return _union(core.mask for core in self.cores)

    @cached_property
    def per_core(self) -> int:
        """Number of threads of the core with the most threads."""
        return max(core.mask.bit_count() for core in self.cores)

    @cached_property
    def per_node(self) -> int:
        """Number of cpus of the largest node."""
        return max(node.mask.bit_count() for node in self.nodes)

    @cached_property
    def per_package(self) -> int:
        """Number of cpus of the largest package."""
        return max(package.mask.bit_count() for package in self.packages)

    @cached_property
    def smt(self) -> bool:
        """True if at least one core has more than one thread."""
        return self.per_core > 1

    @cached_property
    def uniform_cores(self) -> bool:
        """True if all cores have the same number of threads."""
        return len({core.mask.bit_count() for core in self.cores}) == 1

    @cached_property
    def kinds(self) -> int:
        """Number of kinds of cores."""
        return len({core.kind for core in self.cores})

    @cached_property
    def cpu_nodes(self) -> tuple[int, ...]:
        """Positions of the nodes that have cpus."""
        return tuple(at for at, node in enumerate(self.nodes) if node.mask)

    @cached_property
    def position_of_node(self) -> Mapping[int, int]:
        """Position of each node by the id that the kernel gives it."""
        return {node.id: at for at, node in enumerate(self.nodes)}

    @cached_property
    def core_masks(self) -> tuple[int, ...]:
        """The cpus of each core."""
        return tuple(core.mask for core in self.cores)

    @cached_property
    def cache_masks(self) -> tuple[int, ...]:
        """The cpus of each group of cores that share a last-level cache. Cores whose cache is not
        known are one group.
        """
        masks: dict[int, int] = {}
        for core in self.cores:
            masks[core.cache] = masks.get(core.cache, 0) | core.mask
        return tuple(masks.values())

    @cached_property
    def cores_of_node(self) -> tuple[tuple[int, ...], ...]:
        """The masks of the cores of each node."""
        return self._grouped([core.node for core in self.cores], len(self.nodes))

    @cached_property
    def cores_of_package(self) -> tuple[tuple[int, ...], ...]:
        """The masks of the cores of each package."""
        return self._grouped([core.package for core in self.cores], len(self.packages))

    @cached_property
    def around_node(self) -> tuple[int, ...]:
        """For each node, the cpus of all packages that contain a cpu of the node."""
        return tuple(
            _union(self.packages[package].mask for package in node.packages) for node in self.nodes
        )

    @cached_property
    def cores_of_kind(self) -> tuple[int, ...]:
        """For each kind, the cpus of all cores of the kind."""
        return tuple(
            _union(core.mask for core in self.cores if core.kind == kind)
            for kind in sorted({core.kind for core in self.cores})
        )

    def whole(self, free: int) -> int:
        """Returns the cpus of all cores whose threads are all in `free`."""
        whole = 0
        for mask in self.core_masks:
            if not mask & ~free:
                whole |= mask
        return whole

    def cores_touched(self, cpus: int) -> int:
        """Returns all cpus of the cores that contain at least one of `cpus`."""
        touched = 0
        for mask in self.core_masks:
            if mask & cpus:
                touched |= mask
        return touched

    def nodes_touched(self, cpus: int) -> int:
        """Returns all cpus of the nodes that contain at least one of `cpus`."""
        return _union(node.mask for node in self.nodes if node.mask & cpus)

    def first_threads(self, free: int) -> int:
        """Returns the lowest free cpu of each core."""
        first = 0
        for mask in self.core_masks:
            here = mask & free
            first |= here & -here
        return first

    def without(self, offline: int) -> CpuLayout:
        """Returns the layout without the offline cpus. The cores of offline cpus then have fewer
        threads, or are left out.

        If no cpu is offline, the method returns this layout. It also returns this layout if every
        cpu is offline, because a layout needs at least one cpu.
        """
        lost = offline & self.cpus
        return _without(self, lost) if lost and lost != self.cpus else self

    def _grouped(self, group_of: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
        groups: list[list[int]] = [[] for _ in range(count)]
        for core, group in zip(self.cores, group_of, strict=True):
            groups[group].append(core.mask)
        return tuple(tuple(group) for group in groups)


@lru_cache(LAYOUTS_KNOWN_MAX)
def layout_of(topology: str, host_cpus: str = "{}") -> CpuLayout | None:
    """Returns the layout that a host reported. The result is None if the host reports no cores, or
    if slots cannot have any of its cpus.

    Args:
        topology: `HostTopology` as JSON text, in the form that registrations store.
        host_cpus: `HostCpus` as JSON text. If the JSON object is empty, all allowed cpus can be
            pinned, and each node offers all its memory.

    Raises:
        InvalidArgument: a cpu list cannot be parsed.
        ValueError: a text is not JSON.
    """
    report: dict[str, Any] = json.loads(topology or "{}")
    offered: dict[str, Any] = json.loads(host_cpus or "{}")
    allowed = _bits(report, "allowed_cpus")
    pinnable = _bits(offered, "slot_cpus") if offered else allowed
    parts = [
        (
            _bits(core, "cpus") & allowed,
            int(core.get("package_index", 0)),
            int(core.get("numa_node_id", 0)),
            str(core.get("kind", "")),
            int(core.get("l3_index", 0)),
        )
        for core in report.get("cores", ())
    ]
    # The cores are sorted by their lowest cpu. So equal hosts have equal layouts, even if their
    # reports list the cores in different orders.
    parts = sorted((part for part in parts if part[0]), key=lambda part: part[0] & -part[0])
    if not parts or not pinnable:
        return None
    nodes = _nodes(report.get("numa_nodes", ()), offered)
    return _assembled(parts, nodes, pinnable, _bits(offered, "isolated_cpus"), _kept_back(offered))


def layout_of_rows(rows: Iterable[Row], memory_bytes: int = 0) -> CpuLayout:
    """Makes a layout from one row per cpu. All cpus can be pinned, and each node has
    `memory_bytes`.

    Raises:
        ValueError: there are no rows.
    """
    masks: dict[int, int] = {}
    first: dict[int, Row] = {}
    for row in rows:
        masks[row[1]] = masks.get(row[1], 0) | 1 << row[0]
        first.setdefault(row[1], row)
    if not masks:
        raise ValueError("a layout needs at least one cpu")
    parts = [
        (masks[core], row[3], row[2], "", row[4] if len(row) > 4 else -1)
        for core, row in sorted(first.items())
    ]
    nodes = [Node(node, 0, (), memory_bytes) for node in sorted({part[2] for part in parts})]
    return _assembled(parts, nodes, _union(masks.values()))


@lru_cache(LAYOUTS_KNOWN_MAX)
def _without(layout: CpuLayout, lost: int) -> CpuLayout:
    parts = [
        (core.mask & ~lost, core.place.package, core.place.node, str(core.kind), core.cache)
        for core in layout.cores
        if core.mask & ~lost
    ]
    return _assembled(parts, layout.nodes, layout.pinnable, layout.isolated, layout.kept_back)


_Part = tuple[int, int, int, str, int]  # mask, label of package, id of node, kind, cache


def _assembled(
    parts: Sequence[_Part], nodes: Sequence[Node], pinnable: int, isolated: int = 0, kept: int = 0
) -> CpuLayout:
    """Makes a layout of cores in the given order. Adds nodes that occur only in cores."""
    nodes = _with_unnamed_nodes(parts, nodes)
    position = {node.id: at for at, node in enumerate(nodes)}
    labels = sorted({part[1] for part in parts})
    package_at = {label: at for at, label in enumerate(labels)}
    kinds: dict[str, int] = {}
    # Kinds are numbered in the order of lowest cpus, because their names have no order.
    for part in sorted(parts, key=lambda part: part[0] & -part[0]):
        kinds.setdefault(part[3], len(kinds))
    cores = tuple(
        Core(
            mask,
            package_at[label],
            position.get(node, 0),  # a core without a node belongs to the first node
            kinds[kind],
            cache,
            PoolName(label, max(node, NODE_UNKNOWN)),  # all unknown nodes have the same number
        )
        for mask, label, node, kind, cache in parts
    )
    every = _union(core.mask for core in cores)
    return CpuLayout(
        cores=cores,
        nodes=tuple(
            Node(
                node.id,
                _union(core.mask for core in cores if core.node == at),
                tuple(sorted({core.package for core in cores if core.node == at})),
                node.memory_bytes,
                node.extended,
                node.distances,
                _memory_node(at, nodes, {core.node for core in cores}),
            )
            for at, node in enumerate(nodes)
        ),
        packages=tuple(
            Package(
                _union(core.mask for core in cores if core.package == at),
                tuple(sorted({core.node for core in cores if core.package == at})),
            )
            for at in range(len(labels))
        ),
        pinnable=pinnable & every,
        isolated=isolated & every,
        kept_back=kept & every,
    )


def _with_unnamed_nodes(parts: Sequence[_Part], nodes: Sequence[Node]) -> list[Node]:
    """Adds the nodes that occur only in cores, without memory. If the host reports no nodes at all,
    node 0 is added. A core without a node (-1) then belongs to node 0.
    """
    known = {node.id for node in nodes}
    named = {part[2] for part in parts if part[2] >= 0} - known
    if not known and not named:
        named = {0}
    # Distances are known only between reported nodes. If a node is added, the distances would be
    # incomplete, so all distances are dropped.
    kept = nodes if not named else [_without_distances(node) for node in nodes]
    return sorted([*kept, *(Node(node, 0) for node in named)], key=lambda node: node.id)


def _without_distances(node: Node) -> Node:
    return Node(node.id, node.mask, node.packages, node.memory_bytes, node.extended)


def _memory_node(at: int, nodes: Sequence[Node], with_cpus: set[int]) -> int:
    """Returns the position of the node whose memory serves the cpus of a node. It is the node
    itself if the node has memory, and the nearest node with memory otherwise. Among equally near
    nodes, a node with cpus comes first.
    """
    home = nodes[at]
    # If no node reports memory, each node counts as if its cpus used its own memory.
    if home.memory_bytes or not any(node.memory_bytes for node in nodes):
        return at
    distances_known = len(home.distances) == len(nodes)
    return min(
        (
            (
                # If distances are unknown, nodes with similar numbers are assumed to be near.
                home.distances[other] if distances_known else abs(other - at),
                other not in with_cpus,
                other,
            )
            for other, node in enumerate(nodes)
            if node.memory_bytes
        ),
    )[2]


def _nodes(reported: Iterable[Mapping[str, Any]], offered: Mapping[str, Any]) -> list[Node]:
    by_id = {int(each.get("numa_node_id", 0)): each for each in offered.get("numa", ())}
    nodes = []
    for node in reported:
        node_id = int(node.get("numa_node_id", 0))
        if offered:
            mine = by_id.get(node_id, {})
            # Special memory (HBM, CXL, GPU memory) is not offered as normal memory.
            memory = int(mine.get("memory_bytes", 0)) if mine.get("default_memory") else 0
            extended = mine.get("extended", {})
        else:
            memory, extended = int(node.get("memory_bytes", 0)), {}
        nodes.append(
            Node(
                node_id,
                0,
                (),
                memory,
                tuple(sorted((name, int(count)) for name, count in extended.items())),
                tuple(int(each) for each in node.get("distances", ())),
            )
        )
    return sorted(nodes, key=lambda node: node.id)


def _kept_back(offered: Mapping[str, Any]) -> int:
    # Strictly reserved cpus are in no pool, so they are not kept back.
    policy = {} if offered.get("policy", {}).get("reserved_strict") else offered.get("policy", {})
    return _bits(offered, "reserved_cpus") & _bits(policy, "reserved_cpus")


def _bits(data: Mapping[str, Any], name: str) -> int:
    return CpuSet.parse(str(data.get(name, "")), name).bits


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
