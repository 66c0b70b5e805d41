"""Defines the status values that the client returns: plain, frozen, with a documented JSON form.

Amounts are integers with the unit in the name, times are `datetime` in UTC, durations are seconds,
states are words. `to_dict()` returns the JSON form, which `finegrain/mapping/value.py` describes.
`decoding.py` creates the values from messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN, CpuPolicy
from finegrain.devices.condition import DeviceCondition
from finegrain.errors import FinegrainError, Reason
from finegrain.mapping.value import Value
from finegrain.resources import ResourceProfile
from finegrain.values.dependencies import JobDependency
from finegrain.values.isolation import Isolation
from finegrain.values.operators import GraphPlace, OperatorStatus
from finegrain.values.states import (
    ExecutorState,
    GangPlacement,
    JobOutcome,
    RequestState,
    ResizeState,
    SlotState,
    TaskState,
)
from finegrain.values.usage import SlotUsage, Usage

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class SlotResize(Value):
    """A pending resize of a slot."""

    resize_number: int
    profile: ResourceProfile  # the whole requested size
    memory_bytes: int
    cpu_limit_milli: int
    state: ResizeState
    message: str = ""  # the reason why the resize waits
    # The assignment, as in SlotStatus; None if it is not decided yet.
    assignment: CpuAssignment | None = None


@dataclass(frozen=True, slots=True)
class SlotStatus(Value):
    """One slot as the resource manager lists or offers it.

    `profile`, `memory_bytes` and `cpu_limit_milli` are the size that is in force now. `resizes` has
    the pending changes. A change that was sent to the executor comes first, and the changes that
    wait follow.
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
    cpus: str  # a cpu list; an empty value means the executor's shared pool
    isolation: Isolation | None
    allocated_time: datetime | None
    resize_number: int = 0  # number of the last requested resize
    resizes: tuple[SlotResize, ...] = ()
    assignment: CpuAssignment | None = None  # None for an LS slot in the whole shared pool
    # The slot's devices that are not healthy, or that processes outside of finegrain use.
    device_conditions: tuple[DeviceCondition, ...] = ()
    # longest time in seconds from `allocated_time` or the last reuse on; None means no limit
    time_limit_s: float | None = None
    reuse_number: int = 0  # how often the slot was reused; counted only with a time limit
    revocable: bool = False  # the resource manager may take the slot back
    # None if the use is not measured yet, or if the kernel does not count it. Only `Cluster` reads
    # the use.
    used: SlotUsage | None = None


@dataclass(frozen=True, slots=True)
class Gang(Value):
    """Slot requests that are granted together or not at all."""

    gang_id: str
    placement: GangPlacement
    label: str  # set only with SAME_LABEL
    # after this time in seconds, a waiting gang is rejected; None means that there is no limit
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class RequestStatus(Value):
    """One slot request as the resource manager knows it.

    `range_id` is set if the request is a member of a range. An entry with a `count` above 1
    describes `count` consecutive members of the range, all in the same state. Its `allocation_id`
    is the id of the first of these members.
    """

    allocation_id: str
    job_id: str
    job_name: str
    state: RequestState
    reason: str
    profile: ResourceProfile | None  # None means the executor's default slot profile
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
    restart_on_device_loss: bool = False
    cpu_policy: CpuPolicy = PLAIN
    time_limit_s: float | None = None  # longest time of a slot in seconds; None means no limit
    expected_run_time_s: float | None = None  # hint for the scheduler; None if there is no hint
    wait_timeout_s: float | None = None  # longest wait for a slot in seconds; None means no limit
    priority: int = 0  # order within the job; the highest comes first
    revocable: bool = False  # the resource manager may take the slot back


