"""The journal of the current event: its time, its effects, and its entries in the logs of jobs and
of the cluster.

The journal numbers, trims and publishes all log entries. A job event contains its slot as a dict,
which can be stored as JSON and converted to a SlotStatus message.
"""

from __future__ import annotations

from functools import lru_cache

from finegrain.mapping.fields import attributes_of
from finegrain.mapping.stored import STORED
from finegrain.resources import ResourceProfile
from finegrain.values.isolation import Isolation
from finegrain.values.states import RequestState
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.effects import Effect, PublishClusterEvent, PublishJobEvent
from resource_manager.engine.model.entities import (
    SLOT_RUNTIME,
    ClusterEvent,
    Instant,
    Job,
    JobEvent,
    Request,
    Resize,
    Slot,
)
from resource_manager.engine.model.history import History
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.hosts import Hosts

_ALWAYS = frozenset({"allocation_id", "generation", "job_id", "cpu_limit_milli", "executor_id"})

_OPTIONAL = tuple(
    name
    for name, each in attributes_of(Slot).items()
    if each.hint in (int, str, bool)
    and not each.optional
    # SlotStatus does not say for which request a slot is being revoked.
    and name not in _ALWAYS.union(SLOT_RUNTIME.split(), ["revoked_for"])
)
"""Fields of a slot with numbers, texts and truth values. A field is left out if its value is 0, an
empty text or false.
"""


def slot_to_dict(slot: Slot, executor_address: str) -> dict[str, object]:
    """Returns the fields of SlotStatus (slots.proto) by name, without empty fields.

    `profile` is `ResourceProfile.to_dict()`. `profile` and `isolation` are cached and shared
    between calls, so callers must not change these two values. `allocated_time_ms` is in
    milliseconds since 1970. `resizes` has the unfinished resizes, as `SlotResize` without
    `message`. `assignment` has the form of `finegrain/mapping/stored.py`.
    """
    data: dict[str, object] = {
        "allocation_id": slot.allocation_id,
        "generation": slot.generation,
        "job_id": slot.job_id,
        "profile": _profile_data(slot.profile),
        "memory_bytes": slot.profile.booked_memory_bytes,
        "cpu_limit_milli": slot.cpu_limit_milli,
        "state": str(slot.state),
        "executor_id": slot.executor_id,
        "executor_address": executor_address,
    }
    for name in _OPTIONAL:
        if value := getattr(slot, name):
            data[name] = value
    if slot.isolation is not None:
        data["isolation"] = _isolation_data(slot.isolation)
    if slot.allocated_time_ms is not None:
        data["allocated_time_ms"] = slot.allocated_time_ms
    if slot.time_limit_ms is not None:
        data["time_limit_ms"] = slot.time_limit_ms
    if slot.ordered is not None or slot.wanted is not None:
        under_way = ((slot.ordered, "ORDERED"), (slot.wanted, "WAITING"))
        data["resizes"] = [_resize(one, state) for one, state in under_way if one is not None]
    if slot.assignment is not None:
        data["assignment"] = STORED.to_json(slot.assignment)
    return data


def ended_slot_to_dict(slot: Slot, executor_address: str) -> dict[str, object]:
    """Returns the fields of SlotStatus that name a slot, for the event that ends the slot."""
    return {
        "allocation_id": slot.allocation_id,
        "generation": slot.generation,
        "job_id": slot.job_id,
        "executor_id": slot.executor_id,
        "executor_address": executor_address,
    }


def _resize(resize: Resize, state: str) -> dict[str, object]:
    data: dict[str, object] = {
        "resize_number": resize.number,
        "profile": _profile_data(resize.profile),
        "memory_bytes": resize.profile.booked_memory_bytes,
        "cpu_limit_milli": resize.cpu_limit_milli,
        "state": state,
    }
    if resize.assignment is not None:
        data["assignment"] = STORED.to_json(resize.assignment)
    return data


@lru_cache(4_096)
def _isolation_data(isolation: Isolation) -> dict[str, object]:
    data: dict[str, object] = STORED.to_json(isolation)
    return data


@lru_cache(16_384)
def _profile_data(profile: ResourceProfile) -> dict[str, object]:
    return profile.to_dict()


ACKNOWLEDGED_TRIM_STEP = 1_000
"""Acknowledged events of a job are deleted only when there are at least this many of them. So most
keep-alives do not change the store.
"""

STEP_ROWS_MAX = 400
"""A step is full after it has changed this many rows, including log entries. Such a step takes 5 to
15 ms. A full step finishes its current piece of work, and does not begin another piece. A piece is
a request with its gang, a slot, or some consecutive members of a range.
"""


