"""Serves those who wait: the job that is to be served first, its oldest request first; and whoever
is behind one that does not fit is tried all the same.

Each shape of the round is looked at once: where there is no room for it, it sleeps until a host of
its labels has more room than before; then only hosts that grew are looked at. Then jobs are served
in the order of `fairness/choice.py`, in runs: `PlacementPass` says how many of them go where, and
each gets its slot. A host that refused the shape lately, or still holds an older slot of the same
request, is left out.

So one decision costs what it places, plus the shapes it looks at in vain, of which
`EngineSettings.classes_tried_max` are enough, plus those that had room and have it no more (as many
at most), plus lines that are parked or stand in line again, and shapes looked at that had room
(`MOVES_MAX`). The next decision goes on where this one stopped.

What waits one by one (`queue/non_batchable.py`) is tried when it is its job's turn and nothing of
that job came before it; and counted like a shape if it is tried in vain, a gang like as many as it
has different members. So do hosts that had to be asked whether their cpus and NUMA nodes suit a
shape, if none did. Where that are too many for one decision (`exact.py`), the shape is looked at
again in the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import inf

from resource_manager.engine.context import EventContext
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.entities import Request
from resource_manager.engine.placement.placement_pass import PlacementPass
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass
from resource_manager.engine.scheduling.reservations import tried_in_vain
from resource_manager.engine.state import State

MOVES_MAX = 10_000
"""Lines that are parked or stand in line again, and shapes found to have room, in one decision at
most. No more than half of them may be spent on lines that maxima have stopped.
"""

LOOKED_AT_AGAIN_MAX = 16
"""Shapes that are looked at again, after something was placed, at most."""

ATTEMPTS: dict[Kind, Callable[[State, PlacementPass, NonBatchable], bool]] = {
    Kind.GANG: lambda state, placing, item: state.gang_moves.try_gang(placing, item),
    Kind.RESIZE: lambda state, placing, item: state.resizes.try_growth(placing, item),
}
"""How what waits one by one is tried, by what it is. True: it waits no more; False: nothing fits.

