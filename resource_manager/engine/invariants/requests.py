"""Checks requests, gangs and ranges against jobs, slots and the queue. `all.py` runs these checks.

The cost of checking a range grows with the number of intervals of its members, not with the number
of members.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from finegrain.intervals import IntervalSet
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    Gang,
    Job,
    JobState,
    Request,
)
from resource_manager.engine.queue.gangs import GangLedger, living, member_requests_of
from resource_manager.engine.queue.non_batchable import Kind, NonBatchables
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def numbers_of_requests(jobs: dict[str, Job], requests: Requests, *, ended: bool) -> Iterator[int]:
    """Yields the arrival numbers of all requests outside of ranges, job by job. Then yields the
    arrival numbers of materialized range members (members that have a `Request` object, see
    `lifecycle/members.py`).

    The state of the engine is allowed to change after each number that this generator yields.

    Args:
        jobs: all jobs.
        requests: all requests.
        ended: if true, the numbers of ended requests outside of ranges are included.
    """
    for job in list(jobs.values()):
        for number in job.arrivals:  # numbers are added and removed only at the end of the list
            request = requests.by_arrival.get(number)
            if ended or request is None or request.state not in ENDED_REQUEST_STATES:
                yield number
    yield from list(requests.ranges.members)


def request_problems(state: State, number: int) -> Iterator[str]:
    """Yields problems of the request with this arrival number."""
    request = state.requests.known_at(number)
    if request is None:
        return  # a range member that has ended; `job_problems` reports other missing requests
    name = request.allocation_id
    title = f"request {name}"
    if state.requests.get(name) is not request or request.arrival_number != number:
        yield f"{title} is not found by its arrival number {request.arrival_number}"
    job = state.jobs.get(request.job_id)
    is_member = number in state.ranges.members
    yield from _job(job, request, title, is_member=is_member, over=request.job_id in state.endings)
    yield from _slot(state.slots, request, title)
    gang_id = request.spec.gang_id
    # If the gang is not known, the next check reports this.
    if gang_id and (gang := state.gangs.by_id.get(gang_id)) and name not in gang.members:
        yield f"{title} is no member of its gang {gang_id}"
    if gang_id and gang_id not in state.gangs.by_id:
        yield f"{title} belongs to gang {gang_id}, which is not known"
    waits = request in state.queue or state.gangs.waits(request)
    # If the job is ending, the request has possibly left the queue already.
    over = request.job_id in state.endings
    if waits != (request.state is RequestState.PENDING) and (waits or not over):
        yield f"{title} is {request.state}, in queue: {waits}"
    if request.state in ENDED_REQUEST_STATES and request.end_time_ms is None:
        yield f"{title} has ended, but has no end time"


def _job(
    job: Job | None, request: Request, title: str, *, is_member: bool, over: bool
) -> Iterator[str]:
    """Compares a request with its job. `over` is true if the job has ended and its requests are
    being ended.
    """
    if job is None or not (is_member or _is_among(request.arrival_number, job.arrivals)):
        yield f"{title} is not known to its job {request.job_id}"
    elif job.state is JobState.ENDED and request.state not in ENDED_REQUEST_STATES and not over:
        yield f"{title} is {request.state}, but its job {job.job_id} has ended"
    # Either all requests of a job have a profile, or none has; see `_refuse_mix`.
    if job is not None and job.specified is not (request.spec.profile is not None):
        has = "has a profile" if request.spec.profile is not None else "has no profile"
        yield f"{title} {has}, unlike other requests of its job"


def _slot(slots: Slots, request: Request, title: str) -> Iterator[str]:
    slot = slots.get((request.allocation_id, request.generation))
    # The members of a gang become GRANTED together. Until then, a member with a carved slot is
    # still ALLOCATING.
    in_gang = bool(request.spec.gang_id)
    carved = slot is not None and slot.state is SlotState.ALLOCATED and in_gang
    if request.state is RequestState.ALLOCATING and not (
        carved or (slot is not None and slot.state is SlotState.PENDING)
    ):
        yield f"{title} is ALLOCATING, but its slot is {slot.state if slot else 'missing'}"
    if request.state is RequestState.GRANTED and (
        slot is None or slot.state is not SlotState.ALLOCATED
    ):
        yield f"{title} is GRANTED, but its slot is {slot.state if slot else 'missing'}"


def _is_among(number: int, ordered: Sequence[int]) -> bool:
    at = bisect_left(ordered, number)
    return at < len(ordered) and ordered[at] == number


def gang_problems(
    gang_id: str,
    *,
    requests: Requests,
    slots: Slots,
    gangs: GangLedger,
    items: NonBatchables,
    endings: dict[str, Ending],
) -> Iterator[str]:
    """Yields problems of a gang.

    Args:
        gang_id: the gang; if it does not exist any more, nothing is checked.
        requests: all requests.
        slots: all slots.
        gangs: all gangs.
        items: the queued gangs and resizes; job queues do not contain them.
        endings: jobs that are ending.
    """
    gang = gangs.by_id.get(gang_id)
    if gang is None:  # the gang was deleted after the sweep began
        return
    for name in gang.members:
        request = requests.get(name)
        if request is None or request.spec.gang_id != gang_id:
            yield f"gang {gang_id} has the member {name}, which is not a request of this gang"
            return
    if len(set(gang.members)) != len(gang.members):
        yield f"gang {gang_id} has a member twice"
    item = items.get(gang.arrival_number)
    queued = item is not None and item.kind is Kind.GANG and item.name == gang_id
    if queued != (gang_id in gangs.waiting):
        yield f"gang {gang_id} waits: {gang_id in gangs.waiting}; in the queue: {queued}"
    yield from _gang(requests, slots, gangs, endings, gang)


def gang_ledger_problems(ledger: GangLedger) -> Iterator[str]:
    """Yields gangs that the ledger lists as waiting or unconfirmed, but that do not exist."""
    for name in (ledger.waiting.keys() | ledger.unconfirmed.keys()) - ledger.by_id.keys():
        yield f"gang {name} waits or is being confirmed, but does not exist"


def _gang(
    requests: Requests, slots: Slots, gangs: GangLedger, endings: dict[str, Ending], gang: Gang
) -> Iterator[str]:
    """Compares a gang with its members: their states, their places in the queue, and their
    confirmations.
    """
    title, ledger = f"gang {gang.gang_id}", gangs
    first = requests.get(gang.members[0])
    if first is None or first.arrival_number != gang.arrival_number:
        yield f"{title} has another arrival number than its first member"
    members = list(living(requests, gang))
    if any(each.job_id != gang.job_id or each.spec.gang_id != gang.gang_id for each in members):
        yield f"{title} has members of another job or gang"
    states = {each.state for each in members}
    # If `over` is true, the job has ended, so some members have possibly left the queue already.
    over = gang.job_id in endings
    # All living members are in the same state. Until the grant, they change state together. If a
    # member loses its slot after the grant, this member ends alone, or all members become PENDING
    # together.
    if len(states) > 1:
        yield f"{title} has members in the states {sorted(states)}; expected one state"
    waiting = ledger.waiting.get(gang.gang_id)
    # If the job is ending, the gang leaves the queue before its members end.
    if (waiting is not None) != (states == {RequestState.PENDING}) and (
        waiting is not None or not over
    ):
        yield f"{title} is {sorted(states)}, waits: {waiting is not None}"
    if waiting is not None and (
        waiting.members != members or waiting.kind.member_requests != member_requests_of(members)
    ):
        yield f"{title} has other members in the queue than in its row"
    missing = sum(_is_unconfirmed(slots, each) for each in members)
    if ledger.unconfirmed.get(gang.gang_id, 0) != missing or (
        states == {RequestState.ALLOCATING} and not missing
    ):
        yield (
            f"{title} is {sorted(states)} and waits for {ledger.unconfirmed.get(gang.gang_id)}"
            f" confirmations, expected {missing}"
        )


def _is_unconfirmed(slots: Slots, request: Request) -> bool:
    slot = slots.of(request)
    return slot is not None and slot.state is SlotState.PENDING


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
        # Either the part was deleted after the sweep began, or the lookup by arrival number is
        # wrong.
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
        yield f"the member with arrival number {number} is a request, but not materialized"


def _queued(queue: WaitingQueue, endings: dict[str, Ending], part: Part) -> Iterator[str]:
    """Checks that no ended member of the part is queued. If the job is not ending, also checks that
    all waiting members are queued.
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
        yield f"has {len(part.waiting)} waiting members, but {waiting} of them are queued"
    # A member that lost its slot is queued, too. But this member is materialized (it has a
    # `Request` object), so `part.waiting` does not contain its index.
    placed_before = sum(
        job_queue is not None and part.arrival_of(index) in job_queue.numbers
        for index in part.materialized
    )
    if queued != waiting + placed_before:
        yield f"has {queued} members in the queue, expected {waiting + placed_before}"


