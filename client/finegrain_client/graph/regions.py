"""Finds the pipelined regions of a graph, and for each region the other regions that it waits for.

A region is a set of operators that pipelined edges connect (union-find). These operators must run
together. A region starts after the end of all regions from which it reads by blocking edges. So two
things are compile errors: a blocking edge within a region, and regions that wait for each other in
a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.values import EdgeSpec, Exchange, GraphSpec, JobMode

Edges = Sequence[EdgeSpec]


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of a graph, in an order in which they can run.

    Attributes:
        members: operators of each region, in the order of the graph.
        region_of: for each operator, the index in `members` of its region.
        waits_for: for each region, the regions that must end before the region starts.
    """

    members: tuple[tuple[str, ...], ...]
    region_of: Mapping[str, int]
    waits_for: tuple[frozenset[int], ...]


def find_regions(graph: GraphSpec) -> Regions:
    """Returns the pipelined regions of a graph.

    Raises:
        GraphError: edges form a circle, a streaming job has a blocking edge, a blocking edge is
            within a region, or regions wait for each other in a circle.
    """
    names = [each.name for each in graph.operators]
    _check_acyclic(names, graph.edges)
    if graph.mode is JobMode.STREAMING:
        _check_streaming(graph.edges)
    roots = _connected(names, graph.edges)
    _check_within(names, graph.edges, roots)
    waits = _waits(names, graph.edges, roots)
    if (circle := _circle(waits, names)) is not None:
        raise _circle_error(names, graph.edges, roots, waits, circle)
    order = _in_order(waits, {name: at for at, name in enumerate(names)})
    number = {root: at for at, root in enumerate(order)}
    members: list[list[str]] = [[] for _ in order]
    for name in names:
        members[number[roots[name]]].append(name)
    return Regions(
        members=tuple(map(tuple, members)),
        region_of={name: number[roots[name]] for name in names},
        waits_for=tuple(frozenset(number[each] for each in waits[root]) for root in order),
    )


def _connected(names: Iterable[str], edges: Edges) -> dict[str, str]:
    """Returns the representative of each operator's region: union-find over pipelined edges."""
    parents = {name: name for name in names}

    def root(name: str) -> str:
        while parents[name] != name:
            # Path halving keeps the trees flat.
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name

    for edge in edges:
        if edge.exchange is Exchange.PIPELINED:
            parents[root(edge.consumer)] = root(edge.producer)
    return {name: root(name) for name in parents}


def _waits(names: Iterable[str], edges: Edges, roots: Mapping[str, str]) -> dict[str, set[str]]:
    """Returns, for the representative of each region, the representatives of the regions for which
    this region waits.
    """
    waits: dict[str, set[str]] = {roots[name]: set() for name in names}
    for edge in edges:
        if edge.exchange is Exchange.BLOCKING:
            waits[roots[edge.consumer]].add(roots[edge.producer])
    return waits


def _in_order(waits: Mapping[str, set[str]], position: Mapping[str, int]) -> list[str]:
    """Returns regions in graph order, with one exception: each region comes after the regions for
    which it waits.
    """
    sorter = TopologicalSorter(waits)
    sorter.prepare()
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=position.__getitem__)
        order += ready
        sorter.done(*ready)
    return order


def _circle(waits: Mapping[str, Iterable[str]], names: Sequence[str]) -> list[str] | None:
    """Returns elements that form a circle, in the direction of the edges, or None if there is no
    circle.

    The list begins and ends with the element of the circle that comes first in `names`. If there
    are several circles, the choice does not depend on the iteration order of sets.
    """
    position = {name: at for at, name in enumerate(names)}
    try:
        TopologicalSorter(
            {each: sorted(waits[each], key=position.__getitem__) for each in waits}
        ).prepare()
    except CycleError as error:
        # CycleError lists each element before the element that waits for it. The first element is
        # also the last element.
        circle: list[str] = error.args[1][:-1]
        first = circle.index(min(circle, key=position.__getitem__))
        return [*circle[first:], *circle[: first + 1]]
    return None


def _check_acyclic(names: Iterable[str], edges: Edges) -> None:
    producers: dict[str, list[str]] = {name: [] for name in names}
    for edge in edges:
        producers[edge.consumer].append(edge.producer)
    if (circle := _circle(producers, list(producers))) is not None:
        text = " -> ".join(circle)
        raise GraphError(
            f"the edges {text} form a circle, so none of these operators could be the first to get"
            " input; remove one of the edges",
            operators=circle[:-1],
        )


def _check_streaming(edges: Edges) -> None:
    for edge in edges:
        if edge.exchange is Exchange.BLOCKING:
            raise GraphError(
                f"edge {edge.name} is blocking in a streaming job: {edge.consumer} would wait for"
                f" the end of {edge.producer}, which runs until the job is ended; make edge"
                f" {edge.name} pipelined, or the job's mode batch",
                operators=(edge.producer, edge.consumer),
                changes=[(edge.name, Exchange.PIPELINED)],
            )


