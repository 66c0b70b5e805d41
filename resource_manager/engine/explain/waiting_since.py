"""Finds how long jobs and groups have waited: the submission time of their oldest queued request.

There may be 100,000 job queues, so only one arrival number is compared for each queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import RangeLedger
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.scheduling_classes import JobQueue
from resource_manager.engine.state import State


def jobs_waiting_since(state: State, job_ids: Collection[str]) -> dict[str, int]:
    """Returns the submission time of the oldest queued request of each of these jobs.

    Times are wall clock, in milliseconds. Jobs without queued requests are not in the result.
    """
    wanted = frozenset(job_ids)
    first: dict[str, int] = {}
    for job_queue in _queues_of(state.queue, wanted):
        number, job_id = job_queue.numbers.first, job_queue.job_id
        if number < first.get(job_id, number + 1):  # any number is below the default
            first[job_id] = number
    for waiting in state.gangs.waiting.values():
        number, job_id = waiting.gang.arrival_number, waiting.gang.job_id
        if job_id in wanted and number < first.get(job_id, number + 1):
            first[job_id] = number
    return {
        job_id: _created_ms(state.requests, state.ranges, number)
        # Requests are looked up only here: one for each job, not one for each queue.
        for job_id, number in first.items()
    }


def groups_waiting_since(state: State) -> dict[str, int]:
    """Returns the submission time of the oldest queued request of each group.

    Only the group's own jobs count, not jobs of groups below it. Times are as above.
    """
    first: dict[str, int] = {}
    jobs = state.jobs
    for scheduling_class in state.queue.classes():
        for job_id, job_queue in scheduling_class.job_queues.items():
            number, group = job_queue.numbers.first, jobs[job_id].group
            if number < first.get(group, number + 1):
                first[group] = number
    for waiting in state.gangs.waiting.values():
        number, group = waiting.gang.arrival_number, jobs[waiting.gang.job_id].group
        if number < first.get(group, number + 1):
            first[group] = number
    return {
        group: _created_ms(state.requests, state.ranges, number) for group, number in first.items()
    }


def _queues_of(queue: WaitingQueue, job_ids: Collection[str]) -> Iterable[JobQueue]:
    """Yields the queues of some jobs. In each class it iterates over the jobs or the queues,
    whichever are fewer.
    """
    for scheduling_class in queue.classes():
        job_queues = scheduling_class.job_queues
        if len(job_queues) <= len(job_ids):
            yield from (job_queue for job_id, job_queue in job_queues.items() if job_id in job_ids)
        else:
            yield from (job_queues[job_id] for job_id in job_ids if job_id in job_queues)


def _created_ms(requests: Requests, ranges: RangeLedger, number: int) -> int:
    part = ranges.at(number)
    return (
        part.row.create_time_ms if part is not None else requests.by_arrival[number].create_time_ms
    )
