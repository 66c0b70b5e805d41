"""Shares cpus out evenly over as few NUMA nodes as can hold them.

The algorithm is the kubelet's (`takeByTopologyNUMADistributed`, the option
distribute-cpus-across-numa of its static policy). It looks at all combinations of nodes, and at
all that could give the remainder, for those after which the nodes are most evenly free (by standard
deviation). Those are always the freest: what one node gives lowers the sum of squares by the more
the more it has. So the freest are taken here, earlier ones among equals, and nothing is searched.
A node gives at most one group of the remainder, so that counts never differ by more. Upstream goes
round and round the nodes, so one may give two groups or more, and where none has a group left it
never ends: of random requests 1.2 % differ, all for this reason (decision 14 has the numbers).

Refuses to know which cpus of a node are taken: that is the business of who asks for the shares.
"""

from __future__ import annotations

from typing import NamedTuple

from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.packed import node_order, take_packed


class NodeShare(NamedTuple):
    """How many cpus one node gives."""

    node: int  # the node's cpus
    even: int  # what every node gives
    more: int  # its part of the remainder: one group, taken after the rest


def take_distributed(layout: CpuLayout, free: int, need: int, group: int) -> int | None:
    """So many of the free cpus, evenly over NUMA nodes where that can be, else packed.

    Args:
        layout: the host.
        free: the cpus to choose from.
        need: how many; none are taken for less than 1.
        group: how many cpus are given out together: those of a core, or 1.

    Returns:
        The cpus; None if there are fewer than needed.
    """
    free &= layout.cpus
    shares = even_shares(layout, free, need, group) or ()
    taken = 0
    for share in shares:
        taken |= take_share(layout, free, share)
    return taken if shares else take_packed(layout, free, need)


def take_share(layout: CpuLayout, free: int, share: NodeShare) -> int:
    """The cpus that one node gives, packed within the node."""
    free &= share.node
    even = take_packed(layout, free, share.even) or 0
    return even | (take_packed(layout, free & ~even, share.more) or 0)


def even_shares(
    layout: CpuLayout, free: int, need: int, group: int
) -> tuple[NodeShare, ...] | None:
    """How many cpus each NUMA node gives, or None if there are no even shares.

    The counts differ by at most `group`.
    """
    if need < 1 or need % group or need > free.bit_count():
        return None
    masks = node_order(layout, free)
    nodes = [(free & mask).bit_count() for mask in masks]
    # Stable: of equally free nodes the one that comes first in the order of packing.
    freest = sorted(range(len(nodes)), key=lambda at: -nodes[at])
    groups = need // group
    fewest = -(-groups // max(layout.per_node // group, 1))
    for size in range(fewest, min(groups, len(nodes)) + 1):
        members = freest[:size]
        even = groups // size * group
        more = (need - even * size) // group
        if all(nodes[at] >= even + (group if n < more else 0) for n, at in enumerate(members)):
            return tuple(
                NodeShare(masks[at], even, group if n < more else 0) for n, at in enumerate(members)
            )
    return None
