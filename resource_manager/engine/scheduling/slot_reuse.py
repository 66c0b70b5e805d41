"""Decides whether a slot whose work is done can serve another request of its job.

Reuse is allowed only if the slot's job would be served next with the freed capacity
(`next_in_order.py`). In this case, the job would get the capacity again after it has given the slot
back. Reuse saves the time to free the slot and to carve a new slot. If reuse is not allowed, the
job must give the slot back, and the slot's request ends with the reason.

Example: job A has a slot whose work is done, and a pending request for an equal slot. Job B waits
for a slot that would fit on the same host. The slot is not counted in the virtual time of A. If A
has the lower virtual time, the pending request of A becomes RELEASED with the reason REUSED, and A
keeps the slot. Otherwise the slot is freed with the reason FAIR_SHARE.

The decisions for the slots of a call are made one after another. The results are stored in the
requests that ended. So a repeated call gets the same results, even after a restart. Messages do not
contain request ids. A range stores its ended members by reason and message, so a different message
for each request would need more space.
"""

from __future__ import annotations

from dataclasses import replace

from finegrain.errors import Reason
from finegrain.values.outcomes import NO_REPORT, ItemOutcome, ThreadReport
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.fairness import threads
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.known import known_job
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Job, Request, Slot
from resource_manager.engine.model.events import RequestsSubmitted, SlotsReuseRequested
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.model.state_tables import RequestInput
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.requests.submission import submit_requests
from resource_manager.engine.scheduling.next_in_order import NextInOrder
from resource_manager.engine.state import State

REPORTS_LEFT_MIN = 3
"""A slot with a time limit is reused only if its executor will still send at least this number of
reports before the limit is over.
"""

WORK_TAKEN_OVER = "a slot that the job already had was reused for this request"
FAIR_SHARE = "other jobs come first for the capacity of the slot"
NOT_WAITING = "the request that would reuse the slot is not pending"
NEEDS_OTHER_SLOT = "the request that would reuse the slot needs a different slot"
NO_NEW_SLOTS = "no new slots may be placed on the slot's executor"
OF_A_GANG = "slots of gangs are not reused, and gangs do not reuse slots"
TIME_LEFT = "too little is left of the slot's time limit to start it again"
RESIZED = "the slot was resized, or a resize is pending"
ENDED = "the request of the slot has already ended"
NOT_GRANTED = "the request of the slot was not granted"


def reuse_slots(state: State, event: SlotsReuseRequested) -> list[ItemOutcome]:
    """Reuses those slots of a call that can serve another request of their job without unfairness
    to other jobs. Gives back the other slots of the call.

    Returns:
        One outcome for each new range, then one outcome for each slot.

    Raises:
        NotFound: the job is not known.
        FailedPrecondition, InvalidArgument, ResourceExhausted: the new ranges are not accepted; see
            `submit_requests`.
    """
    known_job(state.jobs, event.job_id)
    outcomes: list[ItemOutcome] = []
    if event.ranges:
        new = RequestsSubmitted(event.at, event.job_id, (), ranges=event.ranges)
        outcomes = submit_requests(state, new)
    following = NextInOrder(state)
    return outcomes + [_reuse_or_free(state, event, following, each) for each in event.slots]


def _reuse_or_free(
    state: State,
    event: SlotsReuseRequested,
    following: NextInOrder,
    item: tuple[str, int, str],
) -> ItemOutcome:
    job_id = event.job_id
    allocation_id, generation, for_id = item
    request, waiting = state.requests.named(allocation_id), state.requests.named(for_id)
    # First handle the cases that need no comparison of jobs: an unknown request, a repeated call,
    # an ended request, and an outdated generation.
    if request is None or request.job_id != job_id:
        return ItemOutcome(
            allocation_id,
            Reason.ALLOCATION_UNKNOWN,
            f"allocation {allocation_id} is not known in job {job_id}",
        )
    # A repeated call gets the same result as the first call.
    if waiting is not None and _was_reused(request, waiting, following):
        return ItemOutcome(allocation_id)
    if request.state in ENDED_REQUEST_STATES:
        if request.reason in (Reason.FAIR_SHARE, Reason.NOT_REUSABLE):
            return ItemOutcome(allocation_id, request.reason, request.message)
        return ItemOutcome(allocation_id, Reason.NOT_REUSABLE, ENDED)
    if generation != request.generation:
        return ItemOutcome(
            allocation_id,
            Reason.STALE_GENERATION,
            f"generation {generation} of {allocation_id} is outdated; the current generation is"
            f" {request.generation}",
            (("generation", str(generation)), ("current", str(request.generation))),
        )
    # After the comparison with other jobs, either reuse the slot or give it back. Reuse starts the
    # slot's time limit again. The executor learns this from the answers to its next reports, and
    # must not end the slot before it has received such an answer.
    until_ms = state.journal.now_ms + REPORTS_LEFT_MIN * state.settings.report_interval_ms
    reason, message = _obstacle(
        state.hosts, state.slots, request, waiting, following, until_ms=until_ms
    )
    report = event.thread_reports.get(allocation_id, NO_REPORT)
    if not reason and waiting is not None:
        _take_over(state, request, waiting, report)
        # Later slots of this call must not take over the same work.
        following.work_of(job_id)[for_id] = allocation_id
        return ItemOutcome(allocation_id)
    _end_thread(state.journal, state.slots, state.jobs, request, report)
    state.gang_moves.give_up(
        request, alone=True, reason=reason, message=message, grace_ms=event.grace_ms
    )
    # The job now has one slot less, which possibly changes the result for the next slot.
    following.slot_freed(job_id)
    return ItemOutcome(allocation_id, reason, message)


