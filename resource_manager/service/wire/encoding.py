"""From the books to messages. Reads entities, decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast

from google.protobuf.timestamp_pb2 import Timestamp

from finegrain.cpu_assignment import CpuAssignment
from finegrain.resources import ResourceProfile
from finegrain.rpc.wire import (
    KNOWN_MAX,
    amounts_to_proto,
    duration_ms_to_proto,
    isolation_to_proto,
    profile_to_proto,
    timestamp_ms_to_proto,
    topology_dict_to_proto,
)
from finegrain.rpc.wire_cpus import assignment_to_proto, cpu_policy_to_proto
from finegrain.v1 import cluster_pb2, resources_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.explain.lists import ExecutorView, JobView, RequestView, SlotView
from resource_manager.engine.model.entities import (
    ClusterEvent,
    Executor,
    ExecutorState,
    JobEvent,
    JobState,
    RequestSpec,
    RequestState,
    Slot,
    SlotState,
    Usage,
)
from resource_manager.engine.model.events import ItemOutcome
from resource_manager.service.wire.gangs import gang_message
from resource_manager.service.wire.resizes import resizes_of

REQUEST_STATES: dict[RequestState, slots_pb2.RequestState.ValueType] = {
    state: slots_pb2.RequestState.Value(f"REQUEST_STATE_{state.value}") for state in RequestState
}
_SLOT_STATES_BY_NAME = {
    state.value: slots_pb2.SlotState.Value(f"SLOT_STATE_{state.value}") for state in SlotState
}
_RESIZE_STATES_BY_NAME = {
    "ORDERED": slots_pb2.SLOT_RESIZE_STATE_ORDERED,
    "WAITING": slots_pb2.SLOT_RESIZE_STATE_WAITING,
}
SLOT_STATES: dict[SlotState, slots_pb2.SlotState.ValueType] = {
    state: slots_pb2.SlotState.Value(f"SLOT_STATE_{state.value}") for state in SlotState
}
EXECUTOR_STATES: dict[ExecutorState, cluster_pb2.ExecutorState.ValueType] = {
    state: cluster_pb2.ExecutorState.Value(f"EXECUTOR_STATE_{state.value}")
    for state in ExecutorState
}


def slot_status(
    slot: Slot, executor_address: str = "", resize_message: str = ""
) -> slots_pb2.SlotStatus:
    """A slot of the books; `resize_message` says why a change of its size waits."""
    message = slots_pb2.SlotStatus(
        allocation_id=slot.allocation_id,
        generation=slot.generation,
        job_id=slot.job_id,
        profile=profile_to_proto(slot.profile),
        memory_bytes=slot.profile.booked_memory_bytes,
        cpu_limit_milli=slot.cpu_limit_milli,
        pids_max=slot.pids_max,
        cpus=slot.cpus,
        state=SLOT_STATES[slot.state],
        executor_id=slot.executor_id,
        executor_address=executor_address,
    )
    if slot.isolation is not None:
        message.isolation.CopyFrom(isolation_to_proto(slot.isolation))
    if slot.allocated_time_ms is not None:
        _set_time(message.allocated_time, slot.allocated_time_ms)
    if slot.resize_number:
        message.resize_number = slot.resize_number
        message.resizes.extend(resizes_of(slot, resize_message))
    if slot.assignment is not None:
        _set_assignment(message, slot.assignment)
    return message


def slot_status_of_event(data: Mapping[str, object]) -> slots_pb2.SlotStatus:
    """A slot as a job event carries it; see resource_manager/engine/model/offers.py."""
    known = cast("Mapping[str, Any]", data)
    get = known.get
    message = slots_pb2.SlotStatus(
        allocation_id=known["allocation_id"],
        generation=known["generation"],
        job_id=known["job_id"],
        profile=_profile_of_event(known["profile"]),
        memory_bytes=known["memory_bytes"],
        cpu_limit_milli=known["cpu_limit_milli"],
        pids_max=get("pids_max", 0),
        cpus=get("cpus", ""),
        state=_SLOT_STATES_BY_NAME[known["state"]],
        executor_id=get("executor_id", ""),
        executor_address=get("executor_address", ""),
    )
    if (isolation := get("isolation")) is not None:
        message.isolation.CopyFrom(isolation_to_proto(isolation))
    if (time_ms := get("allocated_time_ms")) is not None:
        _set_time(message.allocated_time, time_ms)
    if number := get("resize_number"):
        message.resize_number = number
        message.resizes.extend(_resize_of_event(each) for each in get("resizes", ()))
    if (assignment := get("assignment")) is not None:
        _set_assignment(message, CpuAssignment.from_dict(assignment))
    return message


def _set_assignment(message: slots_pb2.SlotStatus, assignment: CpuAssignment) -> None:
    message.assignment.CopyFrom(assignment_to_proto(assignment))
    message.cpus = message.assignment.cpus


def slot_status_of_view(view: SlotView) -> slots_pb2.SlotStatus:
    """A slot with the address of its executor."""
    return slot_status(view.slot, view.executor_address, view.resize_message)


def _resize_of_event(data: Mapping[str, Any]) -> slots_pb2.SlotResize:
    message = slots_pb2.SlotResize(
        resize_number=data["resize_number"],
        profile=_profile_of_event(data["profile"]),
        memory_bytes=data["memory_bytes"],
        cpu_limit_milli=data["cpu_limit_milli"],
        state=_RESIZE_STATES_BY_NAME[data["state"]],
    )
    if (assignment := data.get("assignment")) is not None:
        message.assignment.CopyFrom(assignment_to_proto(CpuAssignment.from_dict(assignment)))
    return message


def _profile_of_event(data: Mapping[str, Any]) -> resources_pb2.ResourceProfile:
    if "extended" in data:
        return profile_to_proto(ResourceProfile.from_dict(data))
    return _plain_profile(tuple(data.items()))


@lru_cache(KNOWN_MAX)
def _plain_profile(items: tuple[tuple[str, int], ...]) -> resources_pb2.ResourceProfile:
    return profile_to_proto(ResourceProfile.from_dict(dict(items)))


def _set_time(moment: Timestamp, time_ms: int) -> None:
    moment.seconds, moment.nanos = time_ms // 1000, time_ms % 1000 * 1_000_000


def slot_request(spec: RequestSpec) -> slots_pb2.SlotRequest:
    """A request as it was sent."""
    return slots_pb2.SlotRequest(
        allocation_id=spec.allocation_id,
        profile=profile_to_proto(spec.profile) if spec.profile is not None else None,
        cpu_limit_milli=spec.cpu_limit_milli,
        pids_max=spec.pids_max,
        required_labels=dict(spec.required_labels),
        target_address=spec.target_address,
        allow_pending=spec.allow_pending,
        restart_on_loss=spec.restart_on_loss,
        gang_id=spec.gang_id,
        cpu_policy=cpu_policy_to_proto(spec.cpu_policy),
    )


def request_status(view: RequestView) -> rm_pb2.RequestStatus:
    """A request with its slot, if it has one."""
    request = view.request
    message = rm_pb2.RequestStatus(
        allocation_id=request.allocation_id,
        job_id=request.job_id,
        job_name=view.job_name,
        state=REQUEST_STATES[request.state],
        reason=view.reason,
        generation=request.generation,
        arrival_number=request.arrival_number,
        create_time=timestamp_ms_to_proto(request.create_time_ms),
        request=slot_request(request.spec),
        count=view.count if view.count > 1 else 0,
        range_id=view.range_id,
    )
    if request.spec.profile is not None:
        message.profile.CopyFrom(profile_to_proto(request.spec.profile))
    if request.end_time_ms is not None:
        message.end_time.CopyFrom(timestamp_ms_to_proto(request.end_time_ms))
    if view.slot is not None:
        message.slot.CopyFrom(slot_status_of_view(view.slot))
    if view.gang is not None:
        message.gang.CopyFrom(gang_message(view.gang))
    return message


def job_event(event: JobEvent) -> rm_pb2.JobEvent:
    """An entry of a job's log."""
    message = rm_pb2.JobEvent(
        sequence=event.sequence,
        allocation_id=event.allocation_id,
        state=REQUEST_STATES[event.state],
        reason=event.reason,
        message=event.message,
        slot=slot_status_of_event(event.slot) if event.slot is not None else None,
        count=event.count if event.count > 1 else 0,
    )
    _set_time(message.event_time, event.time_ms)
    return message


