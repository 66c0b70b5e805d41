"""What the client returns: plain frozen values with a documented JSON shape.

Amounts are integers with the unit in the name, times are `datetime` in UTC, durations are seconds,
states are words. `to_dict()` returns the form that `finegrain/mapping/value.py` describes;
`decoding.py` reads them from messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN, CpuPolicy
from finegrain.errors import FinegrainError, Reason
from finegrain.mapping.value import Value
from finegrain.resources import ResourceProfile
from finegrain.values.isolation import Isolation
from finegrain.values.states import (
    ExecutorState,
    GangPlacement,
    RequestState,
    ResizeState,
    SlotState,
    TaskState,
)
from finegrain.values.usage import Usage

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class SlotResize(Value):
    """A change of a slot's size that is under way."""

    resize_number: int
    profile: ResourceProfile  # the whole of what the slot is to consist of
    memory_bytes: int
    cpu_limit_milli: int
    state: ResizeState
    message: str = ""  # why it waits
    assignment: CpuAssignment | None = None  # as of a slot, once it is decided


@dataclass(frozen=True, slots=True)
class SlotStatus(Value):
    """One slot as the RM lists or offers it.

    `profile`, `memory_bytes` and `cpu_limit_milli` are what is enforced now; `resizes` what is
    under way: what is ordered, then what waits behind it.
    """

    allocation_id: str
    generation: int
    job_id: str
    executor_id: str
    executor_address: str
    state: SlotState | None
    profile: ResourceProfile
    memory_bytes: int
    cpu_limit_milli: int
    pids_max: int
    cpus: str  # a cpu list; empty: the executor's shared pool
    isolation: Isolation | None
    allocated_time: datetime | None
    resize_number: int = 0  # of the last change of size that was asked for
    resizes: tuple[SlotResize, ...] = ()
    assignment: CpuAssignment | None = None  # None: an LS slot in the whole shared pool


@dataclass(frozen=True, slots=True)
class Gang(Value):
    """Slot requests that are granted together or not at all."""

    gang_id: str
    placement: GangPlacement
    label: str  # only with SAME_LABEL
    timeout_s: float | None  # how long it may wait; None: for ever


@dataclass(frozen=True, slots=True)
class RequestStatus(Value):
    """One slot request as the RM knows it; `range_id` is that of the range that it is a member of.
    With `count` above 1 it is the first of so many members that stand alike, one behind the other.
    """

    allocation_id: str
    job_id: str
    job_name: str
    state: RequestState
    reason: str
    profile: ResourceProfile | None  # None: unknown, the executor's default slot profile
    generation: int
    arrival_number: int
    create_time: datetime | None
    end_time: datetime | None
    slot: SlotStatus | None
    cpu_limit_milli: int
    pids_max: int
    required_labels: Mapping[str, str]
    target_address: str
    allow_pending: bool
    restart_on_loss: bool
    gang: Gang | None = None
    count: int = 1
    range_id: str = ""
    cpu_policy: CpuPolicy = PLAIN


@dataclass(frozen=True, slots=True)
class JobEvent(Value):
    """One thing that happened to one request of a job.

    GRANTED again for the same generation says that the slot's size changed (reason "RESIZED"), or
    was to change and did not ("RESIZE_REFUSED"); `slot` is as it is then.

    `count` above 1: it is about the member of a range that is named and those with the indexes that
    follow, so many in all.

    `from_snapshot` marks a change that was read off a snapshot because the events themselves are no
    longer kept; its `sequence` is the snapshot's.
    """

    sequence: int
    event_time: datetime | None
    allocation_id: str
    state: RequestState
    reason: str
    message: str
    slot: SlotStatus | None
    from_snapshot: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True)
class ExecutorStatus(Value):
    """One executor.

    `topology` (the fields of the protocol's HostTopology) and `slot_list` are only there when the
    executor was asked for by name. `unreachable_reason` says why the RM cannot dial it although it
    reports; empty: it can.
    """

    executor_id: str
    instance_id: str
    address: str
    state: ExecutorState
    draining: bool
    drain_reason: str
    drain_deadline_time: datetime | None
    registration_number: int
    report_number: int
    report_time: datetime | None
    total: Mapping[str, int]
    reserved: Mapping[str, int]
    allocated: Mapping[str, int]
    available: Mapping[str, int]
    used: Usage
    slots: int
    slots_max: int
    labels: Mapping[str, str]
    default_slot_profile: ResourceProfile
    isolation: Isolation | None
    software_version: str
    shared_cpus: str
    unreachable_reason: str = ""
    provided_as: str = ""  # the shape as which a provider started it; empty: it came by itself
    topology: Mapping[str, Any] | None = None
    slot_list: tuple[SlotStatus, ...] | None = None


