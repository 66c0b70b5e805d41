"""Handles executors that register, stop reporting, are drained, or are deleted.

`reports.py` updates slots from the report of a registration.
"""

from __future__ import annotations

from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    Reason,
)
from finegrain.values.states import ExecutorState, ProvidedExecutorState, SlotState
from resource_manager.engine.executors.cpu_states import report_lost_cpus
from resource_manager.engine.executors.reachability import unreachable_registered
from resource_manager.engine.executors.reports import adopt_report, refuse_seen_epoch
from resource_manager.engine.hosts.allowed_cpus import cluster_policy, cordons_for, policy_for
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.known import known_host
from resource_manager.engine.lifecycle.moves import key_of
from resource_manager.engine.model.changes import REGISTERED_WITH
from resource_manager.engine.model.entities import NO_CPU_STATE, Executor, Registration
from resource_manager.engine.model.events import (
    DrainRequested,
    ExecutorRegistered,
    ForgetRequested,
    RegistrationAnswer,
    UndrainRequested,
)
from resource_manager.engine.model.state_tables import DrainInput, RegistrationInput
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.state import State


def register_executor(state: State, event: ExecutorRegistered) -> RegistrationAnswer:
    """Registers a new executor, or starts a new session with a known executor.

    All commands in flight become void. The report in the registration is complete: the slots in the
    report exist, and no other slots exist. An outdated registration would delete slots that exist.
    So a registration is rejected if a later registration or report has already arrived.

    Raises:
        AlreadyExists: another instance has this id and is not lost.
        EpochSeen: the executor has seen a newer resource manager than this one.
        FailedPrecondition: a later registration or report has arrived before this one.
        InvalidArgument: the report in the registration is not a full report.
    """
    registration = event.registration
    # All checks must come before the first change, because a rejected event must not change the
    # state.
    refuse_seen_epoch(state, registration.executor_id, event.report.rm_epoch)
    partial = event.report.unchanged or event.report.as_ordered
    if partial or event.report.report_number < 1:
        raise InvalidArgument(
            "report",
            f"number {event.report.report_number}, unchanged {event.report.unchanged}, "
            f"as_ordered {event.report.as_ordered}",
            "a full state with number 1 or higher",
        )
    host = state.hosts.get(registration.executor_id)
    if host is not None:
        _refuse_other_instance(host, registration)
        _refuse_overtaken(host, registration, event.report.report_number)
    state.answered_executors.add(registration.executor_id)
    state.awaited.stop(registration.executor_id)
    was_lost = host is not None and host.executor.lost  # `_adopt` ends the state LOST
    # `_adopt` resets the command in flight and the earlier reports, so it must come before
    # `adopt_report`.
    host = _adopt(state, host, registration)
    result = adopt_report(state, host, event.report, returning=was_lost)
    # The executor has possibly registered with other cpus than last time.
    report_lost_cpus(state.journal, host)
    # Commands in flight are void, so unconfirmed orders to free or resize slots are sent again.
    for slot in list(host.slots.values()):
        if slot.state is SlotState.FREEING:
            host.to_free[key_of(slot)] = None
            state.outbox[host.host_id] = None
        elif slot.ordered is not None:
            state.resizes.resume(slot)
        if slot.state is not SlotState.PENDING:
            host.to_allocate.pop(key_of(slot), None)
    if host.to_allocate:
        state.outbox[host.host_id] = None
    state.changes.executor(host.executor)
    # The number is stored, so that the next leader also recognizes a late copy of this
    # registration.
    state.changes.counter(REGISTERED_WITH + host.host_id, event.report.report_number)
    state.journal.cluster_event(
        "executor_returned" if was_lost else "executor_registered",
        executor_id=host.host_id,
        message=f"registration {host.executor.registration_number} at {registration.address}",
    )
    setting = state.host_settings.get(host.host_id)
    return RegistrationAnswer(
        host.executor.registration_number,
        result.unowned,
        host_policy=setting.policy if setting is not None else None,
        host_policy_number=setting.number if setting is not None else 0,
    )


def _refuse_other_instance(host: Host, registration: Registration) -> None:
    known = host.executor.registration
    # Another instance is allowed to replace a lost executor, for example on a new machine.
    if known.instance_id != registration.instance_id and not host.executor.lost:
        raise AlreadyExists(
            f"executor_id {host.host_id} is used by another instance at {known.address}, which is"
            " not lost; give this executor another executor_id, or stop the other one, wait until"
            " it is lost, and forget it",
            reason=Reason.INSTANCE_CONFLICT,
            details={"executor_id": host.host_id, "address": known.address},
        )


