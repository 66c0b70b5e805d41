"""Handles executors that register and report, but that the resource manager cannot dial.

The cause may be a wrong address, a firewall or certificates. Their commands would stay in flight
forever, and so would the requests placed there. Waiting does not help, because the outcome of
these commands is unknown. A registration does help: it shows which slots exist, and voids older
commands.

So the executor must register again. Requests whose slots are not there go back to the queue.
No command is sent until the executor can be dialled, which probes find out. A probe asks nothing of
the executor.
"""

from __future__ import annotations

from finegrain.errors import Reason
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.context import EventContext
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


def delivery_overdue(journal: Journal, settings: EngineSettings, host: Host) -> bool:
    """Returns True if the command in flight has failed to arrive for too long.

    Called when the executor has reported. An executor that is silent as well becomes lost by its
    own timeout.

    Args:
        journal: for the present time.
        settings: for the limit, `unreachable_after_ms`.
        host: the executor.
    """
    command = host.in_flight
    if command is None or command.failing_since_ms is None:
        return False
    return journal.now_ms - command.failing_since_ms >= settings.unreachable_after_ms


def find_unreachable(
    journal: Journal, transitions: Transitions, usage: UsageAccounting, host: Host
) -> None:
    """Marks an executor unreachable: nothing more is placed there, and it must register again.

    The command in flight is dropped, since the registration will show its outcome.

    Args:
        journal: where the event is written.
        transitions: the state tables.
        usage: updated, because the host's capacity does not count any more.
        host: the executor.
    """
    reach = host.reach
    reach.unreachable = transitions.move_reach(
        host.host_id, unreachable=reach.unreachable, what=ReachInput.FAIL
    )
    reach.failures += 1
    # Without an answer, its outcome is unknown. Kept, it would block all other commands.
    host.in_flight = None
    transitions.move_executor(host.executor, RegistrationInput.DISTRUST)
    # The host is offline from here on, which changes what the cluster can host.
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
        journal: for the present time.
        settings: the limits of the pause between probes.
        timers: where the probe is planned.
        host: the executor.
        changed: something has changed that may have been the obstacle; the probe is made at once.
    """
    reach = host.reach
    # With a new address or a new process, earlier failures say nothing.
    if changed:
        reach.failures = 0
    _plan_probe(
        timers, host, journal.now_ms if changed else journal.now_ms + _pause_ms(settings, reach)
    )


def probe_timer_fired(context: EventContext, executor_id: str) -> None:
    """Probes an unreachable executor, and plans the next probe in case this one fails."""
    host = context.state.hosts.get(executor_id)
    if host is None or not host.reach.unreachable:
        return
    if host.executor.state is not ExecutorState.ACTIVE:
        return  # the probe is planned when it registers
    reach = host.reach
    # The timer may be one that was armed for an earlier attempt.
    if context.now_ms < reach.probe_at_ms:
        context.state.timers.arm(Timer.PROBE, executor_id, reach.probe_at_ms)
        return
    # Counted before the answer: a probe that is never answered must lengthen the pause as well.
    reach.failures += 1
    context.journal.effects.append(ProbeExecutor(executor_id, host.executor.registration.address))
    _plan_probe(
        context.state.timers, host, context.now_ms + _pause_ms(context.state.settings, reach)
    )


def executor_probed(context: EventContext, event: ExecutorProbed) -> None:
    """Uses an executor again that has answered a probe."""
    host = context.state.hosts.get(event.executor_id)
    if (
        host is None
        or not host.reach.unreachable
        # An answer about an older address is ignored.
        or host.executor.registration.address != event.address
    ):
        return
    if event.cause:
        # The next probe is planned already.
        host.reach.cause = event.cause
        return
    host.reach.unreachable = context.state.transitions.move_reach(
        host.host_id, unreachable=host.reach.unreachable, what=ReachInput.ANSWER
    )
    host.reach.cause = ""
    host.reach.refused = 0
    context.state.usage.total_changed(host)
    # Slots that had to be taken down meanwhile wait for a command.
    context.state.outbox[host.host_id] = None
    context.journal.cluster_event(
        "executor_reachable",
        executor_id=host.host_id,
        message=f"it answers at {event.address} again",
    )


def command_arrived(host: Host) -> None:
    """Notes that a command was answered, so the executor can be dialled. Forgets earlier
    failures.
    """
    # A late answer to an old command does not end unreachability; only a probe does.
    if not host.reach.unreachable:
        host.reach = Reach()


def frees_for_report(host: Host) -> tuple[SlotKey, ...]:
    """Returns the slots that an unreachable executor must free, for the answer to its report.

    No command gets there, but the answer to its own report does.
    """
    if not host.reach.unreachable:
        return ()
    # Slots that the report does not show, or shows as ending, need no order.
    return tuple(key for key in host.to_free if host.reported.get(key) is SlotState.ALLOCATED)


def _plan_probe(timers: Timers, host: Host, at_ms: int) -> None:
    host.reach.probe_at_ms = at_ms
    timers.arm(Timer.PROBE, host.host_id, at_ms)


def _pause_ms(settings: EngineSettings, reach: Reach) -> int:
    # `failures` counts this one already, and the first pause is the shortest.
    return backoff_ms(max(0, reach.failures - 1), settings.probe_min_ms, settings.probe_max_ms)
