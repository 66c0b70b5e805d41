"""Accepts slot requests, cancels them and releases slots. Accepted requests are queued, not placed.

A call carries many items, and each gets its own outcome. Only what is wrong with the call as a
whole (an unknown job, a mix of specified and unknown requests) refuses all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from finegrain.errors import InvalidArgument, Reason, ResourceExhausted
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.context import EventContext
from resource_manager.engine.lifecycle.known import active_job, known_job, taken
from resource_manager.engine.lifecycle.range_ends import Why
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
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.requests.gang_intake import accept_gang, join, refused_members
from resource_manager.engine.requests.range_intake import new_members, submit_range


def submit_requests(context: EventContext, event: RequestsSubmitted) -> list[ItemOutcome]:
    """Accepts the new and valid items of a call, one by one.

    Returns:
        One outcome for each request, then one for each range.

    Raises:
        NotFound, FailedPrecondition: see `active_job`.
        InvalidArgument: the job would mix specified and unknown requests; a gang has no members in
            the call, or is declared twice.
        ResourceExhausted: the job, or all jobs together, would have too many live requests; or the
            job would have too many scheduling classes.
    """
    state = context.state
    # Checks of the whole call come first, because a refused event must leave the state untouched.
    job = active_job(state.jobs, event.job_id)
    _refuse_mix(job, chain(event.requests, (each.request for each in event.ranges)))
    # A large call comes in several events. The limits are checked for all of it with the first one;
    # `event.following` are the requests of the later ones.
    if not event.admitted:
        refuse = partial(
            _refuse_beyond_limits,
            job,
            requests=state.requests,
            settings=state.settings,
            gangs=state.gangs,
            queue=state.queue,
        )
        specs = event.requests + event.following
        ranges = {each: each.count for each in event.ranges + event.following_ranges}
        # The cheap check counts every item as new. Only if that fails are repetitions sorted out.
        try:
            refuse(specs, ranges)
        except ResourceExhausted:
            # What is known already is not new. To find that out for each costs more than the rest.
            new = {
                spec.allocation_id: spec
                for spec in specs
                if state.requests.named(spec.allocation_id) is None
            }
            # A range that is partly known adds nothing here: it is refused as a whole later.
            ranges = {each: new_members(state.ranges, each) for each in ranges}
            refuse(list(new.values()), ranges)
    # The feasibility checks below read the indexes.
    if state.hosts.touched:
        state.hosts.refresh(state.queue)
    refused: Mapping[str, ItemOutcome] = {}
    if event.gangs or any(spec.gang_id for spec in event.requests):
        refused = refused_members(state, job, event.gangs, event.requests)
    # Gangs that are known already were queued by an earlier call.
    gangs = [gang.gang_id for gang in event.gangs if gang.gang_id not in state.gangs.by_id]
    # Gangs are queued after all items, when all of their members are accepted.
    outcomes = [_submit(context, job, spec, event.gangs, refused) for spec in event.requests]
    for gang_id in gangs:
        if (gang := state.gangs.by_id.get(gang_id)) is not None:  # None: its members were refused
            accept_gang(context, gang)
    return outcomes + [submit_range(context, job, spec) for spec in event.ranges]


def _refuse_beyond_limits(
    job: Job,
    specs: Sequence[RequestSpec],
    ranges: Mapping[RangeSpec, int],
    *,
    requests: Requests,
    settings: EngineSettings,
    gangs: GangLedger,
    queue: WaitingQueue,
) -> None:
    """Raises ResourceExhausted if a call asks for too much.

    Args:
        job: the job that calls.
        specs: the requests that are new.
        ranges: how many members of each range are new.
        requests: all requests.
        settings: the limits.
        gangs: all gangs.
        queue: the queue.
    """
    # The cheaper check first.
    _refuse_too_many(requests, settings, job, len(specs) + sum(ranges.values()))
    of_ranges = [each.request for each, members in ranges.items() if members]
    _refuse_too_many_classes(settings, gangs, queue, job, [*specs, *of_ranges])


def _refuse_too_many(requests: Requests, settings: EngineSettings, job: Job, new: int) -> None:
    """Raises ResourceExhausted if `new` more requests are too many for the job or for all jobs
    together.
    """
    live, most = job.live_requests, settings.job_requests_max
    if live + new > most:
        raise ResourceExhausted(
            f"job {job.job_id} has {live} live requests and asks for {new} more;"
            f" one job may have {most}: cancel or release some first",
            details={"live": live, "asked": new, "job_requests_max": most},
            retry_after_s=5.0,
        )
    live, most = requests.live, settings.requests_max
    if live + new > most:
        raise ResourceExhausted(
            f"all jobs together have {live} live requests, and {new} more are asked for; {most} may"
            " be: try again when some have ended, or raise requests_max",
            details={"live": live, "asked": new, "requests_max": most},
            retry_after_s=5.0,
        )


def _refuse_too_many_classes(
    settings: EngineSettings,
    gangs: GangLedger,
    queue: WaitingQueue,
    job: Job,
    specs: Collection[RequestSpec],
) -> None:
    """Limits a job's scheduling classes, since a cycle tries each one that waits.

    A job with very many would make others wait for long. Each different member of a gang counts as
    one. Requests that could be placed at once count, too: that is not known yet.
    """
    waiting = len(queue.by_job.get(job.job_id, ())) + gangs.by_job[job.job_id]
    most = settings.job_scheduling_classes_max
    # Even if each item were a class of its own, the limit holds, so counting them is not needed.
    if waiting + len(specs) <= most:
        return
    new = queue.new_classes(job.job_id, [spec for spec in specs if not spec.gang_id])
    # Per gang, because a search treats the members of each gang apart.
    new += len({(s.gang_id, *scheduling_key(s)) for s in specs if s.gang_id})
    if waiting + new > most:
        raise ResourceExhausted(
            f"job {job.job_id} waits with {waiting} different profiles or labels, those of gangs"
            f" apart, and asks with {new} more; one job may wait with {most} at once: ask for fewer"
            " different ones, for less in one call, or again when some have been granted",
            details={"waiting": waiting, "asked": new, "job_scheduling_classes_max": most},
            retry_after_s=5.0,
        )


def _submit(
    context: EventContext,
    job: Job,
    spec: RequestSpec,
    gangs: Sequence[GangSpec],
    refused: Mapping[str, ItemOutcome],
) -> ItemOutcome:
    """Accepts one request and queues it, or returns why it was not accepted.

    The same request again is accepted without effect. A member of a gang is queued later, with its
    gang.
    """
    state = context.state
    known = state.requests.named(spec.allocation_id)
    problem = refused.get(spec.allocation_id)
    # A repetition is accepted even if no executor fits any more.
    if known is not None:
        if problem is None and known.job_id == job.job_id and known.spec == spec:
            return ItemOutcome(spec.allocation_id)
        return problem or taken(spec.allocation_id)
    # Members of gangs were checked with their gang.
    if not spec.gang_id:
        problem = state.waiting_reasons.refusal(spec)
    # The id may also be that of a range member, which has no request object.
    if problem is None and spec.allocation_id in state.ranges:
        problem = taken(spec.allocation_id)
    if problem is not None:
        # Recorded, because a request that is not accepted leaves no other trace.
        context.journal.cluster_event(
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
    state.requests.by_arrival[request.arrival_number] = request
    # A range that is submitted later must not have a member with this id.
    state.ranges.reserve(spec.allocation_id)
    if spec.gang_id:
        join(state.gangs, request, gangs, time_ms=context.at.time_ms)
    else:
        state.queue.add(request)
    state.newcomers.append(request)
    job.arrivals.append(request.arrival_number)
    job.live_requests += 1
    state.requests.live += 1
    # The first request decides for the job; see `_refuse_mix`. Only this changes the job's row.
    if job.specified is None:
        job.specified = spec.profile is not None
        job.witness_allocation_id = spec.allocation_id
        state.changes.job(job)
    state.changes.request(request)
    return ItemOutcome(spec.allocation_id)


def cancel_requests(context: EventContext, event: RequestsCancelled) -> list[ItemOutcome]:
    """Cancels requests. One that was granted meanwhile is released; one that has ended stays as it
    is.

    Returns:
        One outcome for each allocation id, then one for each range, as far as this step came: the
        caller asks again for the others.

    Raises:
        NotFound: the job is not known.
    """
    if event.job_id is not None:
        known_job(context.state.jobs, event.job_id)
    slots = [(allocation_id, 0) for allocation_id in event.allocation_ids]  # 0: any generation
    return _give_up_all(context, _Caller.of(event.job_id), slots, event.ranges, None)


def release_slots(context: EventContext, event: SlotsReleased) -> list[ItemOutcome]:
    """Releases slots. This ends their requests and never makes new ones.

    A caller that names no generation means the current one.

    Returns:
        As `cancel_requests`: one outcome for each slot, then one for each range.

    Raises:
        NotFound: the job is not known.
    """
    if event.job_id is not None:
        # Also of a job that has ended: releasing again must do no harm.
        known_job(context.state.jobs, event.job_id)
    by = _Caller.of(event.job_id)
    return _give_up_all(context, by, event.slots, event.ranges, event.grace_ms)


@dataclass(frozen=True, slots=True)
class _Caller:
    """On whose behalf requests end: their job master's, or (`job_id` None) an operator's."""

    job_id: str | None
    reason: str
    message: str

    @classmethod
    def of(cls, job_id: str | None) -> _Caller:
        if job_id is not None:
            # Without a reason: an event would only repeat what the job master asked for.
            return cls(job_id, "", "")
        return cls(None, Reason.TERMINATED, "taken back by an operator")


def _give_up_all(
    context: EventContext,
    by: _Caller,
    slots: Iterable[tuple[str, int]],
    ranges: Iterable[Members],
    grace_ms: int | None,
) -> list[ItemOutcome]:
    """Ends requests, then members of ranges, until the step is full; returns the outcomes of those
    that it came to.
    """
    outcomes: list[ItemOutcome] = []
    for allocation_id, generation in slots:
        # At least one item per step is handled, so that the caller makes progress.
        if context.journal.is_full:
            return outcomes
        outcomes.append(_give_up(context, by, allocation_id, generation, grace_ms))
    why = Why(by.reason, by.message, grace_ms)
    for members in ranges:
        outcome = context.state.range_moves.give_up_members(members, why, job_id=by.job_id)
        if outcome is None:
            return outcomes
        outcomes.append(outcome)
    return outcomes


def _give_up(
    context: EventContext, by: _Caller, allocation_id: str, generation: int, grace_ms: int | None
) -> ItemOutcome:
    """Ends one request on behalf of a caller; an ended one, or an older generation, stays as it
    is.
    """
    request = context.state.requests.named(allocation_id)
    # Requests of other jobs look like unknown ones, so that ids tell nothing about them.
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
            f" the current one is {request.generation}",
            (("generation", str(generation)), ("current", str(request.generation))),
        )
    # An older generation than the current one names a slot that was lost: there is nothing to
    # release.
    if generation in (0, request.generation) and request.state not in ENDED_REQUEST_STATES:
        context.state.gang_moves.give_up(
            request,
            alone=generation > 0,
            reason=by.reason,
            message=by.message,
            grace_ms=grace_ms,
        )
    return ItemOutcome(allocation_id)


def _refuse_mix(job: Job, specs: Iterable[RequestSpec]) -> None:
    """Raises InvalidArgument if a job would have requests with and without a resource profile.

    `specified` of the job is None before its first request, which then decides.
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
                f"{kinds[specified]} like request {witness} of the same job {job.job_id}:"
                " one job asks either with resource profiles or without, never both",
                reason=Reason.MIXED_KNOWN_AND_UNKNOWN,
            )
