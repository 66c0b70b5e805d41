"""Decodes requests, releases, registrations and reports into the engine's values.

This module checks the form of every field. `InvalidArgument` names the path of the field. Some
rules depend on the engine's state and settings, such as whether an id is known. The engine checks
these rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration

from finegrain.errors import FailedPrecondition, InvalidArgument, Reason
from finegrain.ids import ID_PATTERN, check_id, check_text
from finegrain.resources import ResourceProfile
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.wire import (
    amounts_from_proto,
    check_amount,
    check_cpu_list,
    duration_ms_from_proto,
    labels_from_proto,
    profile_from_proto,
)
from finegrain.rpc.wire_cpus import assignment_from_proto, host_cpus_from_proto
from finegrain.rpc.wire_devices import check_count, conditions_from_proto
from finegrain.rpc.wire_topology import isolation_from_proto, topology_from_proto
from finegrain.software_version import UNKNOWN, software_version
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import slots_pb2
from finegrain.values.bounds import (
    COUNTER_MAX,
    CPU_MILLI_MAX,
    GRACE_MS_MAX,
    PIDS_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    TIME_LIMIT_MS_MAX,
    TIME_LIMIT_MS_MIN,
)
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import SlotState
from resource_manager.engine.model.entities import Registration, RequestSpec
from resource_manager.engine.model.reported import EndedSlot, Report, ReportedSlot
from resource_manager.service.wire.cpu_policy import request_policy
from resource_manager.service.wire.cpus import cpu_state_from_proto

BATCH_ITEMS_MAX = 10_000
SLOTS_MAX = 1_000_000
REPORTED_SLOTS_MAX = 32_768  # as many as fit into a message, if they have usual profiles and ids
NAME_LENGTH_MAX = 200
REQUEST_ID_LENGTH_MIN = 16
REQUEST_ID_LENGTH_MAX = 256
REASON_LENGTH_MAX = 500
PROTOCOL_VERSION = "1.1"  # 1.1: tasks of job graphs
"""Version of the protocol that this resource manager speaks: "MAJOR.MINOR"."""

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_REASON_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_REPORTED_STATES = {
    slots_pb2.SLOT_STATE_ALLOCATED: SlotState.ALLOCATED,
    slots_pb2.SLOT_STATE_FREEING: SlotState.FREEING,
}


def check_batch(field: str, items: Sequence[object], *, ranges: Sequence[object] = ()) -> None:
    """Checks that there are 1 to `BATCH_ITEMS_MAX` items. A call with ranges can have 0 items.

    Args:
        field: path of the field, for errors.
        items: the batch.
        ranges: the ranges of the same call.

    Raises:
        InvalidArgument: there are too few or too many items.
    """
    if not (0 if ranges else 1) <= len(items) <= BATCH_ITEMS_MAX:
        raise InvalidArgument(field, f"{len(items)} items", f"1 to {BATCH_ITEMS_MAX} items")


def grace_ms(message: Duration, *, present: bool) -> int | None:
    """Returns the milliseconds between SIGTERM and SIGKILL, or None for the executor's default."""
    return duration_ms_from_proto(message, "grace", largest_ms=GRACE_MS_MAX) if present else None


def request_id(text: str) -> str:
    """Returns a well-formed request id.

    Raises:
        InvalidArgument: the id is too short, too long or not printable. The error does not contain
            the id, because the id is a secret.
    """
    fits = REQUEST_ID_LENGTH_MIN <= len(text) <= REQUEST_ID_LENGTH_MAX
    if not fits or not text.isprintable():
        raise InvalidArgument(
            "request_id",
            f"{len(text)} characters",
            f"{REQUEST_ID_LENGTH_MIN} to {REQUEST_ID_LENGTH_MAX} printable random characters",
        )
    return text


