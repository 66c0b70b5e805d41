"""Books to rows and back: one pair of functions per table.

Decides how an entity is spelled in columns, in the order of `tables.py`. Refuses to know any SQL.
Runtime fields are left at their defaults; the engine rebuilds them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from sqlalchemy import Table

from finegrain.resources import ResourceProfile
from resource_manager.engine.entities import (
    ClusterEvent,
    Executor,
    Job,
    JobEvent,
    JobState,
    Registration,
    Request,
    RequestSpec,
    RequestState,
    Slot,
    SlotState,
)
from resource_manager.storage import tables

Row = tuple[Any, ...]
T = TypeVar("T")

_KNOWN_PROFILES = 65_536  # different profiles kept decoded; clusters use few
_KNOWN_ISOLATIONS = 4_096  # likewise of isolation reports

# Looked up here, because making a member of its value costs as much as the rest of a row.
_JOB_STATES = {str(state): state for state in JobState}
_REQUEST_STATES = {str(state): state for state in RequestState}
_SLOT_STATES = {str(state): state for state in SlotState}


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How one kind of entity stands in its table. Rows hold all columns in declared order."""

    table: Table
    encode: Callable[[T], Row]
    decode: Callable[[Sequence[Any]], T]


@dataclass(frozen=True, slots=True)
class MoveCodec(Generic[T]):
    """How it is written where something stands now. Rows hold the columns `key`, then `changed`."""

    table: Table
    key: tuple[str, ...]
    changed: tuple[str, ...]
    encode: Callable[[T], Row]


_quoted = json.encoder.encode_basestring_ascii
_json = json.JSONEncoder(separators=(",", ":")).encode  # `dumps` would make one each time


@lru_cache(_KNOWN_PROFILES)
def _profile_text(profile: ResourceProfile) -> str:
    return _json(profile.to_dict())


@lru_cache(_KNOWN_PROFILES)
def _profile(text: str) -> ResourceProfile:
    return ResourceProfile.from_dict(json.loads(text))


@lru_cache(_KNOWN_PROFILES)
def _labels_text(labels: tuple[tuple[str, str], ...]) -> str:
    return _json(dict(labels))