def _refuse_overtaken(host: Host, registration: Registration, report_number: int) -> None:
    known = host.executor
    if (
        # Each instance numbers its reports from 1, so numbers of two instances cannot be compared.
        known.registration.instance_id == registration.instance_id
        and report_number <= known.report_number
    ):
        raise FailedPrecondition(
            f"report {report_number} of executor {host.host_id} arrived after report"
            f" {known.report_number}; register again with a higher report number",
            reason=Reason.STALE_REGISTRATION,
            details={"executor_id": host.host_id, "report_number": known.report_number},
        )


def _adopt(state: State, host: Host | None, registration: Registration) -> Host:
    """Creates the host of a new executor, or resets a known executor's host for a new session."""
    new = host is None
    if host is None:
        # An executor with this id was possibly deleted before. So the number must be higher than
        # the numbers of all deleted executors.
        number = state.numbers.forgotten_registration + 1
        executor = Executor(registration, number, first_seen_time_ms=state.journal.at.time_ms)
        executor_id = registration.executor_id
        host = Host.of(
            executor,
            policy_for(state.host_settings, executor_id),
            cluster_policy(state.host_settings, state.settings.cluster_policy),
            cordons_for(state.host_settings, executor_id),
        )
        state.hosts[executor_id] = host
    else:
        executor = host.executor
        if host.reach.unreachable:
            # If the resource manager expected no registration, the executor was possibly restarted
            # or repaired. So the executor is probed at once.
            as_expected = executor.state is ExecutorState.UNCONFIRMED
            moved = executor.registration.address != registration.address
            unreachable_registered(
                state.journal,
                state.settings,
                state.timers,
                host,
                changed=moved or not as_expected,
            )
        # A new instance numbers its reports from 1 again.
        if executor.registration.instance_id != registration.instance_id:
            executor.report_number = 0
        executor.registration = registration
        executor.registration_number += 1
    # The values of the last session are reset.
    state.transitions.move_executor(executor, RegistrationInput.REGISTER)
    # Command numbers start again with each registration number.
    executor.command_number = 0
    executor.report_at_ms = state.journal.now_ms
    executor.report_time_ms = state.journal.at.time_ms
    # The available capacity that the last session reported must not count any more.
    executor.reported_available = None
    executor.cpu_state = NO_CPU_STATE
    # `start_conversation` ends all refusals, so refused requests can be tried on this host again.
    if any(refusal.active for refusal in host.refusals.values()):
        state.hosts.indexes.log_growth(host, state.queue)
    host.start_conversation()
    # The bookings are saved first, because `adopt_registration` changes them if the memory pools
    # have changed.
    booked = [(slot, slot.booked) for slot in host.slots.values()]
    kind = host.cpu_kind
    if not new:  # the values of a new host already come from this registration
        host.adopt_registration()
    if host.cpu_kind is not kind:
        # Requests that did not fit on the old cpus possibly fit on the new cpus.
        state.hosts.indexes.log_growth(host, state.queue)
    # The values that depend on the host's capacity are updated.
    state.usage.total_changed(host)
    # The new capacity possibly makes infeasible requests feasible, so their rejection clock starts
    # again.
    state.rejection_clock.restart(state.journal.now_ms)
    # `rebooked` comes after `total_changed`, because the cost of a slot is its share of the new
    # totals.
    state.usage.rebooked(booked)
    state.timers.arm(
        Timer.SILENCE, host.host_id, state.journal.now_ms + state.settings.lost_timeout_ms
    )
    return host


def silence_timer_fired(state: State, executor_id: str) -> None:
    """Marks an executor as lost if it has not reported for too long. The slots of the executor are
    then lost, too.

    The capacity of a lost executor does not count any more. Its slots stay booked until the
    executor returns or is deleted, because a lost executor is possibly still running.
    """
    host = state.hosts.get(executor_id)
    if host is None:
        return
    executor = host.executor
    message = (
        f"executor {executor_id} was silent for {state.journal.now_ms - executor.report_at_ms} ms"
    )
    # free the next slots; each step frees only some of them
    if executor.state is ExecutorState.LOST:
        state.departures.free_lost_slots(host, message)
        return
    # While this process was stopped, it received no reports. So that time does not count as silence
    # of the executor.
    silent_since_ms = max(executor.report_at_ms, state.timers.listening_since_ms)
    due_ms = silent_since_ms + state.settings.lost_timeout_ms
    due_ms = max(due_ms, state.awaited.until_ms_of(executor_id))
    if state.journal.now_ms < due_ms:
        state.timers.arm(Timer.SILENCE, executor_id, due_ms)
        return
    state.awaited.stop(executor_id)
    state.departures.lose_executor(host, message)


