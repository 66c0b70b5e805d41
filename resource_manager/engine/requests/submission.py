"""Accepts and cancels slot requests, and releases slots. Accepted requests are only queued. The
next `Decide` events place them.

A call contains many items, and each item gets its own outcome. But all items are rejected if the
call as a whole has a problem. For example, the job is unknown, or only some requests have a
profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from finegrain.cpu_policy import PLAIN
from finegrain.errors import InvalidArgument, Reason, ResourceExhausted
from finegrain.values.outcomes import NO_REPORT, ItemOutcome, ThreadReport
from finegrain.values.states import ThreadEnd
from resource_manager.engine.lifecycle.known import active_job, known_job, taken
from resource_manager.engine.lifecycle.range_ends import Why
from resource_manager.engine.lifecycle.user_limits import check_requests
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    GangSpec,
    Job,
    RangeSpec,
    Request,
    RequestSpec,
)
from resource_manager.engine.model.events import (
    Members,
    RequestsCancelled,
    RequestsSubmitted,
    SlotsReleased,
)
from resource_manager.engine.model.scheduling_key import wait_together, waiting_key
from resource_manager.engine.requests.gang_intake import accept_gang, join, refused_members
from resource_manager.engine.requests.range_intake import new_members, submit_range
from resource_manager.engine.state import State


def submit_requests(state: State, event: RequestsSubmitted) -> list[ItemOutcome]:
    """Accepts each item of a call that is new and valid.

    Returns:
        One outcome for each request, then one outcome for each range.

    Raises:
        NotFound, FailedPrecondition: the job is not known or has ended; see `active_job`.
        InvalidArgument: only some requests of the job would have a profile, the call declares a
            gang without members, or it declares a gang twice.
        ResourceExhausted: the job, the owner's jobs together, or all jobs together would have too
            many live requests, or the job would have too many scheduling classes.
    """
    # Check the whole call first, because a rejected event must not change the state.
    job = active_job(state.jobs, event.job_id)
    ranges_sent = event.ranges + event.following_ranges
    sent = chain(event.requests, event.following, (each.request for each in ranges_sent))
    if any(spec.cpu_policy is not PLAIN for spec in sent):
        event = _in_job(event, job.job_id)
    _refuse_mix(job, chain(event.requests, (each.request for each in event.ranges)))
    # A large call is split into several events. The first event checks the limits for all these
    # events: `event.following` contains the requests of the later events.
    if not event.admitted:
        specs = event.requests + event.following
        ranges = {each: each.count for each in event.ranges + event.following_ranges}
        # The first check is cheap, because it counts every item as new. If the check fails, a
        # second check leaves out repetitions.
        try:
            _refuse_beyond_limits(state, job, specs, ranges)
        except ResourceExhausted:
            # A look-up of every item costs more than all other checks, so items are looked up only
            # after a failed check.
            new = {
                spec.allocation_id: spec
                for spec in specs
                if state.requests.named(spec.allocation_id) is None
            }
            # A range of which only some members are known counts as 0, because it is rejected as a
            # whole later.
            ranges = {each: new_members(state.ranges, each) for each in ranges}
            _refuse_beyond_limits(state, job, list(new.values()), ranges)
    wanted = chain(event.requests, (each.request for each in event.ranges))
    if not state.run_times.declared:
        state.run_times.declared = any(
            spec.expected_run_time_ms is not None or spec.time_limit_ms is not None
            for spec in wanted
        )
    # The checks of feasibility below read the indexes, so the indexes must be up to date.
    if state.hosts.touched:
        state.hosts.refresh(state.queue)
    refused: Mapping[str, ItemOutcome] = {}
    if event.gangs or any(spec.gang_id for spec in event.requests):
        refused = refused_members(state, job, event.gangs, event.requests)
    # Queue only new gangs below, because an earlier call has queued the known gangs.
    gangs = [gang.gang_id for gang in event.gangs if gang.gang_id not in state.gangs.by_id]
    runs: list[list[Request]] = []
    # Queue requests and gangs after the loop: equal requests together, and gangs when all their
    # members have been accepted.
    outcomes = [
        _submit(state, job, spec, event.gangs, refused, runs=runs) for spec in event.requests
    ]
    for run in runs:
        state.queue.add_run(run[0].spec, job.job_id, run[0].arrival_number, len(run))
    for gang_id in gangs:
        # it is None if its members were refused
        if (gang := state.gangs.by_id.get(gang_id)) is not None:
            accept_gang(state, gang)
    return outcomes + [submit_range(state, job, spec) for spec in event.ranges]


def _in_job(event: RequestsSubmitted, job_id: str) -> RequestsSubmitted:
    """Returns the event with the job's id in each policy that has labels or rules about neighbors.
    With the id, these requests are never equal to requests of other jobs.
    """

    def of_job(spec: RequestSpec) -> RequestSpec:
        if not (spec.cpu_policy.slot_labels or spec.cpu_policy.neighbors):
            return spec
        return replace(spec, cpu_policy=replace(spec.cpu_policy, neighbor_job=job_id))

    def of_ranges(some: tuple[RangeSpec, ...]) -> tuple[RangeSpec, ...]:
        return tuple(replace(each, request=of_job(each.request)) for each in some)

    return replace(
        event,
        requests=tuple(map(of_job, event.requests)),
        following=tuple(map(of_job, event.following)),
        ranges=of_ranges(event.ranges),
        following_ranges=of_ranges(event.following_ranges),
    )


def _refuse_beyond_limits(
    state: State, job: Job, specs: Sequence[RequestSpec], ranges: Mapping[RangeSpec, int]
) -> None:
    """Checks that a call exceeds no limit. Otherwise raises ResourceExhausted.

    A scheduling cycle tries each waiting class, so a job with very many classes would delay other
    jobs. Each kind of members of a gang counts as one class. A request counts even if it could be
    placed at once, because the search for hosts comes later.

    Args:
        state: the state of the engine.
        job: the job of the call.
        specs: the new requests.
        ranges: the number of new members of each range.
    """
    settings, queue = state.settings, state.queue
    new = len(specs) + sum(ranges.values())
    live, most = job.live_requests, settings.job_requests_max
    if live + new > most:
        raise ResourceExhausted(
            f"job {job.job_id} has {live} live requests and submits {new} more, but one job may"
            f" have at most {most}; cancel or release some requests first",
            details={"live": live, "asked": new, "job_requests_max": most},
            retry_after_s=5.0,
        )
    live, most = state.requests.live, settings.requests_max
    if live + new > most:
        raise ResourceExhausted(
            f"all jobs together have {live} live requests, and this call submits {new} more, but"
            f" at most {most} are allowed; try again when some requests have ended, or raise"
            " requests_max",
            details={"live": live, "asked": new, "requests_max": most},
            retry_after_s=5.0,
        )
    if state.flows.users.limits:
        check_requests(state.flows.users, state.jobs, job.owner, new)
    waiting = len(queue.by_job.get(job.job_id, ())) + state.gangs.by_job[job.job_id]
    most = settings.job_scheduling_classes_max
    # The limit is not exceeded even if each item has a new class, so the classes need not be
    # counted.
    if waiting + len(specs) + len(ranges) <= most:
        return
    specs = [*specs, *(each.request for each, members in ranges.items() if members)]
    new = queue.new_classes(job.job_id, [spec for spec in specs if not spec.gang_id])
    # Count kinds for each gang, because each gang has its own search.
    new += len({(s.gang_id, *waiting_key(s)) for s in specs if s.gang_id})
    if waiting + new > most:
        raise ResourceExhausted(
            f"job {job.job_id} has waiting requests of {waiting} different kinds (profile, labels,"
            f" cpu policy, priority; counted per gang), and submits {new} more kinds, but one job"
            f" may have at most {most}; use fewer kinds, or submit the other requests when some are"
            " granted",
            details={"waiting": waiting, "asked": new, "job_scheduling_classes_max": most},
            retry_after_s=5.0,
        )


def _submit(
    state: State,
    job: Job,
    spec: RequestSpec,
    gangs: Sequence[GangSpec],
    refused: Mapping[str, ItemOutcome],
    *,
    runs: list[list[Request]],
) -> ItemOutcome:
    """Accepts one request. If the request is not accepted, the outcome contains the reason.

    A repeated request is accepted without effect. A member of a gang is queued later, together with
    its gang. The function appends any other request to `runs`, and the caller queues it. Each run
    contains equal requests with consecutive arrival numbers.
    """
    known = state.requests.named(spec.allocation_id)
    problem = refused.get(spec.allocation_id)
    # Accept a repetition even if the request fits on no executor any more.
    if known is not None:
        if problem is None and known.job_id == job.job_id and known.spec == spec:
            return ItemOutcome(spec.allocation_id)
        return problem or taken(spec.allocation_id)
    latest = runs[-1][-1] if runs else None
    is_equal = latest is not None and wait_together(latest.spec, spec)
    # Members of gangs have been checked with their gang. A request that is equal to an accepted
    # request of this call can be accepted, too.
    if not spec.gang_id and not is_equal:
        problem = state.waiting_reasons.refusal(spec)
    # The id can also be the id of a range member that has no `Request`.
    if problem is None and spec.allocation_id in state.ranges:
        problem = taken(spec.allocation_id)
    if problem is not None:
        # Record the outcome in the history, because a request that is not accepted leaves no other
        # trace.
        state.journal.cluster_event(
            "request_rejected",
            job_id=job.job_id,
            allocation_id=spec.allocation_id,
            reason=problem.reason,
            message=problem.message,
        )
        return problem
    request = Request(
        spec=spec,
        job_id=job.job_id,
        arrival_number=state.numbers.next_arrival(),
        create_time_ms=state.journal.at.time_ms,
    )
    state.requests[spec.allocation_id] = request
    state.requests.by_arrival.add(request)
    # Reserve the id, so that a range that is submitted later cannot have a member with this id.
    state.ranges.reserve(spec.allocation_id)
    if spec.gang_id:
        join(state.gangs, request, gangs, time_ms=state.journal.at.time_ms)
    else:
        if latest is not None and is_equal and request.arrival_number == latest.arrival_number + 1:
            runs[-1].append(request)
        else:
            runs.append([request])
        if spec.wait_timeout_ms is not None:
            state.request_timeouts.start(request)
    state.newcomers.append(request)
    job.arrivals.append(request.arrival_number)
    job.live_requests += 1
    state.requests.live += 1
    # The first request of a job decides whether all its requests have profiles; see `_refuse_mix`.
    if job.specified is None:
        job.specified = spec.profile is not None
        job.witness_allocation_id = spec.allocation_id
        state.changes.job(job)
    state.changes.request(request)
    return ItemOutcome(spec.allocation_id)


def cancel_requests(state: State, event: RequestsCancelled) -> list[ItemOutcome]:
    """Cancels requests. If a request was already granted, its slot is released. If a request has
    ended, nothing changes.

    Returns:
        One outcome for each allocation id, then one outcome for each range. If the journal of this
        step becomes full, the last outcomes are missing. The caller must send the items without
        outcomes again.

    Raises:
        NotFound: the job is not known.
    """
    if event.job_id is not None:
        known_job(state.jobs, event.job_id)
    # Generation 0 means any generation. A slot that was granted before the call arrived has
    # finished no thread.
    slots = [(each, 0, _UNUSED) for each in event.allocation_ids]
    return _give_up_all(state, _Caller.of(event.job_id), slots, event.ranges, None)


def release_slots(state: State, event: SlotsReleased) -> list[ItemOutcome]:
    """Releases slots. The requests of these slots end, and get no new slots.

    Generation 0 stands for the current slot of the request.

    Returns:
        One outcome for each slot, then one outcome for each range; see `cancel_requests`.

    Raises:
        NotFound: the job is not known.
    """
    if event.job_id is not None:
        # A job that has ended is accepted, too. In this case the call changes nothing, because the
        # job's requests have also ended.
        known_job(state.jobs, event.job_id)
    by = _Caller.of(event.job_id)
    slots = [(*each, event.thread_reports.get(each[0], NO_REPORT)) for each in event.slots]
    return _give_up_all(state, by, slots, event.ranges, event.grace_ms)


_SlotEnd = tuple[str, int, ThreadReport]
"""Allocation id, generation, and the job master's report about the threads of work in the slot."""

