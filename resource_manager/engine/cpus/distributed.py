"""Shares cpus out evenly over as few NUMA nodes as can hold them.

The algorithm is the kubelet's (`takeByTopologyNUMADistributed`, the option
distribute-cpus-across-numa of its static policy), with two differences: a node gives at most one
group of the remainder, so that counts never differ by more (upstream goes round and round the
nodes, and forever where none of them has a group left); and beyond `NODES_SEARCHED_MAX` nodes only
the freest of each number are looked at.

Refuses to know which cpus of a node are taken: that is the business of who asks for the shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import inf, sqrt
from typing import Final, NamedTuple

from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.packed import node_order, take_packed

NODES_SEARCHED_MAX: Final = 8
"""2 to the power of this many combinations of nodes are looked at."""


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
    groups = need // group
    fewest = -(-groups // max(layout.per_node // group, 1))
    for size in range(fewest, min(groups, len(nodes)) + 1):
        best: tuple[int, ...] | None = None
        best_balance = inf
        for members in _members(nodes, size):
            counts, balance = _shared_out(nodes, members, need, group)
            if balance < best_balance:
                best, best_balance = counts, balance
            if best_balance == 0:
                break
        if best is not None:
            even = need // size // group * group
            return tuple(
                NodeShare(mask, even, count - even)
                for mask, count in zip(masks, best, strict=True)
                if count
            )
    return None


def _members(nodes: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Which nodes are looked at together, by position."""
    if len(nodes) <= NODES_SEARCHED_MAX:
        return combinations(range(len(nodes)), size)
    freest = sorted(range(len(nodes)), key=lambda at: (-nodes[at], at))[:size]
    return iter([tuple(sorted(freest))])


_NONE: Final = ((), inf)


def _shared_out(
    nodes: Sequence[int], members: tuple[int, ...], need: int, group: int
) -> tuple[tuple[int, ...], float]:
    """Counts per node and how unevenly the host is free afterwards; infinite if it cannot be."""
    share = need // len(members) // group * group
    if min(nodes[at] for at in members) < share:
        return _NONE
    left = list(nodes)
    for at in members:
        left[at] -= share
    more = (need - share * len(members)) // group
    with_more = [at for at in members if left[at] >= group]
    if more > len(with_more):
        return _NONE
    total = sum(left) - more * group
    squares = sum(each * each for each in left)
    best: tuple[int, ...] = ()
    best_balance = inf
    for subset in _subsets(left, with_more, more):
        # What a group less makes of the sum of squares: (x - g)^2 = x^2 - g * (2x - g)
        after = squares - group * sum(2 * left[at] - group for at in subset)
        balance = _deviation(total, after, len(left))
        if balance < best_balance:
            best, best_balance = subset, balance
    for at in best:
        left[at] -= group
    return tuple(before - now for before, now in zip(nodes, left, strict=True)), best_balance


def _subsets(left: Sequence[int], with_more: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Which nodes give one group more, in the order in which upstream comes to them first."""
    if len(left) > NODES_SEARCHED_MAX:
        freest = sorted(with_more, key=lambda at: (-left[at], at))[:size]
        return [tuple(sorted(freest))]
    return sorted(combinations(with_more, size), key=lambda subset: subset[-1:])


def _deviation(total: int, squares: int, count: int) -> float:
    """Standard deviation, rounded: what differs by less counts as equal."""
    return round(sqrt(count * squares - total * total) / count, 3)