def _check_within(names: Sequence[str], edges: Edges, roots: Mapping[str, str]) -> None:
    for edge in edges:
        if edge.exchange is Exchange.BLOCKING and roots[edge.producer] == roots[edge.consumer]:
            path = _pipelined_path(edges, edge.producer, edge.consumer)
            operators = [edge.producer, *(_far_end(path, edge.producer))]
            other = _repairing_flip(names, edges, path)
            or_else = f", or edge {other.name} blocking" if other is not None else ""
            raise GraphError(
                f"edge {edge.name} is blocking, but pipelined edges connect the two operators"
                f" ({', '.join(each.name for each in path)}): {edge.consumer} must run together"
                f" with {edge.producer}, and could not wait for its end; make edge {edge.name}"
                " pipelined" + or_else,
                operators=operators,
                changes=[(edge.name, Exchange.PIPELINED)],
            )


def _pipelined_path(edges: Edges, start: str, end: str) -> list[EdgeSpec]:
    """Returns a shortest path of pipelined edges, in either direction. A path must exist."""
    near: dict[str, list[EdgeSpec]] = {}
    for edge in edges:
        if edge.exchange is Exchange.PIPELINED:
            near.setdefault(edge.producer, []).append(edge)
            near.setdefault(edge.consumer, []).append(edge)
    came_by: dict[str, tuple[str, EdgeSpec] | None] = {start: None}
    queue = [start]
    for name in queue:
        for edge in near.get(name, ()):
            other = edge.consumer if edge.producer == name else edge.producer
            if other not in came_by:
                came_by[other] = (name, edge)
                queue.append(other)
    path: list[EdgeSpec] = []
    while (step := came_by[end]) is not None:
        end, edge = step
        path.append(edge)
    return path[::-1]


def _far_end(path: Iterable[EdgeSpec], start: str) -> Iterable[str]:
    for edge in path:
        start = edge.consumer if edge.producer == start else edge.producer
        yield start


def _repairing_flip(
    names: Sequence[str], edges: Edges, candidates: Iterable[EdgeSpec]
) -> EdgeSpec | None:
    """Returns the first candidate for which the graph is valid if only this candidate becomes
    blocking. Returns None if there is no such candidate.
    """
    for candidate in candidates:
        changed = [
            replace(edge, exchange=Exchange.BLOCKING) if edge is candidate else edge
            for edge in edges
        ]
        roots = _connected(names, changed)
        blocking = (edge for edge in changed if edge.exchange is Exchange.BLOCKING)
        if any(roots[edge.producer] == roots[edge.consumer] for edge in blocking):
            continue
        if _circle(_waits(names, changed, roots), names) is None:
            return candidate
    return None


def _circle_error(
    names: Sequence[str],
    edges: Edges,
    roots: Mapping[str, str],
    waits: Mapping[str, set[str]],
    circle: Sequence[str],
) -> GraphError:
    between = [_edge_between(edges, roots, *pair) for pair in pairwise(circle)]
    operators = list(
        dict.fromkeys(name for edge in between for name in (edge.producer, edge.consumer))
    )
    on_it = _waiting_together(waits, circle[0])
    inside = [
        edge
        for edge in edges
        if edge.exchange is Exchange.PIPELINED and roots[edge.producer] in on_it
    ]
    blocking = [
        edge
        for edge in edges
        if edge.exchange is Exchange.BLOCKING
        and {roots[edge.producer], roots[edge.consumer]} <= on_it
    ]
    # Advise to change one edge, if the change of one edge is enough. Otherwise advise to join the
    # regions.
    flip = _repairing_flip(names, edges, inside)
    if flip is not None:
        advice, changes = f"make edge {flip.name} blocking", [(flip.name, Exchange.BLOCKING)]
    else:
        listed = ", ".join(edge.name for edge in blocking)
        plural = "s" if len(blocking) > 1 else ""
        advice = f"make the edge{plural} {listed} pipelined"
        changes = [(edge.name, Exchange.PIPELINED) for edge in blocking]
    return GraphError(
        "pipelined regions wait for each other in a circle, by the blocking edges"
        f" {', '.join(edge.name for edge in between)}: operators that pipelined edges connect run"
        f" together, so none of these regions could start; {advice}",
        operators=operators,
        changes=changes,
    )


def _edge_between(edges: Edges, roots: Mapping[str, str], first: str, then: str) -> EdgeSpec:
    return next(
        edge
        for edge in edges
        if edge.exchange is Exchange.BLOCKING
        and roots[edge.producer] == first
        and roots[edge.consumer] == then
    )


def _waiting_together(waits: Mapping[str, set[str]], start: str) -> set[str]:
    """Returns the regions that wait for `start` and that `start` waits for, directly or through
    other regions.
    """
    waiting: dict[str, set[str]] = {each: set() for each in waits}
    for each, others in waits.items():
        for other in others:
            waiting[other].add(each)

    def reached(next_of: Callable[[str], Iterable[str]]) -> set[str]:
        found, queue = {start}, [start]
        for each in queue:
            for other in next_of(each):
                if other not in found:
                    found.add(other)
                    queue.append(other)
        return found

    return reached(waits.__getitem__) & reached(waiting.__getitem__)
