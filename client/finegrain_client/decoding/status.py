"""Turns what the RM says about the cluster into the values of `types/status.py`.

Decides what an absent field means (None, or the empty value). Refuses unknown words of a newer
server with one clear error instead of guessing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from finegrain.errors import FailedPrecondition, Reason
from finegrain.resources import EXTENDED_PREFIX, ResourceProfile, extended_items
from finegrain.v1 import cluster_pb2, resource_manager_pb2, resources_pb2, slots_pb2
from finegrain_client.decoding.cpus import cpu_wish, slot_cpus
from finegrain_client.types import status as types

StateT = TypeVar("StateT", bound=StrEnum)

_AMOUNTS, _PROFILE_PARTS = (
    [each.name for each in kind.DESCRIPTOR.fields if each.name != "extended"]
    for kind in (resources_pb2.ResourceAmounts, resources_pb2.ResourceProfile)
)


def state(kind: type[StateT], wrapper: Any, number: int) -> StateT:
    """A member of one of our enums from a protocol enum's number.

    Raises:
        FailedPrecondition: VERSION_MISMATCH, a word that this client does not know.
    """
    name = wrapper.Name(number) if number in wrapper.values() else str(number)
    word = re.split("_STATE_|_PLACEMENT_", name, maxsplit=1)[-1]
    try:
        return kind(word)
    except ValueError:
        raise FailedPrecondition(
            f"the server said {name}, which this client does not know as a {kind.__name__}; "
            "bring client and server to neighbouring versions",
            reason=Reason.VERSION_MISMATCH,
        ) from None


def moment(message: Message, field: str) -> datetime | None:
    """A Timestamp field in UTC, or None where it is absent."""
    if not message.HasField(field):
        return None
    return cast("Timestamp", getattr(message, field)).ToDatetime(tzinfo=UTC)


def seconds(message: Message, field: str) -> float | None:
    """A Duration field in seconds, or None where it is absent."""
    if not message.HasField(field):
        return None
    return cast("Duration", getattr(message, field)).ToMicroseconds() / 1e6


def duration(value_s: float) -> Duration:
    """Seconds as a protocol Duration, to the microsecond."""
    message = Duration()
    message.FromMicroseconds(round(value_s * 1e6))
    return message


def profile(message: resources_pb2.ResourceProfile) -> ResourceProfile:
    """A resource profile."""
    parts = {name: getattr(message, name) for name in _PROFILE_PARTS}
    return ResourceProfile(**parts, extended=extended_items(message.extended))


def amounts(message: resources_pb2.ResourceAmounts) -> dict[str, int]:
    """Amounts by dimension, without zeros."""
    found = {name: getattr(message, name) for name in _AMOUNTS}
    found |= {EXTENDED_PREFIX + name: amount for name, amount in message.extended.items()}
    return {name: amount for name, amount in found.items() if amount}


def isolation(message: resources_pb2.IsolationReport) -> types.Isolation:
    """What is really enforced."""
    return types.Isolation(
        cpu=message.cpu or "none",
        cpuset=message.cpuset or "none",
        memory=message.memory or "none",
        pids=message.pids or "none",
        kill=message.kill or "none",
        driver=message.driver or "none",
        notes=tuple(message.notes),
        countable=message.countable,
    )


def plain(message: Message) -> dict[str, Any]:
    """Any message as JSON-able data under the field names of the protocol, integers as integers."""
    return {
        each.name: [
            plain(one) if isinstance(one, Message) else one for one in getattr(message, each.name)
        ]
        if isinstance(getattr(message, each.name), Sequence)
        and not isinstance(getattr(message, each.name), str)
        else getattr(message, each.name)
        for each in message.DESCRIPTOR.fields
    }


def slot(message: slots_pb2.SlotStatus) -> types.SlotStatus:
    """One slot."""
    return types.SlotStatus(
        allocation_id=message.allocation_id,
        generation=message.generation,
        job_id=message.job_id,
        executor_id=message.executor_id,
        executor_address=message.executor_address,
        state=state(types.SlotState, slots_pb2.SlotState, message.state) if message.state else None,
        profile=profile(message.profile),
        memory_bytes=message.memory_bytes,
        cpu_limit_milli=message.cpu_limit_milli,
        pids_max=message.pids_max,
        cpus=message.cpus,
        isolation=isolation(message.isolation) if message.HasField("isolation") else None,
        allocated_time=moment(message, "allocated_time"),
        resize_number=message.resize_number,
        resizes=tuple(resize(each) for each in message.resizes) if message.resizes else (),
        assignment=slot_cpus(message.assignment) if message.HasField("assignment") else None,
    )


def resize(message: slots_pb2.SlotResize) -> types.SlotResize:
    """A change of a slot's size that is under way."""
    return types.SlotResize(
        resize_number=message.resize_number,
        profile=profile(message.profile),
        memory_bytes=message.memory_bytes,
        cpu_limit_milli=message.cpu_limit_milli,
        state=state(types.ResizeState, slots_pb2.SlotResizeState, message.state),
        message=message.message,
        assignment=slot_cpus(message.assignment) if message.HasField("assignment") else None,
    )


def gang(message: slots_pb2.Gang) -> types.Gang:
    """A gang; where it may go is never left open by the RM."""
    return types.Gang(
        gang_id=message.gang_id,
        placement=state(types.GangPlacement, slots_pb2.GangPlacement, message.placement),
        label=message.label,
        timeout_s=seconds(message, "timeout"),
    )


