"""Finds out why requests wait, and how long they have waited. The module returns the reason for one
request, the number of requests with each reason, and the submission time of the oldest queued
request of a job or group.

There can be 100,000 job queues, so only one arrival number of each queue is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from finegrain.errors import Reason
from finegrain.values.states import ExecutorState, RequestState
from resource_manager.engine.explain.paused import PART, Paused
from resource_manager.engine.explain.provisions import clock_at, planned_count, planned_on
from resource_manager.engine.fairness.flows import GROUP, JOB, ROOT, Flow
from resource_manager.engine.fairness.quotas import QuotaBlock
from resource_manager.engine.lifecycle.quota_checks import QuotaChecks, maxima
from resource_manager.engine.model.entities import Request
from resource_manager.engine.queue.gangs import GangLedger, WaitingGang
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import RangeLedger
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass
from resource_manager.engine.state import State


def pending_by_reason(state: State) -> Paused[dict[str, int]]:
    """Returns the number of queued requests by primary reason."""
    counts: dict[str, int] = {}
    # The limits are checked once, and not for each class, because there can be 10,000 classes.
    limits = bool(maxima(state.flows))
    for at, scheduling_class in enumerate(state.queue.classes(), start=1):
        if at % PART == 0:
            yield
        new = 0
        # If no request has arrived since the last placement pass, the class has no new request.
        if state.considered_arrival < state.numbers.arrival:
            new = scheduling_class.waiting - scheduling_class.count_before(
                state.considered_arrival + 1
            )
        if new:
            reason = str(Reason.NOT_YET_CONSIDERED)
            counts[reason] = counts.get(reason, 0) + new
        blocked = (yield from _blocked(state, scheduling_class)) if limits else {}
        for reason, count in blocked.items():
            counts[str(reason)] = counts.get(reason, 0) + count
        considered = max(0, scheduling_class.waiting - new - sum(blocked.values()))
        # The planned requests are the oldest requests of the class.
        if planned := min(considered, planned_count(state.queue, state.elastic, scheduling_class)):
            reason = str(Reason.WAITING_EXECUTOR)
            counts[reason] = counts.get(reason, 0) + planned
            considered -= planned
        if considered:
            reason = str(state.waiting_reasons.waiting_reason(scheduling_class))
            counts[reason] = counts.get(reason, 0) + considered
    for at, name in enumerate(list(state.gangs.waiting), start=1):
        if at % PART == 0:
            yield
        if (waiting := state.gangs.waiting.get(name)) is not None:
            for reason, count in _gang_reasons(state, waiting):
                counts[reason] = counts.get(reason, 0) + count
    return counts


def pending_reason(state: State, request: Request) -> str:
    """Returns the reason why a request waits. The result is empty if the request does not wait."""
    if request.state is not RequestState.PENDING:
        return ""
    # The checks have the same order as in `pending_by_reason`, so that the counts agree with these
    # reasons.
    if request.arrival_number > state.considered_arrival:
        return Reason.NOT_YET_CONSIDERED
    if state.dependencies.awaited(request.job_id):
        return Reason.WAITING_DEPENDENCY
    block = waiting_block(state.queue, state.gangs, state.quotas, request)
    if block is not None:
        return reason_of(block)
    if planned_on(state.queue, state.elastic, request):
        return Reason.WAITING_EXECUTOR
    if request.spec.gang_id:
        return state.waiting_reasons.member_reason(request)
    return state.waiting_reasons.waiting_reason(state.queue.class_of(request.spec))


def reason_of(block: QuotaBlock) -> Reason:
    """Returns the reason why a request waits if this maximum blocks the request."""
    of_group = block.group_id.startswith((GROUP, ROOT, JOB))
    return Reason.WAITING_GROUP_LIMIT if of_group else Reason.WAITING_USER_LIMIT


def waiting_block(
    queue: WaitingQueue, gangs: GangLedger, quotas: QuotaChecks, request: Request
) -> QuotaBlock | None:
    """Returns the maximum that blocks a queued request or its gang. The result is None if no
    maximum blocks the request.

    Args:
        queue: the queue of pending requests.
        gangs: all gangs.
        quotas: the quota checks.
        request: the queued request.
    """
    waiting = gangs.waiting.get(request.spec.gang_id)
    if waiting is not None:
        return quotas.gang_block(waiting)
    return quotas.request_block(queue.class_of(request.spec), request.job_id)


def _blocked(state: State, scheduling_class: SchedulingClass) -> Paused[dict[str, int]]:
    """Returns counts of queued requests of a class, by reason. Two kinds of requests are counted:
    requests of jobs that wait for other jobs, and requests that the maximum of a group or user
    blocks.
    """
    # The block is cached by group and user, because all jobs of one user in one group have the same
    # limits.
    blocked: dict[tuple[Flow | None, Flow | None], QuotaBlock | None] = {}
    counts: dict[str, int] = {}
    for at, job_queue in enumerate(list(scheduling_class.job_queues.values()), start=1):
        if at % PART == 0:
            yield
        if (flow := state.flows.jobs.get(job_queue.job_id)) is None:
            continue  # the job ended during a pause
        # Requests after `considered_arrival` count as not considered yet.
        considered = job_queue.numbers.count_within(0, state.considered_arrival + 1)
        if state.dependencies.awaited(job_queue.job_id):
            counts[Reason.WAITING_DEPENDENCY] = (
                counts.get(Reason.WAITING_DEPENDENCY, 0) + considered
            )
            continue
        limited = flow.parent, flow.user
        if limited not in blocked:
            blocked[limited] = state.quotas.request_block(scheduling_class, job_queue.job_id)
        if (block := blocked[limited]) is not None:
            reason = reason_of(block)
            counts[reason] = counts.get(reason, 0) + considered
    return counts


def _gang_reasons(state: State, waiting: WaitingGang) -> Iterable[tuple[str, int]]:
    if waiting.gang.arrival_number > state.considered_arrival:
        return [(Reason.NOT_YET_CONSIDERED, len(waiting.members))]
    if state.dependencies.awaited(waiting.gang.job_id):
        return [(Reason.WAITING_DEPENDENCY, len(waiting.members))]
    if (block := state.quotas.gang_block(waiting)) is not None:
        return [(reason_of(block), len(waiting.members))]
    if planned_on(state.queue, state.elastic, waiting.members[0]):
        return [(Reason.WAITING_EXECUTOR, len(waiting.members))]
    return state.waiting_reasons.reasons(waiting)


def rejection_notice(state: State, request: Request) -> str:
    """Describes, for people, when a queued request will be rejected. The result is empty if the
    request will not be rejected.

    The indexes must be up to date.
    """
    if not state.waiting_reasons.is_infeasible(request):
        return ""
    clock = state.rejection_clock
    states = {host.executor.state for host in state.hosts.values()}
    seconds = f"{clock.after_ms / 1_000:g} s"
    unless = "unless an executor that could host it registers first"
    # The clock has not started yet, or it has stopped because no executor is active.
    if clock.due_ms is None or ExecutorState.ACTIVE not in states:
        return f"it is rejected {seconds} after an executor has registered, {unless}"
    if ExecutorState.UNCONFIRMED in states:
        known = "after every known executor has registered again or is lost"
        return f"it is rejected {seconds} {known}, {unless}"
    return f"it is rejected at {clock_at(state.started, clock.due_ms)}, {unless}"


def jobs_waiting_since(state: State, job_ids: Collection[str]) -> dict[str, int]:
    """Returns the submission time of the oldest queued request of each of these jobs.

    The times are wall clock times in milliseconds. A job without queued requests is not in the
    result.
    """
    wanted = frozenset(job_ids)
    first: dict[str, int] = {}
    for job_queue in _queues_of(state.queue, wanted):
        number, job_id = job_queue.numbers.first, job_queue.job_id
        if number < first.get(job_id, number + 1):  # the default is higher than each number
            first[job_id] = number
    for waiting in state.gangs.waiting.values():
        number, job_id = waiting.gang.arrival_number, waiting.gang.job_id
        if job_id in wanted and number < first.get(job_id, number + 1):
            first[job_id] = number
    return {
        job_id: created_ms
        # Requests are looked up only now: once for each job, and not once for each queue.
        for job_id, number in first.items()
        if (created_ms := _created_ms(state.requests, state.ranges, number)) is not None
    }


def groups_waiting_since(state: State) -> Paused[dict[str, int]]:
    """Returns the submission time of the oldest queued request of each group.

    Only the group's own jobs count, and not the jobs of groups below the group. The times are wall
    clock times in milliseconds.
    """
    first: dict[str, int] = {}
    jobs, visited = state.jobs, 0
    for scheduling_class in state.queue.classes():
        for job_id, job_queue in list(scheduling_class.job_queues.items()):
            visited += 1
            if visited % PART == 0:
                yield
            # During a pause, the job possibly ended, or its requests were possibly placed.
            if job_queue.numbers and (job := jobs.get(job_id)) is not None:
                number = job_queue.numbers.first
                if number < first.get(job.group, number + 1):
                    first[job.group] = number
    for waiting in list(state.gangs.waiting.values()):
        visited += 1
        if visited % PART == 0:
            yield
        if (job := jobs.get(waiting.gang.job_id)) is not None:
            number = waiting.gang.arrival_number
            if number < first.get(job.group, number + 1):
                first[job.group] = number
    return {
        group: created_ms
        for group, number in first.items()
        if (created_ms := _created_ms(state.requests, state.ranges, number)) is not None
    }


def _queues_of(queue: WaitingQueue, job_ids: Collection[str]) -> Iterable[JobQueue]:
    """Yields the queues of some jobs. For each class, the function iterates over these jobs, or
    over the queues of the class if there are not more queues than jobs.
    """
    for scheduling_class in queue.classes():
        job_queues = scheduling_class.job_queues
        if len(job_queues) <= len(job_ids):
            yield from (job_queue for job_id, job_queue in job_queues.items() if job_id in job_ids)
        else:
            yield from (job_queues[job_id] for job_id in job_ids if job_id in job_queues)


def _created_ms(requests: Requests, ranges: RangeLedger, number: int) -> int | None:
    part = ranges.at(number)
    if part is not None:
        return part.row.create_time_ms
    request = requests.by_arrival.get(number)
    return request.create_time_ms if request is not None else None
