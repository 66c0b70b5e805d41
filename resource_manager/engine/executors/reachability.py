"""Executors that register and report, and that the RM cannot dial: a wrong address, a firewall,
certificates.

Without this their commands would stay in flight for ever, and so would the requests placed there.
Waiting settles nothing, since nobody knows what became of a command; a registration does: it shows
what is there, and with it all older commands are void. So the executor is told to register again,
what is not there goes back in line, and nothing is ordered here until the executor can be dialled.
Whether it can, probes find out, which ask nothing of it.
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
    """True if the command in flight has failed to arrive for too long.

    To be asked when the executor has reported: one that is silent as well is a matter of the lost
    timeout.
    """
    command = host.in_flight
    if command is None or command.failing_since_ms is None:
        return False
    return journal.now_ms - command.failing_since_ms >= settings.unreachable_after_ms


def find_unreachable(
    journal: Journal, transitions: Transitions, usage: UsageAccounting, host: Host
) -> None:
    """Nothing more is placed here, and nothing believed of it holds until it registers again."""
    reach = host.reach
    reach.unreachable = transitions.move_reach(
        host.host_id, unreachable=reach.unreachable, what=ReachInput.FAIL
    )
    reach.failures += 1
    host.in_flight = None
    transitions.move_executor(host.executor, RegistrationInput.DISTRUST)
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
    """Plans the next probe; at once if something `changed` that may have been the obstacle."""
    reach = host.reach
    if changed:
        reach.failures = 0
    _plan_probe(
        timers, host, journal.now_ms if changed else journal.now_ms + _pause_ms(settings, reach)
    )


def probe_timer_fired(context: EventContext, executor_id: str) -> None:
    """Has an unreachable executor dialled, and plans the next time in case that fails."""
    host = context.state.hosts.get(executor_id)
    if host is None or not host.reach.unreachable:
        return
    if host.executor.state is not ExecutorState.ACTIVE:
        return  # its registration plans the next one
    reach = host.reach
    if context.now_ms < reach.probe_at_ms:
        context.state.timers.arm(Timer.PROBE, executor_id, reach.probe_at_ms)
        return
    reach.failures += 1
    context.journal.effects.append(ProbeExecutor(executor_id, host.executor.registration.address))
    _plan_probe(
        context.state.timers, host, context.now_ms + _pause_ms(context.state.settings, reach)
    )


def executor_probed(context: EventContext, event: ExecutorProbed) -> None:
    """An executor that answers is used again."""
    host = context.state.hosts.get(event.executor_id)
    if (
        host is None
        or not host.reach.unreachable
        or host.executor.registration.address != event.address
    ):
        return
    if event.cause:
        host.reach.cause = event.cause
        return
    host.reach.unreachable = context.state.transitions.move_reach(
        host.host_id, unreachable=host.reach.unreachable, what=ReachInput.ANSWER
    )
    host.reach.cause = ""
    host.reach.refused = 0
    context.state.usage.total_changed(host)
    context.state.outbox[host.host_id] = None
    context.journal.cluster_event(
        "executor_reachable",
        executor_id=host.host_id,
        message=f"it answers at {event.address} again",
    )


def command_arrived(host: Host) -> None:
    """The executor can be dialled, and does what it is told."""
    if not host.reach.unreachable:
        host.reach = Reach()


def frees_for_report(host: Host) -> tuple[SlotKey, ...]:
    """Slots that an unreachable executor is told to free with the answer to its report, since no
    command gets there.
    """
    if not host.reach.unreachable:
        return ()
    return tuple(key for key in host.to_free if host.reported.get(key) is SlotState.ALLOCATED)


def _plan_probe(timers: Timers, host: Host, at_ms: int) -> None:
    host.reach.probe_at_ms = at_ms
    timers.arm(Timer.PROBE, host.host_id, at_ms)


def _pause_ms(settings: EngineSettings, reach: Reach) -> int:
    return backoff_ms(max(0, reach.failures - 1), settings.probe_min_ms, settings.probe_max_ms)
