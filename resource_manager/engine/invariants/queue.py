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
    counted = sum(len(line.numbers) for line in queue.lines())
    if not len(queue) == waiting == counted:
        yield f"{len(queue)} requests in the queue, {counted} in lines, {waiting} are PENDING"
    sleeping = set(chain.from_iterable(queue.sleeping.values()))
    job_shapes: Counter[str] = Counter()
    for shape in queue.shapes():
        yield from _shape(state.requests, state.queue, shape, sleeping)
        job_shapes.update(shape.lines.keys())
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
    requests: Requests, queue: WaitingQueue, shape: SchedulingClass, sleeping: set[SchedulingClass]
) -> Iterator[str]:
    title = f"shape {shape.number}"
    places = [shape in queue.round, shape in queue.roomy, shape in queue.open, shape in sleeping]
    if places.count(True) != 1:
        yield f"{title} is in the round, roomy, open, asleep: {places}; expected one"
    if not shape.lines:
        yield f"{title} has no lines"
    waiting = sum(len(line.numbers) for line in shape.lines.values())
    if shape.waiting != waiting:
        yield f"{title} counts {shape.waiting} who wait, there are {waiting}"
    first = min((line.numbers.first for line in shape.lines.values() if line.numbers), default=None)
    if shape.head() != first:
        yield f"{title} has {shape.head()} for its head, it is {first}"
    for job_id, line in shape.lines.items():
        if not line.numbers or line.job_id != job_id or line.shape is not shape:
            yield f"{title} has a line of {line.job_id} under {job_id}: {line.numbers}"
        yield from _line(requests, queue, line)
    if not shape.parked.keys() <= set(shape.lines.values()):
        yield f"{title} keeps parked lines of nobody"
    if shape.parked and shape in queue.roomy:
        yield f"{title} has room, and {len(shape.parked)} parked lines"


def _line(requests: Requests, queue: WaitingQueue, line: JobQueue) -> Iterator[str]:
    title = f"line of {line.job_id} with shape {line.shape.number}"
    places = [
        line.stands != INACTIVE,
        line in line.shape.parked,
        line in queue.stopped,
    ]
    if places.count(True) != 1:
        yield f"{title} stands, is parked, is stopped: {places}; expected one"
    if line.stands != INACTIVE and line.numbers and line.stands > line.numbers.first:
        yield f"{title} stands at {line.stands}, behind its first, {line.numbers.first}"
    for start, _ in line.numbers.runs():
        request = requests.at(start)
        if request.job_id != line.job_id or queue.shape_of(request.spec) is not line.shape:
            yield f"{title} holds {request.allocation_id}, which is not of it"


def _lines(settings: EngineSettings, queue: WaitingQueue, flows: FlowTree) -> Iterator[str]:
    """Each job's lines stand where its turn is looked for, and it has one exactly if any do."""
    standing: Counter[str] = Counter()
    for line in queue.lines():
        standing[line.among.job_id] += line.stands != INACTIVE
    for whose, lines in queue.turns.lines().items():
        if lines.standing != standing[whose]:
            yield f"{whose or 'all jobs'}: {lines.standing} lines counted, {standing[whose]} stand"
    if settings.fairness.order == "fair":
        for job_id, flow in flows.jobs.items():
            if flow.active != (standing[job_id] > 0):
                yield f"{flow.id} is active: {flow.active}, with {standing[job_id]} lines standing"