def request_drain(state: State, event: DrainRequested) -> Executor:
    """Drains an executor. The executor then gets no new slots. If there is a deadline, its
    remaining slots are freed at the deadline.

    A second call without a reason, such as one that adds a deadline, keeps the first reason.

    Raises:
        NotFound: no such executor.
    """
    host = known_host(state.hosts, event.executor_id)
    executor = host.executor
    reason = event.reason or (executor.drain_reason if executor.draining else "")
    state.transitions.move_drain(executor, DrainInput.DRAIN)
    executor.drain_reason = reason
    executor.drain_deadline_time_ms = executor.drain_deadline_at_ms = None
    if event.deadline_ms is not None:
        executor.drain_deadline_time_ms = state.journal.at.time_ms + event.deadline_ms
        executor.drain_deadline_at_ms = state.journal.now_ms + event.deadline_ms
        state.timers.arm(Timer.DRAIN, host.host_id, executor.drain_deadline_at_ms)
    state.changes.executor(executor)
    state.usage.total_changed(host)
    state.journal.cluster_event("executor_drained", executor_id=host.host_id, message=reason)
    return executor


def request_undrain(state: State, event: UndrainRequested) -> Executor:
    """Ends the drain of an executor.

    Raises:
        NotFound: no such executor.
        FailedPrecondition: the executor is being given back to its provider.
    """
    host = known_host(state.hosts, event.executor_id)
    executor = host.executor
    provision = state.provisions.get(host.host_id)
    # The provider can remove the machine at any time, so no slots must be placed on it.
    if provision is not None and provision.state is ProvidedExecutorState.STOPPING:
        raise FailedPrecondition(
            f"executor {host.host_id} cannot be undrained, because its provider is stopping it"
            f" ({provision.message})",
            details={"executor_id": host.host_id},
        )
    if executor.draining:
        state.transitions.move_drain(executor, DrainInput.UNDRAIN)
        executor.drain_reason = ""
        executor.drain_deadline_time_ms = executor.drain_deadline_at_ms = None
        state.changes.executor(executor)
        state.usage.total_changed(host)
        state.journal.cluster_event("executor_undrained", executor_id=host.host_id)
    return executor


def drain_timer_fired(state: State, executor_id: str) -> None:
    """Frees the slots of an executor whose drain deadline has passed."""
    host = state.hosts.get(executor_id)
    # The executor was deleted, or its drain has ended or has no deadline now.
    if host is None or host.executor.drain_deadline_at_ms is None:
        return
    # A later drain request has moved the deadline.
    if state.journal.now_ms < host.executor.drain_deadline_at_ms:
        state.timers.arm(Timer.DRAIN, executor_id, host.executor.drain_deadline_at_ms)
        return
    message = (
        f"executor {executor_id} was drained: {host.executor.drain_reason or 'no reason given'}"
    )
    state.departures.free_slots(host, Reason.EXECUTOR_DRAINED, message, then=Timer.DRAIN)


def forget_executor(state: State, event: ForgetRequested) -> None:
    """Deletes a lost executor and its slots. An awaited executor (which ran a version without
    certificates) can be deleted, too.

    Raises:
        NotFound: no such executor.
        FailedPrecondition: the executor is not lost and not awaited.
    """
    host = known_host(state.hosts, event.executor_id)
    if host.host_id in state.awaited:
        state.awaited.stop(host.host_id)
        state.departures.lose_executor(host, f"executor {host.host_id} is not awaited any more")
    # An executor that is not lost can still report. If it were deleted, the slots in its reports
    # would belong to no request.
    if host.executor.state is not ExecutorState.LOST:
        raise FailedPrecondition(
            f"executor {host.host_id} is {host.executor.state}, but only a lost executor can be"
            " forgotten; stop it first, and wait until it is lost",
            reason=Reason.EXECUTOR_NOT_LOST,
            details={"executor_id": host.host_id, "state": host.executor.state},
        )
    state.departures.delete_executor(host)