def cluster_event(event: ClusterEvent) -> cluster_pb2.ClusterEvent:
    """An entry of the cluster's history."""
    return cluster_pb2.ClusterEvent(
        sequence=event.sequence,
        event_time=timestamp_ms_to_proto(event.time_ms),
        kind=event.kind,
        executor_id=event.executor_id,
        job_id=event.job_id,
        allocation_id=event.allocation_id,
        reason=event.reason,
        message=event.message,
    )


def job_status(view: JobView) -> cluster_pb2.JobStatus:
    """A job with what it waits for and has."""
    job = view.job
    message = cluster_pb2.JobStatus(
        job_id=job.job_id,
        name=job.name,
        group=job.group,
        ended=job.state is JobState.ENDED,
        end_reason=job.end_reason,
        detached=job.lease_ms is None,
        create_time=timestamp_ms_to_proto(job.create_time_ms),
        pending_requests=view.pending_requests,
        slots=view.slots,
        allocated=amounts_to_proto(view.allocated),
        last_sequence=job.last_sequence,
    )
    if job.lease_ms is not None:
        message.lease.CopyFrom(duration_ms_to_proto(job.lease_ms))
    if job.end_time_ms is not None:
        message.end_time.CopyFrom(timestamp_ms_to_proto(job.end_time_ms))
    return message


