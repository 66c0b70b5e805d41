"""Between the executor's own values and the messages of the protocol, checked at the boundary.

Decides how an order, a state and a task look on the wire. Refuses to know what is done about them.
"""

from __future__ import annotations

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.ids import check_id
from finegrain.resources import AMOUNT_MAX, ResourceProfile
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.status import item_error
from finegrain.rpc.wire import (
    amounts_to_proto,
    check_amount,
    isolation_to_proto,
    profile_from_proto,
    profile_to_proto,
    timestamp_ms_to_proto,
)
from finegrain.rpc.wire_cpus import assignment_from_proto, assignment_to_proto
from finegrain.v1 import resources_pb2, slots_pb2, task_executor_pb2
from task_executor.engine.report_log import NumberedState
from task_executor.engine.slots import Slot, SlotKey, SlotSpec, SlotState
from task_executor.host.helper_messages import ExitRecord, IsolationReport
from task_executor.service.cpu_messages import cpu_state_to_proto
from task_executor.service.isolation import isolation_of
from task_executor.service.task_book import Task, TaskState

PIDS_MAX = 1 << 22
SIGKILL = 9
STATE_BYTES_WITH_NOTES_MAX = 2 * 1024 * 1024

_SLOT_STATES = {
    SlotState.ALLOCATED: slots_pb2.SLOT_STATE_ALLOCATED,
    SlotState.FREEING: slots_pb2.SLOT_STATE_FREEING,
}
_TASK_STATES = {
    TaskState.STARTING: task_executor_pb2.TASK_STATE_STARTING,
    TaskState.RUNNING: task_executor_pb2.TASK_STATE_RUNNING,
    TaskState.EXITED: task_executor_pb2.TASK_STATE_EXITED,
    TaskState.FAILED: task_executor_pb2.TASK_STATE_FAILED,
}


def check_generation(value: int, field: str) -> int:
    """The value itself if it can be a generation.

    Raises:
        InvalidArgument: below 1, or too large.
    """
    if not 1 <= value <= AMOUNT_MAX:
        raise InvalidArgument(field, value, "1 or more")
    return value


def spec_from_proto(
    message: task_executor_pb2.SlotAllocation, field: str, *, pids_max_default: int
) -> SlotSpec:
    """An ordered slot with the executor's defaults filled in.

    Raises:
        InvalidArgument: it names the field, the value and what was expected.
    """
    slot, where = message.slot, f"{field}.slot"
    profile = _profile_from_proto(slot, where)
    if message.target_address:
        check_dialable(message.target_address, f"{field}.target_address")
    if not 0 <= slot.pids_max <= PIDS_MAX:
        raise InvalidArgument(f"{where}.pids_max", slot.pids_max, f"0 to {PIDS_MAX}")
    assignment = _assignment_from_proto(slot, where)
    cpus = CpuSet.parse(slot.cpus, f"{where}.cpus")
    if assignment is not None and assignment.qos.is_pinned:
        if cpus not in (EMPTY, assignment.cpus):
            expected = f"those of the assignment ({assignment.cpus}), or none"
            raise InvalidArgument(f"{where}.cpus", slot.cpus, expected)
        cpus = assignment.cpus
    return SlotSpec(
        allocation_id=check_id(f"{where}.allocation_id", slot.allocation_id),
        generation=check_generation(slot.generation, f"{where}.generation"),
        job_id=check_id(f"{where}.job_id", slot.job_id),
        profile=profile,
        cpu_limit_milli=check_amount(f"{where}.cpu_limit_milli", slot.cpu_limit_milli)
        or profile.cpu_milli,
        pids_max=slot.pids_max or pids_max_default,
        cpus=str(cpus),
        job_secret_sha256=message.job_secret_sha256,
        target_address=message.target_address,
        resize_number=check_amount(f"{where}.resize_number", slot.resize_number),
        assignment=assignment,
    )


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
    """A slot, the number of its change of size, the new profile and cpu cap; and the cpus that it
    has then, None where it keeps those that it has.

    Raises:
        InvalidArgument: it names the field, the value and what was expected.
    """
    key = SlotKey(
        check_id("allocation_id", message.allocation_id),
        check_generation(message.generation, "generation"),
    )
    number = check_generation(message.resize_number, "resize_number")
    profile = _profile_from_proto(message, "")
    cap = check_amount("cpu_limit_milli", message.cpu_limit_milli) or profile.cpu_milli
    return (key, number, profile, cap), _assignment_from_proto(message, "")