class Journal:
    """Collects the effects of the current event, and writes its log entries.

    Attributes:
        at: the time of the event.
        effects: actions that the caller performs after the changes are durable.
        snapshot_number: number of events so far. Caches use this number as the version of the
            state.
    """

    def __init__(
        self,
        settings: EngineSettings,
        at: Instant,
        *,
        jobs: dict[str, Job],
        hosts: Hosts,
        history: History,
        changes: ChangeTracker,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._hosts = hosts
        self._history = history
        self._changes = changes
        self.at = at
        self.effects: list[Effect] = []
        self.snapshot_number = 0
        self._noted_before = 0

    @property
    def now_ms(self) -> int:
        """Monotonic time of the event."""
        return self.at.monotonic_ms

    def deadline_ms(self, timeout_ms: int, since_time_ms: int) -> int:
        """Returns the monotonic time at which a timeout ends. The timeout began at `since_time_ms`
        of the wall clock. If the wall clock was set back, the whole timeout remains.
        """
        passed_ms = max(0, self.at.time_ms - since_time_ms)
        return self.now_ms + max(0, timeout_ms - passed_ms)

    @property
    def is_full(self) -> bool:
        """True if this step has changed at least `STEP_ROWS_MAX` rows.

        The next `Decide` does the remaining work, or another event that the caller sends.
        """
        return self._changes.noted - self._noted_before >= STEP_ROWS_MAX

    def begin(self, at: Instant) -> list[Effect]:
        """Begins the next event. Returns the list that collects the effects of the event."""
        self.at, self.effects = at, []
        self.snapshot_number += 1
        self._noted_before = self._changes.noted
        return self.effects

    def job_event(
        self,
        request: Request,
        *,
        reason: str = "",
        message: str = "",
        slot: Slot | None = None,
        count: int = 1,
    ) -> None:
        """Writes the current state of a request into the log of the request's job.

        Args:
            request: the request.
            reason: machine-readable reason for the state.
            message: reason for people.
            slot: the slot that the entry describes; None if the entry describes no slot. If the
                request is not GRANTED, the entry only names the slot.
            count: number of range members that the entry describes: `request` and the next members
                by index.
        """
        job = self._jobs[request.job_id]
        job.last_sequence += 1
        described = None
        if slot is not None:
            address = self._hosts.of(slot).executor.registration.address
            granted = request.state is RequestState.GRANTED
            described = (slot_to_dict if granted else ended_slot_to_dict)(slot, address)
        event = JobEvent(
            job_id=job.job_id,
            sequence=job.last_sequence,
            time_ms=self.at.time_ms,
            allocation_id=request.spec.allocation_id,
            state=request.state,
            reason=reason,
            message=message,
            slot=described,
            count=count,
        )
        self._changes.job(job)  # the job's row has the last sequence number
        self._changes.job_event(event)
        self.effects.append(PublishJobEvent(event))
        # Trim a tenth of the maximum at once, so that few entries cause a trim.
        most = self._settings.job_events_max
        if job.last_sequence - job.trimmed_sequence > most:
            self._trim(job, job.last_sequence - most + most // 10)

    def acknowledge(self, job: Job, sequence: int) -> None:
        """Records that the job master has processed its events up to this sequence number."""
        # A number above the last event is limited to the last event. Otherwise later events would
        # be deleted before the job master has received them.
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
        """Writes an entry into the cluster's history.

        Args:
            kind: the kind of the event, such as "slot_granted".
            executor_id: the executor that the entry describes; empty if the entry describes no
                executor.
            job_id: the job that the entry describes; empty if the entry describes no job.
            allocation_id: the request that the entry describes; empty if the entry describes no
                request.
            reason: machine-readable reason.
            message: text for people.
        """
        event = ClusterEvent(
            sequence=self._history.next_sequence(self._changes),
            time_ms=self.at.time_ms,
            kind=kind,
            executor_id=executor_id,
            job_id=job_id,
            allocation_id=allocation_id,
            reason=reason,
            message=message,
        )
        self._changes.cluster_event(event)
        self.effects.append(PublishClusterEvent(event))

    def slot_event(self, kind: str, slot: Slot, *, reason: str = "", message: str = "") -> None:
        """Writes an entry about a slot into the cluster's history.

        Args:
            kind: the kind of the event, such as "slot_granted".
            slot: the slot; its executor, job and request are named in the entry.
            reason: machine-readable reason.
            message: text for people.
        """
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
        self._changes.job(job)
        self._changes.trim_job_events(job.job_id, sequence)