_UNUSED = ThreadReport(ThreadEnd.UNFINISHED)
"""The report about a slot that has finished no thread."""


@dataclass(frozen=True, slots=True)
class _Caller:
    """The caller that ends requests: their job master, or an administrator (`job_id` is None)."""

    job_id: str | None
    reason: str
    message: str

    @classmethod
    def of(cls, job_id: str | None) -> _Caller:
        if job_id is not None:
            # The reason is empty, because the job master itself requested the end.
            return cls(job_id, "", "")
        return cls(None, Reason.TERMINATED, "ended by an administrator")


def _give_up_all(
    state: State,
    by: _Caller,
    slots: Iterable[_SlotEnd],
    ranges: Iterable[Members],
    grace_ms: int | None,
) -> list[ItemOutcome]:
    """Ends requests and then members of ranges, until the journal of this step is full. Returns an
    outcome for each item that was handled.
    """
    outcomes: list[ItemOutcome] = []
    for each in slots:
        # The journal of a new step is never full, so each call handles at least one item, and the
        # caller makes progress.
        if state.journal.is_full:
            return outcomes
        outcomes.append(_give_up(state, by, each, grace_ms))
    why = Why(by.reason, by.message, grace_ms)
    for members in ranges:
        outcome = state.range_moves.give_up_members(members, why, job_id=by.job_id)
        if outcome is None:
            return outcomes
        outcomes.append(outcome)
    return outcomes


