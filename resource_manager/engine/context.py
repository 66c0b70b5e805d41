"""One event's turn at the books: the state, the moment, and the effects it leads to.

Writes both logs, so that numbering, trimming and publishing stand in one place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.effects import Effect, PublishClusterEvent, PublishJobEvent
from resource_manager.engine.model.entities import (
    ClusterEvent,
    Instant,
    Job,
    JobEvent,
    Request,
    Slot,
)
from resource_manager.engine.model.offers import slot_to_dict
from resource_manager.engine.state import State

ACKNOWLEDGED_TRIM_STEP = 1_000
"""Acknowledged events are forgotten this many at a time, so that a keep-alive rarely writes."""


@dataclass(slots=True)
class EventContext:
    """What a handler works with."""

    state: State
    at: Instant
    effects: list[Effect] = field(default_factory=list)

    @property
    def now_ms(self) -> int:
        """Monotonic time of the event."""
        return self.at.monotonic_ms

    def host_of(self, slot: Slot) -> Host:
        """The books of the executor that a slot is on."""
        return self.state.hosts[slot.executor_id]

    def job_event(
        self,
        request: Request,
        *,
        reason: str = "",
        message: str = "",
        slot: Slot | None = None,
        count: int = 1,
    ) -> None:
        """Writes into the log of the request's job where the request stands now, and with it the
        next members of its range, `count` in all.
        """
        state = self.state
        job = state.jobs[request.job_id]
        job.last_sequence += 1
        address = self.host_of(slot).executor.registration.address if slot is not None else ""
        event = JobEvent(
            job_id=job.job_id,
            sequence=job.last_sequence,
            time_ms=self.at.time_ms,
            allocation_id=request.spec.allocation_id,
            state=request.state,
            reason=reason,
            message=message,
            slot=slot_to_dict(slot, address) if slot is not None else None,
            count=count,
        )
        state.changes.job(job)
        state.changes.job_event(event)
        self.effects.append(PublishJobEvent(event))
        most = state.settings.job_events_max
        if job.last_sequence - job.trimmed_sequence > most:
            self._trim(job, job.last_sequence - most + most // 10)

    def acknowledge(self, job: Job, sequence: int) -> None:
        """The job master has taken in its events up to this one."""
        job.acknowledged_sequence = max(job.acknowledged_sequence, min(sequence, job.last_sequence))
        if job.acknowledged_sequence - job.trimmed_sequence >= ACKNOWLEDGED_TRIM_STEP:
            self._trim(job, job.acknowledged_sequence)

    def cluster_event(
        self,
        kind: str,
        *,
        executor_id: str = "",
        job_id: str = "",
        allocation_id: str = "",
        reason: str = "",
        message: str = "",
    ) -> None:
        """Writes into the cluster's history."""
        changes = self.state.changes
        event = ClusterEvent(
            sequence=self.state.history.next_sequence(changes),
            time_ms=self.at.time_ms,
            kind=kind,
            executor_id=executor_id,
            job_id=job_id,
            allocation_id=allocation_id,
            reason=reason,
            message=message,
        )
        changes.cluster_event(event)
        self.effects.append(PublishClusterEvent(event))

    def slot_event(self, kind: str, slot: Slot, *, reason: str = "", message: str = "") -> None:
        """Writes into the cluster's history what became of a slot."""
        self.cluster_event(
            kind,
            executor_id=slot.executor_id,
            job_id=slot.job_id,
            allocation_id=slot.allocation_id,
            reason=reason,
            message=message,
        )

    def _trim(self, job: Job, sequence: int) -> None:
        job.trimmed_sequence = sequence
        self.state.changes.job(job)
        self.state.changes.trim_job_events(job.job_id, sequence)