def _was_reused(request: Request, waiting: Request, following: NextInOrder) -> bool:
    """Returns True if the slot of `request` probably took over the work of `waiting`.

    The store does not record which slot took over the work. The result is False in two cases:
    another slot does the work now, or this slot was given back before the work was taken over.
    """
    if waiting.job_id != request.job_id or waiting.reason != Reason.REUSED:
        return False
    # A slot whose request ended before `waiting` ended cannot have taken over the work of
    # `waiting`.
    if request.end_time_ms and waiting.end_time_ms and request.end_time_ms < waiting.end_time_ms:
        return False
    by = following.work_of(request.job_id).get(waiting.allocation_id)
    # If no slot does this work any more, the slot of `request` probably took over the work.
    return by in (None, request.allocation_id)


def _obstacle(
    hosts: Hosts,
    slots: Slots,
    request: Request,
    waiting: Request | None,
    following: NextInOrder,
    *,
    until_ms: int,
) -> tuple[str, str]:
    """Returns the reason why a slot must not be reused.

    Args:
        hosts: all hosts.
        slots: all slots.
        request: the request that the slot serves.
        waiting: the pending request that the slot would serve, or None if this request is unknown.
        following: the object that compares jobs.
        until_ms: the moment (monotonic) by which the executor knows that the slot was reused.

    Returns:
        A reason and a message. Both texts are empty if the slot can be reused.
    """
    slot = slots.of(request)
    why = ""
    if slot is None or request.state is not RequestState.GRANTED:
        why = NOT_GRANTED
    elif (
        waiting is None
        or waiting.job_id != request.job_id
        or waiting.state is not RequestState.PENDING
    ):
        why = NOT_WAITING
    elif request.spec.gang_id or waiting.spec.gang_id:
        why = OF_A_GANG
    elif not _need_equal_slots(request, waiting):
        why = NEEDS_OTHER_SLOT
    elif not _has_its_size(hosts, slot, request):
        why = RESIZED
    elif not _may_last(slot, until_ms):
        why = TIME_LEFT
    elif slot.state is not SlotState.ALLOCATED or not hosts.of(slot).takes_slots:
        why = NO_NEW_SLOTS
    if why or slot is None:
        return Reason.NOT_REUSABLE, why
    # The comparison of jobs is the most expensive check, so it is made last.
    return (Reason.FAIR_SHARE, FAIR_SHARE) if following.goes_to_another_job(slot) else ("", "")


def _need_equal_slots(request: Request, waiting: Request) -> bool:
    """Returns whether both requests would get equal slots. For this, their specs must be equal,
    except for ids and settings that do not affect the slot.
    """
    like = replace(
        waiting.spec,
        allocation_id=request.allocation_id,
        allow_pending=request.spec.allow_pending,
        restart_on_loss=request.spec.restart_on_loss,
        restart_on_device_loss=request.spec.restart_on_device_loss,
        expected_run_time_ms=request.spec.expected_run_time_ms,
        priority=request.spec.priority,
    )
    return like == request.spec


def _has_its_size(hosts: Hosts, slot: Slot, request: Request) -> bool:
    """Returns True if the slot has the requested size, and no resize is pending."""
    if slot.ordered is not None or slot.wanted is not None:
        return False
    default = hosts.of(slot).executor.registration.default_profile
    profile = request.spec.profile or default
    limit_milli = max(request.spec.cpu_limit_milli, profile.cpu_milli)
    return (slot.profile, slot.cpu_limit_milli) == (profile, limit_milli)


def _may_last(slot: Slot, until_ms: int) -> bool:
    """Returns whether the time limit of the slot lasts until `until_ms` or longer."""
    if slot.time_limit_ms is None:
        return True
    # After a restart of the resource manager, the start of a reused slot's thread is not known.
    since_ms = slot.thread_since_ms
    return since_ms is not None and since_ms + slot.time_limit_ms >= until_ms


def _end_thread(
    journal: Journal,
    slots: Slots,
    jobs: dict[str, Job],
    request: Request,
    report: ThreadReport,
) -> None:
    """Counts the finished thread of a slot that the job must give back because it must not reuse
    the slot.

    The request for reuse means that the thread is done. But this slot ends with a reason, so
    `give_up` treats the slot as taken away from the job, and does not count the thread.
    """
    slot = slots.of(request)
    if slot is not None and request.state is RequestState.GRANTED:
        key = scheduling_key(request.spec)
        threads.end(jobs[request.job_id], slot, key, journal.now_ms, report)


def _take_over(state: State, request: Request, waiting: Request, report: ThreadReport) -> None:
    """Reuses the slot of a request for the work of a pending request. The pending request ends."""
    slot = state.slots.of(request)
    # Reuse counts as a placement. Call `served` before the pending request ends, because the end of
    # the request possibly stops the starvation clock.
    state.queue.starvation.served((state.queue.class_of(waiting.spec), waiting.job_id))
    state.moves.end_request(
        waiting, RequestInput.REUSE, reason=Reason.REUSED, message=WORK_TAKEN_OVER
    )
    if slot is not None:
        slot.works_for = waiting.allocation_id
        if slot.time_limit_ms is not None:
            slot.reuse_number += 1
            state.hosts.of(slot).reused[slot.allocation_id, slot.generation] = None
            state.changes.slot_moved(slot)
        key = scheduling_key(request.spec)
        job = state.jobs[request.job_id]
        threads.note_reuse(job, slot, key, state.journal.now_ms, report)
        state.journal.slot_event(
            "slot_reused", slot, message=f"for request {waiting.allocation_id}"
        )
    state.flows.note_reuse(request.job_id)
