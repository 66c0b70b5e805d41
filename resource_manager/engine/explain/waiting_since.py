"""Since when somebody waits: of a job, or of a group, the request that has waited longest. Changes
nothing.

Everybody who waits may be a hundred thousand lines, so nothing is looked up for each but a number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import RangeLedger
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.scheduling_classes import JobQueue
from resource_manager.engine.state import State


def jobs_waiting_since(state: State, job_ids: Collection[str]) -> dict[str, int]:
    """Of these jobs, those that wait, with when the oldest request was asked for (wall clock,
    milliseconds).
    """
    wanted = frozenset(job_ids)
    first: dict[str, int] = {}
    for line in _lines_of(state.queue, wanted):
        number, job_id = line.numbers.first, line.job_id
        if number < first.get(job_id, number + 1):
            first[job_id] = number
    for waiting in state.gangs.waiting.values():
        number, job_id = waiting.gang.arrival_number, waiting.gang.job_id
        if job_id in wanted and number < first.get(job_id, number + 1):
            first[job_id] = number
    return {
        job_id: _asked_ms(state.requests, state.ranges, number) for job_id, number in first.items()
    }


def groups_waiting_since(state: State) -> dict[str, int]:
    """By group in whose jobs something waits (not in groups below it), likewise."""
    first: dict[str, int] = {}
    jobs = state.jobs
    for shape in state.queue.shapes():
        for job_id, line in shape.lines.items():
            number, group = line.numbers.first, jobs[job_id].group
            if number < first.get(group, number + 1):
                first[group] = number
    for waiting in state.gangs.waiting.values():
        number, group = waiting.gang.arrival_number, jobs[waiting.gang.job_id].group
        if number < first.get(group, number + 1):
            first[group] = number
    return {
        group: _asked_ms(state.requests, state.ranges, number) for group, number in first.items()
    }


def _lines_of(queue: WaitingQueue, job_ids: Collection[str]) -> Iterable[JobQueue]:
    """The lines of some jobs, shape by shape, whichever are fewer: those jobs, or who waits."""
    for shape in queue.shapes():
        lines = shape.lines
        if len(lines) <= len(job_ids):
            yield from (line for job_id, line in lines.items() if job_id in job_ids)
        else:
            yield from (lines[job_id] for job_id in job_ids if job_id in lines)


def _asked_ms(requests: Requests, ranges: RangeLedger, number: int) -> int:
    part = ranges.at(number)
    return (
        part.row.create_time_ms if part is not None else requests.by_arrival[number].create_time_ms
    )