def slot_request(message: slots_pb2.SlotRequest, field: str) -> RequestSpec:
    """Decodes one slot request.

    Raises:
        InvalidArgument: a field is malformed.
    """
    allocation_id = message.allocation_id
    # One call can have thousands of requests, so this path is built only for a malformed id.
    if not ID_PATTERN.fullmatch(allocation_id):
        check_id(f"{field}.allocation_id", allocation_id)
    # An absent profile differs from an empty profile: the request gets the default slot of its
    # executor.
    specified = message.HasField("profile")
    profile = profile_from_proto(message.profile, f"{field}.profile") if specified else None
    limit = message.cpu_limit_milli
    if limit:
        _check_limit(limit, profile, f"{field}.cpu_limit_milli")
    pids_max, target_address = message.pids_max, message.target_address
    if not 0 <= pids_max <= PIDS_MAX:
        raise InvalidArgument(f"{field}.pids_max", pids_max, f"0 to {PIDS_MAX}")
    if target_address:
        check_dialable(target_address, f"{field}.target_address")
    if gang_id := message.gang_id:
        check_id(f"{field}.gang_id", gang_id)
    return RequestSpec(
        allocation_id=allocation_id,
        profile=profile,
        cpu_limit_milli=limit,
        pids_max=pids_max,
        required_labels=labels_from_proto(message.required_labels, f"{field}.required_labels"),
        target_address=target_address,
        allow_pending=message.allow_pending,
        restart_on_loss=message.restart_on_loss,
        restart_on_device_loss=message.restart_on_device_loss,
        gang_id=gang_id,
        cpu_policy=request_policy(message, profile, field),
        priority=priority(message.priority, f"{field}.priority") if message.priority else 0,
        revocable=message.revocable,
        **_run_times(message, field),
    )


def priority(value: int, field: str) -> int:
    """Checks a priority and returns it.

    Raises:
        InvalidArgument: the priority is out of range.
    """
    if not PRIORITY_MIN <= value <= PRIORITY_MAX:
        raise InvalidArgument(field, value, f"{PRIORITY_MIN} to {PRIORITY_MAX}")
    return value


def _run_times(message: slots_pb2.SlotRequest, field: str) -> dict[str, int]:
    times: dict[str, int] = {}
    # These checks save time: most requests have no times, and one call can have thousands of
    # requests.
    if message.HasField("time_limit"):
        times["time_limit_ms"] = duration_ms_from_proto(
            message.time_limit,
            f"{field}.time_limit",
            smallest_ms=TIME_LIMIT_MS_MIN,
            largest_ms=TIME_LIMIT_MS_MAX,
        )
    if message.HasField("expected_run_time"):
        largest_ms = times.get("time_limit_ms", TIME_LIMIT_MS_MAX)
        times["expected_run_time_ms"] = duration_ms_from_proto(
            message.expected_run_time, f"{field}.expected_run_time", largest_ms=largest_ms
        )
    if message.HasField("wait_timeout"):
        if message.gang_id:
            expected = "none for a member of a gang; set the timeout of the gang"
            raise InvalidArgument(f"{field}.wait_timeout", "set", expected)
        times["wait_timeout_ms"] = duration_ms_from_proto(
            message.wait_timeout,
            f"{field}.wait_timeout",
            smallest_ms=1,
            largest_ms=TIME_LIMIT_MS_MAX,
        )
    return times


def _check_limit(limit: int, profile: ResourceProfile | None, field: str) -> None:
    if profile is None:
        raise InvalidArgument(field, limit, "0 where the profile is absent (unknown)")
    lowest = profile.cpu_milli
    if not lowest <= limit <= CPU_MILLI_MAX:
        raise InvalidArgument(field, limit, f"0, or cpu_milli ({lowest}) to {CPU_MILLI_MAX}")


def slot_requests_from(messages: Sequence[slots_pb2.SlotRequest], first: int) -> list[RequestSpec]:
    """Decodes a part of a batch; `first` is the position of its first request in the call."""
    return [slot_request(each, f"requests[{first + at}]") for at, each in enumerate(messages)]


def repetitions(ids: Sequence[str], field: str) -> dict[int, ItemOutcome]:
    """Returns, by position, the refusals of items that repeat the id of an earlier item."""
    first: dict[str, int] = {}
    repeated: dict[int, ItemOutcome] = {}
    for index, each in enumerate(ids):
        earlier = first.setdefault(each, index)
        if earlier != index:
            error = InvalidArgument(
                field.format(index), each, f"an id that {field.format(earlier)} does not have"
            )
            repeated[index] = ItemOutcome(
                each, error.reason.value, error.message, tuple(error.details.items())
            )
    return repeated


def allocation_ids(ids: Sequence[str], *, ranges: Sequence[object] = ()) -> tuple[str, ...]:
    """Checks a batch of ids and returns it. The batch can be empty if there are ranges."""
    check_batch("allocation_ids", ids, ranges=ranges)
    return tuple(check_id(f"allocation_ids[{index}]", each) for index, each in enumerate(ids))


def slot_releases(
    messages: Sequence[rm_pb2.SlotRelease], *, ranges: Sequence[object] = ()
) -> tuple[tuple[str, int], ...]:
    """Returns (allocation id, generation) of each slot in a batch. Generation 0 means the current
    generation. The batch can be empty if there are ranges.
    """
    check_batch("slots", messages, ranges=ranges)
    slots = tuple((each.allocation_id, each.generation) for each in messages)
    sound = ID_PATTERN.fullmatch
    for index, (allocation_id, generation) in enumerate(slots):
        # Build the path of a field only for a malformed entry, because a call can have thousands of
        # entries.
        if generation < 0 or not sound(allocation_id):
            check_id(f"slots[{index}].allocation_id", allocation_id)
            _check_counter(f"slots[{index}].generation", generation)
    return slots


