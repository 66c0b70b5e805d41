"""What happens to a request and its slot together: placed, confirmed, given up, lost, gone.

Every move goes through the state tables and keeps the books, the queue and both logs in step. Why
something moves, the handlers decide. They call those of `lifecycle/gangs.py` where there are any:
what is done to a member of a gang may be done to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN
from finegrain.errors import Reason
from resource_manager.engine.context import EventContext
from resource_manager.engine.fairness import threads
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle import usage
from resource_manager.engine.lifecycle.members import keep_end, keep_move, single_out
from resource_manager.engine.lifecycle.resizes import resume, stop
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    Request,
    RequestState,
    Slot,
    SlotKey,
    SlotState,
)
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.model.state_tables import RequestInput, SlotInput
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def key_of(slot: Slot) -> SlotKey:
    """Identity of a slot."""
    return slot.allocation_id, slot.generation


def place(context: EventContext, requests: Sequence[Request], host: Host) -> None:
    """Books slots for waiting requests of one job and one shape on a host that has room for all of
    them, with the cpus and NUMA nodes that the host gives them, and queues the orders. The caller
    takes the requests out of the queue.

    Raises:
        InvariantBroken: cpus or NUMA nodes there do not suit all of them; see `Host.suits`.
    """
    state, policy = context.state, requests[0].spec.cpu_policy
    profile = requests[0].spec.profile or host.executor.registration.default_profile
    booked = host.booking_of(profile, best_effort=policy.best_effort)
    cost = state.costs.of(booked)
    assignments: Iterable[CpuAssignment | None] = repeat(None)
    if host.strict or policy is not PLAIN:
        shape = state.queue.shape_of(requests[0].spec)
        assignments = host.assignments(shape, len(requests))
    state.hosts.in_use += not host.slots
    for request, assignment in zip(requests, assignments, strict=False):
        spec = request.spec
        request.generation = max(request.generation, state.numbers.generation_floor) + 1
        slot = Slot(
            allocation_id=spec.allocation_id,
            generation=request.generation,
            job_id=request.job_id,
            executor_id=host.host_id,
            profile=profile,
            cpu_limit_milli=max(spec.cpu_limit_milli, profile.cpu_milli),
            pids_max=spec.pids_max,
            assignment=assignment,
            booked=booked,
            cost=cost,
        )
        if state.ranges:
            single_out(state, request)
        state.transitions.move_request(request, RequestInput.PLACE)
        request.reason = request.message = ""
        key = key_of(slot)
        state.slots[key] = slot
        state.jobs[slot.job_id].slot_keys.add(key)
        host.slots[key] = slot
        if host.cpus is not None:
            host.cpus.add(key, assignment)
        host.to_allocate[key] = None
        state.changes.slot(slot)  # a restart reads the request's state off its slot
    host.book(booked, len(requests))
    state.flows.place(requests[0].job_id, booked, len(requests), cost)
    state.starving.placements += len(requests)
    state.outbox[host.host_id] = None


def confirm(
    context: EventContext, slot: Slot, *, isolation: dict[str, object] | None = None, cpus: str = ""
) -> None:
    """The executor carved the slot: its request is granted."""
    carve(context, slot, isolation=isolation, cpus=cpus)
    grant(context, slot)


def carve(
    context: EventContext, slot: Slot, *, isolation: dict[str, object] | None = None, cpus: str = ""
) -> None:
    """The executor carved the slot; its request may still have to wait for others."""
    state = context.state
    state.transitions.move_slot(slot, SlotInput.CONFIRM)
    slot.allocated_time_ms = context.at.time_ms
    _describe(slot, isolation, cpus)
    state.changes.slot_moved(slot)


def grant(context: EventContext, slot: Slot) -> None:
    """A slot that was carved goes to its request."""
    request = context.state.requests[slot.allocation_id]
    context.state.transitions.move_request(request, RequestInput.CONFIRM)
    threads.begin(slot, context.now_ms)
    _serves(context, context.host_of(slot), request)
    context.job_event(request, slot=slot)
    context.slot_event("slot_granted", slot)


def _serves(context: EventContext, host: Host, request: Request) -> None:
    """Whatever the host refused of this shape is over, and others of the shape may come."""
    refusal = host.refusals.pop(scheduling_key(request.spec), None) if host.refusals else None
    if refusal is not None and refusal.active:
        context.state.hosts.indexes.log_growth(host, context.state.queue)


def reclaim(
    context: EventContext, slot: Slot, *, isolation: dict[str, object] | None = None, cpus: str = ""
) -> None:
    """A lost executor came back with a slot that its request still waits for."""
    state = context.state
    request = state.requests[slot.allocation_id]
    state.queue.remove(request)
    no_longer_behind(state, slot)
    state.transitions.move_slot(slot, SlotInput.RECLAIM)
    usage.taken_back(state.flows, slot)
    state.transitions.move_request(request, RequestInput.RECLAIM)
    slot.allocated_time_ms = slot.allocated_time_ms or context.at.time_ms
    slot.grace_ms = None
    _describe(slot, isolation, cpus)
    context.host_of(slot).to_free.pop(key_of(slot), None)
    resume(context, slot)
    state.changes.slot_moved(slot)
    keep_move(state.ranges, state.changes, request)
    context.job_event(request, slot=slot)
    context.slot_event("slot_reclaimed", slot)


def free(context: EventContext, slot: Slot, grace_ms: int | None = None) -> None:
    """Begins to take a slot down; one that was never ordered is gone at once.

    Its row is not touched: a slot that no living request has is one that is being taken down, also
    after a restart.
    """
    state = context.state
    host = context.host_of(slot)
    key = key_of(slot)
    if key in host.to_allocate:
        vanish(context, slot)
        return
    if slot.state is not SlotState.FREEING:
        usage.stopped(state, slot)
    state.transitions.move_slot(slot, SlotInput.FREE)
    leave_behind(state.requests, state.slots, slot)
    stop(context, slot)
    slot.thread_since_ms = None
    slot.grace_ms = grace_ms
    host.to_free[key] = None
    state.outbox[host.host_id] = None


def vanish(context: EventContext, slot: Slot) -> None:
    """The slot is known not to exist: its capacity is free again."""
    state = context.state
    was_freeing = slot.state is SlotState.FREEING
    if not was_freeing:
        usage.stopped(state, slot)
    state.transitions.move_slot(slot, SlotInput.VANISH)
    host = context.host_of(slot)
    key = key_of(slot)
    stop(context, slot)
    host.drop(key)
    state.hosts.in_use -= not host.slots
    no_longer_behind(state, slot)
    if slot.assignment is not None and (slot.assignment.cpus or slot.assignment.numa):
        # Its cpus and nodes may be all that somebody waits for, whatever amounts have grown.
        state.hosts.indexes.log_growth(host, state.queue)
    del state.slots[key]
    if slot.job_id in state.jobs:
        state.jobs[slot.job_id].slot_keys.discard(key)
    usage.gone(state, slot)
    state.changes.delete_slot(slot)
    state.hosts.touch(host)
    if was_freeing:
        context.slot_event("slot_freed", slot)


def requeue(context: EventContext, request: Request, slot: Slot, reason: str, message: str) -> None:
    """Back to the old place in line, unless its job has ended. (The place of a gang's member is
    that of its gang, which `lifecycle/gangs.py` puts there.)

    The job master is told if it had been offered the slot.
    """
    state = context.state
    was_granted = request.state is RequestState.GRANTED
    state.transitions.move_request(request, RequestInput.REQUEUE)
    if request.job_id not in state.endings and not request.spec.gang_id:
        state.queue.add(request)
        if not request.spec.allow_pending:
            shape = state.queue.shape_of(request.spec)
            state.rejection_clock.requeued(shape, context.now_ms)
    keep_move(state.ranges, state.changes, request)
    if was_granted:
        context.job_event(request, reason=reason, message=message, slot=slot)


def lose(context: EventContext, slot: Slot, reason: str, message: str) -> None:
    """The slot's request has lost it: back in line if it was never granted or wants another one,
    else ended.

    What becomes of the slot itself is the caller's next move.
    """
    request = context.state.requests.served_by(slot)
    if request is None:
        return
    context.slot_event("slot_lost", slot, reason=reason, message=message)
    if request.state is RequestState.ALLOCATING or request.spec.restart_on_loss:
        requeue(context, request, slot, reason, message)
    else:
        end_request(context, request, RequestInput.LOSE, reason=reason, message=message, slot=slot)


def end_request(
    context: EventContext,
    request: Request,
    how: RequestInput,
    *,
    reason: str = "",
    message: str = "",
    slot: Slot | None = None,
) -> None:
    """Ends a request and tells its job master."""
    state = context.state
    state.transitions.move_request(request, how)
    if request.state not in ENDED_REQUEST_STATES:
        raise AssertionError(f"{how} does not end a request")
    state.queue.remove(request)
    request.reason = reason
    request.message = message
    request.end_time_ms = context.at.time_ms
    keep_end(state, request)
    context.job_event(request, reason=reason, message=message, slot=slot)


def reject(context: EventContext, request: Request, reason: str, message: str) -> None:
    """Ends a request that may not wait any longer."""
    end_request(context, request, RequestInput.REJECT, reason=reason, message=message)
    context.cluster_event(
        "request_rejected",
        job_id=request.job_id,
        allocation_id=request.allocation_id,
        reason=reason,
        message=message,
    )


def give_up(
    context: EventContext,
    request: Request,
    *,
    reason: str = "",
    message: str = "",
    grace_ms: int | None = None,
) -> None:
    """Ends a living request on somebody's wish: a waiting one is cancelled, a slot is taken
    down.
    """
    slot = context.state.slots.of(request)
    how = RequestInput.RELEASE if request.state is RequestState.GRANTED else RequestInput.CANCEL
    end_request(context, request, how, reason=reason, message=message, slot=slot)
    if slot is not None:
        if how is RequestInput.RELEASE and not reason:  # by its job master, not taken away
            threads.end(context.state.jobs[slot.job_id], slot, context.now_ms)
        free(context, slot, grace_ms)
    if how is RequestInput.CANCEL:
        context.cluster_event(
            "request_cancelled",
            job_id=request.job_id,
            allocation_id=request.allocation_id,
            reason=reason,
            message=message,
        )


def decline(context: EventContext, slot: Slot) -> None:
    """The job master did not take the executor's direct offer: the request ends, the slot is
    gone.
    """
    request = context.state.requests.served_by(slot)
    if request is not None:
        message = "its job master did not accept the offered slot in time"
        reason = Reason.OFFER_NOT_ACCEPTED
        end_request(
            context, request, RequestInput.DECLINE, reason=reason, message=message, slot=slot
        )
        context.slot_event("slot_declined", slot, reason=reason, message=message)
    vanish(context, slot)


def _describe(slot: Slot, isolation: dict[str, object] | None, cpus: str) -> None:
    if isolation is not None:
        slot.isolation = isolation
    if cpus:
        slot.cpus = cpus


def leave_behind(requests: Requests, slots: Slots, slot: Slot) -> None:
    """A slot is being taken down; its request, if it lives on, is to have another one."""
    request = requests.get(slot.allocation_id)
    if request is not None and request.state not in ENDED_REQUEST_STATES:
        slots.leave_behind(slot)


def no_longer_behind(state: State, slot: Slot) -> None:
    """A slot that may have been left behind is gone, or its request's again."""
    if not state.slots.no_longer_behind(slot):
        return
    request = state.requests.get(slot.allocation_id)  # none: a member that has ended
    gang = state.gangs.of(request) if request is not None else None
    if gang is not None:
        state.queue.singles.wake(gang.arrival_number)  # it may go there now
