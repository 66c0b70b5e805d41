"""Computes the memory and countable resources that slots can have on each NUMA node.

Huge pages that a kubelet's memory manager has taken are deducted here. Ordinary memory that a
kubelet gives to containers is not deducted here, because it changes at run time. It is reported and
deducted later, where node memory is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from finegrain.capacity import Capacity
from finegrain.hugepages import page_bytes, resource_name
from task_executor.host.kubelet.state import KubeletState


@dataclass(frozen=True, slots=True)
class NumaCapacity:
    """What slots can have of one NUMA node."""

    id: int
    memory_bytes: int  # a multiple of 64 KiB
    extended: tuple[tuple[str, int], ...]  # huge pages and others by name, sorted, without zeros
    default_memory: bool  # False: another kind of memory, used only on request


def numa_capacity(
    capacity: Capacity, kubelet: KubeletState | None = None
) -> tuple[NumaCapacity, ...]:
    """Returns the nodes' capacity, in their order.

    Huge pages that a kubelet has given to containers or reserves are deducted.
    """
    nodes = []
    for node in capacity.nodes:
        pages = {resource_name(each.page_bytes): each.count for each in node.hugepages}
        if kubelet is not None:
            pages = {
                # Rounded up: a page that is taken in part cannot be offered.
                name: count - -(-kubelet.taken_bytes(node.id, name) // (page_bytes(name) or 1))
                for name, count in pages.items()
            }
        nodes.append(
            NumaCapacity(
                id=node.id,
                memory_bytes=node.memory_bytes,
                # A kubelet can hold more pages than there are now. The rest is then none, not
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
    """Adds countable resources to nodes, by node id and name; they replace huge pages of the same
    name.
    """
    return tuple(
        replace(node, extended=tuple(sorted(({**dict(node.extended), **counts[node.id]}).items())))
        if node.id in counts
        else node
        for node in nodes
    )
