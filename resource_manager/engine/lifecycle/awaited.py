"""Keeps the executors that ran a version without certificates and have not joined yet.

When a resource manager first gets certificates, its known executors and the job masters of their
jobs have no certificates. Each executor is awaited until it has joined. An awaited executor does
not become lost, and gets no new slots. Jobs without an owner keep their leases until the wait ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from finegrain.values.states import ExecutorState
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.changes import AWAITED, AWAITED_UNTIL, ChangeTracker
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.placement.hosts import Hosts


class AwaitedExecutors:
    """Keeps the list of the awaited executors, in memory and in the database.

    Attributes:
        until_ms: the end of the wait, by the monotonic clock; 0: the wait has never begun.
    """

    def __init__(self, journal: Journal, changes: ChangeTracker, hosts: Hosts) -> None:
        self.until_ms = 0
        self._journal = journal
        self._changes = changes
        self._hosts = hosts
        self._ids: dict[str, None] = {}

    def __contains__(self, executor_id: str) -> bool:
        return executor_id in self._ids

    def begin(self, for_ms: int) -> list[str]:
        """Begins to wait for all known executors in the state UNCONFIRMED.

        Args:
            for_ms: duration of the wait, in milliseconds.

        Returns:
            The ids of these executors.
        """
        now = self._journal.at
        self.until_ms = now.monotonic_ms + for_ms
        self._changes.counter(AWAITED_UNTIL, now.time_ms + for_ms)
        until = datetime.fromtimestamp((now.time_ms + for_ms) / 1_000, UTC)
        message = f"it must join with a token until {until:%Y-%m-%d %H:%M} UTC"
        for executor_id, host in self._hosts.items():
            if host.executor.state is ExecutorState.UNCONFIRMED:
                self._ids[executor_id] = None
                self._changes.counter(AWAITED + executor_id, 1)
                self._journal.cluster_event(
                    "executor_awaited", executor_id=executor_id, message=message
                )
        return list(self._ids)

    def restore(self, counters: Mapping[str, int], at: Instant) -> None:
        """Restores the wait after a restart. The hosts must have been restored before.

        Args:
            counters: the stored counters.
            at: the current time.
        """
        left_ms = counters.get(AWAITED_UNTIL, 0) - at.time_ms
        if left_ms > 0:
            self.until_ms = at.monotonic_ms + left_ms
            self._ids.update((each, None) for each in self._hosts if counters.get(AWAITED + each))

    def stop(self, executor_id: str) -> None:
        """Ends the wait for one executor, because the executor has joined, or was deleted or
        lost.
        """
        if executor_id in self._ids:
            del self._ids[executor_id]
            self._changes.counter(AWAITED + executor_id, 0)

    def until_ms_of(self, executor_id: str) -> int:
        """Returns the end of the wait for an executor, by the monotonic clock. Returns 0 if the
        executor is not awaited.
        """
        return self.until_ms if executor_id in self._ids else 0
