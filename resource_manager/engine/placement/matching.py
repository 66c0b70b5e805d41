"""Serves those who wait: oldest first, and whoever is behind one that does not fit is tried all the
same.

One pass costs what it places plus the number of shapes it tries. For each placement: candidates
come from the index (hosts with room, in order of id), a filter drops hosts that refused the shape
or still hold an older slot of the same request, the strategy ranks what is left. A shape that fits
nowhere sleeps until a host of its labels has more room than before; then only hosts that grew are
looked at.

Backfill means that a large request can be overtaken for long by smaller ones; keeping room for it
is the business of fair sharing, which is not built yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from resource_manager.engine.entities import Request
from resource_manager.engine.host import SCORE, Host
from resource_manager.engine.moves import place
from resource_manager.engine.placement.index import CapacityIndex
from resource_manager.engine.placement.rank import best_aligned, candidates_compared
from resource_manager.engine.queue import Shape
from resource_manager.engine.state import State
from resource_manager.engine.turn import Turn

GROWN_CHECKED_ONE_BY_ONE = 32
"""Up to this many grown hosts are looked at directly instead of searching the tree."""


def place_waiting(turn: Turn) -> None:
    """Places every waiting request that fits, in order of arrival."""
    state = turn.state
    state.refresh_indexes()
    turns = [
        (head.arrival_number, shape.number, shape)
        for shape in state.queue.open
        if (head := shape.head()) is not None
    ]
    heapq.heapify(turns)
    set_aside: list[tuple[Shape, Request]] = []
    while turns:
        _, number, shape = heapq.heappop(turns)
        request = shape.head()
        if request is None:
            continue
        host, held_back = _choose(state, shape, request)
        if host is not None:
            slot = place(turn, request, host)
            state.indexes.placed(host, slot)
        elif held_back:
            shape.discard(request)  # only this one; others of the shape may fit
            set_aside.append((shape, request))
        else:
            state.queue.sleep(shape)
            continue
        if (head := shape.head()) is not None:
            heapq.heappush(turns, (head.arrival_number, number, shape))
    for _, request in set_aside:
        state.queue.add(request)


def _choose(state: State, shape: Shape, request: Request) -> tuple[Host | None, bool]:
    """The host to place on; else None, and whether only this very request was held back from
    one.
    """
    index = state.indexes.of(shape.labels, state.hosts.values())
    held_back = False

    def acceptable() -> Iterator[Host]:
        nonlocal held_back
        for position in _candidates(state, index, shape):
            host = state.hosts[index.ids[position]]
            if host.refuses(shape):
                continue
            if request.generation and _holds_older(host, request):
                held_back = True
                continue
            yield host

    settings = state.settings
    if settings.strategy == "spread" or settings.pack_candidates == 1:
        return next(acceptable(), None), held_back
    compared = candidates_compared(settings.pack_candidates, state.hosts_in_use)
    few = list(islice(acceptable(), compared))
    return best_aligned(few, shape, index), held_back


def _holds_older(host: Host, request: Request) -> bool:
    return any(
        (request.spec.allocation_id, generation) in host.slots
        for generation in range(request.generation, 0, -1)
    )


def _candidates(state: State, index: CapacityIndex, shape: Shape) -> Iterable[int]:
    needs = _needs(shape)
    if state.settings.strategy == "spread":
        return index.best_first(needs, SCORE)
    return _in_order(index, shape, needs)


def _in_order(index: CapacityIndex, shape: Shape, needs: list[dict[str, int]]) -> Iterator[int]:
    """Positions with room, in order, starting where the last search of this shape found its
    first.
    """
    cursor = shape.cursor
    grown: list[int] = []
    if cursor.version != index.version:
        cursor.version = index.version
        cursor.frontier = 0
    elif len(index.grown) > cursor.log_length:
        grown = sorted(set(index.grown[cursor.log_length :]))
    cursor.log_length = len(index.grown)
    nothing_before = cursor.frontier >= len(index)
    if grown and nothing_before and len(grown) <= GROWN_CHECKED_ONE_BY_ONE:
        found: Iterable[int] = (at for at in grown if any(index.covers(at, need) for need in needs))
    else:
        if grown:
            cursor.frontier = min(cursor.frontier, grown[0])
        found = index.covering(needs, cursor.frontier)
    cursor.frontier = len(index)
    for position in found:
        cursor.frontier = min(cursor.frontier, position)
        yield position


def _needs(shape: Shape) -> list[dict[str, int]]:
    if shape.pooled_need == shape.separate_need:
        return [shape.pooled_need]
    return [shape.pooled_need, shape.separate_need]
