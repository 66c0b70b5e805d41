"""Books to rows and back: one pair of functions per table (ranges, groups and tallies:
`fair_rows.py`).

Decides how an entity is spelled in columns, in the order of `tables.py`. Refuses to know any SQL.
Runtime fields are left at their defaults; the engine rebuilds them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from finegrain.values.states import GangPlacement, ProvidedExecutorState, RequestState, SlotState
from resource_manager.engine.model.entities import (
    ClusterEvent,
    Executor,
    Gang,
    GangSpec,
    Job,
    JobEvent,
    JobState,
    Provision,
    Registration,
    Request,
    RequestSpec,
    Slot,
)
from resource_manager.storage import tables
from resource_manager.storage.codecs import Codec, MoveCodec, Row
from resource_manager.storage.texts import (
    assignment_of,
    assignment_text,
    cpu_policy_of,
    cpu_policy_text,
    isolation_of,
    isolation_text,
    json_text,
    labels_of,
    labels_text,
    optional_dict,
    profile_of,
    profile_text,
    resize_of,
    resize_text,
    slot_text,
)

# Looked up here, because making a member of its value costs as much as the rest of a row.
_JOB_STATES = {str(state): state for state in JobState}
_REQUEST_STATES = {str(state): state for state in RequestState}
_SLOT_STATES = {str(state): state for state in SlotState}


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
        None if spec.profile is None else profile_text(spec.profile),
        spec.cpu_limit_milli,
        spec.pids_max,
        labels_text(spec.required_labels),
        spec.target_address,
        spec.allow_pending,
        spec.restart_on_loss,
        spec.gang_id,
        cpu_policy_text(spec.cpu_policy),
    )


def _decode_request(row: Sequence[Any]) -> Request:
    spec = RequestSpec(
        allocation_id=row[0],
        profile=None if row[9] is None else profile_of(row[9]),
        cpu_limit_milli=row[10],
        pids_max=row[11],
        required_labels=labels_of(row[12]),
        target_address=row[13],
        allow_pending=bool(row[14]),
        restart_on_loss=bool(row[15]),
        gang_id=row[16],
        cpu_policy=cpu_policy_of(row[17]),
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
        profile_text(slot.profile),
        slot.cpu_limit_milli,
        slot.pids_max,
        slot.cpus,
        str(slot.state),
        slot.allocated_time_ms,
        isolation_text(slot.isolation),
        slot.resize_number,
        resize_text(slot.ordered),
        resize_text(slot.wanted),
        assignment_text(slot.assignment),
    )


def _decode_slot(row: Sequence[Any]) -> Slot:
    return Slot(
        allocation_id=row[0],
        generation=row[1],
        job_id=row[2],
        executor_id=row[3],
        profile=profile_of(row[4]),
        cpu_limit_milli=row[5],
        pids_max=row[6],
        cpus=row[7],
        state=_SLOT_STATES[row[8]],
        allocated_time_ms=row[9],
        isolation=None if row[10] is None else isolation_of(row[10]),
        resize_number=row[11],
        ordered=resize_of(row[12]),
        wanted=resize_of(row[13]),
        assignment=assignment_of(row[14]),
    )


def _encode_gang(gang: Gang) -> Row:
    spec = gang.spec
    return (
        spec.gang_id,
        gang.job_id,
        str(spec.placement),
        spec.label,
        spec.timeout_ms,
        gang.arrival_number,
        gang.waiting_since_time_ms,
    )


def _decode_gang(row: Sequence[Any]) -> Gang:
    spec = GangSpec(
        gang_id=row[0], placement=GangPlacement(row[2]), label=row[3], timeout_ms=row[4]
    )
    return Gang(spec, job_id=row[1], arrival_number=row[5], waiting_since_time_ms=row[6])


def _encode_provision(provision: Provision) -> Row:
    return (
        provision.executor_id,
        provision.shape,
        provision.number,
        provision.cause,
        provision.ask_time_ms,
        str(provision.state),
        provision.handle,
        provision.message,
    )


def _decode_provision(row: Sequence[Any]) -> Provision:
    return Provision(
        executor_id=row[0],
        shape=row[1],
        number=row[2],
        cause=row[3],
        ask_time_ms=row[4],
        state=ProvidedExecutorState(row[5]),
        handle=row[6],
        message=row[7],
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
        isolation_text(slot.isolation),
    )


def _encode_executor(executor: Executor) -> Row:
    announced = executor.registration
    return (
        announced.executor_id,
        announced.instance_id,
        announced.address,
        json_text(dict(announced.total)),
        json_text(dict(announced.reserved)),
        profile_text(announced.default_profile),
        labels_text(announced.labels),
        announced.slots_max,
        announced.shared_cpus,
        announced.topology,
        json_text(announced.isolation),
        announced.boot_id,
        announced.protocol_version,
        announced.software_version,
        executor.registration_number,
        executor.draining,
        executor.drain_reason,
        executor.drain_deadline_time_ms,
        executor.first_seen_time_ms,
        executor.lost,
        announced.provided_as,
        announced.host_cpus,
    )


def _decode_executor(row: Sequence[Any]) -> Executor:
    registration = Registration(
        executor_id=row[0],
        instance_id=row[1],
        address=row[2],
        total=json.loads(row[3]),
        reserved=json.loads(row[4]),
        default_profile=profile_of(row[5]),
        labels=labels_of(row[6]),
        slots_max=row[7],
        shared_cpus=row[8],
        topology=row[9],
        isolation=isolation_of(row[10]),
        boot_id=row[11],
        protocol_version=row[12],
        software_version=row[13],
        provided_as=row[20],
        host_cpus=row[21],
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
        slot_text(event.slot),
        event.count,
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
        slot=optional_dict(row[7]),
        count=row[8],
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
GANGS = Codec(tables.gangs, _encode_gang, _decode_gang)
PROVISIONS = Codec(tables.provisions, _encode_provision, _decode_provision)
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
