"""Checks the queue against pending requests and against itself; part of `all.py`.

The cost grows with the number of requests and job queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from finegrain.values.states import RequestState
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.invariants.ranges import in_order
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.scheduling_classes import INACTIVE, JobQueue, SchedulingClass
from resource_manager.engine.state import State


def queue_problems(state: State) -> Iterator[str]:
    """Yields what is wrong, one sentence each."""
    queue = state.queue
    waiting = sum(
        request.state is RequestState.PENDING
        and not request.spec.gang_id
        and (request.job_id not in state.endings or request in queue)
        for request in state.requests.values()
    ) + sum(len(part.waiting) for part in in_order(state.ranges, state.endings))
    counted = sum(len(job_queue.numbers) for job_queue in queue.job_queues())
    if not len(queue) == waiting == counted:
        yield f"{len(queue)} requests in the queue, {counted} in lines, {waiting} are PENDING"
    blocked = set(chain.from_iterable(queue.blocked.values()))
    classes_by_job: Counter[str] = Counter()
    for scheduling_class in queue.classes():
        yield from _scheduling_class(state.requests, state.queue, scheduling_class, blocked)
        classes_by_job.update(scheduling_class.job_queues.keys())
    unblocked = (
        len(queue.current_pass) + len(queue.fitting) + len(queue.for_next_pass) + len(blocked)
    )
    if unblocked != len(queue.classes()):
        yield f"{unblocked} classes are to be tried or blocked, {len(queue.classes())} are pending"
    if not set(queue.quota_blocked) <= set(queue.job_queues()):
        yield "maxima stop lines that are no more"
    if queue.classes_by_job != classes_by_job:
        yield f"classes by job: counted {queue.classes_by_job}, there are {dict(classes_by_job)}"
    yield from _job_queues(state.settings, state.queue, state.flows)
    yield from queue.non_batchables.problems()


def _scheduling_class(
    requests: Requests,
    queue: WaitingQueue,
    scheduling_class: SchedulingClass,
    blocked: set[SchedulingClass],
) -> Iterator[str]:
    """Checks that a class is in one list of the queue only, and compares its counters with its
    queues.
    """
    title = f"shape {scheduling_class.number}"
    places = [
        scheduling_class in queue.current_pass,
        scheduling_class in queue.fitting,
        scheduling_class in queue.for_next_pass,
        scheduling_class in blocked,
    ]
    if places.count(True) != 1:
        yield f"{title} is in the round, roomy, open, asleep: {places}; expected one"
    if not scheduling_class.job_queues:
        yield f"{title} has no lines"
    waiting = sum(len(job_queue.numbers) for job_queue in scheduling_class.job_queues.values())
    if scheduling_class.waiting != waiting:
        yield f"{title} counts {scheduling_class.waiting} who wait, there are {waiting}"
    first = min(
        (
            job_queue.numbers.first
            for job_queue in scheduling_class.job_queues.values()
            if job_queue.numbers
        ),
        default=None,
    )
    if scheduling_class.head() != first:
        yield f"{title} has {scheduling_class.head()} for its head, it is {first}"
    for job_id, job_queue in scheduling_class.job_queues.items():
        if (
            not job_queue.numbers
            or job_queue.job_id != job_id
            or job_queue.scheduling_class is not scheduling_class
        ):
            yield f"{title} has a line of {job_queue.job_id} under {job_id}: {job_queue.numbers}"
        yield from _job_queue(requests, queue, job_queue)
    if not scheduling_class.inactive.keys() <= set(scheduling_class.job_queues.values()):
        yield f"{title} keeps parked lines of nobody"
    if scheduling_class.inactive and scheduling_class in queue.fitting:
        yield f"{title} has room, and {len(scheduling_class.inactive)} parked lines"


def _job_queue(requests: Requests, queue: WaitingQueue, job_queue: JobQueue) -> Iterator[str]:
    """Checks that a job queue is in one place only, and that its requests belong there."""
    title = f"line of {job_queue.job_id} with shape {job_queue.scheduling_class.number}"
    places = [
        job_queue.position != INACTIVE,
        job_queue in job_queue.scheduling_class.inactive,
        job_queue in queue.quota_blocked,
    ]
    if places.count(True) != 1:
        yield f"{title} stands, is parked, is stopped: {places}; expected one"
    if (
        job_queue.position != INACTIVE
        and job_queue.numbers
        and job_queue.position > job_queue.numbers.first
    ):
        yield f"{title} stands at {job_queue.position}, behind its first, {job_queue.numbers.first}"
    for start, _ in job_queue.numbers.runs():
        request = requests.at(start)
        if (
            request.job_id != job_queue.job_id
            or queue.class_of(request.spec) is not job_queue.scheduling_class
        ):
            yield f"{title} holds {request.allocation_id}, which is not of it"


def _job_queues(settings: EngineSettings, queue: WaitingQueue, flows: FlowTree) -> Iterator[str]:
    """Compares counts of active job queues: in the service order, and of each job in the fairness
    tree.
    """
    active: Counter[str] = Counter()
    for job_queue in queue.job_queues():
        active[job_queue.active_queues.job_id] += job_queue.position != INACTIVE
    for whose, job_queues in queue.order.active().items():
        if job_queues.active_count != active[whose]:
            counted = f"{job_queues.active_count} lines counted, {active[whose]} stand"
            yield f"{whose or 'all jobs'}: {counted}"
    if settings.fairness.order == "fair":
        for job_id, flow in flows.jobs.items():
            if flow.active != (active[job_id] > 0):
                yield f"{flow.id} is active: {flow.active}, with {active[job_id]} lines standing"