def executor_status(
    view: ExecutorView, *, with_topology: bool = False
) -> cluster_pb2.ExecutorStatus:
    """An executor with its sums."""
    executor = view.executor
    known = executor.registration
    message = cluster_pb2.ExecutorStatus(
        executor_id=executor.executor_id,
        instance_id=known.instance_id,
        address=known.address,
        state=EXECUTOR_STATES[executor.state],
        draining=executor.draining,
        drain_reason=executor.drain_reason,
        registration_number=executor.registration_number,
        report_number=executor.report_number,
        total=amounts_to_proto(view.total),
        reserved=amounts_to_proto(known.reserved),
        allocated=amounts_to_proto(view.allocated),
        available=amounts_to_proto(view.available),
        used=usage_report(executor.used),
        slots=view.slots,
        slots_max=known.slots_max,
        labels=dict(known.labels),
        default_slot_profile=profile_to_proto(known.default_profile),
        isolation=isolation_to_proto(known.isolation),
        software_version=known.software_version,
        shared_cpus=known.shared_cpus,
        unreachable_reason=view.unreachable_reason,
        provided_as=known.provided_as,
    )
    _set_times(message, executor)
    if with_topology:
        message.topology.CopyFrom(topology_dict_to_proto(json.loads(known.topology)))
    return message


def usage_report(used: Usage) -> slots_pb2.UsageReport:
    """What slots really use."""
    return slots_pb2.UsageReport(
        cpu_milli=used.cpu_milli, memory_bytes=used.memory_bytes, tasks=used.tasks
    )


def item_results(outcomes: Iterable[ItemOutcome]) -> list[slots_pb2.ItemResult]:
    """Results of a batch in the same order."""
    return [_item_result(outcome) for outcome in outcomes]


def releases(slots: Iterable[tuple[str, int]]) -> list[rm_pb2.SlotRelease]:
    """Slots that nobody owns."""
    return [
        rm_pb2.SlotRelease(allocation_id=allocation_id, generation=generation)
        for allocation_id, generation in slots
    ]


def _item_result(outcome: ItemOutcome) -> slots_pb2.ItemResult:
    result = slots_pb2.ItemResult(id=outcome.id)  # most often that is all
    if outcome.reason:
        result.error.reason = outcome.reason
        result.error.message = outcome.message
        result.error.details.update(dict(outcome.details))
    return result


def _set_times(message: cluster_pb2.ExecutorStatus, executor: Executor) -> None:
    if executor.report_time_ms:
        message.report_time.CopyFrom(timestamp_ms_to_proto(executor.report_time_ms))
    if executor.drain_deadline_time_ms is not None:
        deadline = timestamp_ms_to_proto(executor.drain_deadline_time_ms)
        message.drain_deadline_time.CopyFrom(deadline)