def registration(message: rm_pb2.RegisterExecutorRequest) -> Registration:
    """Decodes the registration of an executor.

    Raises:
        InvalidArgument: a field is malformed.
        FailedPrecondition: see `check_protocol_version`.
    """
    # Check the fields here that are copied unchanged below. The conversions check all other fields.
    check_id("executor_id", message.executor_id)
    check_id("instance_id", message.instance_id)
    check_dialable(message.address, "address")
    total = amounts_from_proto(message.total, "total")
    if not total:
        raise InvalidArgument("total", "empty", "the capacity that slots are carved from")
    if not 0 <= message.slots_max <= SLOTS_MAX:
        raise InvalidArgument("slots_max", message.slots_max, f"0 to {SLOTS_MAX}")
    check_text("boot_id", message.boot_id, longest=100, empty_ok=True)
    check_text("software_version", message.software_version, longest=100, empty_ok=True)
    return Registration(
        executor_id=message.executor_id,
        instance_id=message.instance_id,
        address=message.address,
        total=total,
        reserved=amounts_from_proto(message.reserved, "reserved"),
        default_profile=profile_from_proto(message.default_slot_profile, "default_slot_profile"),
        labels=labels_from_proto(message.labels, "labels"),
        slots_max=message.slots_max,
        shared_cpus=check_cpu_list(message.shared_cpus, "shared_cpus"),
        topology=json.dumps(
            topology_from_proto(message.topology, "topology"), separators=(",", ":")
        ),
        isolation=isolation_from_proto(message.isolation, "isolation"),
        boot_id=message.boot_id,
        protocol_version=check_protocol_version(message.protocol_version, message.software_version),
        software_version=message.software_version,
        provided_as=message.provided_as and check_id("provided_as", message.provided_as),
        host_cpus=host_cpus_from_proto(message.host_cpus, "host_cpus"),
    )


def check_protocol_version(text: str, software: str) -> str:
    """Returns the version if both sides can communicate.

    Both sides must have the same major version. Their minor versions must not differ by more than
    one.

    Args:
        text: version of the protocol that an executor speaks.
        software: version of finegrain that the executor runs, for the error.

    Raises:
        InvalidArgument: the version is malformed.
        FailedPrecondition: the versions differ too much.
    """
    found = _VERSION.fullmatch(text)
    ours = _VERSION.fullmatch(PROTOCOL_VERSION)
    if found is None or ours is None:
        raise InvalidArgument("protocol_version", text, 'a version such as "1.0"')
    theirs, own = ((int(each[1]), int(each[2])) for each in (found, ours))
    if theirs[0] == own[0] and abs(theirs[1] - own[1]) <= 1:
        return text
    install = (
        f"install finegrain {software_version()} on the executor's host"
        if theirs < own
        else f"install finegrain {software or 'of the same version'} on the resource manager's host"
    )
    raise FailedPrecondition(
        f"the executor runs finegrain {software or UNKNOWN} with protocol {text}; this resource "
        f"manager runs finegrain {software_version()} with protocol {PROTOCOL_VERSION}, and the "
        f"minor versions of the protocol may differ by at most one; {install}",
        reason=Reason.VERSION_MISMATCH,
        details={"protocol_version": text, "spoken": PROTOCOL_VERSION},
    )


def report(message: slots_pb2.SlotReport, field: str) -> Report:
    """Decodes one numbered report of an executor.

    Raises:
        InvalidArgument: a field is malformed.
    """
    if message.report_number < 1:
        raise InvalidArgument(f"{field}.report_number", message.report_number, "1 or more")
    _check_counter(f"{field}.rm_epoch", message.rm_epoch)
    _check_counter(f"{field}.command_number", message.command_number)
    _check_counter(f"{field}.base_report_number", message.base_report_number)
    # A report with the flag `unchanged` and with content contradicts itself, so it is rejected.
    if message.unchanged and (message.slots or message.HasField("available")):
        raise InvalidArgument(f"{field}.unchanged", True, "no slots and no available amounts")
    if message.as_ordered and (message.unchanged or message.slots):
        raise InvalidArgument(f"{field}.as_ordered", True, "not `unchanged`, and no slots")
    if message.unchanged and not message.ended:  # the usual report
        return Report(
            report_number=message.report_number,
            rm_epoch=message.rm_epoch,
            command_number=message.command_number,
            unchanged=True,
            base_report_number=message.base_report_number,
        )
    check_count(f"{field}.slots", message.slots, REPORTED_SLOTS_MAX)
    check_count(f"{field}.ended", message.ended, REPORTED_SLOTS_MAX)
    slots = tuple(
        _reported_slot(each, f"{field}.slots[{index}]") for index, each in enumerate(message.slots)
    )
    # Two generations of one id can exist on a host until the older generation is freed.
    if len({(slot.allocation_id, slot.generation) for slot in slots}) != len(slots):
        raise InvalidArgument(
            f"{field}.slots", f"{len(slots)} slots", "each id and generation only once"
        )
    return Report(
        report_number=message.report_number,
        rm_epoch=message.rm_epoch,
        command_number=message.command_number,
        unchanged=message.unchanged,
        base_report_number=message.base_report_number,
        slots=slots,
        available=amounts_from_proto(message.available, f"{field}.available"),
        ended=tuple(
            _ended_slot(each, f"{field}.ended[{index}]") for index, each in enumerate(message.ended)
        ),
        cpu_state=cpu_state_from_proto(message.cpu_state, f"{field}.cpu_state")
        if message.HasField("cpu_state")
        else None,
        device_conditions=conditions_from_proto(
            message.device_conditions, f"{field}.device_conditions"
        ),
        as_ordered=message.as_ordered,
        slot_isolation=isolation_from_proto(message.slot_isolation, f"{field}.slot_isolation")
        if message.HasField("slot_isolation")
        else None,
    )


_SLOTS_KNOWN_MAX = 16_384
"""The largest number of reported slots that are cached."""

_slots_known: dict[bytes, ReportedSlot] = {}


def _reported_slot(message: slots_pb2.SlotStatus, field: str) -> ReportedSlot:
    # Most slots of a report did not change since the last report. The serialization of a slot, as
    # the key of the cache, takes a tenth of the time of its checks.
    content = message.SerializeToString()
    known = _slots_known.get(content)
    if known is None:
        if len(_slots_known) >= _SLOTS_KNOWN_MAX:
            _slots_known.clear()
        known = _slots_known[content] = _checked_slot(message, field)
    return known


def _checked_slot(message: slots_pb2.SlotStatus, field: str) -> ReportedSlot:
    state = _REPORTED_STATES.get(message.state)
    if state is None:
        raise InvalidArgument(f"{field}.state", message.state, "ALLOCATED or FREEING")
    generation = message.generation
    if generation < 1:
        raise InvalidArgument(f"{field}.generation", generation, "1 or more")
    allocation_id, job_id, cpus = message.allocation_id, message.job_id, message.cpus
    # First check both ids without building their paths, for the same reason as in `slot_request`.
    if not (ID_PATTERN.fullmatch(allocation_id) and ID_PATTERN.fullmatch(job_id)):
        check_id(f"{field}.allocation_id", allocation_id)
        check_id(f"{field}.job_id", job_id)
    isolation = None
    if message.HasField("isolation"):
        isolation = isolation_from_proto(message.isolation, f"{field}.isolation")
    assignment = None
    if message.HasField("assignment"):
        assignment = assignment_from_proto(message.assignment, f"{field}.assignment")
    return ReportedSlot(
        allocation_id=allocation_id,
        generation=generation,
        job_id=job_id,
        profile=profile_from_proto(message.profile, f"{field}.profile"),
        state=state,
        cpu_limit_milli=check_amount(f"{field}.cpu_limit_milli", message.cpu_limit_milli),
        pids_max=check_amount(f"{field}.pids_max", message.pids_max),
        cpus=check_cpu_list(cpus, f"{field}.cpus") if cpus else "",
        isolation=isolation,
        resize_number=check_amount(f"{field}.resize_number", message.resize_number),
        reuse_number=check_amount(f"{field}.reuse_number", message.reuse_number),
        assignment=assignment,
    )


def _ended_slot(message: slots_pb2.EndedSlot, field: str) -> EndedSlot:
    if not _REASON_CODE.fullmatch(message.reason):
        raise InvalidArgument(f"{field}.reason", message.reason, "a code in capital letters")
    if message.generation < 1:
        raise InvalidArgument(f"{field}.generation", message.generation, "1 or more")
    check_id(f"{field}.allocation_id", message.allocation_id)
    return EndedSlot(message.allocation_id, message.generation, message.reason)


def _check_counter(field: str, value: int) -> None:
    if not 0 <= value <= COUNTER_MAX:
        raise InvalidArgument(field, value, f"0 to {COUNTER_MAX}")
