"""The life of an executor that was asked for: from the wish until its provider says that nothing is
left of it.

ASKED is durable before any provider is told, so that a resource manager that is killed knows of
everything that it may have started. What fails, is late, idle, surplus or lost for too long is
STOPPING: its provider is told until it confirms, and only then it is struck from the books, without
waiting for it to be lost. Why one is asked for or given back, `passes.py` decides.
"""

from __future__ import annotations

from finegrain.errors import IllegalTransition
from resource_manager.engine.context import EventContext
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle import usage
from resource_manager.engine.lifecycle.departures import forget_settings, lose_executor, strike
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.effects import StartExecutor, StopExecutor
from resource_manager.engine.model.entities import ExecutorState, Provision, ProvisionState
from resource_manager.engine.model.events import (
    ProvisionEnded,
    ProvisionFailed,
    ProvisionStarted,
    ProvisionStopFailed,
)
from resource_manager.engine.model.settings import ExecutorShape
from resource_manager.engine.model.state_tables import DrainInput
from resource_manager.engine.model.timers import Timer, backoff_ms
from resource_manager.engine.placement.elastic import NUMBER, PENDING, Elastic

_P = ProvisionState
PROVISION_MOVES = frozenset(
    {
        (_P.ASKED, _P.STARTED),
        (_P.ASKED, _P.REGISTERED),
        (_P.ASKED, _P.STOPPING),
        (_P.STARTED, _P.REGISTERED),
        (_P.STARTED, _P.STOPPING),
        (_P.REGISTERED, _P.STOPPING),
    }
)
"""Everything else is a bug. From every state it may be known to have ended; then it is gone."""


def ask(context: EventContext, shape: ExecutorShape, cause: str) -> Provision:
    """Asks for one more executor of a shape."""
    state = context.state
    number = next_number(state.elastic, state.changes)
    provision = Provision(
        executor_id=f"{shape.name}-{state.rm_epoch}-{number}",
        shape=shape.name,
        number=number,
        cause=cause,
        ask_time_ms=context.at.time_ms,
        deadline_at_ms=context.now_ms + shape.start_timeout_ms,
    )
    state.provisions[provision.executor_id] = provision
    _changed(context, provision)
    context.effects.append(StartExecutor(provision.executor_id, shape.name))
    _event(context, "provision_asked", provision, cause)
    return provision


def next_number(elastic: Elastic, changes: ChangeTracker) -> int:
    """Number of the next executor that is asked for."""
    elastic.number += 1
    changes.counter(NUMBER, elastic.number)
    return elastic.number


def resume(context: EventContext) -> None:
    """After a restart: nobody knows what became of what was under way, so it is said again."""
    state = context.state
    for provision in state.provisions.values():
        shape = state.elastic.shapes.get(provision.shape)
        if provision.state in PENDING:
            if shape is None:
                stop(context, provision, f"no shape {provision.shape} is configured any more")
                continue
            provision.deadline_at_ms = context.now_ms + shape.start_timeout_ms
        if provision.state is ProvisionState.ASKED:
            again = StartExecutor(provision.executor_id, provision.shape, again=True)
            context.effects.append(again)
        elif provision.state is ProvisionState.STOPPING:
            _tell_to_stop(context, provision)


def provision_started(context: EventContext, event: ProvisionStarted) -> None:
    """Its provider has started it; it may have registered before that was known."""
    provision = context.state.provisions.get(event.executor_id)
    if provision is None:
        return
    provision.handle = event.handle or provision.handle
    if provision.state is ProvisionState.ASKED:
        move(context, provision, ProvisionState.STARTED, event.message)
        _event(context, "provision_started", provision, event.message)
    else:
        _changed(context, provision)


def provision_failed(context: EventContext, event: ProvisionFailed) -> None:
    """Its provider could not start it. Whatever came of the attempt is stopped."""
    provision = context.state.provisions.get(event.executor_id)
    if provision is not None and provision.state in PENDING:
        fail(context, provision, event.message)


def fail(context: EventContext, provision: Provision, message: str) -> None:
    """One that was asked for does not come."""
    back_off(context, provision.shape, f"{provision.executor_id}: {message}")
    _event(context, "provision_failed", provision, message)
    stop(context, provision, message)


def back_off(context: EventContext, shape: str, message: str) -> None:
    """Does not ask for a shape for a while; failures of the same interval count once."""
    state = context.state
    backoff = state.elastic.backoffs.get(shape)
    if backoff is None:
        return
    backoff.last_failure = message
    if context.now_ms < backoff.until_ms:
        return
    settings = state.settings.provisioning
    pause = backoff_ms(backoff.failures, settings.backoff_min_ms, settings.backoff_max_ms)
    backoff.failures += 1
    backoff.until_ms = context.now_ms + pause
    backoff.until_time_ms = context.at.time_ms + pause