@lru_cache(_KNOWN_PROFILES)
def _labels(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(json.loads(text).items())


@lru_cache(_KNOWN_ISOLATIONS)
def _isolation(text: str) -> dict[str, object]:
    """Shared by all that say the same, so nobody may change it."""
    found: dict[str, object] = json.loads(text)
    return found


_texts: dict[int, tuple[object, str]] = {}


def _shared_text(data: object) -> str:
    """JSON of plain data that nobody changes and that many share; told apart by identity, which is
    good as long as the data is kept beside its text.
    """
    known = _texts.get(id(data))
    if known is None:
        if len(_texts) >= _KNOWN_ISOLATIONS:
            _texts.clear()
        known = _texts[id(data)] = (data, _json(data))
    return known[1]


def _isolation_text(isolation: Mapping[str, object] | None) -> str | None:
    return None if isolation is None else _shared_text(isolation)


def _slot_text(slot: Mapping[str, object] | None) -> str | None:
    """JSON of a slot as events carry it; what its profile and isolation say is shared by many."""
    if slot is None:
        return None
    return "{" + ",".join([_member(name, value) for name, value in slot.items()]) + "}"


def _member(name: str, value: object) -> str:
    if isinstance(value, str):
        text = _quoted(value)
    elif type(value) is int:
        text = str(value)
    else:
        text = _shared_text(value) if isinstance(value, dict) else _json(value)
    return f"{_quoted(name)}:{text}"


def _optional_dict(text: str | None) -> dict[str, object] | None:
    return None if text is None else json.loads(text)


# str() makes plain text of members of a StrEnum: drivers have ideas of their own about those.


def _encode_job(job: Job) -> Row:
    return (
        job.job_id,
        job.name,
        job.group,
        job.lease_ms,
        job.secret_sha256,
        job.request_id_sha256,
        job.arrival_number,
        job.create_time_ms,
        str(job.state),
        str(job.end_reason),
        job.end_time_ms,
        job.last_sequence,
        job.trimmed_sequence,
        job.specified,
        job.witness_allocation_id,
    )


def _decode_job(row: Sequence[Any]) -> Job:
    return Job(
        job_id=row[0],
        name=row[1],
        group=row[2],
        lease_ms=row[3],
        secret_sha256=row[4],
        request_id_sha256=row[5],
        arrival_number=row[6],
        create_time_ms=row[7],
        state=_JOB_STATES[row[8]],
        end_reason=row[9],
        end_time_ms=row[10],
        last_sequence=row[11],
        trimmed_sequence=row[12],
        specified=None if row[13] is None else bool(row[13]),
        witness_allocation_id=row[14],
    )


def _encode_request(request: Request) -> Row:
    spec = request.spec
    return (
        spec.allocation_id,
        request.job_id,
        request.arrival_number,
        request.create_time_ms,
        str(request.state),
        str(request.reason),
        request.message,
        request.generation,
        request.end_time_ms,
        None if spec.profile is None else _profile_text(spec.profile),
        spec.cpu_limit_milli,
        spec.pids_max,
        _labels_text(spec.required_labels),
        spec.target_address,
        spec.allow_pending,
        spec.restart_on_loss,
    )


def _decode_request(row: Sequence[Any]) -> Request:
    spec = RequestSpec(
        allocation_id=row[0],
        profile=None if row[9] is None else _profile(row[9]),
        cpu_limit_milli=row[10],
        pids_max=row[11],
        required_labels=_labels(row[12]),
        target_address=row[13],
        allow_pending=bool(row[14]),
        restart_on_loss=bool(row[15]),
    )
    return Request(
        spec=spec,
        job_id=row[1],
        arrival_number=row[2],
        create_time_ms=row[3],
        state=_REQUEST_STATES[row[4]],
        reason=row[5],
        message=row[6],
        generation=row[7],
        end_time_ms=row[8],
    )


def _encode_slot(slot: Slot) -> Row:
    return (
        slot.allocation_id,
        slot.generation,
        slot.job_id,
        slot.executor_id,
        _profile_text(slot.profile),
        slot.cpu_limit_milli,
        slot.pids_max,
        slot.cpus,
        str(slot.state),
        slot.allocated_time_ms,
        _isolation_text(slot.isolation),
    )


def _decode_slot(row: Sequence[Any]) -> Slot:
    return Slot(
        allocation_id=row[0],
        generation=row[1],
        job_id=row[2],
        executor_id=row[3],
        profile=_profile(row[4]),
        cpu_limit_milli=row[5],
        pids_max=row[6],
        cpus=row[7],
        state=_SLOT_STATES[row[8]],
        allocated_time_ms=row[9],
        isolation=None if row[10] is None else _isolation(row[10]),
    )


def _encode_request_move(request: Request) -> Row:
    return (
        request.spec.allocation_id,
        str(request.state),
        str(request.reason),
        request.message,
        request.generation,
        request.end_time_ms,
    )


def _encode_slot_move(slot: Slot) -> Row:
    return (
        slot.allocation_id,
        slot.generation,
        slot.cpus,
        str(slot.state),
        slot.allocated_time_ms,
        _isolation_text(slot.isolation),
    )


def _encode_executor(executor: Executor) -> Row:
    announced = executor.registration
    return (
        announced.executor_id,
        announced.instance_id,
        announced.address,
        _json(dict(announced.total)),
        _json(dict(announced.reserved)),
        _profile_text(announced.default_profile),
        _labels_text(announced.labels),
        announced.slots_max,
        announced.shared_cpus,
        announced.topology,
        _json(announced.isolation),
        announced.boot_id,
        announced.protocol_version,
        announced.software_version,
        executor.registration_number,
        executor.draining,
        executor.drain_reason,
        executor.drain_deadline_time_ms,
        executor.first_seen_time_ms,
        executor.lost,
    )


def _decode_executor(row: Sequence[Any]) -> Executor:
    registration = Registration(
        executor_id=row[0],
        instance_id=row[1],
        address=row[2],
        total=json.loads(row[3]),
        reserved=json.loads(row[4]),
        default_profile=_profile(row[5]),
        labels=_labels(row[6]),
        slots_max=row[7],
        shared_cpus=row[8],
        topology=row[9],
        isolation=_isolation(row[10]),
        boot_id=row[11],
        protocol_version=row[12],
        software_version=row[13],
    )
    return Executor(
        registration=registration,
        registration_number=row[14],
        draining=bool(row[15]),
        drain_reason=row[16],
        drain_deadline_time_ms=row[17],
        first_seen_time_ms=row[18],
        lost=bool(row[19]),
    )


def _encode_job_event(event: JobEvent) -> Row:
    return (
        event.job_id,
        event.sequence,
        event.time_ms,
        event.allocation_id,
        str(event.state),
        str(event.reason),
        event.message,
        _slot_text(event.slot),
    )


def _decode_job_event(row: Sequence[Any]) -> JobEvent:
    return JobEvent(
        job_id=row[0],
        sequence=row[1],
        time_ms=row[2],
        allocation_id=row[3],
        state=_REQUEST_STATES[row[4]],
        reason=row[5],
        message=row[6],
        slot=_optional_dict(row[7]),
    )


def _encode_cluster_event(event: ClusterEvent) -> Row:
    return (
        event.sequence,
        event.time_ms,
        str(event.kind),
        event.executor_id,
        event.job_id,
        event.allocation_id,
        str(event.reason),
        event.message,
    )


def _decode_cluster_event(row: Sequence[Any]) -> ClusterEvent:
    return ClusterEvent(*row)


JOBS = Codec(tables.jobs, _encode_job, _decode_job)
REQUESTS = Codec(tables.requests, _encode_request, _decode_request)
SLOTS = Codec(tables.slots, _encode_slot, _decode_slot)
EXECUTORS = Codec(tables.executors, _encode_executor, _decode_executor)
JOB_EVENTS = Codec(tables.job_events, _encode_job_event, _decode_job_event)
CLUSTER_EVENTS = Codec(tables.cluster_events, _encode_cluster_event, _decode_cluster_event)
REQUEST_MOVES = MoveCodec(
    tables.requests,
    ("allocation_id",),
    ("state", "reason", "message", "generation", "end_time_ms"),
    _encode_request_move,
)
SLOT_MOVES = MoveCodec(
    tables.slots,
    ("allocation_id", "generation"),
    ("cpus", "state", "allocated_time_ms", "isolation"),
    _encode_slot_move,
)
