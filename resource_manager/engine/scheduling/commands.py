"""Processes the answers to commands and the failed deliveries of commands. `dispatch.py` sends the
commands.

A report can arrive before or after the answer to a command. If a report that arrives before the
answer contains a slot of the command, the slot is confirmed. If such a report lacks the slot, the
state of the slot is not known yet.
"""

from __future__ import annotations

from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import SlotState
from resource_manager.engine.executors.reachability import command_arrived, find_unreachable
from resource_manager.engine.executors.refusals import remember_refusal
from resource_manager.engine.executors.reports import adopt_report, settle
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.usage import UsageAccounting
from resource_manager.engine.model.effects import SendResize
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.model.events import CommandAnswered, CommandRefused, CommandUndelivered
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.state_tables import RegistrationInput
from resource_manager.engine.model.timers import Timer, Timers, backoff_ms
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.state import State


def command_answered(state: State, event: CommandAnswered) -> None:
    """Processes the outcome of each item of a command, and then the report that the answer
    contains.
    """
    host = _host_of_command(state.hosts, event)
    if host is None or host.in_flight is None:
        return
    command = host.in_flight
    command_arrived(host)
    # Collect the slots that the executor did not carve. For slots that the executor did not free,
    # schedule another attempt.
    refused: list[tuple[Slot, ItemOutcome]] = []
    for key, outcome in zip(command.keys, event.outcomes, strict=False):
        slot = host.slots.get(key)
        # The outcome of a resize is processed below, after the report has been adopted.
        if slot is None or not outcome.reason or command.resizes:
            continue
        if command.allocates:
            refused.append((slot, outcome))
        else:
            _free_failed(state.journal, state.settings, state.timers, host, slot)
    # The back-off for failed frees ends only when a command has freed all its slots.
    if not any(outcome.reason for outcome in event.outcomes):
        host.frees_failed = 0 if command.frees else host.frees_failed
    for slot, outcome in refused:
        _refused(state, slot, outcome)
    # Clear `in_flight` before the report is adopted. While a command is in flight, a slot that the
    # report lacks does not count as missing (`Host.contains`).
    host.in_flight = None
    state.outbox[host.host_id] = None
    result = adopt_report(state, host, event.report, answered=command)
    if result.base_missing:
        _distrust(
            state.journal,
            state.transitions,
            state.usage,
            host,
            "it answered a command without a full report",
        )
        return
    # the report was not adopted, because a newer report, which contains the command's effects, was
    # processed before
    if not result.adopted:
        host.contained_command = max(host.contained_command, event.command_number)
        settle(state, host)
    # Remember the refusals only after the report has been adopted: a refusal ends when a later
    # report differs from the adopted report.
    for slot, _ in refused:
        remember_refusal(state, host, slot)
    if isinstance(command.effect, SendResize):
        outcome = event.outcomes[0] if event.outcomes else ItemOutcome(command.keys[0][0])
        state.resizes.resize_answered(host, command.keys[0], command.effect.resize.number, outcome)


def command_refused(state: State, event: CommandRefused) -> None:
    """Processes the refusal of a whole command. The executor refuses a command if it does not
    accept the command's numbers.

    The resource manager's state of the executor is possibly wrong, so the executor must register
    again. After `refused_commands_max` refusals the executor counts as unreachable. An executor
    that has seen a newer epoch proves this when it registers.
    """
    host = _host_of_command(state.hosts, event)
    if host is None:
        return
    why = f"it refused command {event.command_number}"
    host.reach.refused += 1
    if host.reach.refused >= state.settings.refused_commands_max:
        host.reach.cause = (
            f"{why} with {event.reason}, and {host.reach.refused - 1} earlier commands; another"
            " executor may listen at this address"
        )
        find_unreachable(state.journal, state.transitions, state.usage, host)
        return
    _distrust(
        state.journal,
        state.transitions,
        state.usage,
        host,
        why,
        reason=event.reason,
    )


def _distrust(
    journal: Journal,
    transitions: Transitions,
    usage: UsageAccounting,
    host: Host,
    why: str,
    *,
    reason: str = "",
) -> None:
    # After the executor has registered, it gets its orders again in commands with new numbers.
    host.in_flight = None
    transitions.move_executor(host.executor, RegistrationInput.DISTRUST)
    # The call increases `hosts.version`, so that reservations on the host are checked again.
    usage.total_changed(host)
    journal.cluster_event(
        "executor_distrusted",
        executor_id=host.host_id,
        reason=reason,
        message=f"{why}; it must register again",
    )


def command_undelivered(state: State, event: CommandUndelivered) -> None:
    """Schedules another delivery of a command whose outcome is unknown. The delivery repeats the
    number and content of the command.
    """
    host = _host_of_command(state.hosts, event)
    if host is None or host.in_flight is None:
        return
    settings = state.settings
    command = host.in_flight
    delay = backoff_ms(
        command.failures, settings.command_retry_min_ms, settings.command_retry_max_ms
    )
    command.failures += 1
    if command.failing_since_ms is None:
        command.failing_since_ms = state.journal.now_ms
    host.reach.cause = event.cause
    command.retry_at_ms = state.journal.now_ms + delay
    state.timers.arm(Timer.COMMAND, host.host_id, command.retry_at_ms)


def _host_of_command(
    hosts: Hosts, event: CommandAnswered | CommandRefused | CommandUndelivered
) -> Host | None:
    """Returns the host if the event is about the host's command in flight. Returns None if the
    event is outdated.
    """
    host = hosts.get(event.executor_id)
    if (
        host is None
        or host.in_flight is None
        or host.executor.registration_number != event.registration_number
        or host.in_flight.number != event.command_number
    ):
        return None
    return host


def _free_failed(
    journal: Journal, settings: EngineSettings, timers: Timers, host: Host, slot: Slot
) -> None:
    delay = backoff_ms(
        host.frees_failed, settings.command_retry_min_ms, settings.command_retry_max_ms
    )
    host.frees_failed += 1
    host.frees_paused_until_ms = journal.now_ms + delay
    host.to_free[slot.allocation_id, slot.generation] = None
    timers.arm(Timer.COMMAND, host.host_id, host.frees_paused_until_ms)


def _refused(state: State, slot: Slot, outcome: ItemOutcome) -> None:
    """Deletes a slot that the executor did not carve, and puts its request back into the queue at
    its old position.
    """
    if slot.state is SlotState.ALLOCATED:
        # a report has shown the slot, so the answer is about an earlier attempt to carve the slot
        return
    request = state.requests.served_by(slot)
    if request is not None:
        state.gang_moves.requeue(request, slot, outcome.reason, outcome.message)
    state.journal.slot_event(
        "allocation_refused", slot, reason=outcome.reason, message=outcome.message
    )
    state.moves.vanish(slot)