Whoever books something in an attempt lets the pass `follow` these hosts; room may only shrink.
"""


@dataclass(slots=True)
class _Budget:
    """What is left for one decision to do in vain."""

    looks: int  # at shapes for which there is no room
    tries: int  # of those for which there was some, and of what waits one by one
    moves: int  # see `MOVES_MAX`


def place_waiting(context: EventContext) -> None:
    """Places waiting requests that fit, those first who are to be served first: all of them, unless
    too much is tried in vain. `State.unfinished` says so then.
    """
    state, queue = context.state, context.state.queue
    state.hosts.refresh(state.queue)
    eased = state.quotas.unblock(MOVES_MAX // 2)
    if not queue.unblocked:
        return
    placing = PlacementPass(state.hosts, state.reservations)
    set_aside: list[Request] = []
    unknown: dict[SchedulingClass, None] = {}  # whether there is room
    most = state.settings.classes_tried_max
    budget = _Budget(looks=most, tries=most, moves=MOVES_MAX - eased)
    queue.non_batchables.order()
    goes_on = queue.in_pass or queue.begin_pass()
    while goes_on:
        _look(context, placing, budget, unknown)
        if budget.moves:
            set_aside += _serve(context, placing, budget, unknown)
        queue.order.resume_paused()
        goes_on = queue.begin_pass()
    placing.finish()
    for scheduling_class in unknown:
        queue.continue_with(scheduling_class)
    for request in set_aside:  # which is no work left over: nothing has changed for them yet
        queue.take_back(request)


def _look(
    context: EventContext,
    placing: PlacementPass,
    budget: _Budget,
    unknown: dict[SchedulingClass, None],
) -> None:
    """Finds out for which shapes there is room."""
    queue = context.state.queue
    while budget.looks and budget.moves and (scheduling_class := queue.next_class()) is not None:
        if placing.has_room(scheduling_class):
            budget.moves -= max(1, queue.has_room(scheduling_class, budget.moves))
        else:
            _found_none(context, placing, scheduling_class, unknown)
            budget.looks -= min(budget.looks, 1 + placing.asked(scheduling_class))


def _found_none(
    context: EventContext,
    placing: PlacementPass,
    scheduling_class: SchedulingClass,
    unknown: dict[SchedulingClass, None],
) -> None:
    """Nothing was found for a shape: there is no room, or not all hosts were asked."""
    if placing.stopped(scheduling_class):
        context.state.queue.fitting.pop(scheduling_class, None)
        unknown[scheduling_class] = None
    else:
        context.state.queue.block(scheduling_class)
        tried_in_vain(context, scheduling_class)


def _serve(
    context: EventContext,
    placing: PlacementPass,
    budget: _Budget,
    unknown: dict[SchedulingClass, None],
) -> list[Request]:
    """Serves those for whom there is room, as long as there is; answers with whoever has to be set
    aside meanwhile.
    """
    state, queue = context.state, context.state.queue
    set_aside: list[Request] = []
    while budget.tries and budget.moves:
        job_queue = queue.order.next_queue() if queue.fitting else None
        item = queue.order.next_non_batchable(job_queue)
        if item is not None:
            if not _attempt(context, placing, item):
                budget.tries -= min(budget.tries, _weight(state.gangs, item))
        elif job_queue is None:
            queue.block_fitting()
            break
        elif job_queue.scheduling_class not in queue.fitting:
            queue.deactivate(job_queue)
            budget.moves -= 1
        else:
            set_aside += _serve_queue(context, placing, job_queue, budget, unknown)
    return set_aside


def _weight(gangs: GangLedger, item: NonBatchable) -> int:
    """As how many shapes something counts that was tried in vain."""
    waiting = gangs.waiting.get(item.name) if item.kind is Kind.GANG else None
    return len(waiting.kind.member_requests) if waiting is not None else 1


def _attempt(context: EventContext, placing: PlacementPass, item: NonBatchable) -> bool:
    """Tries what waits by itself; False: in vain."""
    state, non_batchables = context.state, context.state.queue.non_batchables
    if (stop := state.quotas.non_batchable_block(item)) is not None:
        if item.kind is Kind.GANG:
            state.gangs.waiting[item.name].tried = True
        non_batchables.block_by_quota(item, stop.group_id)
        return False
    if ATTEMPTS[item.kind](context.state, placing, item):
        non_batchables.remove(item.arrival_number)
        context.state.starvation.stop(item.arrival_number)
        return True
    non_batchables.block(item)
    tried_in_vain(context, item.arrival_number)
    return False


def _serve_queue(
    context: EventContext,
    placing: PlacementPass,
    job_queue: JobQueue,
    budget: _Budget,
    unknown: dict[SchedulingClass, None],
) -> list[Request]:
    """Places the next requests of a line as far as there is room; answers with whoever has to be
    set aside.
    """
    state, queue, scheduling_class = context.state, context.state.queue, job_queue.scheduling_class
    length, more = inf, True
    if not queue.order.is_alone(job_queue):
        more = placing.has_room_for_more(scheduling_class)
        length = (
            queue.order.run_length(job_queue, state.quotas.cost_of(scheduling_class)) if more else 1
        )
    numbers = queue.order.next_of(job_queue, length)
    if not (most := state.quotas.admitted(job_queue, len(numbers))):
        budget.moves -= 1
        return []
    del numbers[most:]
    count, elsewhere = _together(state.requests, state.slots, numbers)
    placed = 0
    for host_id, share in placing.place(scheduling_class, count, elsewhere):
        some = [state.requests.at(number) for number in islice(numbers, placed, placed + share)]
        host = state.hosts[host_id]
        context.state.moves.place(some, host)
        placed += share
        if host.needs_topology(scheduling_class):
            placing.follow([host])
    if placed:
        queue.taken(job_queue, placed)
        job_queue.placed(context.now_ms, state.starvation.placements)
    elif elsewhere:  # only this one is held back; others of the shape may fit
        request = state.requests.at(numbers[0])
        queue.set_aside(job_queue, numbers[0])
        return [request]
    if not placed:
        budget.tries -= 1
    if placed < count or not more:
        _look_again(context, placing, scheduling_class, budget, unknown)
    if placed and (scheduling_class in queue.fitting or not scheduling_class.waiting):
        state.starvation.stop(scheduling_class)  # there is enough for all who ask for this
    return []


def _look_again(
    context: EventContext,
    placing: PlacementPass,
    scheduling_class: SchedulingClass,
    budget: _Budget,
    unknown: dict[SchedulingClass, None],
) -> None:
    """Room has become scarce for a shape. Finds out for it, and for others if they are few, whether
    there is any left: to find that out when they have their turns would take longer.
    """
    queue = context.state.queue
    few = len(queue.fitting) <= LOOKED_AT_AGAIN_MAX
    for each in list(queue.fitting) if few else [scheduling_class]:
        if each in queue.fitting and not placing.has_room(each):
            _found_none(context, placing, each, unknown)
            budget.tries -= min(1, budget.tries)


def _together(requests: Requests, slots: Slots, numbers: list[int]) -> tuple[int, list[str]]:
    """How many of these are placed together, and the hosts that they must not have: one that still
    has an older slot somewhere comes alone.
    """
    if not slots.superseded:
        return len(numbers), []
    for at, number in enumerate(numbers):
        if elsewhere := _holders(slots, requests.at(number)):
            return (at, []) if at else (1, elsewhere)
    return len(numbers), []


def _holders(slots: Slots, request: Request) -> list[str]:
    """Hosts that hold an older slot of a request."""
    return [slot.executor_id for slot in slots.superseded.get(request.spec.allocation_id, ())]
