"""Serves those who wait: oldest first, and whoever is behind one that does not fit is tried all the
same.

Requests of one shape that stand in line one behind the other are placed together: `Placing` says
how many go where, then each gets its slot. A host that refused the shape lately, or still holds an
older slot of the same request, is left out. A shape that fits nowhere sleeps until a host of its
labels has more room than before; then only hosts that grew are looked at. So one pass costs what
it places plus the number of shapes it tries, and of those that are tried in vain
`EngineSettings.shapes_tried_max` end it: the next decision goes on where it stopped.

Backfill means that a large request can be overtaken for long by smaller ones; keeping room for it
is the business of fair sharing, which is not built yet.
"""

from __future__ import annotations

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
    """Places waiting requests that fit, in order of arrival: all of them, unless too many shapes
    are tried in vain. `State.unfinished` says so then.
    """
    state, queue = turn.state, turn.state.queue
    state.refresh_indexes()
    if not queue.open and not queue.round:
        return
    placing = Placing(state)
    set_aside: list[Request] = []
    tries_left = state.settings.shapes_tried_max
    while tries_left and (shape := queue.next_shape()) is not None:
        if not placing.has_room(shape):
            queue.sleep(shape)
            tries_left -= 1
            continue
        requests, elsewhere = _next_together(state, shape, queue.round.until())
        placed = _place(turn, placing, shape, requests, elsewhere)
        if not placed and elsewhere:
            # Only this one is held back; others of the shape may fit.
            queue.set_aside(shape, requests[0])
            set_aside.append(requests[0])
        queue.stay(shape)
    placing.finish()
    queue.begin_round()  # so that it shows whether anything is left
    for request in set_aside:  # which is no work left over: nothing has changed for them yet
        queue.take_back(request)


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
