"""Serves those who wait: oldest first, and whoever is behind one that does not fit is tried all the
same.

Requests of one shape that stand in line one behind the other are placed together: `Placing` says
how many go where, then each gets its slot. A host that refused the shape lately, or still holds an
older slot of the same request, is left out. A shape that fits nowhere sleeps until a host of its
labels has more room than before; then only hosts that grew are looked at. So one pass costs what
it places plus the number of shapes it tries.

Backfill means that a large request can be overtaken for long by smaller ones; keeping room for it
is the business of fair sharing, which is not built yet.
"""

from __future__ import annotations

import heapq
from itertools import islice, takewhile

from resource_manager.engine.entities import Request
from resource_manager.engine.moves import place
from resource_manager.engine.placement.placing import Placing
from resource_manager.engine.queue import Shape
from resource_manager.engine.state import State
from resource_manager.engine.turn import Turn

TOGETHER_MAX = 1_024
"""Requests that are placed together at most: what is looked up for them may be in vain."""


def place_waiting(turn: Turn) -> None:
    """Places every waiting request that fits, in order of arrival."""
    state = turn.state
    state.refresh_indexes()
    heads = [
        (head.arrival_number, shape.number, shape)
        for shape in state.queue.open
        if (head := shape.head()) is not None
    ]
    if not heads:
        return
    heapq.heapify(heads)
    placing = Placing(state)
    set_aside: list[Request] = []
    while heads:
        _, number, shape = heapq.heappop(heads)
        if not placing.has_room(shape):
            state.queue.sleep(shape)
            continue
        requests, elsewhere = _next_together(state, shape, heads[0][0] if heads else None)
        placed = _place(turn, placing, shape, requests, elsewhere)
        if not placed and elsewhere:
            shape.discard(requests[0])  # only this one is held back; others of the shape may fit
            set_aside.append(requests[0])
        if (head := shape.head()) is not None:
            heapq.heappush(heads, (head.arrival_number, number, shape))
    placing.finish()
    for request in set_aside:
        state.queue.add(request)


def _next_together(
    state: State, shape: Shape, until: int | None
) -> tuple[list[Request], list[str]]:
    """The next requests of a shape to be placed together, and the hosts that they must not have.

    All that stand before the next shape's head; one that still has an older slot somewhere comes
    alone.
    """
    requests = shape.before(until, TOGETHER_MAX)
    if elsewhere := _holders(state, requests[0]):
        return requests[:1], elsewhere
    return list(takewhile(lambda request: not _holders(state, request), requests)), []


def _holders(state: State, request: Request) -> list[str]:
    """Hosts that hold an older slot of a request."""
    return [slot.executor_id for slot in state.left_behind.get(request.spec.allocation_id, ())]


def _place(
    turn: Turn, placing: Placing, shape: Shape, requests: list[Request], elsewhere: list[str]
) -> bool:
    """Places the first of these requests as far as there is room; True if there was any."""
    served = iter(requests)
    count = 0
    for host_id, share in placing.place(shape, len(requests), elsewhere):
        place(turn, list(islice(served, share)), turn.state.hosts[host_id])
        count += share
    turn.state.queue.served(shape, requests[:count])
    return count > 0
