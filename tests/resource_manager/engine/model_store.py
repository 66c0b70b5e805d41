"""A tiny store that keeps rows the way a database would: copies, replaced by what the engine hands
over.
"""

from __future__ import annotations

import copy
from array import array
from typing import Any

from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.engine.model.entities import NO_CPU_STATE
from resource_manager.storage.rows import REQUEST_MOVES, SLOT_MOVES

Key = tuple[str, int]


class ModelStore:
    """Rows as a database keeps them."""

    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}
        self.requests: dict[str, Any] = {}
        self.slots: dict[Key, Any] = {}
        self.executors: dict[str, Any] = {}
        self.gangs: dict[str, Any] = {}
        self.provisions: dict[str, Any] = {}
        self.ranges: dict[Key, Any] = {}
        self.groups: dict[str, Any] = {}
        self.tallies: dict[str, Any] = {}
        self.host_settings: dict[str, Any] = {}
        self.counters: dict[str, int] = {}
        self.job_events: dict[str, list[Any]] = {}
        self.cluster_events: list[Any] = []

    def apply(self, changes: Changes) -> None:
        self._delete(changes)
        self.jobs.update({row.job_id: copy.copy(row) for row in changes.jobs})
        self.requests.update({row.allocation_id: copy.copy(row) for row in changes.requests})
        self.slots.update(
            {(row.allocation_id, row.generation): copy.copy(row) for row in changes.slots}
        )
        for moved in changes.moved_requests:
            _move(self.requests[moved.allocation_id], moved, REQUEST_MOVES.changed)
        for slot in changes.moved_slots:
            _move(self.slots[slot.allocation_id, slot.generation], slot, SLOT_MOVES.changed)
        self.executors.update({row.executor_id: copy.copy(row) for row in changes.executors})
        self.gangs.update({row.gang_id: copy.copy(row) for row in changes.gangs})
        self.provisions.update({row.executor_id: copy.copy(row) for row in changes.provisions})
        self.ranges.update(
            {
                (row.spec.range_id, row.spec.first_index): copy.deepcopy(row)
                for row in changes.ranges
            }
        )
        self.groups.update({row.name: copy.copy(row) for row in changes.groups})
        self.tallies.update({row.flow_id: copy.copy(row) for row in changes.tallies})
        settings = {row.executor_id: copy.copy(row) for row in changes.host_settings}
        self.host_settings.update(settings)
        self.counters.update(changes.counters)
        self._log(changes)

    def _delete(self, changes: Changes) -> None:
        for executor_id in changes.deleted_executors:
            self.executors.pop(executor_id, None)
        for gang_id in changes.deleted_gangs:
            self.gangs.pop(gang_id, None)
        for executor_id in changes.deleted_provisions:
            self.provisions.pop(executor_id, None)
        for part in changes.deleted_ranges:
            self.ranges.pop(part, None)
        for group in changes.deleted_groups:
            self.groups.pop(group, None)
        for flow_id in changes.deleted_tallies:
            self.tallies.pop(flow_id, None)
        for executor_id in changes.deleted_host_settings:
            self.host_settings.pop(executor_id, None)
        for allocation_id in changes.deleted_requests:
            self.requests.pop(allocation_id, None)
        for key in changes.deleted_slots:
            self.slots.pop(key, None)
        for job_id in changes.deleted_jobs:
            self._delete_job(job_id)

    def _delete_job(self, job_id: str) -> None:
        self.jobs.pop(job_id, None)
        self.job_events.pop(job_id, None)
        tables: list[dict[Any, Any]] = [self.requests, self.gangs, self.ranges]
        for table in tables:
            for key in [key for key, row in table.items() if row.job_id == job_id]:
                del table[key]

    def _log(self, changes: Changes) -> None:
        for event in changes.job_events:
            self.job_events.setdefault(event.job_id, []).append(event)
        for job_id, sequence in changes.trimmed_job_events:
            kept = [e for e in self.job_events.get(job_id, []) if e.sequence > sequence]
            self.job_events[job_id] = kept
        self.cluster_events.extend(changes.cluster_events)
        if changes.trimmed_cluster_events is not None:
            self.cluster_events = [
                e for e in self.cluster_events if e.sequence > changes.trimmed_cluster_events
            ]

    def snapshot(self, rm_epoch: int) -> Snapshot:
        """What a new incarnation reads; runtime fields are at their defaults, as after loading."""
        return Snapshot(
            rm_epoch=rm_epoch,
            jobs=[_without_runtime(row) for row in self.jobs.values()],
            requests=[copy.copy(row) for row in self.requests.values()],
            slots=[_without_runtime(row) for row in self.slots.values()],
            executors=[_without_runtime(row) for row in self.executors.values()],
            gangs=[_without_runtime(row) for row in self.gangs.values()],
            provisions=[_without_runtime(row) for row in self.provisions.values()],
            ranges=[copy.deepcopy(row) for row in self.ranges.values()],
            groups=[copy.copy(row) for row in self.groups.values()],
            tallies=[copy.copy(row) for row in self.tallies.values()],
            host_settings=[copy.copy(row) for row in self.host_settings.values()],
            counters=dict(self.counters),
        )


RUNTIME: dict[str, dict[str, Any]] = {
    "Job": {
        "lease_until_ms": 0,
        "acknowledged_sequence": 0,
        "arrivals": lambda: array("q"),
        "live_requests": 0,
        "slot_keys": set,
    },
    "Slot": {"booked": dict, "placed_with_command": 0, "grace_ms": None},
    "Executor": {
        "report_number": 0,
        "report_at_ms": 0,
        "report_time_ms": 0,
        "reported_available": None,
        "cpu_state": NO_CPU_STATE,
        "command_number": 0,
        "drain_deadline_at_ms": None,
    },
    "Gang": {"members": list, "waiting_until_ms": None},
    "Provision": {"deadline_at_ms": None, "idle_since_ms": None, "stop_failures": 0},
}


def _move(row: Any, moved: Any, fields: tuple[str, ...]) -> None:
    """Columns of requests and slots that change are called as the fields are."""
    for name in fields:
        setattr(row, name, getattr(moved, name))


def _without_runtime(row: Any) -> Any:
    row = copy.copy(row)
    for name, value in RUNTIME[type(row).__name__].items():
        setattr(row, name, value() if callable(value) else value)
    return row
