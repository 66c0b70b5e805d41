"""Waits for the executors and job masters of a version without certificates.

When a resource manager first has certificates, its known executors and the job masters of their
jobs have none. Each executor is awaited until it has joined: it is not lost, and it gets no new
slots. Jobs without an owner keep their leases until the wait ends.
"""

from __future__ import annotations

from datetime import UTC, datetime

from finegrain.values.states import ExecutorState
from resource_manager.engine.model.changes import AWAITED, AWAITED_UNTIL
from resource_manager.engine.model.events import ExecutorsAwaited
from resource_manager.engine.state import State


def await_executors(state: State, event: ExecutorsAwaited) -> list[str]:
    """Begins to wait for all known executors that are not lost. Returns their ids."""
    now = state.journal.at
    state.awaited_until_ms = now.monotonic_ms + event.for_ms
    until_time_ms = now.time_ms + event.for_ms
    state.changes.counter(AWAITED_UNTIL, until_time_ms)
    until = datetime.fromtimestamp(until_time_ms / 1_000, UTC)
    for executor_id, host in state.hosts.items():
        if host.executor.state is not ExecutorState.UNCONFIRMED:
            continue
        state.awaited[executor_id] = None
        state.changes.counter(AWAITED + executor_id, 1)
        state.journal.cluster_event(
            "executor_awaited",
            executor_id=executor_id,
            message=f"it must join with a token until {until:%Y-%m-%d %H:%M} UTC",
        )
    return list(state.awaited)


def stop_awaiting(state: State, executor_id: str) -> None:
    """Ends the wait for one executor, because it has joined, or was deleted or lost."""
    if executor_id in state.awaited:
        del state.awaited[executor_id]
        state.changes.counter(AWAITED + executor_id, 0)


def awaited_until_ms(state: State, executor_id: str) -> int:
    """Returns until when an executor is awaited, by the monotonic clock; 0: it is not."""
    return state.awaited_until_ms if executor_id in state.awaited else 0
