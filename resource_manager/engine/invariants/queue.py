"""Whether the queue agrees with the requests that wait, and with itself. Costs a look at
everything; changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.invariants.ranges import in_line
from resource_manager.engine.model.entities import RequestState
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.scheduling_classes import INACTIVE, JobQueue, SchedulingClass
from resource_manager.engine.state import State


def queue_problems(state: State) -> Iterator[str]:
    """What is wrong, one sentence each."""
    queue = state.queue
    waiting = sum(
        request.state is RequestState.PENDING
        and not request.spec.gang_id
        and (request.job_id not in state.endings or request in queue)
        for request in state.requests.values()
    ) + sum(len(part.waiting) for part in in_line(state.ranges, state.endings))
    counted = sum(len(job_queue.numbers) for job_queue in queue.lines())
    if not len(queue) == waiting == counted:
        yield f"{len(queue)} requests in the queue, {counted} in lines, {waiting} are PENDING"
    sleeping = set(chain.from_iterable(queue.sleeping.values()))
    job_shapes: Counter[str] = Counter()
    for scheduling_class in queue.shapes():
        yield from _shape(state.requests, state.queue, scheduling_class, sleeping)
        job_shapes.update(scheduling_class.lines.keys())
    awake = len(queue.round) + len(queue.roomy) + len(queue.open) + len(sleeping)
    if awake != len(queue.shapes()):
        yield f"{awake} shapes are to be tried or asleep, somebody waits with {len(queue.shapes())}"
    if not set(queue.stopped) <= set(queue.lines()):
        yield "maxima stop lines that are no more"
    if queue.job_shapes != job_shapes:
        yield f"shapes by job are counted as {queue.job_shapes}, there are {dict(job_shapes)}"
    yield from _lines(state.settings, state.queue, state.flows)
    yield from queue.singles.problems()


def _shape(
    requests: Requests,
    queue: WaitingQueue,
    scheduling_class: SchedulingClass,
    sleeping: set[SchedulingClass],
) -> Iterator[str]:
    title = f"shape {scheduling_class.number}"
    places = [
        scheduling_class in queue.round,
        scheduling_class in queue.roomy,
        scheduling_class in queue.open,
        scheduling_class in sleeping,
    ]
    if places.count(True) != 1:
        yield f"{title} is in the round, roomy, open, asleep: {places}; expected one"
    if not scheduling_class.lines:
        yield f"{title} has no lines"
    waiting = sum(len(job_queue.numbers) for job_queue in scheduling_class.lines.values())
    if scheduling_class.waiting != waiting:
        yield f"{title} counts {scheduling_class.waiting} who wait, there are {waiting}"
    first = min(
        (
            job_queue.numbers.first
            for job_queue in scheduling_class.lines.values()
            if job_queue.numbers
        ),
        default=None,
    )
    if scheduling_class.head() != first:
        yield f"{title} has {scheduling_class.head()} for its head, it is {first}"
    for job_id, job_queue in scheduling_class.lines.items():
        if (
            not job_queue.numbers
            or job_queue.job_id != job_id
            or job_queue.shape is not scheduling_class
        ):
            yield f"{title} has a line of {job_queue.job_id} under {job_id}: {job_queue.numbers}"
        yield from _line(requests, queue, job_queue)
    if not scheduling_class.parked.keys() <= set(scheduling_class.lines.values()):
        yield f"{title} keeps parked lines of nobody"
    if scheduling_class.parked and scheduling_class in queue.roomy:
        yield f"{title} has room, and {len(scheduling_class.parked)} parked lines"


def _line(requests: Requests, queue: WaitingQueue, job_queue: JobQueue) -> Iterator[str]:
    title = f"line of {job_queue.job_id} with shape {job_queue.shape.number}"
    places = [
        job_queue.stands != INACTIVE,
        job_queue in job_queue.shape.parked,
        job_queue in queue.stopped,
    ]
    if places.count(True) != 1:
        yield f"{title} stands, is parked, is stopped: {places}; expected one"
    if (
        job_queue.stands != INACTIVE
        and job_queue.numbers
        and job_queue.stands > job_queue.numbers.first
    ):
        yield f"{title} stands at {job_queue.stands}, behind its first, {job_queue.numbers.first}"
    for start, _ in job_queue.numbers.runs():
        request = requests.at(start)
        if (
            request.job_id != job_queue.job_id
            or queue.shape_of(request.spec) is not job_queue.shape
        ):
            yield f"{title} holds {request.allocation_id}, which is not of it"


def _lines(settings: EngineSettings, queue: WaitingQueue, flows: FlowTree) -> Iterator[str]:
    """Each job's lines stand where its turn is looked for, and it has one exactly if any do."""
    standing: Counter[str] = Counter()
    for job_queue in queue.lines():
        standing[job_queue.among.job_id] += job_queue.stands != INACTIVE
    for whose, job_queues in queue.turns.lines().items():
        if job_queues.standing != standing[whose]:
            counted = f"{job_queues.standing} lines counted, {standing[whose]} stand"
            yield f"{whose or 'all jobs'}: {counted}"
    if settings.fairness.order == "fair":
        for job_id, flow in flows.jobs.items():
            if flow.active != (standing[job_id] > 0):
                yield f"{flow.id} is active: {flow.active}, with {standing[job_id]} lines standing"
