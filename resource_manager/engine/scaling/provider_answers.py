"""Handles what providers report about orders to start or stop executors."""

from __future__ import annotations

from finegrain.values.states import ExecutorState, ProvidedExecutorState
from resource_manager.engine.model.events import (
    ProvisionEnded,
    ProvisionFailed,
    ProvisionStarted,
    ProvisionStopFailed,
)
from resource_manager.engine.model.timers import Timer, backoff_ms
from resource_manager.engine.placement.elastic import PENDING
from resource_manager.engine.state import State


def provision_started(state: State, event: ProvisionStarted) -> None:
    """Records that the provider has started an executor."""
    provision = state.provisions.get(event.executor_id)
    if provision is None:
        return
    # If the provider has returned no handle, keep the known handle.
    provision.handle = event.handle or provision.handle
    # If the state is not ASKED, the executor registered before the provider answered, or the
    # provision was given up.
    if provision.state is ProvidedExecutorState.ASKED:
        state.provision_moves.move(provision, ProvidedExecutorState.STARTED, event.message)
        state.provision_moves.record("provision_started", provision, event.message)
    else:
        state.provision_moves.keep(provision)


def provision_failed(state: State, event: ProvisionFailed) -> None:
    """Gives up a provision whose executor could not be started, and orders the provider to stop all
    processes that the attempt has started.
    """
    provision = state.provisions.get(event.executor_id)
    # A failure of the start is ignored if the executor has registered, because the executor works.
    if provision is not None and provision.state in PENDING:
        state.provision_moves.fail(provision, event.message)


def provision_ended(state: State, event: ProvisionEnded) -> None:
    """Deletes a provision whose executor has ended, and deletes the executor with all its slots."""
    provision = state.provisions.pop(event.executor_id, None)
    if provision is None:
        return
    message = event.message or "its provider reports that no part of it is left"
    # The executor ended before it registered, so other executors of the shape possibly fail, too.
    if provision.state in PENDING:
        state.provision_moves.back_off(
            provision.shape, f"{provision.executor_id}: ended before it registered: {message}"
        )
    state.changes.delete_provision(provision)
    state.provision_moves.unplan(provision.executor_id)
    state.departures.forget_settings(provision.executor_id)
    state.provision_moves.record("provision_ended", provision, message)
    host = state.hosts.get(provision.executor_id)
    if host is not None:
        # Mark the executor as lost before it is deleted, so that the history contains the reason.
        if host.executor.state is not ExecutorState.LOST:
            state.departures.lose_executor(host, f"executor {host.host_id} has ended: {message}")
        state.departures.delete_executor(host)


def provision_stop_failed(state: State, event: ProvisionStopFailed) -> None:
    """Schedules another try of a stop order that the provider could not carry out."""
    provision = state.provisions.get(event.executor_id)
    if provision is None or provision.state is not ProvidedExecutorState.STOPPING:
        return
    settings = state.settings.provisioning
    pause = backoff_ms(provision.stop_failures, settings.backoff_min_ms, settings.backoff_max_ms)
    provision.stop_failures += 1
    provision.message = f"could not be stopped: {event.message}"
    state.provision_moves.keep(provision)
    state.timers.arm(Timer.PROVISION, provision.executor_id, state.journal.now_ms + pause)
