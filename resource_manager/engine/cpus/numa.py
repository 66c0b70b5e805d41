"""Capacities of NUMA nodes, and how an amount is split over several of them.

Nodes are positions in the layout. Only cpu, memory, and countable resources that a node is reported
to have (such as huge pages) lie on nodes. Cpus of a node without memory use the memory of the
nearest node that has some. Nodes without cpus (HBM, CXL) are never given to a slot.
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
"""Thousandths of a cpu."""


def aligned_amounts(booking: Amounts) -> dict[str, int]:
    """Returns what a booking needs of NUMA nodes: memory parts are added up."""
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
    """Returns per node what slots can have of each dimension, without dimensions that the node
    lacks.

    Args:
        layout: the host.
        cpus: the cpus that count: slots in shared pools get no more than these.
        best_effort: the cpus of the best-effort pool, and the total amount that slots can have of
            them. The amount is divided among the nodes like these cpus.
        memory_taken: bytes that slots cannot have, by position of the node.
    """
    pool, best_effort_milli = best_effort
    count = max(pool.bit_count(), 1)
    capacities = []
    for at, node in enumerate(layout.nodes):
        amounts = {
            CPU_MILLI: (node.mask & cpus).bit_count() * MILLI,
            # Rounded down per node, so that the nodes together promise no more than the total.
            BEST_EFFORT_CPU_MILLI: best_effort_milli * (node.mask & pool).bit_count() // count,
            MEMORY_BYTES: max(node.memory_bytes - memory_taken.get(at, 0), 0),
        }
        amounts.update((EXTENDED_PREFIX + name, count) for name, count in node.extended)
        capacities.append({name: amount for name, amount in amounts.items() if amount})
    return tuple(capacities)


def memory_positions(layout: CpuLayout, nodes: Iterable[int]) -> tuple[int, ...]:
    """Returns the nodes whose memory the cpus of these nodes use, ascending."""
    return tuple(sorted({layout.nodes[at].memory_node for at in nodes}))


def positions(mask: int) -> tuple[int, ...]:
    """Returns the positions of the nodes in a mask, ascending."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(found)


def split(
    amount: int, available: Sequence[tuple[int, int]], unit: int = 1
) -> dict[int, int] | None:
    """Splits an amount over nodes, as evenly as possible; None if there is not enough.

    The node with the least available comes first; what it cannot give falls to the others. For
    example, 10 over nodes with 2 and 20 is split into 2 and 8.

    Args:
        amount: what to split.
        available: position and available amount of each node. (Upstream looks nodes up by their
            rank in this list, not by their number: a bug that is not repeated here.)
        unit: parts are multiples of it, if all amounts are.

    Source: `tryBestToDistributeEvenly` of Koordinator's nodenumaresource.
    """
    left = amount
    parts: dict[int, int] = {}
    # The scarcest node first: what it cannot give is shared by all that follow.
    order = sorted(available, key=lambda each: (each[1], each[0]))
    for at, (node, has) in enumerate(order):
        # Rounded down to the unit. The last node gets what is left.
        share = left // unit // (len(order) - at) * unit
        part = min(share, has)
        if part:
            parts[node] = part
            left -= part
    return None if left else parts
