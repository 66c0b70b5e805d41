"""Computes the memory and countable resources that slots can have on each NUMA node.

This module deducts the huge pages that a kubelet's memory manager has taken. The module does not
deduct the ordinary memory that a kubelet gives to containers, because this amount changes at run
time. The executor reports the amount, and the resource manager deducts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from finegrain.capacity import Capacity
from finegrain.hugepages import page_bytes, resource_name
from task_executor.host.kubelet.state import KubeletState


@dataclass(frozen=True, slots=True)
class NumaCapacity:
    """The capacity of one NUMA node for slots."""

    id: int
    memory_bytes: int  # a multiple of 64 KiB
    # Countable resources, sorted by name; amounts of 0 are left out.
    extended: tuple[tuple[str, int], ...]
    default_memory: bool  # False for memory that slots get only on request


def numa_capacity(
    capacity: Capacity, kubelet: KubeletState | None = None
) -> tuple[NumaCapacity, ...]:
    """Returns the capacity of each node, in the order of `capacity.nodes`.

    The function deducts huge pages that a kubelet reserves or has given to containers.
    """
    nodes = []
    for node in capacity.nodes:
        pages = {resource_name(each.page_bytes): each.count for each in node.hugepages}
        if kubelet is not None:
            pages = {
                # Round up the number of taken pages: a page that is partly taken cannot be offered.
                name: count - -(-kubelet.taken_bytes(node.id, name) // (page_bytes(name) or 1))
                for name, count in pages.items()
            }
        nodes.append(
            NumaCapacity(
                id=node.id,
                memory_bytes=node.memory_bytes,
                # A kubelet can have reserved more pages than the node has now, so `n` can be
                # negative.
                extended=tuple(sorted((name, n) for name, n in pages.items() if n > 0)),
                default_memory=node.default_memory,
            )
        )
    return tuple(nodes)


def hugepages_of(nodes: Iterable[NumaCapacity]) -> dict[str, int]:
    """Returns the pages of all nodes together, by resource name."""
    together: dict[str, int] = {}
    for node in nodes:
        for name, count in node.extended:
            if page_bytes(name):
                together[name] = together.get(name, 0) + count
    return together


def with_counts(
    nodes: Iterable[NumaCapacity], counts: Mapping[int, Mapping[str, int]]
) -> tuple[NumaCapacity, ...]:
    """Adds countable resources to nodes. A resource replaces huge pages with the same name.

    Args:
        nodes: the nodes.
        counts: the amounts to add, by node id and by name.
    """
    return tuple(
        replace(node, extended=tuple(sorted(({**dict(node.extended), **counts[node.id]}).items())))
        if node.id in counts
        else node
        for node in nodes
    )