def provision_ended(context: EventContext, event: ProvisionEnded) -> None:
    """Nothing is left of it: it is struck from the books, with its slots if it had any."""
    state = context.state
    provision = state.provisions.pop(event.executor_id, None)
    if provision is None:
        return
    message = event.message or "its provider says that nothing is left of it"
    if provision.state in PENDING:
        back_off(
            context, provision.shape, f"{provision.executor_id}: ended before it came: {message}"
        )
    state.changes.delete_provision(provision)
    _forget(state.elastic, provision.executor_id)
    forget_settings(state.host_settings, state.changes, provision.executor_id)
    _event(context, "provision_ended", provision, message)
    host = state.hosts.get(provision.executor_id)
    if host is not None:
        if host.executor.state is not ExecutorState.LOST:
            lose_executor(context, host, f"executor {host.host_id} has ended: {message}")
        strike(context, host)


def provision_stop_failed(context: EventContext, event: ProvisionStopFailed) -> None:
    """It is told again later."""
    provision = context.state.provisions.get(event.executor_id)
    if provision is None or provision.state is not ProvisionState.STOPPING:
        return
    settings = context.state.settings.provisioning
    pause = backoff_ms(provision.stop_failures, settings.backoff_min_ms, settings.backoff_max_ms)
    provision.stop_failures += 1
    provision.message = f"could not be stopped: {event.message}"
    _changed(context, provision)
    context.state.timers.arm(Timer.PROVISION, provision.executor_id, context.now_ms + pause)


def provision_rang(context: EventContext, executor_id: str) -> None:
    """Tells a provider once more to stop an executor."""
    provision = context.state.provisions.get(executor_id)
    if provision is not None and provision.state is ProvisionState.STOPPING:
        _tell_to_stop(context, provision)


def stop(context: EventContext, provision: Provision, message: str) -> None:
    """Gives an executor back, whatever it has; nothing more is placed on it."""
    move(context, provision, ProvisionState.STOPPING, message)
    provision.deadline_at_ms = None
    _forget(context.state.elastic, provision.executor_id)
    host = context.state.hosts.get(provision.executor_id)
    if host is not None:
        drain(context, host, message)
    _event(context, "provision_stopping", provision, message)
    _tell_to_stop(context, provision)


def drain(context: EventContext, host: Host, message: str) -> None:
    """Nothing more is placed on an executor that is given back."""
    executor = host.executor
    if executor.draining:
        return
    context.state.transitions.move_drain(executor, DrainInput.DRAIN)
    executor.drain_reason = f"is given back: {message}"
    context.state.changes.executor(executor)
    usage.total_changed(context.state.hosts, context.state.costs, host)


def registered(context: EventContext, provision: Provision, host: Host) -> None:
    """It came. One that is given back already is not used."""
    if provision.state is ProvisionState.STOPPING:
        drain(context, host, provision.message)
    elif provision.state in PENDING:
        move(context, provision, ProvisionState.REGISTERED, "registered")
        provision.deadline_at_ms = provision.idle_since_ms = None


def proved(context: EventContext, provision: Provision) -> None:
    """It came and is of use: that ends the back-off of its shape."""
    context.state.elastic.verdicts[provision.executor_id] = True
    backoff = context.state.elastic.backoffs.get(provision.shape)
    if backoff is not None:
        backoff.failures = backoff.until_ms = 0


def move(context: EventContext, provision: Provision, to: ProvisionState, message: str) -> None:
    """Moves a provision.

    Raises:
        IllegalTransition: the table does not list the move.
    """
    if (provision.state, to) not in PROVISION_MOVES:
        raise IllegalTransition(
            f"provision {provision.executor_id} is {provision.state}, which does not allow {to}",
            details={"entity": provision.executor_id, "state": provision.state, "input": to},
        )
    provision.state = to
    provision.message = message
    _changed(context, provision)


def is_lost(host: Host | None) -> bool:
    """True if an executor is out of sight."""
    return host is not None and host.executor.state is ExecutorState.LOST


def _tell_to_stop(context: EventContext, provision: Provision) -> None:
    """Tells its provider, and once more if no answer comes for long."""
    told = StopExecutor(provision.executor_id, provision.shape, provision.handle)
    context.effects.append(told)
    patience_ms = context.state.settings.provisioning.backoff_max_ms
    context.state.timers.arm(Timer.PROVISION, provision.executor_id, context.now_ms + patience_ms)


def _forget(elastic: Elastic, executor_id: str) -> None:
    """Nothing is planned on it any more."""
    elastic.plan.drop(executor_id)
    elastic.surplus.discard(executor_id)
    elastic.lost_since_ms.pop(executor_id, None)
    elastic.idle_marks.pop(executor_id, None)
    elastic.verdicts.pop(executor_id, None)


def _changed(context: EventContext, provision: Provision) -> None:
    context.state.elastic.version += 1
    context.state.changes.provision(provision)


def _event(context: EventContext, kind: str, provision: Provision, message: str) -> None:
    context.cluster_event(kind, executor_id=provision.executor_id, message=message)
