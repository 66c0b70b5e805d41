"""Converts rows of a store to JSON, and finds values of an older version's rows that a newer
version has lost.

The JSON has the names of rows and fields that the entities had in the version that wrote it. If a
field was renamed later, it is listed in `RENAMED`, so the stored data need not change.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from finegrain.cpuset import CpuSet
from finegrain.intervals import IntervalSet
from resource_manager.engine.model.effects import Snapshot

RENAMED: dict[str, str] = {"tallies": "usage_records"}
"""The present name of each field that has another name in the stored data."""

REMOVED = {"secret_sha256"}
"""Fields that this version does not use any more: jobs have owners instead of secrets."""

NOT_STORED = {
    "Gang": {"members", "waiting_until_ms"},
    "Job": {
        "lease_until_ms", "acknowledged_sequence", "arrivals", "live_requests", "slot_keys",
        "durations",
    },
    "Slot": {
        "booked", "cost", "placed_with_command", "grace_ms", "thread_since_ms", "works_for",
    },
    "Provision": {"deadline_at_ms", "idle_since_ms", "stop_failures"},
    "Executor": {
        "state", "report_number", "report_at_ms", "report_time_ms", "reported_available",
        "cpu_state", "used", "command_number", "drain_deadline_at_ms",
    },
}  # fmt: skip
"""Fields of entities that live in memory only."""

KEYS = {
    "jobs": ("job_id",),
    "requests": ("spec.allocation_id",),
    "slots": ("allocation_id", "generation"),
    "executors": ("registration.executor_id",),
    "gangs": ("spec.gang_id",),
    "provisions": ("executor_id",),
    "ranges": ("spec.request.allocation_id", "spec.first_index"),
    "groups": ("name",),
    "tallies": ("flow_id",),
    "host_settings": ("executor_id",),
}
"""The fields that distinguish rows of one kind, with the names in the stored data."""


def as_json(value: Any) -> Any:
    """The value in terms of JSON: entities by their fields, sets as texts, tuples as lists."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, CpuSet):
        return str(value)
    if isinstance(value, IntervalSet):
        return [list(run) for run in value.runs()]
    if is_dataclass(value):
        left_out = NOT_STORED.get(type(value).__name__, set())
        names = [each.name for each in fields(value) if each.name not in left_out]
        return {name: as_json(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {_key(name): as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(as_json(each) for each in value)
    return value


def _key(name: Any) -> str:
    return "/".join(map(str, name)) if isinstance(name, tuple) else str(name)


def rows_of(snapshot: Snapshot) -> dict[str, Any]:
    """Returns all rows of a snapshot as JSON, in a fixed order, without the epoch."""
    found: dict[str, Any] = {}
    for kind, keys in KEYS.items():
        name = RENAMED.get(kind, kind)
        rows = [as_json(row) for row in getattr(snapshot, name)]
        found[name] = sorted(rows, key=lambda row, keys=keys: _key_of(row, keys))  # type: ignore[misc]
    found["counters"] = as_json(snapshot.counters)
    return found


def _key_of(row: Any, keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(_field(row, path)) for path in keys)


def _field(row: Any, path: str) -> Any:
    for name in path.split("."):
        row = row[RENAMED.get(name, name)]
    return row


def lost(old: Any, new: Any, path: str = "") -> list[str]:
    """Returns the values of `old` that are missing in `new`, or that differ in `new`. New fields of
    rows are no loss.

    A message for people may be worded in another way.
    """
    if path.endswith(".message") and old and new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for name, value in old.items():
            now = RENAMED.get(name, name)
            if name in REMOVED:
                continue
            if now in new:
                found += lost(value, new[now], f"{path}.{name}")
            else:
                found.append(f"{path}.{name} is missing")
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = zip(old, new, strict=True)
        return [each for n, (a, b) in enumerate(pairs) for each in lost(a, b, f"{path}[{n}]")]
    return [] if old == new and type(old) is type(new) else [f"{path} was {old!r}, is {new!r}"]
