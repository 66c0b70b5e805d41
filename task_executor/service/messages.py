"""Decodes the orders of the resource manager, and checks every field of an order."""

from __future__ import annotations

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.errors import InvalidArgument
from finegrain.identity import Identity
from finegrain.ids import check_id
from finegrain.resources import ResourceProfile
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.wire import (
    check_amount,
    duration_ms_from_proto,
    profile_from_proto,
)
from finegrain.rpc.wire_cpus import assignment_from_proto
from finegrain.v1 import slots_pb2, task_executor_pb2
from finegrain.values.bounds import (
    COUNTER_MAX,
    CPU_MILLI_MAX,
    PIDS_MAX,
    TIME_LIMIT_MS_MAX,
    TIME_LIMIT_MS_MIN,
)
from task_executor.engine.slots import SlotKey, SlotSpec

NO_CLUSTER = "any"  # owners are written without the name of the cluster


def check_generation(value: int, field: str) -> int:
    """Returns `value` if it is a valid generation.

    Raises:
        InvalidArgument: the value is below 1, or too large.
    """
    if not 1 <= value <= COUNTER_MAX:
        raise InvalidArgument(field, value, f"1 to {COUNTER_MAX}")
    return value


def spec_from_proto(
    message: task_executor_pb2.SlotAllocation, field: str, *, pids_max_default: int
) -> SlotSpec:
    """Decodes an ordered slot, and fills in the executor's defaults.

    Args:
        message: the order to carve a slot.
        field: the name of the order's field in the request, for errors.
        pids_max_default: the limit of processes, if the order names no limit.

    Raises:
        InvalidArgument: a field is invalid. The error has its name, its value and the allowed
            values.
    """
    slot, where = message.slot, f"{field}.slot"
    profile = _profile_from_proto(slot, where)
    if message.target_address:
        check_dialable(message.target_address, f"{field}.target_address")
    if not 0 <= slot.pids_max <= PIDS_MAX:
        raise InvalidArgument(f"{where}.pids_max", slot.pids_max, f"0 to {PIDS_MAX}")
    assignment = _assignment_from_proto(slot, where)
    cpus = CpuSet.parse(slot.cpus, f"{where}.cpus")
    # A pinned slot runs on the cpus of its assignment. The field `cpus` must be empty, or repeat
    # these cpus.
    if assignment is not None and assignment.qos.is_pinned:
        if cpus not in (EMPTY, assignment.cpus):
            expected = f"the cpus of the assignment ({assignment.cpus}), or empty"
            raise InvalidArgument(f"{where}.cpus", slot.cpus, expected)
        cpus = assignment.cpus
    # Fill in the defaults, so that equal orders give equal specs.
    return SlotSpec(
        allocation_id=check_id(f"{where}.allocation_id", slot.allocation_id),
        generation=check_generation(slot.generation, f"{where}.generation"),
        job_id=check_id(f"{where}.job_id", slot.job_id),
        profile=profile,
        cpu_limit_milli=check_amount(
            f"{where}.cpu_limit_milli", slot.cpu_limit_milli, CPU_MILLI_MAX
        )
        or profile.cpu_milli,
        pids_max=slot.pids_max or pids_max_default,
        cpus=str(cpus),
        owner=_check_owner(message.owner, f"{field}.owner"),
        target_address=message.target_address,
        resize_number=check_amount(f"{where}.resize_number", slot.resize_number),
        assignment=assignment,
        time_limit_ms=_time_limit(slot, f"{where}.time_limit"),
    )


def _time_limit(message: slots_pb2.SlotStatus, where: str) -> int | None:
    if not message.HasField("time_limit"):
        return None
    return duration_ms_from_proto(
        message.time_limit, where, smallest_ms=TIME_LIMIT_MS_MIN, largest_ms=TIME_LIMIT_MS_MAX
    )


def _check_owner(owner: str, where: str) -> str:
    try:
        if owner:
            Identity.from_text(NO_CLUSTER, owner)
    except InvalidArgument:
        raise InvalidArgument(where, owner, "an identity, for example user/alice") from None
    return owner


def _assignment_from_proto(
    message: slots_pb2.SlotStatus | task_executor_pb2.TaskExecutorServiceResizeSlotRequest,
    where: str,
) -> CpuAssignment | None:
    if not message.HasField("assignment"):
        return None
    return assignment_from_proto(message.assignment, f"{where}.assignment".lstrip("."))


def change_from_proto(
    message: task_executor_pb2.TaskExecutorServiceResizeSlotRequest,
) -> tuple[tuple[SlotKey, int, ResourceProfile, int], CpuAssignment | None]:
    """Decodes a resize.

    Returns:
        Five values: the key of the slot, the number of the resize, the new profile, the new CPU
        time limit and the new assignment. The assignment is None if the slot keeps its present
        assignment.

    Raises:
        InvalidArgument: a field is invalid. The error has its name, its value and the allowed
            values.
    """
    key = SlotKey(
        check_id("allocation_id", message.allocation_id),
        check_generation(message.generation, "generation"),
    )
    number = check_generation(message.resize_number, "resize_number")
    profile = _profile_from_proto(message, "")
    cap = (
        check_amount("cpu_limit_milli", message.cpu_limit_milli, CPU_MILLI_MAX) or profile.cpu_milli
    )
    return (key, number, profile, cap), _assignment_from_proto(message, "")


def _profile_from_proto(
    message: slots_pb2.SlotStatus | task_executor_pb2.TaskExecutorServiceResizeSlotRequest,
    where: str,
) -> ResourceProfile:
    """Decodes the profile, and checks that the booked memory in the message matches the profile."""
    prefix = f"{where}." if where else ""
    profile = profile_from_proto(message.profile, f"{prefix}profile")
    if message.memory_bytes not in (0, profile.booked_memory_bytes):
        raise InvalidArgument(
            f"{prefix}memory_bytes",
            message.memory_bytes,
            f"the sum of the profile's memory parts in units of 64 KiB: "
            f"{profile.booked_memory_bytes}",
        )
    return profile
