"""Checks ranges against requests, jobs and the queue; part of `all.py`.

The cost grows with the number of intervals of members, not with the number of members.
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.intervals import IntervalSet
from finegrain.values.states import RequestState
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Job, JobState
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.requests import Requests


def part_problems(
    jobs: dict[str, Job],
    requests: Requests,
    queue: WaitingQueue,
    endings: dict[str, Ending],
    part: Part,
) -> Iterator[str]:
    """Yields problems of a part of a range."""
    ranges = requests.ranges
    if ranges.at(part.row.arrival_number) is not part:
        # either it was deleted after the sweep began, or the lookup is wrong
        if part in ranges.by_job.get(part.row.job_id, ()):
            yield f"part {part.id_of(part.first)} of a range is not at its arrival number"
        return
    for problem in (
        *_members(requests, ranges, part),
        *_names(jobs, ranges, endings, part),
        *_queued(queue, endings, part),
    ):
        yield f"part {part.id_of(part.first)} of a range {problem}"


def member_problems(ranges: RangeLedger, number: int) -> Iterator[str]:
    """Yields problems of the materialized member with this arrival number."""
    part = ranges.at(number)
    if number in ranges.members and (
        part is None or part.index_of(number) not in part.materialized
    ):
        yield f"the member with arrival number {number} is a request, and not materialized"


def _queued(queue: WaitingQueue, endings: dict[str, Ending], part: Part) -> Iterator[str]:
    """Checks that the queue has all waiting members (unless their job is ending), and no ended
    member.
    """
    job_queue = queue.queue_of(part.spec.request, part.row.job_id)
    first, end = part.row.arrival_number, part.last_arrival + 1
    queued = job_queue.numbers.count_within(first, end) if job_queue is not None else 0
    waiting = sum(
        job_queue.numbers.count_within(part.arrival_of(start), part.arrival_of(stop))
        for start, stop in part.waiting.runs()
        if job_queue is not None
    )
    if waiting != len(part.waiting) and part.row.job_id not in endings:
        yield f"has {len(part.waiting)} members that wait, {waiting} are queued"
    # A member that lost its slot is queued, too, but it counts as materialized and not as waiting.
    placed_before = sum(
        job_queue is not None and part.arrival_of(index) in job_queue.numbers
        for index in part.materialized
    )
    if queued != waiting + placed_before:
        yield f"has {queued} members in the queue, {waiting + placed_before} may be there"


def _members(requests: Requests, ranges: RangeLedger, part: Part) -> Iterator[str]:
    """Checks that each member is in exactly one place: waiting, materialized or ended."""
    places = [part.waiting, part.materialized, *part.row.ended.values()]
    everywhere = IntervalSet(run for place in places for run in place.runs())
    if everywhere != IntervalSet([(part.first, part.end)]):
        yield "has members who stand nowhere"
    # The union has the same size as the sum only if no member is in two places.
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
    if job is None or part not in ranges.parts_of(job.job_id, part.row.arrival_number - 1):
        yield f"is not known to its job {part.row.job_id}"
    elif job.state is JobState.ENDED and part.live and job.job_id not in endings:
        yield f"lives, but its job {job.job_id} has ended"
    if ranges.at(part.row.arrival_number) is not part or (ranges.at(part.last_arrival) is not part):
        yield "is not at its arrival numbers"
    if ranges.overlapping(part.spec.range_id, part.first, part.end) != [part]:
        yield "is not found by its name, or not alone"