@dataclass(frozen=True, slots=True)
class JobEvent(Value):
    """One event of one request of a job.

    A second GRANTED event with the same generation reports a resize. Its reason is "RESIZED" (the
    slot was resized) or "RESIZE_REFUSED". `slot` is the state after the event. An event with a
    `count` above 1 is about `count` consecutive members of a range. Its `allocation_id` is the id
    of the first of these members.

    `from_snapshot` marks a change that the client found in a snapshot, because the resource manager
    no longer has the event. Its `sequence` is the sequence number of the snapshot.
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

    `topology` (the fields of the protocol's HostTopology) and `slot_list` are set only by
    `Cluster.executor`. If the resource manager receives the executor's reports, but cannot connect
    to the executor, `unreachable_reason` says why. Otherwise it is empty.
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
    # executor shape, if a provider started the executor; empty if no provider started it
    provided_as: str = ""
    protocol_version: str = ""
    topology: Mapping[str, Any] | None = None
    slot_list: tuple[SlotStatus, ...] | None = None


@dataclass(frozen=True, slots=True)
class UsageSample(Value):
    """Use at one moment: measured use of a slot or an executor, or allocated amounts and measured
    use of a group.

    `cpu_milli` and `memory_bytes` are of a slot, of all slots of an executor, or of all slots of a
    group. The amounts of the host are 0 for a slot and a group. The shares and `waiting` are values
    of a group, and are 0 for a slot and an executor.
    """

    sample_time: datetime | None
    cpu_milli: int
    memory_bytes: int
    host_cpu_milli: int
    host_memory_used_bytes: int
    share_now: float = 0.0  # the group's part of all current usage, 0 to 1
    share_entitled: float = 0.0  # the part to which the group is entitled by its weight
    waiting: int = 0  # number of the group's requests that wait
    measured_cpu_milli: int = 0  # measured use of the group's slots; 0 if not measured
    measured_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class UsageHistory(Value):
    """Use over the last hour, the oldest sample first.

    `executor_id` is empty for a group, and for a request that has no slot now.
    """

    executor_id: str
    samples: tuple[UsageSample, ...] = ()


@dataclass(frozen=True, slots=True)
class JobStatus(Value):
    """One job as the resource manager lists it. `lease_s` is None for a detached job."""

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
    service: float = 0.0  # recent usage: cost times seconds, decayed
    share_now: float = 0.0  # fraction of all current usage that the job's slots have, 0 to 1
    oldest_wait_time: datetime | None = None  # arrival time of the job's oldest waiting request
    owner: str = ""  # identity that registered the job, such as "user/alice"
    outcome: JobOutcome | None = None  # None if the job has not ended
    depends_on: tuple[JobDependency, ...] = ()  # jobs that must end before the job gets slots
    awaited_job_ids: tuple[str, ...] = ()  # the jobs of `depends_on` that have not ended
    priority: int = 0  # order within the group; the highest comes first


@dataclass(frozen=True, slots=True)
class ClusterEvent(Value):
    """One event of the cluster."""

    sequence: int
    event_time: datetime | None
    kind: str
    executor_id: str
    job_id: str
    allocation_id: str
    reason: str
    message: str
    # The identity whose call caused the event; empty if the resource manager decided it.
    actor: str = ""


@dataclass(frozen=True, slots=True)
class ClusterInfo(Value):
    """The resource manager and the totals of the cluster."""

    rm_epoch: int
    software_version: str
    protocol_version: str
    start_time: datetime | None
    total: Mapping[str, int]
    reserved: Mapping[str, int]
    allocated: Mapping[str, int]
    available: Mapping[str, int]
    used: Usage
    executors: Mapping[str, int]  # number of executors by state
    pending_requests: Mapping[str, int]  # number of pending requests by primary reason
    slots: int
    jobs: int
    web_address: str = ""  # address of the HTTP interface; empty if there is none


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
    result: TaskResult | None  # set only in state EXITED
    reason: str = ""  # the reason why the task never ran; set in state FAILED
    message: str = ""
    operators: tuple[OperatorStatus, ...] = ()  # operators of a job graph that the task runs
    memory_limit_bytes: int = 0  # limit of the task within the slot's limit; 0 means no such limit
    # operators of other tasks with which the task exchanges data
    peer_operator_ids: tuple[str, ...] = ()
    subtask_index: int = 0
    parallelism: int = 0  # number of subtasks; 0 if the task runs no operators of a job graph
    place: GraphPlace | None = None  # place in the job graph; None if not known


@dataclass(frozen=True, slots=True)
class OutputChunk(Value):
    """Bytes that a task wrote. `offset` is the position of the first byte in the stream."""

    stream: StreamName
    offset: int
    data: bytes
    missing_bytes: int = 0  # bytes directly before `offset` that this reader did not get


@dataclass(frozen=True, slots=True)
class TaskResult(Value):
    """The result of a task.

    `exit_code` is valid if `signal` is 0. `stdout` and `stderr` are the captured output.
    `stdout_bytes` and `stderr_bytes` also count bytes that were not kept. `dropped_bytes` counts
    bytes that this reader did not get or, with `output="stream"`, bytes that the executor dropped.
    """

    task_id: str
    exit_code: int
    signal: int
    oom_killed: bool
    timed_out: bool
    cancelled: bool
    peak_memory_bytes: int  # 0 if it was not measured
    cpu_time_s: float
    end_time: datetime | None
    stdout_bytes: int
    stderr_bytes: int
    dropped_bytes: int
    stdout: bytes = b""
    stderr: bytes = b""
    # The reason why the executor ended the task, such as "GPU_MEMORY_EXCEEDED".
    end_reason: str = ""
    end_message: str = ""  # `end_reason` as a sentence that people read
    peak_gpu_memory_bytes: int = 0  # peak of the slot while the task ran; 0 if it was not measured

    @property
    def ok(self) -> bool:
        """True if the command ended by itself with exit code 0."""
        return not (
            self.exit_code
            or self.signal
            or self.oom_killed
            or self.timed_out
            or self.cancelled
            or self.end_reason
        )

    @property
    def output_lost(self) -> bool:
        """True if some of the output was lost."""
        return self.dropped_bytes > 0

    @property
    def how(self) -> str:
        """How the task ended, as a short text for people."""
        if self.oom_killed:
            return (
                f"used all memory of its slot (peak {self.peak_memory_bytes} bytes) and was killed"
            )
        if self.timed_out:
            return "exceeded its timeout"
        if self.end_reason:
            return f"was ended by the executor: {self.end_message or self.end_reason}"
        if self.cancelled:
            return "was cancelled"
        if self.signal:
            return f"was ended by signal {self.signal}"
        return f"ended with exit code {self.exit_code}"

    def check(self) -> TaskResult:
        """Returns this result.

        Raises:
            TaskFailed: the command did not end by itself with exit code 0.
        """
        if self.ok:
            return self
        said = self.stderr[-500:].decode("utf-8", errors="replace").strip()
        message = f"task {self.task_id} {self.how}"
        raise TaskFailed(f"{message}; its last error output: {said}" if said else message, self)


class TaskFailed(FinegrainError):
    """A task did not end by itself with exit code 0. `result` says how the task ended."""

    default_reason = Reason.TASK_ENDED

    def __init__(self, message: str, result: TaskResult, *, reason: Reason | None = None) -> None:
        super().__init__(
            message,
            reason=reason,
            details={"task_id": result.task_id, "exit_code": result.exit_code},
        )
        self.result = result
