"""Computes the capacities of NUMA nodes, and divides an amount among several nodes.

Nodes are given by their positions in the layout. Only three kinds of amounts belong to nodes: cpu,
memory, and countable resources that the host reports for a node, such as huge pages. Cpus of a node
without memory use the memory of the nearest node with memory. A node without cpus serves slots only
if it is the nearest node with memory for the cpus of another node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
    MEMORY_PARTS,
    Amounts,
)
from resource_manager.engine.cpus.layout import CpuLayout

MILLI = 1000
"""Number of thousandths in one cpu."""


def aligned_amounts(booking: Amounts) -> dict[str, int]:
    """Returns the amounts of a booking in the dimensions of NUMA nodes. The memory parts of the
    booking are added up.
    """
    amounts: dict[str, int] = {}
    for name, amount in booking.items():
        known = MEMORY_BYTES if name in MEMORY_PARTS else name
        if amount:
            amounts[known] = amounts.get(known, 0) + amount
    return amounts


def node_capacities(
    layout: CpuLayout,
    cpus: int,
    best_effort: tuple[int, int],
    memory_taken: Mapping[int, int],
) -> tuple[dict[str, int], ...]:
    """Returns for each node the amounts that slots can have. Dimensions that the node lacks are
    left out.

    Args:
        layout: the host.
        cpus: the cpus that shared pools may promise to slots.
        best_effort: the cpus of the best-effort pool, and the total amount of cpu that slots can
            get in this pool. The amount is divided among the nodes in proportion to their numbers
            of best-effort cpus.
        memory_taken: bytes that slots cannot have, by position of the node.
    """
    pool, best_effort_milli = best_effort
    count = max(pool.bit_count(), 1)
    capacities = []
    for at, node in enumerate(layout.nodes):
        amounts = {
            CPU_MILLI: (node.mask & cpus).bit_count() * MILLI,
            # The amount of each node is rounded down, so that all nodes together promise no more
            # than the total.
            BEST_EFFORT_CPU_MILLI: best_effort_milli * (node.mask & pool).bit_count() // count,
            MEMORY_BYTES: max(node.memory_bytes - memory_taken.get(at, 0), 0),
        }
        amounts.update((EXTENDED_PREFIX + name, count) for name, count in node.extended)
        capacities.append({name: amount for name, amount in amounts.items() if amount})
    return tuple(capacities)


def memory_positions(layout: CpuLayout, nodes: Iterable[int]) -> tuple[int, ...]:
    """Returns the positions of the nodes whose memory the cpus of these nodes use, in ascending
    order.
    """
    return tuple(sorted({layout.nodes[at].memory_node for at in nodes}))


def positions(mask: int) -> tuple[int, ...]:
    """Returns the positions of the nodes in a mask, in ascending order."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(found)


def split(
    amount: int, available: Sequence[tuple[int, int]], unit: int = 1
) -> dict[int, int] | None:
    """Divides an amount among nodes as evenly as possible. The result is None if the nodes together
    do not have enough.

    Example: an even split of 10 over nodes with 2 and 20 would be 5 and 5. The first node has only
    2, so the parts are 2 and 8.

    Args:
        amount: the amount to split.
        available: position and available amount of each node. (Koordinator has a bug here: it uses
            the index in this list instead of the position.)
        unit: if all amounts are multiples of this unit, all parts are multiples of the unit, too.

    Source: `tryBestToDistributeEvenly` of Koordinator's nodenumaresource.
    """
    left = amount
    parts: dict[int, int] = {}
    # The node with the smallest amount comes first. If it cannot give an even part, the later nodes
    # give more.
    order = sorted(available, key=lambda each: (each[1], each[0]))
    for at, (node, has) in enumerate(order):
        # The share is rounded down to the unit. The last node gives the remaining amount.
        share = left // unit // (len(order) - at) * unit
        part = min(share, has)
        if part:
            parts[node] = part
            left -= part
    return None if left else parts
