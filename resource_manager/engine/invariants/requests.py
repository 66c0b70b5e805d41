"""Checks each request against its job, its slot, its gang and the queue; part of `all.py`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Job, JobState, Request
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def numbers_of_requests(jobs: dict[str, Job], requests: Requests, *, ended: bool) -> Iterator[int]:
    """Yields the arrival numbers of all requests, job by job, then those of materialized members.

    The state may change between two numbers.

    Args:
        jobs: all jobs.
        requests: all requests.
        ended: if true, numbers of ended requests are included.
    """
    for job in list(jobs.values()):
        for number in job.arrivals:  # a list: it grows and shrinks at its end
            request = requests.by_arrival.get(number)
            if ended or request is None or request.state not in ENDED_REQUEST_STATES:
                yield number
    yield from list(requests.ranges.members)


def request_problems(state: State, number: int) -> Iterator[str]:
    """Yields problems of the request with this arrival number."""
    request = state.requests.known_at(number)
    if request is None:
        return  # a range member that has ended; `job_problems` reports requests that are missing
    name = request.allocation_id
    title = f"request {name}"
    if state.requests.get(name) is not request or request.arrival_number != number:
        yield f"{title} is not at its arrival number {request.arrival_number}"
    job = state.jobs.get(request.job_id)
    is_member = number in state.ranges.members
    yield from _job(job, request, title, is_member=is_member, over=request.job_id in state.endings)
    yield from _slot(state.slots, request, title)
    gang_id = request.spec.gang_id
    # A gang that is not known is reported below.
    if gang_id and (gang := state.gangs.by_id.get(gang_id)) and name not in gang.members:
        yield f"{title} is no member of its gang {gang_id}"
    if gang_id and gang_id not in state.gangs.by_id:
        yield f"{title} belongs to gang {gang_id}, which is not known"
    waits = request in state.queue or state.gangs.waits(request)
    over = request.job_id in state.endings  # then it may have left the queue already
    if waits != (request.state is RequestState.PENDING) and (waits or not over):
        yield f"{title} is {request.state}, in queue: {waits}"
    if request.state in ENDED_REQUEST_STATES and request.end_time_ms is None:
        yield f"{title} ended without a time"


def _job(
    job: Job | None, request: Request, title: str, *, is_member: bool, over: bool
) -> Iterator[str]:
    """Compares a request with its job. `over` is true while the requests of an ended job are being
    ended.
    """
    if job is None or not (is_member or _is_among(request.arrival_number, job.arrivals)):
        yield f"{title} is not known to its job {request.job_id}"
    elif job.state is JobState.ENDED and request.state not in ENDED_REQUEST_STATES and not over:
        yield f"{title} is {request.state}, but its job {job.job_id} has ended"
    # Either all requests of a job have a profile, or none has; see `_refuse_mix`.
    if job is not None and job.specified is not (request.spec.profile is not None):
        yield f"{title} is of another kind than its job's other requests"


def _slot(slots: Slots, request: Request, title: str) -> Iterator[str]:
    slot = slots.get((request.allocation_id, request.generation))
    # A gang is granted as a whole, so a carved slot may have to wait for the other members.
    in_gang = bool(request.spec.gang_id)
    carved = slot is not None and slot.state is SlotState.ALLOCATED and in_gang
    if request.state is RequestState.ALLOCATING and not (
        carved or (slot is not None and slot.state is SlotState.PENDING)
    ):
        yield f"{title} is ALLOCATING, its slot is {slot.state if slot else 'missing'}"
    if request.state is RequestState.GRANTED and (
        slot is None or slot.state is not SlotState.ALLOCATED
    ):
        yield f"{title} is GRANTED, its slot is {slot.state if slot else 'missing'}"


def _is_among(number: int, ordered: Sequence[int]) -> bool:
    at = bisect_left(ordered, number)
    return at < len(ordered) and ordered[at] == number
