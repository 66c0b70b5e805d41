"""Runs one scheduling cycle, which handles the event `Decide`. The stages of a cycle:

    for each candidate in queue order (group, then job, then arrival):
        quota     does the candidate stay below the maximum of its groups?
        fit       is there a host with room for its scheduling class?
        rank      which of these hosts is best?
        assign    book a slot on this host, with cpus and NUMA nodes if the request needs them
    then reserve capacity for starved requests, request executors for requests that fit on no host,
    and send commands

Equal requests go through these stages together: a pass checks the fit once for each scheduling
class, and then places several requests of a job at a time. If no host has room for a class, the
class is blocked until a host with the required labels has more room. Later classes, gangs and
resizes in the order are still tried. A gang goes through the stages for all its members at once.
For a resize, the stages consider only one host, the host of its slot.

A limit (`Budget`) for the work of one cycle ensures that a long queue does not delay other events.
The next cycle continues where this cycle stopped: see `State.unfinished`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import inf

from finegrain.values.states import RequestState
from resource_manager.engine.jobs.lifecycle import continue_ending
from resource_manager.engine.model.entities import Request
from resource_manager.engine.placement.placer import Placer
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass
from resource_manager.engine.scaling.arrival import hand_over
from resource_manager.engine.scaling.emptying import Emptying
from resource_manager.engine.scaling.passes import provide
from resource_manager.engine.scheduling.backfill import Backfill
from resource_manager.engine.scheduling.dispatch import dispatch
from resource_manager.engine.scheduling.joint import FIRST_COST, JOINT_MIN, Budget, JointPlacement
from resource_manager.engine.scheduling.reservations import end_served, serve_owners
from resource_manager.engine.scheduling.revocation import Revocation
from resource_manager.engine.scheduling.starved import reserve_for_starved
from resource_manager.engine.state import State

MOVES_MAX = 2_000
"""The limit for moves in one cycle. One move activates or deactivates one job queue. A class with
room costs at least `ROOM_COST` moves. At most half of the moves are used to unblock queues that a
quota blocked.
"""

TRIES_MAX = 300
"""The limit for failed tries in one cycle. There are two kinds of failed tries: a gang or a resize
does not fit, or a request does not fit although its class had room at the last check. A failed try
takes about 40 us, which is longer than a check of a class.
"""

PLACED_MAX = 300
"""The limit for placed requests in one cycle. A gang is placed as a whole, so it can exceed the
limit.
"""

CPUS_COST = 6
"""The cost of a placed request whose cpus and NUMA nodes must be chosen. Any other placed request
costs 1.
"""

ROOM_COST = 20
"""The lowest cost, in moves, of a search for a host with room for a class."""

CHECKED_AGAIN_MAX = 16
"""When a class has little room left and at most this many classes have room, all these classes are
checked again.
"""

STEPS_PER_TRY = 8
"""This many steps of an exact search for a gang count as one failed try."""

ATTEMPTS: dict[Kind, Callable[[State, Placer, NonBatchable], bool]] = {
    Kind.GANG: lambda state, placer, item: state.gang_moves.try_gang(placer, item),
    Kind.RESIZE: lambda state, placer, item: state.resizes.try_growth(placer, item),
}
"""The functions that try a gang and a resize. Each function returns True if the gang or resize is
not pending any more, and False if it does not fit. A function that books capacity calls
`Placer.follow`.
"""


def decide(state: State) -> None:
    """Runs one scheduling cycle."""
    passes = state.queue.passes
    # First remove the requests of ended jobs from the queue, so that none of them is placed.
    if state.endings or state.dependencies.ended:
        continue_ending(state)
    # Hand the new executors over before `place_waiting`, which would place other requests on them.
    if state.elastic.arrived:
        hand_over(state)
    # Plan before other requests are placed, so that they leave the capacity to the first waiter in
    # order.
    if state.run_times.declared and state.queue.starvation:
        Backfill(state).plan()
    # Place owners of reservations first, because `place_waiting` could give their capacity to other
    # requests.
    if state.reservations.by_number:
        serve_owners(state)
        # If the owner of the plan was placed, the next waiter in order gets a plan.
        if state.run_times.declared:
            Backfill(state).plan()
    place_waiting(state)
    # If a request waits that fits on an executor that is being emptied, the executor is needed.
    if state.elastic.emptying and Emptying(state).use_again():
        place_waiting(state)
    if state.queue.starvation:
        reserve_for_starved(state)
    # Backfill after the placements in order, because backfilling uses the capacity that these
    # placements have left.
    if state.reservations.by_number:
        Backfill(state).fill()
    # Revoke slots after all placements, because requests that fit need no revocation.
    if state.settings.revocation and Revocation(state).run():
        # The revocation possibly placed owners of reservations, or revoked slots that were larger
        # than needed. So other requests possibly have room now.
        end_served(state)
        place_waiting(state)
    # Request executors after all placements, because executors are requested only for requests that
    # fit on no host.
    if state.settings.provisioning.shapes or state.provisions:
        provide(state)
    # Send commands after all placements, so that one command contains all slots that an executor
    # gets in this cycle.
    dispatch(state)
    # While the pass that ran at the start of this cycle has not ended, the next cycle can still
    # place the new requests. In this case it is too early to record why they wait.
    if not state.queue.in_pass or state.queue.passes > passes:
        _record_newcomers(state)
    # Placements have changed usage. A restarted resource manager could not compute some of these
    # changes again, so they are stored in this batch.
    state.usage_checkpoints.keep_urgent()
    state.considered_arrival = state.numbers.arrival


def place_waiting(state: State) -> None:
    """Places pending requests, gangs and resizes that fit, in queue order. Ends the reservations of
    owners that were placed.
    """
    places = True
    while places:
        # The events of the batch have changed hosts. So update the indexes, and unblock the
        # classes, gangs and resizes that possibly fit now.
        state.hosts.refresh(state.queue)
        unblocked = state.quotas.unblock(MOVES_MAX // 2)
        if state.queue.unblocked:
            _Placement(state, MOVES_MAX - unblocked).run()
        # When a reservation ends or keeps less, other requests can use its capacity. So the
        # placement runs again, unless it goes on in the next cycle anyway.
        places = bool(state.reservations.by_number) and (
            end_served(state) or bool(state.hosts.touched and not state.queue.unblocked)
        )


class _Placement:
    """The stages quota, fit, rank and assign, for all candidates of one cycle."""

    def __init__(self, state: State, moves: int) -> None:
        """Starts a placement pass. `moves` is the part of `MOVES_MAX` that this cycle can still
        use.
        """
        most = state.settings.classes_tried_max
        self._state, self._queue = state, state.queue
        self._placer = Placer(state.hosts)
        self._budget = Budget(most, min(most, TRIES_MAX), moves, PLACED_MAX)
        self._unknown: dict[SchedulingClass, None] = {}  # classes whose search was cut off
        self._served: set[SchedulingClass] = set()
        self._set_aside: list[Request] = []
        self._joint = JointPlacement(
            state.costs,
            state.flows,
            state.hosts,
            state.moves,
            state.queue,
            state.quotas,
            state.requests,
            state.slots,
        )

    def run(self) -> None:
        """Continues the pass that the last cycle began. Then runs further passes until no candidate
        is left to try or the budget is used up.
        """
        queue = self._queue
        # Usage has changed since the last cycle, so the order of the jobs has possibly changed,
        # too.
        if queue.non_batchables.in_pass:
            queue.non_batchables.order()
        goes_on = queue.in_pass or queue.begin_pass()
        while goes_on:
            self._check_fit()
            self._serve_in_order()
            # A quota that admits no class of this pass can admit a class of the next pass.
            queue.order.resume_paused()
            goes_on = queue.begin_pass()
        self._placer.finish()
        # The next cycle continues the searches that were cut off, so that other events are
        # processed in between.
        for scheduling_class in self._unknown:
            queue.continue_with(scheduling_class)
        for request in self._set_aside:
            queue.take_back(request)

    def _check_fit(self) -> None:
        """Checks for each class of the pass whether a host has room for it (stage "fit")."""
        queue, placer, budget = self._queue, self._placer, self._budget
        while budget.checks and budget.moves > 0 and (found := queue.next_class()) is not None:
            if placer.has_room(found):
                budget.moves -= max(ROOM_COST, queue.has_room(found, budget.moves))
            else:
                self._found_none(found)
                # Checking the cpus of one host counts as one check, too.
                budget.checks -= min(budget.checks, 1 + placer.hosts_checked(found))

    def _found_none(self, scheduling_class: SchedulingClass) -> None:
        """Blocks a class for which the search found no host. If the search was cut off before it
        had checked all hosts, the next cycle tries the class again instead.
        """
        if self._placer.cut_off(scheduling_class):
            self._queue.fitting.pop(scheduling_class, None)
            self._unknown[scheduling_class] = None
        else:
            self._queue.block(scheduling_class)

    def _serve_in_order(self) -> None:
        """Serves gangs, resizes, and job queues whose classes have room, in queue order."""
        queue, budget = self._queue, self._budget
        # Place requests of many jobs together, as long as the joint placement changes no job's
        # share.
        while len(queue.by_job) > 1 and budget.placements > 0 and self._joint.is_possible():
            if self._joint.serve(self._placer, budget, self._served) < JOINT_MIN:
                break
        while budget.tries and budget.moves > 0 and budget.placements > 0:
            # If no class has room, no active queue can be served.
            job_queue = queue.order.next_queue() if queue.fitting else None
            item = queue.order.next_non_batchable(job_queue)
            if item is not None:
                self._serve_non_batchable(item)
            elif job_queue is None:
                # Some classes have room, but quotas block all their queues. If these classes stayed
                # unblocked, the pass would never end.
                queue.block_fitting()
                break
            elif job_queue.scheduling_class not in queue.fitting:
                # The queue of a class without room is deactivated only when the queue comes first
                # in order. Until then the queue causes no work.
                queue.deactivate(job_queue)
                budget.moves -= 1
            else:
                self._serve_requests(job_queue)

    def _serve_non_batchable(self, item: NonBatchable) -> None:
        """Runs the stages quota, fit, rank and assign for a gang or a resize."""
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
        # The cost of a gang grows with its number of different members and the steps of its search.
        if waiting is not None:
            cost = len(waiting.kind.member_requests) + waiting.steps // STEPS_PER_TRY
        self._budget.tries -= min(self._budget.tries, cost)

    def _serve_requests(self, job_queue: JobQueue) -> None:
        """Runs the stages quota, fit, rank and assign for the next requests of a job."""
        state, queue, placer = self._state, self._queue, self._placer
        scheduling_class, length, more = job_queue.scheduling_class, inf, True
        # If no other job can be served, place all requests of this job that fit. If another job can
        # be served, the fair order limits how many requests are placed at a time.
        if not queue.order.is_alone(job_queue):
            more = placer.has_room_for_more(scheduling_class)
            cost = state.quotas.cost_of(scheduling_class)
            length = queue.order.run_length(job_queue, cost) if more else 1
        # Stage "quota": compute how many of the next requests the limits admit now.
        most = self._budget.placements
        cpus = scheduling_class.topology_constrained or bool(state.hosts.indexes.aligning)
        if cpus:
            most = max(1, most // CPUS_COST)  # each request possibly needs a choice of cpus
        numbers = queue.order.next_of(job_queue, min(length, most))
        # If `admitted` returns 0, `admitted` itself has blocked the queue or paused the job's
        # group.
        if not (most := state.quotas.admitted(job_queue, len(numbers))):
            self._budget.moves -= 1
            return
        count, elsewhere = self._placed_together(numbers[:most])
        # The first request of a class in a cycle needs a search. For later requests of the class, a
        # subtraction is enough.
        if scheduling_class not in self._served:
            self._served.add(scheduling_class)
            self._budget.placements -= FIRST_COST
        # Stages "fit", "rank" and "assign": the placer chooses hosts and the number of slots on
        # each host, and then `moves.place` books the slots.
        placed = 0
        for host_id, share in placer.place(scheduling_class, count, elsewhere):
            run = [state.requests.at(number) for number in islice(numbers, placed, placed + share)]
            host = state.hosts[host_id]
            state.moves.place(run, host)
            placed += share
            if cpus and host.needs_topology(scheduling_class):
                # `moves.place` has chosen cpus, so the placer must read which cpus are left.
                placer.follow([host])
                self._budget.placements -= CPUS_COST - 1
        # Update the queue, and check whether the class still has room.
        if placed:
            queue.taken(job_queue, placed)
            self._budget.placements -= placed
        # this request must avoid some hosts, but other requests of the class possibly fit
        elif elsewhere:
            self._set_aside.append(state.requests.at(numbers[0]))
            queue.set_aside(job_queue, numbers[0])
            return
        else:
            # The class had room at the last check, but other requests have used this room.
            self._budget.tries -= 1
        if placed < count or not more:
            self._check_again(scheduling_class)

    def _check_again(self, scheduling_class: SchedulingClass) -> None:
        """Checks again whether a host has room for a class that has little room left. If only few
        classes have room, checks all of them, because these checks are cheaper than a failed try
        for each of their jobs.
        """
        fitting, budget = self._queue.fitting, self._budget
        few = len(fitting) <= CHECKED_AGAIN_MAX
        for each in list(fitting) if few else [scheduling_class]:
            if each in fitting and not self._placer.has_room(each):
                self._found_none(each)
                budget.tries -= min(1, budget.tries)

    def _placed_together(self, numbers: list[int]) -> tuple[int, list[str]]:
        """Returns how many requests from the head of this list are placed together, and the hosts
        that they must avoid. A request that still has an older slot is placed alone, and not on the
        host of this older slot.
        """
        superseded = self._state.slots.superseded
        if not superseded:
            return len(numbers), []
        for at, number in enumerate(numbers):
            allocation_id = self._state.requests.at(number).spec.allocation_id
            if older := superseded.get(allocation_id):
                # First place the requests before this request together. The next call returns this
                # request alone.
                return (at, []) if at else (1, [slot.executor_id for slot in older])
        return len(numbers), []


def _record_newcomers(state: State) -> None:
    """Writes an entry in the history for each new request that is still pending, and one entry for
    each part of a range. Stops when the journal of this step is full. The next call continues.
    """
    journal = state.journal
    while state.newcomers and not journal.is_full:
        request = state.newcomers.popleft()
        if request.state is RequestState.PENDING:
            journal.cluster_event(
                "request_pending",
                job_id=request.job_id,
                allocation_id=request.allocation_id,
                reason=_waiting_reason(state, request),
            )
    # Each part of a range needs only one entry, so all parts are recorded at once.
    for part in state.new_parts:
        waiting = len(part.waiting)
        if waiting:
            journal.cluster_event(
                "request_pending",
                job_id=part.row.job_id,
                allocation_id=part.id_of(part.waiting.first),
                reason=state.waiting_reasons.waiting_reason(
                    state.queue.class_of(part.spec.request)
                ),
                message=f"{waiting} members of range {part.spec.range_id}",
            )
    state.new_parts.clear()


def _waiting_reason(state: State, request: Request) -> str:
    if request.spec.gang_id:
        return state.waiting_reasons.member_reason(request)
    return state.waiting_reasons.waiting_reason(state.queue.class_of(request.spec))