def _members(requests: Requests, ranges: RangeLedger, part: Part) -> Iterator[str]:
    """Checks that each member is in exactly one of three sets: waiting, materialized and ended."""
    places = [part.waiting, part.materialized, *part.row.ended.values()]
    everywhere = IntervalSet(run for place in places for run in place.runs())
    if everywhere != IntervalSet([(part.first, part.end)]):
        yield "has members that are neither waiting, materialized nor ended"
    # The sum of the sizes equals the size of the union only if no member is in two sets.
    if len(everywhere) != sum(map(len, places)):
        yield "has members that are two of waiting, materialized and ended"
    for index in part.materialized:
        request = ranges.members.get(part.arrival_of(index))
        if request is None or requests.get(part.id_of(index)) is not request:
            yield f"has the materialized member {index}, but no such request exists"
        elif request.state in ENDED_REQUEST_STATES:
            yield f"has the materialized member {index}, which is {request.state}"
        elif request.state is RequestState.PENDING and index not in part.stored:
            yield f"has the materialized member {index}, which waits but has no row"
    if any(part.materialized.count_within(*run) != run[1] - run[0] for run in part.stored.runs()):
        yield "has rows of members that are not materialized"
    if any(state_ not in ENDED_REQUEST_STATES for state_, _, _ in part.row.ended):
        yield "has ended members in a state that is not an end"


def _names(
    jobs: dict[str, Job], ranges: RangeLedger, endings: dict[str, Ending], part: Part
) -> Iterator[str]:
    job = jobs.get(part.row.job_id)
    if job is None or part not in ranges.parts_of(job.job_id, part.row.arrival_number - 1):
        yield f"is not known to its job {part.row.job_id}"
    elif job.state is JobState.ENDED and part.live and job.job_id not in endings:
        yield f"has live members, but its job {job.job_id} has ended"
    if ranges.at(part.row.arrival_number) is not part or (ranges.at(part.last_arrival) is not part):
        yield "is not at its arrival numbers"
    if ranges.overlapping(part.spec.range_id, part.first, part.end) != [part]:
        yield "is not the only part that is found by its name"
