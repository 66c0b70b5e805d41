"""NUMA hints: the sets of nodes that could serve a slot, each with a score.

A hint is a mask: an integer whose bit n stands for the node at position n of the layout. A mask is
a hint if its nodes together have enough of everything that the slot needs. Cpus are only counted
here; they are chosen once, on the mask that wins the merge (`merge.py`).

Example: two nodes with 8 cpus and 16 GiB each; LeastAllocated. Node 0 has 3 cpus and 16 GiB free,
node 1 has 8 cpus and 4 GiB. A slot needs 3 cpus and 2 GiB, which one node could give on the empty
host. So masks of one node are preferred.

    mask   preferred   score for cpu   for memory   mean
    0b01   yes         0 (8 of 8)      875          437
    0b10   yes         625 (3 of 8)    125          375
    0b11   no          500             562          531

The score is the free part once the slot is there, of 1000. The merge takes mask 0b01: preferred
masks come first, then narrow ones, then nodes that are close to each other, and only then the score
counts. If the slot needed 4 cpus and 6 GiB, only mask 0b11 would be a hint, and none would be
preferred: BestEffort would take it, Restricted and SingleNUMANode would refuse.
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
"""On hosts with more nodes, only some masks are tried: single nodes, pairs within a package, whole
packages and all nodes.
"""

SCORE_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Quantities:
    """What a slot needs of NUMA nodes, and what each node could give.

    Attributes:
        layout: the host.
        strategy: the host's NUMA strategy.
        need: by dimension, without dimensions that no node reports.
        available: by dimension, then by position of the node.
        capacity: what each node has for slots, taken or not; in the same form.
        nodes: positions of the nodes that slots' cpus can come from.
        preferred_cpus: cpus that also meet what is only preferred; None: all do.
    """

    layout: CpuLayout
    strategy: NumaStrategy
    need: Mapping[str, int]
    available: Mapping[str, Sequence[int]]
    capacity: Mapping[str, Sequence[int]]
    nodes: tuple[int, ...]
    preferred_cpus: int | None = None

    def of(self, dimension: str, nodes: Iterable[int]) -> list[tuple[int, int]]:
        """Returns position and available amount of the nodes that give a dimension if `nodes` give
        the cpus.
        """
        available = self.available[dimension]
        return [(at, available[at]) for at in self.places(dimension, nodes)]

    def places(self, dimension: str, nodes: Iterable[int]) -> tuple[int, ...]:
        """Returns the nodes that give a dimension if `nodes` give the cpus. Memory may come from
        another node, since some nodes have cpus only.
        """
        if dimension == MEMORY_BYTES:
            return memory_positions(self.layout, nodes)
        return tuple(nodes)

    def lacking(self, nodes: Sequence[int]) -> str | None:
        """Returns the first dimension of which these nodes together have too little; None: there is
        none.
        """
        for dimension, need in self.need.items():
            if sum(has for _, has in self.of(dimension, nodes)) < need:
                return dimension
        return None

    def score(self, nodes: Sequence[int]) -> int:
        """Returns how well the nodes suit the strategy if the slot is on them, from 0 to
        `SCORE_MAX`.

        It is the mean over the dimensions of the part that is free then (LeastAllocated,
        DistributeEvenly) or taken (MostAllocated). Where some cpus do not meet what is only
        preferred, nodes with enough cpus that do get the upper half of the range, others the lower
        half.
        """
        total = 0
        for dimension, need in self.need.items():
            capacity, available = self.capacity[dimension], self.available[dimension]
            # Counted with the slot in place, so that the score compares the hosts as they would be.
            has = free = 0
            for at in self.places(dimension, nodes):
                has += capacity[at]
                free += available[at]
            total += share_score(self.strategy, has, has - free + need)
        # Rounded down, like the shares. `max` is for a slot that needs nothing of nodes.
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
        capacity: what the nodes have.
        taken: what is taken of it once the slot is there.
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
    """Returns what a slot needs and what there is.

    Args:
        ledger: of the host.
        amounts: of the slot, as `aligned_amounts` returns them.
        strategy: the host's NUMA strategy.
        candidate_cpus: the cpus that a slot with dedicated cpus can choose from; None: it has none.
        nodes: positions of the only nodes to try; None: all that have usable cpus.
        preferred_cpus: those candidates that meet what is only preferred; None: nothing is.
    """
    layout = ledger.layout
    every = range(len(layout.nodes))
    need, available, capacity = {}, {}, {}
    for name, amount in amounts.items():
        if name == CPU_MILLI and candidate_cpus is not None:
            need[name] = amount
            available[name] = [_milli(node.mask & candidate_cpus) for node in layout.nodes]
            # Capacity includes taken cpus, because the score is a share of everything.
            capacity[name] = [_milli(node.mask & ledger.pinnable) for node in layout.nodes]
        elif ledger.reports(name):
            need[name] = amount
            available[name] = [ledger.available(at, name) for at in every]
            capacity[name] = [ledger.capacity(at, name) for at in every]
    if nodes is None:
        # Best-effort slots also run where every cpu is reserved, as long as it is shared.
        usable = ledger.pool_cpus if BEST_EFFORT_CPU_MILLI in amounts else ledger.pinnable
        nodes = (at for at in layout.cpu_nodes if layout.nodes[at].mask & usable)
    return Quantities(layout, strategy, need, available, capacity, tuple(nodes), preferred_cpus)


def _milli(cpus: int) -> int:
    return cpus.bit_count() * MILLI


def hints(needs: Quantities, masks: Iterable[int], preferred_size: int) -> dict[str, list[Hint]]:
    """Returns for every dimension the masks that could give the slot everything, in the order
    given.

    A node without any of a dimension left is no place for that dimension. So a mask with this
    node is no hint for it, even if the other nodes have enough.

    Args:
        needs: what the slot needs.
        masks: the masks to try.
        preferred_size: masks of this many nodes are preferred: as few as on the empty host.

    Source: `generateResourceHints` of Koordinator's nodenumaresource; which masks are preferred is
    decided differently here.
    """
    found: dict[str, list[Hint]] = {dimension: [] for dimension in needs.need}
    for mask in masks:
        nodes = positions(mask)
        # One dimension that is short rules the mask out for all: the slot must lie in one mask.
        if needs.lacking(nodes) is not None:
            continue
        hint = Hint(mask, len(nodes) == preferred_size, needs.score(nodes))
        for dimension, its in found.items():
            if all(has for _, has in needs.of(dimension, nodes)):
                its.append(hint)
    return found


def fewest_nodes(needs: Quantities, works: Callable[[Sequence[int]], bool]) -> int | None:
    """Returns the size of the smallest masks that are a hint for every dimension; None: there are
    none.

    Args:
        needs: what the slot needs.
        works: whether nodes that have enough can really give it.
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
    """Returns the masks that are tried, by size, the smallest first; those of one size in
    lexicographic order. All subsets of up to `NODES_ENUMERATED_MAX` nodes, and a selection of more.
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
    """Returns how far the nodes of a mask are from each other: the sum of all their distances, 0 if
    they are unknown. For masks of equal size this orders like the mean.
    """
    nodes = positions(mask)
    return sum(
        layout.nodes[one].distances[other]
        for one in nodes
        # Distances that do not cover all nodes cannot be compared.
        if len(layout.nodes[one].distances) == len(layout.nodes)
        for other in nodes
    )


def _mask(nodes: Iterable[int]) -> int:
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask
