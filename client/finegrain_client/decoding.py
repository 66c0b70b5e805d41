"""Converts the servers' messages into the values of `types`.

A field of a value comes from the field of the message with the same name. If the names differ, the
table of `Reading` entries maps them. `decoding_hosts.py` and `decoding_identities.py` convert the
values that few programs need. They are separate modules because the import of the classes of these
values is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from google.protobuf.descriptor import EnumDescriptor

from finegrain.errors import FailedPrecondition, InvalidArgument, Reason
from finegrain.resources import DEVICE_PREFIX, EXTENDED_PREFIX, ResourceProfile
from finegrain.rpc.mapping.reader import FromMessage, Reader, Reading, Via
from finegrain.rpc.wire import profile_from_proto
from finegrain.rpc.wire_cpus import (
    assignment_from_proto,
    cpu_policy_from_proto,
)
from finegrain.rpc.wire_devices import condition_from_proto, device_from_proto
from finegrain.v1 import (
    cluster_pb2,
    cpus_pb2,
    devices_pb2,
    resources_pb2,
    slots_pb2,
)
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import task_executor_pb2 as te
from finegrain.values.isolation import Isolation
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.usage import SlotUsage, Usage
from finegrain_client.types import (
    advice,
    status,
)

MessageT = TypeVar("MessageT")
T = TypeVar("T")


def _unknown(kind: type[Enum], described: EnumDescriptor, number: int) -> FailedPrecondition:
    known = described.values_by_number.get(number)
    return _newer(
        f"{known.name if known else number}, which this client does not know as a {kind.__name__}"
    )


def _newer(said: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"the server sent {said}; client and server may be one minor version apart: upgrade the "
        "older one",
        reason=Reason.VERSION_MISMATCH,
    )


def known(read: Callable[[MessageT, str], T], message: MessageT, field: str) -> T:
    """Reads a value with a parser that the servers also use, and converts the parser's error.

    Raises:
        FailedPrecondition: VERSION_MISMATCH: this client does not know the value.
    """
    try:
        return read(message, field)
    except InvalidArgument as error:
        raise _newer(f"something that this client does not know: {error.message}") from None


def _amounts(message: resources_pb2.ResourceAmounts) -> dict[str, int]:
    """Returns amounts by dimension, without zeros."""
    found = {described.name: amount for described, amount in message.ListFields()}
    for prefix, field in ((EXTENDED_PREFIX, "extended"), (DEVICE_PREFIX, "devices")):
        named = found.pop(field, {})
        found |= {f"{prefix}{name}": each for name, each in named.items() if each}
    return found


def _profile(message: resources_pb2.ResourceProfile) -> ResourceProfile:
    return known(profile_from_proto, message, "profile")


def plain(message: Any) -> dict[str, Any]:
    """Returns a message as a dict with the field names of the protocol. Integers stay integers."""
    return {
        each.name: _plain_value(getattr(message, each.name)) for each in message.DESCRIPTOR.fields
    }


def _plain_value(value: Any) -> Any:
    if isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    return [plain(one) if hasattr(one, "DESCRIPTOR") else one for one in value]


def _task_result(message: te.TaskStatus) -> status.TaskResult | None:
    if not message.HasField("exit"):
        return None
    return read(status.TaskResult, message.exit, task_id=message.task_id)


def _or_none(word: str) -> str:
    return word or "none"


def _at_least_one(count: int) -> int:
    return max(1, count)


ENFORCED = ("cpu", "cpuset", "memory", "pids", "kill", "driver")
ASKED = (
    "cpu_limit_milli",
    "pids_max",
    "required_labels",
    "target_address",
    "allow_pending",
    "restart_on_loss",
    "restart_on_device_loss",
    "cpu_policy",
)

read = Reader(
    (
        Reading(advice.ThreadAdvice, cluster_pb2.AdviseThreadsResponse, given="job_id"),
        Reading(
            Isolation,
            resources_pb2.IsolationReport,
            {name: Via(name, _or_none) for name in ENFORCED},
        ),
        Reading(
            status.RequestStatus,
            rm.RequestStatus,
            {name: f"request.{name}" for name in ASKED}
            | {
                "time_limit_s": "request.time_limit",
                "expected_run_time_s": "request.expected_run_time",
                "wait_timeout_s": "request.wait_timeout",
                "priority": "request.priority",
                "revocable": "request.revocable",
                "count": Via("count", _at_least_one),
            },
            unread="token",
        ),
        Reading(
            status.JobEvent,
            rm.JobEvent,
            {"count": Via("count", _at_least_one)},
            kept="from_snapshot",
            unread="token",
        ),
        Reading(
            status.ExecutorStatus,
            cluster_pb2.ExecutorStatus,
            {"topology": Via("topology", plain)},
            given="slot_list",
        ),
        Reading(
            ItemOutcome,
            slots_pb2.ItemResult,
            {name: f"error.{name}" for name in ("reason", "message", "details")},
        ),
        Reading(
            status.TaskStatus,
            te.TaskStatus,
            {
                "result": FromMessage(_task_result, ("exit",)),
                "reason": "error.reason",
                "message": "error.message",
            },
        ),
        Reading(
            status.TaskResult,
            te.TaskExit,
            {"cpu_time_s": Via("cpu_time_us", lambda time_us: time_us / 1e6)},
            given="task_id",
            kept="stdout stderr",
        ),
        Reading(Usage, slots_pb2.UsageReport, unread="devices slots"),
        Reading(status.UsageHistory, cluster_pb2.GetUsageResponse),
        Reading(status.UsageSample, cluster_pb2.UsageSample),
        Reading(SlotUsage, slots_pb2.SlotUsage, unread="allocation_id generation"),
    ),
    converters={
        resources_pb2.ResourceAmounts: _amounts,
        resources_pb2.ResourceProfile: _profile,
        resources_pb2.Device: partial(known, device_from_proto, field="device"),
        devices_pb2.DeviceCondition: partial(known, condition_from_proto, field="condition"),
        cpus_pb2.CpuPolicy: partial(known, cpu_policy_from_proto, field="cpu_policy"),
        cpus_pb2.CpuAssignment: partial(known, assignment_from_proto, field="assignment"),
    },
    unknown=_unknown,
)
"""Converts a message into a value of the given class: `read(SlotStatus, message)`.

Raises FailedPrecondition (VERSION_MISMATCH) for a word that only a newer server knows.
"""
