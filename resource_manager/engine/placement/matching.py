"""Serves those who wait: oldest first, and whoever is behind one that does not fit is tried all the
same.

Requests of one shape that stand in line one behind the other are placed together: `Placing` says
how many go where, then each gets its slot. A host that refused the shape lately, or still holds an
older slot of the same request, is left out. A shape that fits nowhere sleeps until a host of its
labels has more room than before; then only hosts that grew are looked at. So one pass costs what
it places plus the number of shapes it tries, and of those that are tried in vain
`EngineSettings.shapes_tried_max` end it: the next decision goes on where it stopped.

What waits one by one (`singles.py`) is tried at its place in the same line: before any request that
came later, and counted like a shape if it is tried in vain, a gang like as many as it has different
members.

Backfill means that a large request can be overtaken for long by smaller ones; whoever is passed
over for too long has capacity held for himself (`fair/reservations.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, takewhile

from resource_manager.engine.entities import Request
from resource_manager.engine.fair.reservations import tried_in_vain
from resource_manager.engine.gangs import try_gang
from resource_manager.engine.moves import place
from resource_manager.engine.placement.placing import Placing
from resource_manager.engine.queue import Shape
from resource_manager.engine.resizes import try_growth
from resource_manager.engine.singles import Kind, Single
from resource_manager.engine.state import State
from resource_manager.engine.turn import Turn

TOGETHER_MAX = 1_024
"""Requests that are placed together at most: what is looked up for them may be in vain."""


ATTEMPTS: dict[Kind, Callable[[Turn, Placing, Single], bool]] = {
    Kind.GANG: try_gang,
    Kind.RESIZE: try_growth,
}
"""How what waits one by one is tried, by what it is. True: it waits no more; False: nothing fits.

Whoever books something in an attempt lets the pass `follow` these hosts; room may only shrink.
"""


def place_waiting(turn: Turn) -> None:
    """Places waiting requests that fit, in order of arrival: all of them, unless too much
    is tried in vain. `State.unfinished` says so then.
    """
    state, queue = turn.state, turn.state.queue
    state.refresh_indexes()
    if not queue.awake:
        return
    placing = Placing(state)
    set_aside: list[Request] = []
    tries_left = state.settings.shapes_tried_max
    while tries_left and (whose := queue.next_turn()) is not None:
        if isinstance(whose, Single):
            if not _attempt(turn, placing, whose):
                tries_left -= min(tries_left, _weight(state, whose))
        elif not placing.has_room(whose):
            queue.sleep(whose)
            tried_in_vain(turn, whose)
            tries_left -= 1
        else:
            set_aside += _serve(turn, placing, whose)
    placing.finish()
    queue.begin_round()  # so that it shows whether anything is left
    for request in set_aside:  # which is no work left over: nothing has changed for them yet
        queue.take_back(request)


def _weight(state: State, single: Single) -> int:
    """As how many shapes something counts that was tried in vain."""
    waiting = state.gangs.waiting.get(single.name) if single.kind is Kind.GANG else None
    return len(waiting.kind.wishes) if waiting is not None else 1


def _attempt(turn: Turn, placing: Placing, single: Single) -> bool:
    """Tries what waits by itself; False: in vain."""
    singles = turn.state.queue.singles
    if ATTEMPTS[single.kind](turn, placing, single):
        singles.remove(single.arrival_number)
        turn.state.starving.over(single.arrival_number)
        return True
    singles.sleep(single)
    tried_in_vain(turn, single.arrival_number)
    return False


def _serve(turn: Turn, placing: Placing, shape: Shape) -> list[Request]:
    """Places the next requests of a shape that there is room for; answers with whoever has to be
    set aside meanwhile.
    """
    queue, set_aside = turn.state.queue, []
    requests, elsewhere = _next_together(turn.state, shape, queue.until())
    placed = _place(turn, placing, shape, requests, elsewhere)
    if not placed and elsewhere:
        # Only this one is held back; others of the shape may fit.
        queue.set_aside(shape, requests[0])
        set_aside.append(requests[0])
    queue.stay(shape)
    return set_aside


def _next_together(
    state: State, shape: Shape, until: int | None
) -> tuple[list[Request], list[str]]:
    """The next requests of a shape to be placed together, and the hosts that they must not have.

    All that stand before whoever has the next turn; one that still has an older slot somewhere
    comes alone.
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
    if count:
        turn.state.starving.over(shape)
    return count > 0