def request(message: resource_manager_pb2.RequestStatus) -> types.RequestStatus:
    """One slot request."""
    asked = message.request
    return types.RequestStatus(
        allocation_id=message.allocation_id,
        job_id=message.job_id,
        job_name=message.job_name,
        state=state(types.RequestState, slots_pb2.RequestState, message.state),
        reason=message.reason,
        profile=profile(message.profile) if message.HasField("profile") else None,
        generation=message.generation,
        arrival_number=message.arrival_number,
        create_time=moment(message, "create_time"),
        end_time=moment(message, "end_time"),
        slot=slot(message.slot) if message.HasField("slot") else None,
        cpu_limit_milli=asked.cpu_limit_milli,
        pids_max=asked.pids_max,
        required_labels=dict(asked.required_labels),
        target_address=asked.target_address,
        allow_pending=asked.allow_pending,
        restart_on_loss=asked.restart_on_loss,
        gang=gang(message.gang) if message.HasField("gang") else None,
        count=max(1, message.count),
        range_id=message.range_id,
        cpu_policy=cpu_wish(asked.cpu_policy),
    )


def job_event(message: resource_manager_pb2.JobEvent) -> types.JobEvent:
    """One event of a job's watch stream."""
    return types.JobEvent(
        sequence=message.sequence,
        event_time=moment(message, "event_time"),
        allocation_id=message.allocation_id,
        state=state(types.RequestState, slots_pb2.RequestState, message.state),
        reason=message.reason,
        message=message.message,
        slot=slot(message.slot) if message.HasField("slot") else None,
        count=max(1, message.count),
    )


def usage(message: slots_pb2.UsageReport) -> types.Usage:
    """What is really used."""
    return types.Usage(message.cpu_milli, message.memory_bytes, message.tasks)


def executor(
    message: cluster_pb2.ExecutorStatus, slot_list: Sequence[types.SlotStatus] | None = None
) -> types.ExecutorStatus:
    """One executor, with its topology where that was sent, and its slots where known."""
    return types.ExecutorStatus(
        executor_id=message.executor_id,
        instance_id=message.instance_id,
        address=message.address,
        state=state(types.ExecutorState, cluster_pb2.ExecutorState, message.state),
        draining=message.draining,
        drain_reason=message.drain_reason,
        drain_deadline_time=moment(message, "drain_deadline_time"),
        registration_number=message.registration_number,
        report_number=message.report_number,
        report_time=moment(message, "report_time"),
        total=amounts(message.total),
        reserved=amounts(message.reserved),
        allocated=amounts(message.allocated),
        available=amounts(message.available),
        used=usage(message.used),
        slots=message.slots,
        slots_max=message.slots_max,
        labels=dict(message.labels),
        default_slot_profile=profile(message.default_slot_profile),
        isolation=isolation(message.isolation) if message.HasField("isolation") else None,
        software_version=message.software_version,
        shared_cpus=message.shared_cpus,
        unreachable_reason=message.unreachable_reason,
        provided_as=message.provided_as,
        topology=plain(message.topology) if message.HasField("topology") else None,
        slot_list=None if slot_list is None else tuple(slot_list),
    )


def job(message: cluster_pb2.JobStatus) -> types.JobStatus:
    """One job."""
    return types.JobStatus(
        job_id=message.job_id,
        name=message.name,
        group=message.group,
        ended=message.ended,
        end_reason=message.end_reason,
        detached=message.detached,
        lease_s=seconds(message, "lease"),
        create_time=moment(message, "create_time"),
        end_time=moment(message, "end_time"),
        pending_requests=message.pending_requests,
        slots=message.slots,
        allocated=amounts(message.allocated),
        last_sequence=message.last_sequence,
        service=message.service,
        share_now=message.share_now,
        oldest_wait_time=moment(message, "oldest_wait_time"),
    )


def cluster_event(message: cluster_pb2.ClusterEvent) -> types.ClusterEvent:
    """One event of the cluster."""
    return types.ClusterEvent(
        sequence=message.sequence,
        event_time=moment(message, "event_time"),
        kind=message.kind,
        executor_id=message.executor_id,
        job_id=message.job_id,
        allocation_id=message.allocation_id,
        reason=message.reason,
        message=message.message,
    )


def cluster_info(message: cluster_pb2.GetClusterResponse) -> types.ClusterInfo:
    """The RM and the sums."""
    return types.ClusterInfo(
        rm_epoch=message.rm_epoch,
        software_version=message.software_version,
        protocol_version=message.protocol_version,
        start_time=moment(message, "start_time"),
        total=amounts(message.total),
        reserved=amounts(message.reserved),
        allocated=amounts(message.allocated),
        available=amounts(message.available),
        used=usage(message.used),
        executors=dict(message.executors),
        pending_requests=dict(message.pending_requests),
        slots=message.slots,
        jobs=message.jobs,
    )


def outcome(message: slots_pb2.ItemResult) -> types.ItemOutcome:
    """What became of one item of a batch."""
    if not message.HasField("error"):
        return types.ItemOutcome(message.id)
    error = message.error
    return types.ItemOutcome(message.id, error.reason, error.message, dict(error.details))
