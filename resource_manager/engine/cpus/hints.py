"""Computes NUMA hints: the sets of nodes that could serve a slot, each with a score.

A hint is a mask: an integer whose bit n stands for the node at position n of the layout. A mask is
a hint if its nodes together have enough of each amount that the slot needs. This module only counts
cpus. Particular cpus are chosen later, on the mask that the merge selects (`merge.py`).

Example: two nodes have 8 cpus and 16 GiB each, and the strategy is LeastAllocated. Node 0 has 3
cpus and 16 GiB free, node 1 has 8 cpus and 4 GiB free. A slot needs 3 cpus and 2 GiB. On the empty
host, one node would be enough, so masks of one node are preferred.

    mask   preferred   score for cpu   for memory   mean
    0b01   yes         0 (8 of 8)      875          437
    0b10   yes         625 (3 of 8)    125          375
    0b11   no          500             562          531

The score is the part that remains free after the slot is placed, in thousandths. The merge takes
mask 0b01. Preferred masks come first, then masks with fewer nodes, then nodes that are close to
each other. The score decides last. If the slot needed 4 cpus and 6 GiB, only mask 0b11 would be a
hint, and it would not be preferred. BestEffort would take this mask, but Restricted and
SingleNUMANode would refuse the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final

from finegrain.cpu_policy import NumaStrategy
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, MEMORY_BYTES
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.merge import Hint
from resource_manager.engine.cpus.numa import MILLI, memory_positions, positions

NODES_ENUMERATED_MAX: Final = 8
"""The largest number of nodes for which all masks are tried. On hosts with more nodes, only some
masks are tried: single nodes, pairs within a package, whole packages and all nodes.
"""

SCORE_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Quantities:
    """The amounts that a slot needs, and the amounts that each NUMA node could give.

    Attributes:
        layout: the host.
        strategy: the host's NUMA strategy.
        need: needed amount by dimension. Dimensions that no node reports are left out.
        available: amount that each node can still give, by dimension and position of the node.
        capacity: total amount that each node has for slots, including taken amounts, in the form of
            `available`.
        nodes: positions of the nodes that can give cpus.
        preferred_cpus: cpus that also meet the preferred policies. None if all cpus meet these
            policies.
    """

    layout: CpuLayout
    strategy: NumaStrategy
    need: Mapping[str, int]
    available: Mapping[str, Sequence[int]]
    capacity: Mapping[str, Sequence[int]]
    nodes: tuple[int, ...]
    preferred_cpus: int | None = None

    def of(self, dimension: str, nodes: Iterable[int]) -> list[tuple[int, int]]:
        """Returns the nodes that give a dimension if the slot's cpus are on `nodes`, as pairs of
        position and available amount.
        """
        available = self.available[dimension]
        return [(at, available[at]) for at in self.places(dimension, nodes)]

    def places(self, dimension: str, nodes: Iterable[int]) -> tuple[int, ...]:
        """Returns the nodes that give a dimension if the cpus are on `nodes`. The memory can come
        from other nodes, because some nodes have only cpus.
        """
        if dimension == MEMORY_BYTES:
            return memory_positions(self.layout, nodes)
        return tuple(nodes)

    def lacking(self, nodes: Sequence[int]) -> str | None:
        """Returns the first dimension of which these nodes together have too little. The result is
        None if the nodes have enough of every dimension.
        """
        for dimension, need in self.need.items():
            if sum(has for _, has in self.of(dimension, nodes)) < need:
                return dimension
        return None

    def score(self, nodes: Sequence[int]) -> int:
        """Returns a score from 0 to `SCORE_MAX` that says how well these nodes would meet the
        strategy if the slot were placed on them.

        With LeastAllocated and DistributeEvenly, the score is the mean of the free parts of all
        dimensions. With MostAllocated, the score is the mean of the taken parts. If only some cpus
        meet the preferred policies, nodes with enough such cpus get a score in the upper half of
        the range. Other nodes get a score in the lower half.
        """
        total = 0
        for dimension, need in self.need.items():
            capacity, available = self.capacity[dimension], self.available[dimension]
            # The slot's amounts count as taken, so the score describes the nodes after the
            # placement.
            has = free = 0
            for at in self.places(dimension, nodes):
                has += capacity[at]
                free += available[at]
            total += share_score(self.strategy, has, has - free + need)
        # The mean is rounded down. `max` avoids a division by zero if the slot needs no amounts of
        # nodes.
        value = total // max(len(self.need), 1)
        if self.preferred_cpus is None:
            return value
        return (value + SCORE_MAX * self._suits(self.preferred_cpus, nodes)) // 2

    def _suits(self, preferred_cpus: int, nodes: Sequence[int]) -> bool:
        count = sum((self.layout.nodes[at].mask & preferred_cpus).bit_count() for at in nodes)
        return count * MILLI >= self.need.get(CPU_MILLI, 0)


def share_score(strategy: NumaStrategy, capacity: int, taken: int) -> int:
    """Returns the score of one dimension, from 0 to `SCORE_MAX`. Source: `scoring.go` of
    Koordinator's nodenumaresource.

    Args:
        strategy: the host's NUMA strategy.
        capacity: the amount that the nodes have.
        taken: the amount that is taken, including the slot.
    """
    if not capacity:
        return 0
    if strategy is NumaStrategy.MOST_ALLOCATED:
        return min(taken, capacity) * SCORE_MAX // capacity
    return max(capacity - taken, 0) * SCORE_MAX // capacity


def quantities(
    ledger: CpuLedger,
    amounts: Mapping[str, int],
    strategy: NumaStrategy,
    candidate_cpus: int | None = None,
    *,
    nodes: Iterable[int] | None = None,
    preferred_cpus: int | None = None,
) -> Quantities:
    """Returns the amounts that a slot needs, and the amounts that nodes have.

    Args:
        ledger: the cpu ledger of the host.
        amounts: the amounts of the slot, as `aligned_amounts` returns them.
        strategy: the host's NUMA strategy.
        candidate_cpus: the cpus that a slot with dedicated cpus can choose from. None if the slot
            has no dedicated cpus.
        nodes: positions of the nodes to try. None stands for all nodes with usable cpus.
        preferred_cpus: the candidates that also meet the preferred policies. If it is None,
            preferred policies do not affect the score.
    """
    layout = ledger.layout
    every = range(len(layout.nodes))
    need, available, capacity = {}, {}, {}
    for name, amount in amounts.items():
        if name == CPU_MILLI and candidate_cpus is not None:
            need[name] = amount
            available[name] = [_milli(node.mask & candidate_cpus) for node in layout.nodes]
            # The capacity includes taken cpus, because the score is computed as a part of the whole
            # capacity.
            capacity[name] = [_milli(node.mask & ledger.pinnable) for node in layout.nodes]
        elif ledger.reports(name):
            need[name] = amount
            available[name] = [ledger.available(at, name) for at in every]
            capacity[name] = [ledger.capacity(at, name) for at in every]
    if nodes is None:
        # Best-effort slots also run on nodes where all cpus are reserved, if these cpus are still
        # in the best-effort pool.
        usable = ledger.pool_cpus if BEST_EFFORT_CPU_MILLI in amounts else ledger.pinnable
        nodes = (at for at in layout.cpu_nodes if layout.nodes[at].mask & usable)
    return Quantities(layout, strategy, need, available, capacity, tuple(nodes), preferred_cpus)


def _milli(cpus: int) -> int:
    return cpus.bit_count() * MILLI


def hints(needs: Quantities, masks: Iterable[int], preferred_size: int) -> dict[str, list[Hint]]:
    """Returns, for every dimension, a hint for each mask that has enough of all amounts, in the
    order of `masks`.

    A mask is no hint for a dimension if one of its nodes has no free amount of the dimension. This
    rule applies even if the other nodes of the mask have enough.

    Args:
        needs: the amounts that the slot needs.
        masks: the masks to try.
        preferred_size: the number of nodes that the slot needs on the empty host. Masks with this
            number of nodes are preferred.

    Source: `generateResourceHints` of Koordinator's nodenumaresource. Koordinator has another rule
    for the preferred masks.
    """
    found: dict[str, list[Hint]] = {dimension: [] for dimension in needs.need}
    for mask in masks:
        nodes = positions(mask)
        # All amounts of the slot must come from one mask. So if one dimension is short, the mask is
        # no hint for any dimension.
        if needs.lacking(nodes) is not None:
            continue
        hint = Hint(mask, len(nodes) == preferred_size, needs.score(nodes))
        for dimension, its in found.items():
            if all(has for _, has in needs.of(dimension, nodes)):
                its.append(hint)
    return found


def fewest_nodes(needs: Quantities, works: Callable[[Sequence[int]], bool]) -> int | None:
    """Returns the size of the smallest mask that is a hint for every dimension. The result is None
    if there is no such mask.

    Args:
        needs: the amounts that the slot needs.
        works: returns True if nodes that have enough of all amounts can really serve the slot.
    """
    for _, masks in masks_by_size(needs.layout, needs.nodes):
        for mask in masks:
            nodes = positions(mask)
            if (
                needs.lacking(nodes) is None
                and works(nodes)
                and all(has for dimension in needs.need for _, has in needs.of(dimension, nodes))
            ):
                return len(nodes)
    return None


@lru_cache(1_024)
def masks_by_size(
    layout: CpuLayout, nodes: tuple[int, ...]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns the masks to try by size, the smallest size first. Masks of one size are in
    lexicographic order. If there are at most `NODES_ENUMERATED_MAX` nodes, all subsets are
    returned. With more nodes, only some subsets are returned.
    """
    if len(nodes) <= NODES_ENUMERATED_MAX:
        return tuple(
            (size, tuple(_mask(each) for each in combinations(nodes, size)))
            for size in range(1, len(nodes) + 1)
        )
    # A dict removes repeated masks and keeps their order.
    found: dict[int, dict[tuple[int, ...], None]] = {}
    for members in sorted(set(_some_masks(layout, nodes))):
        found.setdefault(len(members), {})[members] = None
    return tuple(
        (size, tuple(_mask(each) for each in members)) for size, members in sorted(found.items())
    )


def _some_masks(layout: CpuLayout, nodes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    yield from ((node,) for node in nodes)
    for package in layout.packages:
        members = tuple(node for node in nodes if node in package.nodes)
        yield from combinations(members, 2)
        if members:
            yield members
    yield nodes


@lru_cache(16_384)
def remoteness(layout: CpuLayout, mask: int) -> int:
    """Returns a measure of how far apart the nodes of a mask are: the sum of the distances between
    all pairs of its nodes. The sum is 0 if the distances are unknown. Sums can be compared only
    between masks of equal size.
    """
    nodes = positions(mask)
    return sum(
        layout.nodes[one].distances[other]
        for one in nodes
        # The distances of a node are left out if some of them are missing, because incomplete
        # distances cannot be compared.
        if len(layout.nodes[one].distances) == len(layout.nodes)
        for other in nodes
    )


def _mask(nodes: Iterable[int]) -> int:
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask
