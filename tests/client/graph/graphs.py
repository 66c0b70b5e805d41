"""Job graphs for tests: all small graphs (graphs that differ only in names count once), and random
larger graphs.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from finegrain_client.graph.values import (
    EdgeSpec,
    Exchange,
    GraphSpec,
    JobMode,
    JobOptions,
    OperatorSpec,
    Pattern,
)

EXCHANGES = (None, Exchange.PIPELINED, Exchange.BLOCKING)
STREAMING_EXCHANGES = EXCHANGES[:2]


def graph(
    mode: JobMode,
    parallelism: Sequence[int],
    exchanges: Sequence[Exchange | None],
    groups: Sequence[str] = (),
    patterns: Iterable[Pattern] = (),
) -> GraphSpec:
    """Returns a graph of operators o0, o1, ...

    Args:
        mode: streaming or batch.
        parallelism: of each operator.
        exchanges: of the edge between each pair of operators in order, (0, 1), (0, 2), ..., (1, 2),
            ...; None: no edge.
        groups: slot sharing group of each operator; empty: none is set.
        patterns: of each edge; empty: all edges are all-to-all.
    """
    names = [f"o{at}" for at in range(len(parallelism))]
    pairs = itertools.combinations(names, 2)
    return GraphSpec(
        "job",
        mode,
        tuple(
            OperatorSpec(name=name, parallelism=count, slot_sharing_group=group)
            for name, count, group in zip(
                names, parallelism, groups or [""] * len(names), strict=True
            )
        ),
        tuple(
            EdgeSpec(*pair, exchange, pattern)
            for pair, exchange, pattern in zip(
                pairs, exchanges, patterns or [Pattern.ALL_TO_ALL] * len(exchanges), strict=True
            )
            if exchange is not None
        ),
        JobOptions(),
    )


def all_graphs(
    operators: int, mode: JobMode, *, parallelism_max: int = 3, with_groups: bool = False
) -> Iterator[GraphSpec]:
    """Yields each graph with this number of operators once, up to names of operators and groups.

    Every graph without circles has an order of operators in which all edges go forward, so these
    orders are enough. Of graphs that differ only in names, only the first graph is yielded.
    """
    pairs = list(itertools.combinations(range(operators), 2))
    choices = STREAMING_EXCHANGES if mode is JobMode.STREAMING else EXCHANGES
    numbers = range(1, parallelism_max + 1)
    partitions = list(_partitions(operators)) if with_groups else [(0,) * operators]
    for exchanges in itertools.product(range(len(choices)), repeat=len(pairs)):
        edges = dict(zip(pairs, exchanges, strict=True))
        # Only these permutations keep all edges forward, so only they lead to another graph of this
        # list.
        orders = [
            order
            for order in itertools.permutations(range(operators))
            if all(order[one] < order[two] for (one, two), kind in edges.items() if kind)
        ]
        renamed = [(order, _renamed_edges(order, edges, pairs)) for order in orders]
        if any(other < exchanges for _, other in renamed):
            continue
        same = [order for order, other in renamed if other == exchanges]
        for counts in itertools.product(numbers, repeat=operators):
            for partition in partitions:
                key = counts, partition
                if any(_renamed(order, counts, partition) < key for order in same):
                    continue
                groups = ["", "a", "b", "c", "d"]
                yield graph(
                    mode,
                    counts,
                    [choices[each] for each in exchanges],
                    [groups[each] for each in partition],
                )


def _renamed_edges(
    order: Sequence[int], edges: dict[tuple[int, int], int], pairs: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    moved = {(order[one], order[two]): kind for (one, two), kind in edges.items()}
    return tuple(moved.get(pair) or moved.get(pair[::-1]) or 0 for pair in pairs)


def _renamed(order: Sequence[int], counts: Sequence[int], partition: Sequence[int]) -> Any:
    moved_counts, moved_groups = list(counts), list(partition)
    for at, to in enumerate(order):
        moved_counts[to], moved_groups[to] = counts[at], partition[at]
    numbers: dict[int, int] = {0: 0}
    for group in moved_groups:
        numbers.setdefault(group, len(numbers))
    return tuple(moved_counts), tuple(numbers[each] for each in moved_groups)


def _partitions(operators: int) -> Iterator[tuple[int, ...]]:
    """Yields the ways to set groups: 0 is none set; others are numbered by first use."""
    for groups in itertools.product(range(operators + 1), repeat=operators):
        used = [each for each in dict.fromkeys(groups) if each]
        if used == list(range(1, len(used) + 1)):
            yield groups


def random_graph(rng: random.Random, operators: int, parallelism_max: int = 3) -> GraphSpec:
    """Returns a random graph that may be invalid, with or without groups of the user."""
    mode = rng.choice(list(JobMode))
    choices = STREAMING_EXCHANGES if mode is JobMode.STREAMING else EXCHANGES
    pairs = operators * (operators - 1) // 2
    density = rng.choice([0.2, 0.4, 0.6])
    exchanges = [rng.choice(choices[1:]) if rng.random() < density else None for _ in range(pairs)]
    counts = [rng.randint(1, parallelism_max) for _ in range(operators)]
    named = rng.random() < 0.5
    groups = [rng.choice(["", "a", "b"]) if named else "" for _ in range(operators)]
    patterns = [rng.choice(list(Pattern)) for _ in exchanges]
    return graph(mode, counts, exchanges, groups, patterns)


@st.composite
def graphs(draw: st.DrawFn, *, with_groups: bool = False, operators_max: int = 8) -> GraphSpec:
    """Draws graphs that may be invalid."""
    mode = draw(st.sampled_from(JobMode))
    choices = STREAMING_EXCHANGES if mode is JobMode.STREAMING else EXCHANGES
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=operators_max))
    pairs = len(counts) * (len(counts) - 1) // 2
    exchanges = draw(st.lists(st.sampled_from(choices), min_size=pairs, max_size=pairs))
    names = st.sampled_from(["", "a", "b"] if with_groups else [""])
    groups = draw(st.lists(names, min_size=len(counts), max_size=len(counts)))
    patterns = draw(st.lists(st.sampled_from(Pattern), min_size=pairs, max_size=pairs))
    return graph(mode, counts, exchanges, groups, patterns)