def _give_up(state: State, by: _Caller, item: _SlotEnd, grace_ms: int | None) -> ItemOutcome:
    """Ends one request for a caller. If the request has ended, or the generation is older than the
    current generation, nothing changes.
    """
    allocation_id, generation, report = item
    request = state.requests.named(allocation_id)
    # For a request of another job, return the same outcome as for an unknown request, so that a job
    # cannot find out which ids other jobs use.
    if request is None or by.job_id not in (None, request.job_id):
        owner = "" if by.job_id is None else f" in job {by.job_id}"
        return ItemOutcome(
            allocation_id,
            Reason.ALLOCATION_UNKNOWN,
            f"allocation {allocation_id} is not known{owner}",
        )
    if generation > request.generation:
        return ItemOutcome(
            allocation_id,
            Reason.STALE_GENERATION,
            f"generation {generation} of {allocation_id} does not exist;"
            f" the current generation is {request.generation}",
            (("generation", str(generation)), ("current", str(request.generation))),
        )
    # An older generation stands for a slot that was lost, so there is no slot to release.
    if generation in (0, request.generation) and request.state not in ENDED_REQUEST_STATES:
        state.gang_moves.give_up(
            request,
            alone=generation > 0,
            reason=by.reason,
            message=by.message,
            grace_ms=grace_ms,
            report=report,
        )
    return ItemOutcome(allocation_id)


def _refuse_mix(job: Job, specs: Iterable[RequestSpec]) -> None:
    """Raises InvalidArgument if only some requests of a job would have a resource profile.

    The first request of a job decides whether all its requests must have profiles. Before the first
    request, `Job.specified` is None.
    """
    specified, witness = job.specified, job.witness_allocation_id
    for spec in specs:
        if specified is None:
            specified, witness = spec.profile is not None, spec.allocation_id
        elif specified != (spec.profile is not None):
            kinds = {True: "specified", False: "unknown"}
            raise InvalidArgument(
                f"profile of request {spec.allocation_id}",
                kinds[not specified],
                f"{kinds[specified]} like request {witness} of the same job {job.job_id}: either"
                " all requests of a job have a resource profile, or none has",
                reason=Reason.MIXED_KNOWN_AND_UNKNOWN,
            )
