"""Handles unreachable executors: they register and report, but the resource manager cannot connect
to them.

Possible causes are a wrong address, a firewall or a certificate. Without this module, commands to
such an executor would stay in flight indefinitely, and requests placed there would never be
granted.

The outcome of the command in flight is unknown. So the executor must register again. The
registration shows which slots exist. After the registration, the executor ignores older commands.
Requests whose slots do not exist are queued again. No command is sent until a probe shows that the
executor can be reached. A probe changes nothing on the executor.
"""

from __future__ import annotations

from finegrain.errors import Reason
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import Reach
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.usage import UsageAccounting
from resource_manager.engine.model.effects import ProbeExecutor
from resource_manager.engine.model.entities import SlotKey
from resource_manager.engine.model.events import ExecutorProbed
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.state_tables import ReachInput, RegistrationInput
from resource_manager.engine.model.timers import Timer, Timers, backoff_ms
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.state import State


def delivery_overdue(journal: Journal, settings: EngineSettings, host: Host) -> bool:
    """Returns True if deliveries of the command in flight have failed for too long.

    The function must be called only after a report of the executor, because an executor that does
    not report becomes lost instead of unreachable.

    Args:
        journal: the journal, which has the current time.
        settings: the settings, with the limit `unreachable_after_ms`.
        host: the executor.
    """
    command = host.in_flight
    if command is None or command.failing_since_ms is None:
        return False
    return journal.now_ms - command.failing_since_ms >= settings.unreachable_after_ms


def find_unreachable(
    journal: Journal, transitions: Transitions, usage: UsageAccounting, host: Host
) -> None:
    """Marks an executor as unreachable. No slots are placed on the executor until it is reachable,
    and it must register again.

    The command in flight is dropped, because the registration will show its outcome.

    Args:
        journal: the journal, to which the event is written.
        transitions: the state tables.
        usage: the usage accounting, which must be updated, because the capacity of the host no
            longer counts.
        host: the executor.
    """
    reach = host.reach
    reach.unreachable = transitions.move_reach(
        host.host_id, unreachable=reach.unreachable, what=ReachInput.FAIL
    )
    reach.failures += 1
    # The command will get no answer. If the command stayed in flight, it would block all other
    # commands.
    host.in_flight = None
    transitions.move_executor(host.executor, RegistrationInput.DISTRUST)
    # The host is now offline, so its capacity no longer counts for requests.
    usage.total_changed(host)
    address = host.executor.registration.address
    journal.cluster_event(
        "executor_unreachable",
        executor_id=host.host_id,
        reason=Reason.UNREACHABLE,
        message=f"it reports, but commands do not reach it at {address}: {reach.cause}",
    )


def unreachable_registered(
    journal: Journal, settings: EngineSettings, timers: Timers, host: Host, *, changed: bool
) -> None:
    """Plans the next probe of an unreachable executor that has registered.

    Args:
        journal: the journal, which has the current time.
        settings: the settings, with the limits of the pause between probes.
        timers: the timers, where the timer of the probe is armed.
        host: the executor.
        changed: True if the cause was possibly removed. The probe is then made at once.
    """
    reach = host.reach
    # Earlier failures no longer count, so the next pause is short again.
    if changed:
        reach.failures = 0
    _plan_probe(
        timers, host, journal.now_ms if changed else journal.now_ms + _pause_ms(settings, reach)
    )


def probe_timer_fired(state: State, executor_id: str) -> None:
    """Probes an unreachable executor, and plans the next probe."""
    host = state.hosts.get(executor_id)
    if host is None or not host.reach.unreachable:
        return
    if host.executor.state is not ExecutorState.ACTIVE:
        return  # the probe is planned when the executor registers
    reach = host.reach
    # The timer was possibly armed for an earlier time than that of the next probe.
    if state.journal.now_ms < reach.probe_at_ms:
        state.timers.arm(Timer.PROBE, executor_id, reach.probe_at_ms)
        return
    # The probe counts as failed until the executor answers. So a probe without an answer lengthens
    # the pause, too.
    reach.failures += 1
    state.journal.effects.append(ProbeExecutor(executor_id, host.executor.registration.address))
    _plan_probe(state.timers, host, state.journal.now_ms + _pause_ms(state.settings, reach))


def executor_probed(state: State, event: ExecutorProbed) -> None:
    """Handles the result of a probe. If the executor has answered, slots are placed on it again."""
    host = state.hosts.get(event.executor_id)
    if (
        host is None
        or not host.reach.unreachable
        # A result for an older address is ignored.
        or host.executor.registration.address != event.address
    ):
        return
    if event.cause:
        # Only the cause is updated, because the next probe is planned already.
        host.reach.cause = event.cause
        return
    host.reach.unreachable = state.transitions.move_reach(
        host.host_id, unreachable=host.reach.unreachable, what=ReachInput.ANSWER
    )
    host.reach.cause = ""
    host.reach.refused = 0
    state.usage.total_changed(host)
    # A command is possibly due, for example because slots must be freed.
    state.outbox[host.host_id] = None
    state.journal.cluster_event(
        "executor_reachable",
        executor_id=host.host_id,
        message=f"it answers at {event.address} again",
    )


def command_arrived(host: Host) -> None:
    """Records that the executor answered a command, and resets the failure counters of the
    executor.
    """
    # Only the answer to a probe makes an unreachable executor reachable, because an answer to a
    # command can be late.
    if not host.reach.unreachable:
        host.reach = Reach()


def frees_for_report(host: Host) -> tuple[SlotKey, ...]:
    """Returns the slots that an unreachable executor must free. The answer to its report has this
    order.

    Commands do not reach the executor, but answers to its reports do.
    """
    if not host.reach.unreachable:
        return ()
    # A slot needs no order if the report does not contain the slot, or shows it as FREEING.
    return tuple(key for key in host.to_free if host.reported.get(key) is SlotState.ALLOCATED)


def _plan_probe(timers: Timers, host: Host, at_ms: int) -> None:
    host.reach.probe_at_ms = at_ms
    timers.arm(Timer.PROBE, host.host_id, at_ms)


def _pause_ms(settings: EngineSettings, reach: Reach) -> int:
    # `failures` includes the current failure. Subtract 1, so that the first pause is the shortest.
    return backoff_ms(max(0, reach.failures - 1), settings.probe_min_ms, settings.probe_max_ms)
