"""Which NUMA nodes could serve a slot: the hints that are merged.

Decides which sets of nodes are looked at, which of them could give everything that a slot needs,
and how well each suits a host's strategy. Refuses to know alignment policies, and which cpus it
will be: whether there are enough is a matter of counting, so cpus are chosen once, for the nodes
that win.

Masks are integers whose bit n stands for the node at position n of the layout.
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
"""Of more nodes only singles, pairs within a package, whole packages and all are looked at."""

SCORE_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Quantities:
    """What a slot needs of NUMA nodes and what each of them could give."""

    layout: CpuLayout
    strategy: NumaStrategy
    need: Mapping[str, int]  # without what no node reports
    available: Mapping[str, Sequence[int]]  # by dimension, then by position
    capacity: Mapping[str, Sequence[int]]
    nodes: tuple[int, ...]  # positions of those that slots' cpus can come from
    # Cpus that also keep to what is only preferred; None: all do.
    preferred_cpus: int | None = None

    def of(self, dimension: str, nodes: Iterable[int]) -> list[tuple[int, int]]:
        """Position and available amount of the nodes that give it where these give the cpus."""
        available = self.available[dimension]
        return [(at, available[at]) for at in self.places(dimension, nodes)]

    def places(self, dimension: str, nodes: Iterable[int]) -> tuple[int, ...]:
        """The nodes that give a dimension where these give the cpus."""
        if dimension == MEMORY_BYTES:
            return memory_positions(self.layout, nodes)
        return tuple(nodes)

    def lacking(self, nodes: Sequence[int]) -> str | None:
        """The first dimension of which these nodes together have too little."""
        for dimension, need in self.need.items():
            if sum(has for _, has in self.of(dimension, nodes)) < need:
                return dimension
        return None

    def score(self, nodes: Sequence[int]) -> int:
        """How well the nodes suit the strategy if the slot lies on them, from 0 to `SCORE_MAX`:
        what is then free for LeastAllocated (and DistributeEvenly), what is taken for
        MostAllocated; the mean of the dimensions. Nodes with enough cpus that keep to what is only
        preferred go before others.
        """
        total = 0
        for dimension, need in self.need.items():
            capacity, available = self.capacity[dimension], self.available[dimension]
            has = free = 0
            for at in self.places(dimension, nodes):
                has += capacity[at]
                free += available[at]
            total += share_score(self.strategy, has, has - free + need)
        value = total // max(len(self.need), 1)
        if self.preferred_cpus is None:
            return value
        return (value + SCORE_MAX * self._suits(self.preferred_cpus, nodes)) // 2

    def _suits(self, preferred_cpus: int, nodes: Sequence[int]) -> bool:
        count = sum((self.layout.nodes[at].mask & preferred_cpus).bit_count() for at in nodes)
        return count * MILLI >= self.need.get(CPU_MILLI, 0)


def share_score(strategy: NumaStrategy, capacity: int, taken: int) -> int:
    """From 0 to `SCORE_MAX`. Source: `scoring.go` of Koordinator's nodenumaresource."""
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
    """What a slot needs and what there is.

    Args:
        amounts: of the slot, as `aligned_amounts` returns them.
        candidate_cpus: the cpus that a slot with dedicated cpus can choose from; None: it has none.
        nodes: look at these only.
        preferred_cpus: which of its own cpus keep to what is only preferred; None: nothing is.
    """
    layout = ledger.layout
    every = range(len(layout.nodes))
    need, available, capacity = {}, {}, {}
    for name, amount in amounts.items():
        if name == CPU_MILLI and candidate_cpus is not None:
            need[name] = amount
            available[name] = [_milli(node.mask & candidate_cpus) for node in layout.nodes]
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
    """Of every dimension the masks that could give the slot everything, in the order given.

    Nodes that have nothing left of a dimension are no place for it, so a mask with such a node is
    none of its hints, even if the others have enough.

    Args:
        preferred_size: masks of so many nodes are preferred: as few as on the empty host.

    Source: `generateResourceHints` of Koordinator's nodenumaresource; what is preferred is ours.
    """
    found: dict[str, list[Hint]] = {dimension: [] for dimension in needs.need}
    for mask in masks:
        nodes = positions(mask)
        if needs.lacking(nodes) is not None:
            continue
        hint = Hint(mask, len(nodes) == preferred_size, needs.score(nodes))
        for dimension, its in found.items():
            if all(has for _, has in needs.of(dimension, nodes)):
                its.append(hint)
    return found


def fewest_nodes(needs: Quantities, works: Callable[[Sequence[int]], bool]) -> int | None:
    """The size of the smallest masks that are a hint for every dimension; None: there are none.

    Args:
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
    """The masks of some nodes that are looked at, the small ones first, each size in lexicographic
    order.
    """
    if len(nodes) <= NODES_ENUMERATED_MAX:
        return tuple(
            (size, tuple(_mask(each) for each in combinations(nodes, size)))
            for size in range(1, len(nodes) + 1)
        )
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
    """How far the nodes of a mask are from each other: the sum of all their distances. Masks of as
    many nodes compare by it as by the mean.
    """
    nodes = positions(mask)
    return sum(
        layout.nodes[one].distances[other]
        for one in nodes
        if len(layout.nodes[one].distances) == len(layout.nodes)
        for other in nodes
    )


def _mask(nodes: Iterable[int]) -> int:
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask
