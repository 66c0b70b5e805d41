"""One scheduling cycle: all that `Decide` does, stage by stage.

    for each candidate in queue order (group, then job, then arrival):
        quota     may its group have more?
        fit       is there a host with room for its scheduling class?
        rank      which of these hosts is best?
        assign    book a slot there, with exact cpus and NUMA nodes
    then reserve for the starved, order new executors for what is left, send commands

Equal requests share the stages: fit is looked at once for each scheduling class in a pass, and one
turn places a run of requests of a job. A class without room is blocked until a host with its labels
has more room; whatever comes behind it is tried all the same. Gangs and resizes take turns like
requests: a gang goes through the same stages for all its members at once, and a resize has its own
host as the only candidate.

One cycle does a bounded amount (`_Budget`), so that a long queue does not keep events waiting. The
next cycle goes on where this one stopped: see `State.unfinished`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import inf

from resource_manager.engine.context import EventContext
from resource_manager.engine.jobs.lifecycle import continue_ending
from resource_manager.engine.model.entities import Request
from resource_manager.engine.placement.placer import Placer
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass
from resource_manager.engine.scaling.arrival import hand_over
from resource_manager.engine.scaling.passes import provide
from resource_manager.engine.scheduling.commands import dispatch
from resource_manager.engine.scheduling.newcomers import record_newcomers
from resource_manager.engine.scheduling.reservations import (
    end_served,
    reserve_for_starved,
    serve_owners,
)
from resource_manager.engine.state import State

MOVES_MAX = 2_000
"""Job queues that one cycle activates or deactivates, and classes that it finds to have room, at
most. No more than half of them may be job queues that a quota had blocked.
"""

TRIES_MAX = 300
"""Failed tries that one cycle makes, at most: to place requests of classes that had room before,
gangs or resizes. They take some 40 us each, more than a check of a class.
"""

PLACED_MAX = 300
"""Requests that one cycle places, at most; a gang is placed whole."""

FIRST_COST = 8
"""The first request of a class in a cycle takes as long as this many further ones, and so does what
a gang or a resize takes beside its slots.
"""

CPUS_COST = 6
"""Choosing cpus and NUMA nodes on a host takes as long as placing this many requests without."""

ROOM_COST = 20
"""Finding a host with room for a class takes as long as this many moves."""

LOOKED_AT_AGAIN_MAX = 16
"""Classes that are looked at again after something was placed, at most."""

STEPS_PER_TRY = 8
"""Steps of an exact search for a gang that cost as much as one other try."""

ATTEMPTS: dict[Kind, Callable[[State, Placer, NonBatchable], bool]] = {
    Kind.GANG: lambda state, placer, item: state.gang_moves.try_gang(placer, item),
    Kind.RESIZE: lambda state, placer, item: state.resizes.try_growth(placer, item),
}
"""How gangs and resizes are tried. True: it waits no more; False: nothing fits.

An attempt that books anything lets the placer `follow` these hosts.
"""


def decide(context: EventContext) -> None:
    """Runs one scheduling cycle."""
    state = context.state
    passes = state.queue.passes
    # Requests of ended jobs leave the queue first, so that none of them is placed.
    continue_ending(context)
    # Before the queue, which would take the room of executors that were ordered for others.
    hand_over(context)
    # Owners of reservations come first: capacity that is free now may be what they wait for.
    serve_owners(context)
    place_waiting(context)
    # An ended reservation sets capacity free for others, so place once more.
    while end_served(context):
        place_waiting(context)
    reserve_for_starved(context)
    # Only now, because executors are ordered for what nothing has room for.
    provide(context)
    # Last, so that one command has all slots that an executor gets in this cycle.
    dispatch(context)
    # Within a pass, the next cycle may still place them.
    if not state.queue.in_pass or state.queue.passes > passes:
        record_newcomers(context)
    # Placements have changed usage; what a restart could not derive goes into this batch.
    state.usage_checkpoints.keep_urgent()
    state.considered_arrival = state.numbers.arrival


def place_waiting(context: EventContext) -> None:
    """Places pending requests, gangs and resizes that fit, in queue order."""
    state = context.state
    # Takes in all events of the batch, and unblocks what may fit because of them.
    state.hosts.refresh(state.queue)
    unblocked = state.quotas.unblock(MOVES_MAX // 2)
    if state.queue.unblocked:
        _Placement(state, MOVES_MAX - unblocked).run()


@dataclass(slots=True)
class _Budget:
    """What one cycle may still do."""

    looks: int  # at classes without room
    tries: int  # see `TRIES_MAX`
    moves: int  # see `MOVES_MAX`
    placements: int  # see `PLACED_MAX`


class _Placement:
    """The stages from quota to assign, for all candidates of one cycle."""

    def __init__(self, state: State, moves: int) -> None:
        """`moves`: how many of `MOVES_MAX` are left."""
        most = state.settings.classes_tried_max
        self._state, self._queue = state, state.queue
        self._placer = Placer(state.hosts, state.reservations)
        self._budget = _Budget(most, min(most, TRIES_MAX), moves, PLACED_MAX)
        self._unknown: dict[SchedulingClass, None] = {}  # whether a host has room
        self._served: set[SchedulingClass] = set()
        self._set_aside: list[Request] = []

    def run(self) -> None:
        """Goes on with the pass that the last cycle began, then makes passes as long as there is
        anything to try.
        """
        queue = self._queue
        # Usage has changed since the last cycle, and items may move forward only by this call.
        queue.non_batchables.order()
        goes_on = queue.in_pass or queue.begin_pass()
        while goes_on:
            self._look_for_room()
            self._serve_in_order()
            # A quota that admits no class of this pass may admit one of the next.
            queue.order.resume_paused()
            goes_on = queue.begin_pass()
        self._placer.finish()
        # After the loop, which would otherwise try these again and again.
        for scheduling_class in self._unknown:
            queue.continue_with(scheduling_class)
        for request in self._set_aside:
            queue.take_back(request)

    def _look_for_room(self) -> None:
        """Fit: finds out for each class of the pass whether there is a host with room."""
        queue, placer, budget = self._queue, self._placer, self._budget
        while budget.looks and budget.moves > 0 and (found := queue.next_class()) is not None:
            if placer.has_room(found):
                budget.moves -= max(ROOM_COST, queue.has_room(found, budget.moves))
            else:
                self._found_none(found)
                # A failed check of a host's cpus costs as much as the check of a class.
                budget.looks -= min(budget.looks, 1 + placer.asked(found))

    def _found_none(self, scheduling_class: SchedulingClass) -> None:
        """Blocks a class: there is no room. If not all hosts could be asked, the next cycle looks
        at it again.
        """
        if self._placer.cut_off(scheduling_class):
            self._queue.fitting.pop(scheduling_class, None)
            self._unknown[scheduling_class] = None
        else:
            self._queue.block(scheduling_class)

    def _serve_in_order(self) -> None:
        """Gives turns to job queues whose classes have room, gangs and resizes, in queue order."""
        queue, budget = self._queue, self._budget
        while budget.tries and budget.moves > 0 and budget.placements > 0:
            # Without a class that has room, no active queue can be served.
            job_queue = queue.order.next_queue() if queue.fitting else None
            item = queue.order.next_non_batchable(job_queue)
            if item is not None:
                self._serve_non_batchable(item)
            elif job_queue is None:
                # Classes have room, but no queue may use it: the pass would never end.
                queue.block_fitting()
                break
            elif job_queue.scheduling_class not in queue.fitting:
                # Only when it comes first, so that the queues of a full class cost nothing before.
                queue.deactivate(job_queue)
                budget.moves -= 1
            else:
                self._serve_requests(job_queue)

    def _serve_non_batchable(self, item: NonBatchable) -> None:
        """Quota, fit, rank and assign for a gang or a resize."""
        state, non_batchables = self._state, self._queue.non_batchables
        waiting = state.gangs.waiting.get(item.name) if item.kind is Kind.GANG else None
        quota = state.quotas.non_batchable_block(item)
        if quota is None and ATTEMPTS[item.kind](state, self._placer, item):
            non_batchables.remove(item.arrival_number)
            self._budget.placements -= FIRST_COST + item.count
            return
        if quota is None:
            non_batchables.block(item)
        else:
            non_batchables.block_by_quota(item, quota.group_id)
            if waiting is not None:
                waiting.tried = True
        cost = 1
        # A gang costs more with each kind of members and each step of its search.
        if waiting is not None:
            cost = len(waiting.kind.member_requests) + waiting.steps // STEPS_PER_TRY
        self._budget.tries -= min(self._budget.tries, cost)

    def _serve_requests(self, job_queue: JobQueue) -> None:
        """Quota, fit, rank and assign for the next requests of a job."""
        state, queue, placer = self._state, self._queue, self._placer
        scheduling_class, length, more = job_queue.scheduling_class, inf, True
        # A job that is alone gets all that fits. Otherwise the fair order limits its run.
        if not queue.order.is_alone(job_queue):
            more = placer.has_room_for_more(scheduling_class)
            cost = state.quotas.cost_of(scheduling_class)
            length = queue.order.run_length(job_queue, cost) if more else 1
        # Quota: how many of the next requests the group may have now.
        most = self._budget.placements
        if scheduling_class.topology_constrained or state.hosts.indexes.aligning:
            most = max(1, most // CPUS_COST)  # each may have a host of its own
        numbers = queue.order.next_of(job_queue, min(length, most))
        # `admitted` has blocked the queue or paused its group.
        if not (most := state.quotas.admitted(job_queue, len(numbers))):
            self._budget.moves -= 1
            return
        count, elsewhere = self._placed_together(numbers[:most])
        # The first request of a class in a cycle costs a search, further ones a subtraction.
        if scheduling_class not in self._served:
            self._served.add(scheduling_class)
            self._budget.placements -= FIRST_COST
        # Fit, rank and assign: the placer chooses hosts and counts, then slots are booked there.
        placed = 0
        for host_id, share in placer.place(scheduling_class, count, elsewhere):
            run = [state.requests.at(number) for number in islice(numbers, placed, placed + share)]
            host = state.hosts[host_id]
            state.moves.place(run, host)
            placed += share
            if host.needs_topology(scheduling_class):
                # Its cpus are chosen now, and the pass must see which are left.
                placer.follow([host])
                self._budget.placements -= CPUS_COST - 1
        # Update the queue, and find out whether the class still has room.
        if placed:
            queue.taken(job_queue, placed)
            self._budget.placements -= placed
        elif elsewhere:  # this one has to wait; others of its class may fit
            self._set_aside.append(state.requests.at(numbers[0]))
            queue.set_aside(job_queue, numbers[0])
            return
        else:
            # There was room at the look; other requests have taken it since.
            self._budget.tries -= 1
        if placed < count or not more:
            self._look_again(scheduling_class)

    def _look_again(self, scheduling_class: SchedulingClass) -> None:
        """Fit once more, because there is little room left for a class: for it, and for all others
        if they are few. That is cheaper than failed tries for all their jobs.
        """
        fitting, budget = self._queue.fitting, self._budget
        few = len(fitting) <= LOOKED_AT_AGAIN_MAX
        for each in list(fitting) if few else [scheduling_class]:
            if each in fitting and not self._placer.has_room(each):
                self._found_none(each)
                budget.tries -= min(1, budget.tries)

    def _placed_together(self, numbers: list[int]) -> tuple[int, list[str]]:
        """Returns how many of these requests are placed together, and hosts that they must not
        have. A request with an older slot somewhere is placed alone, on another host.
        """
        superseded = self._state.slots.superseded
        if not superseded:
            return len(numbers), []
        for at, number in enumerate(numbers):
            allocation_id = self._state.requests.at(number).spec.allocation_id
            if older := superseded.get(allocation_id):
                # The requests before it go together first; then this one goes alone.
                return (at, []) if at else (1, [slot.executor_id for slot in older])
        return len(numbers), []