def _profile_from_proto(
    message: slots_pb2.SlotStatus | task_executor_pb2.TaskExecutorServiceResizeSlotRequest,
    where: str,
) -> ResourceProfile:
    """The profile, checked against the memory that is said to be booked for it."""
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


def slot_to_proto(slot: Slot) -> slots_pb2.SlotStatus:
    """A slot as reports and offers show it."""
    message = slots_pb2.SlotStatus(
        allocation_id=slot.spec.allocation_id,
        generation=slot.spec.generation,
        job_id=slot.spec.job_id,
        profile=profile_to_proto(slot.spec.profile),
        memory_bytes=slot.spec.memory_bytes,
        cpu_limit_milli=slot.spec.cpu_limit_milli,
        pids_max=slot.spec.pids_max,
        cpus=slot.spec.cpus,
        state=_SLOT_STATES[slot.state],
        isolation=isolation_to_proto(slot.isolation),
        resize_number=slot.spec.resize_number,
    )
    if slot.spec.assignment is not None:
        message.assignment.CopyFrom(assignment_to_proto(slot.spec.assignment))
    if slot.allocated_time_ms:
        message.allocated_time.CopyFrom(timestamp_ms_to_proto(slot.allocated_time_ms))
    return message


def state_to_proto(state: NumberedState) -> slots_pb2.SlotReport:
    """A numbered state.

    Of very many slots the notes on isolation are left out, since a message has to fit; the
    registration tells the same for the whole host.
    """
    message = slots_pb2.SlotReport(
        report_number=state.report_number,
        rm_epoch=state.rm_epoch,
        command_number=state.command_number,
        unchanged=state.unchanged,
        base_report_number=state.base_report_number,
        slots=[slot_to_proto(slot) for slot in state.slots],
        available=None if state.unchanged else amounts_to_proto(state.available),
        ended=[
            slots_pb2.EndedSlot(
                allocation_id=ended.key.allocation_id,
                generation=ended.key.generation,
                reason=ended.reason,
            )
            for ended in state.ended
        ],
        cpu_state=None if state.cpus is None else cpu_state_to_proto(state.cpus),
    )
    if len(message.slots) and message.ByteSize() > STATE_BYTES_WITH_NOTES_MAX:
        for slot in message.slots:
            slot.isolation.ClearField("notes")
    return message


def isolation_message(report: IsolationReport) -> resources_pb2.IsolationReport:
    """What the host enforces."""
    return isolation_to_proto(isolation_of(report))


def result(identity: str, error: FinegrainError | None) -> slots_pb2.ItemResult:
    """What became of one item of a batch."""
    return slots_pb2.ItemResult(id=identity, error=item_error(error) if error else None)


def task_to_proto(task: Task) -> task_executor_pb2.TaskStatus:
    """A task as its watchers see it."""
    message = task_executor_pb2.TaskStatus(
        task_id=task.task_id,
        allocation_id=task.key.allocation_id,
        generation=task.key.generation,
        job_id=task.job_id,
        state=_TASK_STATES[task.state],
        pid=task.pid,
        argv=task.argv,
    )
    if task.start_time_ms:
        message.start_time.CopyFrom(timestamp_ms_to_proto(task.start_time_ms))
    if task.exit is not None:
        message.exit.CopyFrom(_exit_to_proto(task.exit, cancelled=task.cancelled))
    if task.fault is not None:
        details = {name: str(value) for name, value in task.fault.details.items()}
        message.error.CopyFrom(
            slots_pb2.ItemError(
                reason=task.fault.reason, message=task.fault.message, details=details
            )
        )
    return message


def _exit_to_proto(record: ExitRecord, *, cancelled: bool) -> task_executor_pb2.TaskExit:
    # A task whose end nobody saw (the host restarted) is told as killed: it is gone for certain.
    lost = record.exit_code is None and record.signal is None
    dropped = record.stdout_dropped_bytes + record.stderr_dropped_bytes
    return task_executor_pb2.TaskExit(
        exit_code=record.exit_code or 0,
        signal=SIGKILL if lost else record.signal or 0,
        oom_killed=record.oom_killed,
        timed_out=record.timed_out,
        cancelled=cancelled,
        peak_memory_bytes=record.peak_memory_bytes,
        cpu_time_us=record.cpu_usec,
        end_time=timestamp_ms_to_proto(record.ended_unix_ms),
        stdout_bytes=record.stdout_bytes + record.stdout_dropped_bytes,
        stderr_bytes=record.stderr_bytes + record.stderr_dropped_bytes,
        dropped_bytes=dropped,
    )