@dataclass(frozen=True, slots=True)
class JobStatus(Value):
    """One job as the RM lists it. `lease_s` is None for a detached job."""

    job_id: str
    name: str
    group: str
    ended: bool
    end_reason: str
    detached: bool
    lease_s: float | None
    create_time: datetime | None
    end_time: datetime | None
    pending_requests: int
    slots: int
    allocated: Mapping[str, int]
    last_sequence: int
    service: float = 0.0  # received lately: cost times seconds, decayed
    share_now: float = 0.0  # the part of all service that its slots get, 0 to 1
    oldest_wait_time: datetime | None = None  # since when the oldest request waits


@dataclass(frozen=True, slots=True)
class ClusterEvent(Value):
    """One thing that happened in the cluster."""

    sequence: int
    event_time: datetime | None
    kind: str
    executor_id: str
    job_id: str
    allocation_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ClusterInfo(Value):
    """The RM itself and the sums of the cluster."""

    rm_epoch: int
    software_version: str
    protocol_version: str
    start_time: datetime | None
    total: Mapping[str, int]
    reserved: Mapping[str, int]
    allocated: Mapping[str, int]
    available: Mapping[str, int]
    used: Usage
    executors: Mapping[str, int]  # by state
    pending_requests: Mapping[str, int]  # by primary reason
    slots: int
    jobs: int


@dataclass(frozen=True, slots=True)
class TaskStatus(Value):
    """One task as its executor knows it."""

    task_id: str
    allocation_id: str
    generation: int
    job_id: str
    state: TaskState
    pid: int
    start_time: datetime | None
    argv: tuple[str, ...]
    result: TaskResult | None  # only when EXITED
    reason: str = ""  # why it never ran; only when FAILED
    message: str = ""


@dataclass(frozen=True, slots=True)
class OutputChunk(Value):
    """Some bytes that a task wrote; `offset` is the position of the first one in its stream."""

    stream: StreamName
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TaskResult(Value):
    """How a task ended.

    `exit_code` counts when `signal` is 0. `stdout` and `stderr` are what was captured; the byte
    counts include what was not kept.
    """

    task_id: str
    exit_code: int
    signal: int
    oom_killed: bool
    timed_out: bool
    cancelled: bool
    peak_memory_bytes: int  # 0: not measured
    cpu_time_s: float
    end_time: datetime | None
    stdout_bytes: int
    stderr_bytes: int
    dropped_bytes: int
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def ok(self) -> bool:
        """True where the command ended by itself with exit code 0."""
        return not (
            self.exit_code or self.signal or self.oom_killed or self.timed_out or self.cancelled
        )

    @property
    def how(self) -> str:
        """How it ended, in a few words."""
        if self.oom_killed:
            return f"used up the slot's memory (peak {self.peak_memory_bytes} bytes) and was killed"
        if self.timed_out:
            return "ran out of its timeout"
        if self.cancelled:
            return "was cancelled"
        if self.signal:
            return f"was ended by signal {self.signal}"
        return f"ended with exit code {self.exit_code}"

    def check(self) -> TaskResult:
        """The result itself.

        Raises:
            TaskFailed: it did not end by itself with exit code 0.
        """
        if self.ok:
            return self
        said = self.stderr[-500:].decode("utf-8", errors="replace").strip()
        message = f"task {self.task_id} {self.how}"
        raise TaskFailed(f"{message}; it said: {said}" if said else message, self)


class TaskFailed(FinegrainError):
    """A task ended otherwise than with exit code 0; `result` tells how."""

    default_reason = Reason.TASK_ENDED

    def __init__(self, message: str, result: TaskResult, *, reason: Reason | None = None) -> None:
        super().__init__(
            message,
            reason=reason,
            details={"task_id": result.task_id, "exit_code": result.exit_code},
        )
        self.result = result
