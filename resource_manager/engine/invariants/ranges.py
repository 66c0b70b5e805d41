"""Checks ranges against requests, jobs and the queue; part of `all.py`.

The cost grows with the number of intervals of members, not with the number of members.
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.intervals import IntervalSet
from finegrain.values.states import RequestState
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Job, JobState
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def range_problems(state: State) -> Iterator[str]:
    """Yields what is wrong with ranges."""
    materialized = 0
    for part in state.ranges.parts():
        materialized += len(part.materialized)
        for problem in (
            *_members(state.requests, state.ranges, part),
            *_names(state.jobs, state.ranges, state.endings, part),
        ):
            yield f"part {part.id_of(part.first)} of a range {problem}"
    if materialized != len(state.ranges.members):
        yield f"{len(state.ranges.members)} members are requests, {materialized} are singled out"


def in_order(ranges: RangeLedger, endings: dict[str, Ending]) -> Iterator[Part]:
    """Yields the parts whose waiting members are queued. Of a job that is ending, these are the
    parts that were not taken out of the queue yet.
    """
    for job_id, parts in ranges.by_job.items():
        ending = endings.get(job_id)
        yield from parts if ending is None else parts[ending.parts :]


def _members(requests: Requests, ranges: RangeLedger, part: Part) -> Iterator[str]:
    """Checks that each member is in exactly one place: waiting, materialized or ended."""
    places = [part.waiting, part.materialized, *part.row.ended.values()]
    everywhere = IntervalSet(run for place in places for run in place.runs())
    if everywhere != IntervalSet([(part.first, part.end)]):
        yield "has members who stand nowhere"
    if len(everywhere) != sum(map(len, places)):
        yield "has members who stand in several places"
    for index in part.materialized:
        request = ranges.members.get(part.arrival_of(index))
        if request is None or requests.get(part.id_of(index)) is not request:
            yield f"has singled {index} out, who is no request"
        elif request.state in ENDED_REQUEST_STATES:
            yield f"has singled {index} out, who is {request.state}"
        elif request.state is RequestState.PENDING and index not in part.stored:
            yield f"has singled {index} out, who waits and has no row"
    if any(part.materialized.count_within(*run) != run[1] - run[0] for run in part.stored.runs()):
        yield "has rows of members who are not singled out"
    if any(state_ not in ENDED_REQUEST_STATES for state_, _, _ in part.row.ended):
        yield "has members who ended alive"


def _names(
    jobs: dict[str, Job], ranges: RangeLedger, endings: dict[str, Ending], part: Part
) -> Iterator[str]:
    job = jobs.get(part.row.job_id)
    if job is None or part not in ranges.by_job.get(job.job_id, ()):
        yield f"is not known to its job {part.row.job_id}"
    elif job.state is JobState.ENDED and part.live and job.job_id not in endings:
        yield f"lives, but its job {job.job_id} has ended"
    if ranges.at(part.row.arrival_number) is not part or (ranges.at(part.last_arrival) is not part):
        yield "is not at its arrival numbers"
    if ranges.overlapping(part.spec.range_id, part.first, part.end) != [part]:
        yield "is not found by its name, or not alone"
