"""Checks that the queue agrees with the pending requests, and that the parts of the queue agree
with each other. `all.py` runs these checks.
"""

from __future__ import annotations

from collections.abc import Iterator

from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.invariants.sweep import Finding, add_up
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.non_batchable import Kind, NonBatchables
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.scheduling_classes import INACTIVE, JobQueue, SchedulingClass


def class_problems(
    requests: Requests, queue: WaitingQueue, scheduling_class: SchedulingClass
) -> Iterator[Finding]:
    """Checks that a scheduling class is in exactly one list of the queue, and compares the counters
    of the class with its job queues.
    """
    # The class lost its last request after the sweep began.
    if not queue.is_pending(scheduling_class):
        return
    title = f"scheduling class {scheduling_class.number}"
    # The class must be in exactly one of these lists.
    places = [
        scheduling_class in queue.current_pass,
        scheduling_class in queue.fitting,
        scheduling_class in queue.for_next_pass,
        queue.is_blocked(scheduling_class),
    ]
    if places.count(True) != 1:
        yield f"{title} is in (pass, fitting, next pass, blocked): {places}; expected one True"
    if not scheduling_class.job_queues:
        yield f"{title} has no job queues"
    if scheduling_class.inactive and scheduling_class in queue.fitting:
        yield f"{title} has room, but {len(scheduling_class.inactive)} inactive queues"
    if not scheduling_class.inactive.keys() <= set(scheduling_class.job_queues.values()):
        yield f"{title} has inactive queues that do not exist"
    # The sweep can pause within the following sums over the job queues.
    waiting, first = 0, None
    problems: list[str] = []

    def add(job_id: str) -> None:
        nonlocal waiting, first
        job_queue = scheduling_class.job_queues[job_id]
        problems.extend(_job_queue(requests, queue, scheduling_class, job_id))
        if job_queue.numbers:
            waiting += len(job_queue.numbers)
            head = job_queue.numbers.first
            first = head if first is None else min(first, head)

    job_ids = list(scheduling_class.job_queues)
    complete = yield from add_up(job_ids, add, lambda: queue.moves)
    yield from problems
    if not complete:
        return
    if scheduling_class.waiting != waiting:
        yield f"{title} counts {scheduling_class.waiting} waiting requests, expected {waiting}"
    if scheduling_class.head() != first:
        yield f"{title} has the first request {scheduling_class.head()}, expected {first}"


def _job_queue(
    requests: Requests, queue: WaitingQueue, scheduling_class: SchedulingClass, job_id: str
) -> Iterator[str]:
    """Checks that a job queue is in exactly one place, and that all its requests belong there."""
    job_queue = scheduling_class.job_queues[job_id]
    title = f"queue of {job_id} in scheduling class {scheduling_class.number}"
    if (
        not job_queue.numbers
        or job_queue.job_id != job_id
        or job_queue.scheduling_class is not scheduling_class
        or job_queue not in queue.by_job.get(job_id, ())
    ):
        key = f"job {job_queue.job_id}, {job_queue.numbers}"
        yield f"{title} is empty or stored under a wrong key: {key}"
        return
    places = [
        job_queue.position != INACTIVE,
        job_queue in scheduling_class.inactive,
        job_queue in queue.quota_blocked,
    ]
    if places.count(True) != 1:
        yield f"{title} is active, inactive, blocked by a quota: {places}; expected one"
    # The position can be before the first number of the queue, but never after this number.
    if job_queue.position != INACTIVE and job_queue.position > job_queue.place:
        first = job_queue.place
        yield f"{title} has the position {job_queue.position}, after its first request {first}"
    # It is enough to check one request of each interval, because all requests of an interval are
    # equal.
    for start, _ in job_queue.numbers.runs():
        request = requests.at(start)
        if request.job_id != job_id or queue.class_of(request.spec) is not scheduling_class:
            yield f"{title} has request {request.allocation_id} of another job or class"


def item_problems(
    items: NonBatchables, gangs: GangLedger, slots: Slots, number: int
) -> Iterator[str]:
    """Checks that the item with this arrival number is a waiting gang or a waiting resize."""
    item = items.get(number)
    if item is None:
        return
    if item.kind is Kind.GANG:
        waiting = gangs.waiting.get(item.name)
        if waiting is None or waiting.gang.arrival_number != number:
            yield f"gang {item.name} is in the queue at {number}, but does not wait there"
        return
    slot = slots.get((item.name, item.generation))
    if slot is None or slot.wanted is None or slot.wanted.arrival_number != number:
        yield f"no resize of slot {item.name}/{item.generation} waits at {number}"


def quota_block_problems(queue: WaitingQueue, job_queue: JobQueue) -> Iterator[str]:
    """Yields a problem if a quota blocks a job queue that does not exist."""
    if job_queue in queue.quota_blocked and (
        job_queue.scheduling_class.job_queues.get(job_queue.job_id) is not job_queue
    ):
        yield f"a quota blocks a queue of {job_queue.job_id} that does not exist"


def queue_problems(queue: WaitingQueue, *, fair: bool) -> Iterator[str]:
    """Yields problems of the counters over all classes."""
    classes = queue.classes()
    waiting = sum(scheduling_class.waiting for scheduling_class in classes)
    if len(queue) != waiting:
        yield f"the queue counts {len(queue)} requests, its classes have {waiting}"
    listed = len(queue.current_pass) + len(queue.fitting) + len(queue.for_next_pass)
    listed += sum(map(len, queue.blocked.values()))
    if listed != len(classes):
        yield f"the lists of the queue have {listed} classes, but {len(classes)} are pending"
    of_jobs = sum(map(len, queue.by_job.values()))
    of_classes = sum(len(scheduling_class.job_queues) for scheduling_class in classes)
    if of_jobs != of_classes:
        yield f"jobs have {of_jobs} queues, but classes have {of_classes}"
    yield from queue.non_batchables.problems()
    # With the order "arrival", all jobs share one count of active queues.
    if not fair:
        active = sum(each.position != INACTIVE for some in queue.by_job.values() for each in some)
        counted = sum(each.active_count for each in queue.order.active().values())
        if counted != active:
            yield f"the counter of active queues is {counted}, expected {active}"
