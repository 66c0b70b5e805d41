"""All events that `step` applies to the state. Each event carries its time, because the engine
reads no clock.

The docstring of an event names the answer that `step` returns. If an event is rejected as a whole,
`step` raises a `FinegrainError` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finegrain.cpu_policy import HostPolicy
from finegrain.resources import ResourceProfile
from finegrain.values.dependencies import JobDependency
from finegrain.values.group_rules import GroupRule
from finegrain.values.outcomes import ItemOutcome, ThreadReport
from finegrain.values.states import JobOutcome
from resource_manager.engine.model.entities import (
    GangSpec,
    Instant,
    RangeSpec,
    Registration,
    RequestSpec,
)
from resource_manager.engine.model.reported import Report

Members = tuple[str, int, int]
"""Some members of a range: the id of the range, the first index, and the number of members."""


@dataclass(frozen=True, slots=True)
class JobRegistered:
    """A job master registers its job. If `group` is empty, the rules of groups choose the group.

    `owner` is the identity of the caller, for example "user/alice".

    Answer: the `Job`. Raises AlreadyExists if a job with this id is known, with other values or
    another owner.
    """

    at: Instant
    job_id: str
    name: str
    group: str
    lease_ms: int | None
    owner: str
    request_id_sha256: str
    depends_on: tuple[JobDependency, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()  # for the rules of groups
    priority: int = 0


@dataclass(frozen=True, slots=True)
class JobKeptAlive:
    """A job master has shown that it runs: it made a call, or has an open stream. The event renews
    the job's lease.

    Answer: the `Job`.
    """

    at: Instant
    job_id: str
    acknowledged_sequence: int = 0


@dataclass(frozen=True, slots=True)
class JobEndRequested:
    """A job master (reason ENDED) or an administrator (reason TERMINATED) ends a job. Answer: the
    `Job`.
    """

    at: Instant
    job_id: str
    reason: str
    grace_ms: int | None = None
    outcome: JobOutcome = JobOutcome.SUCCEEDED


@dataclass(frozen=True, slots=True)
class RequestsSubmitted:
    """A job master submits slot requests. Answer: list[ItemOutcome] in the order sent.

    A large call is split into several events. The first event checks the limits for all events of
    the call, so its `following` has the requests of the later events. In the later events,
    `admitted` is True.
    """

    at: Instant
    job_id: str
    requests: tuple[RequestSpec, ...]
    following: tuple[RequestSpec, ...] = ()
    admitted: bool = False
    gangs: tuple[GangSpec, ...] = ()  # gangs with members in `requests`; a gang is never split
    # Ranges are queued after `requests`; in the answer, their outcomes come last.
    ranges: tuple[RangeSpec, ...] = ()
    following_ranges: tuple[RangeSpec, ...] = ()  # ranges of the later events


@dataclass(frozen=True, slots=True)
class RequestsCancelled:
    """A job master or an administrator (`job_id` is None) cancels requests.

    Answer: list[ItemOutcome]. The list is shorter than the input if the step became full. The
        caller then sends the remaining items in another event.
    """

    at: Instant
    job_id: str | None
    allocation_ids: tuple[str, ...]
    ranges: tuple[Members, ...] = ()  # members of ranges; in the answer, their outcomes come last


@dataclass(frozen=True, slots=True)
class SlotsReleased:
    """A job master or an administrator (`job_id` is None) gives slots of a job back.

    A slot is (id, generation); generation 0 means the current slot of the request. A request that
    has no slot yet is cancelled. The answer is the same as for `RequestsCancelled`.
    `thread_reports` has the reports about the threads in the slots, by allocation id.
    """

    at: Instant
    job_id: str | None
    slots: tuple[tuple[str, int], ...]
    grace_ms: int | None = None
    ranges: tuple[Members, ...] = ()  # members of ranges; in the answer, their outcomes come last
    thread_reports: Mapping[str, ThreadReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlotsReuseRequested:
    """A job master reports that the work in some slots is done, and wants to reuse these slots for
    pending requests of the job.

    Each item is (id, generation, id of the pending request). `thread_reports` has the reports
    about the threads in the slots, by allocation id. A slot that cannot be reused is given back.
    Answer: list[ItemOutcome], first for the ranges, then for the slots. An outcome without a reason
    means that the slot is reused.
    """

    at: Instant
    job_id: str
    slots: tuple[tuple[str, int, str], ...]
    grace_ms: int | None = None
    ranges: tuple[RangeSpec, ...] = ()  # queued before the engine decides which slots are reused
    thread_reports: Mapping[str, ThreadReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupSet:
    """An administrator adds or changes a resource group. Answer: the `Group`.

    A field that is None does not change. In `minimum` and `maximum`, only the named dimensions
    change. The value None removes the amount of a dimension.
    """

    at: Instant
    name: str
    weight: float | None = None
    parent: str | None = None
    description: str | None = None
    minimum: Mapping[str, int | None] = field(default_factory=dict)
    maximum: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupRulesChanged:
    """An administrator adds or removes rules of a resource group. Answer: the `Group`."""

    at: Instant
    name: str
    add: tuple[GroupRule, ...] = ()
    remove: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupUsersChanged:
    """An administrator allows users to use a resource group, or revokes this right. Answer: the
    `Group`.
    """

    at: Instant
    name: str
    allow: tuple[str, ...] = ()
    revoke: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UserLimitsSet:
    """An administrator sets limits of a user. Answer: None.

    Only the named dimensions change; the value None removes that limit.
    """

    at: Instant
    user: str
    maximum: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserLimitsDeleted:
    """An administrator deletes the limits of a user. Answer: None."""

    at: Instant
    user: str


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """An administrator deletes a resource group. Answer: None."""

    at: Instant
    name: str


@dataclass(frozen=True, slots=True)
class HostPolicySet:
    """An administrator changes settings of a host or of the cluster. Answer: the `HostSetting`.

    The settings in `policy` are set. The settings in `clear` (field names of `HostPolicy`) are
    removed.
    """

    at: Instant
    executor_id: str  # id of the executor; empty: the policy is for the whole cluster
    policy: HostPolicy
    clear: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceCordoned:
    """An administrator cordons a device, so that no new slot gets the device. Answer: the
    `Cordon`.
    """

    at: Instant
    executor_id: str
    device: str  # the device's name ("gpu3") or UUID
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeviceUncordoned:
    """An administrator ends the cordon of a device, so that new slots get the device again. Answer:
    None.
    """

    at: Instant
    executor_id: str
    device: str  # the device's name ("gpu3") or UUID


@dataclass(frozen=True, slots=True)
class ResizeRequested:
    """A job master or an administrator (`job_id` is None) requests a resize of a granted slot.

    `resize_number` 0 means the slot's next number. Answer: the `Slot`.
    """

    at: Instant
    job_id: str | None
    allocation_id: str
    generation: int
    resize_number: int
    profile: ResourceProfile
    cpu_limit_milli: int = 0
    wait_for_use: bool = False
    park: bool = False  # if true, a profile without the slot's GPUs is allowed and parks the slot


@dataclass(frozen=True, slots=True)
class ExecutorRegistered:
    """An executor registers, with a report of its slots. Answer: `RegistrationAnswer`."""

    at: Instant
    registration: Registration
    report: Report


@dataclass(frozen=True, slots=True)
class RegistrationAnswer:
    """The answer to an executor: its registration number, and those of its slots (id, generation)
    that the resource manager does not know.
    """

    registration_number: int
    unowned: tuple[tuple[str, int], ...]
    host_policy: HostPolicy | None = None  # settings that an administrator made for the executor
    host_policy_number: int = 0


@dataclass(frozen=True, slots=True)
class SlotsReported:
    """An executor sends a numbered report, which is also its heartbeat. Answer: `ReportAnswer`."""

    at: Instant
    executor_id: str
    instance_id: str
    registration_number: int
    report: Report


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """The answer to an executor; see ReportSlotsResponse."""

    register_again: bool = False
    send_full_report: bool = False
    unowned: tuple[tuple[str, int], ...] = ()
    acknowledged_report_number: int = 0
    host_policy: HostPolicy | None = None  # settings that the executor has not applied yet
    host_policy_number: int = 0
    # id, generation and reuse number of slots whose time limit must start again
    reused_slots: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class CommandAnswered:
    """An executor answered the command in flight, with an outcome for each item and a report.

    Answer: None.
    """

    at: Instant
    executor_id: str
    registration_number: int
    command_number: int
    outcomes: tuple[ItemOutcome, ...]
    report: Report


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """An executor refused the command in flight as a whole: its epoch or registration number is
    stale, or the command is out of order.

    The resource manager then treats the executor as unconfirmed until the executor registers again.
    Answer: None.
    """

    at: Instant
    executor_id: str
    registration_number: int
    command_number: int
    reason: str


@dataclass(frozen=True, slots=True)
class CommandUndelivered:
    """The outcome of the command in flight is unknown, because its deadline has passed or the
    connection was lost.

    The command is sent again. `cause` says why the outcome is unknown, for people. Answer: None.
    """

    at: Instant
    executor_id: str
    registration_number: int
    command_number: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ExecutorProbed:
    """The result of a probe: whether an unreachable executor has answered at this address. `cause`
    is empty if the executor has answered.

    Answer: None.
    """

    at: Instant
    executor_id: str
    address: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ProvisionStarted:
    """A provider has started a requested executor. Answer: None."""

    at: Instant
    executor_id: str
    handle: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProvisionFailed:
    """A provider could not start an executor. Parts of the executor are possibly still running.

    Answer: None.
    """

    at: Instant
    executor_id: str
    message: str


@dataclass(frozen=True, slots=True)
class ProvisionEnded:
    """A provider reports that nothing is left of an executor: the provider has stopped the
    executor, or the executor has ended by itself.

    Answer: None.
    """

    at: Instant
    executor_id: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProvisionStopFailed:
    """A provider could not stop an executor, or does not know whether the executor has stopped.

    Answer: None.
    """

    at: Instant
    executor_id: str
    message: str


@dataclass(frozen=True, slots=True)
class ExecutorsAwaited:
    """The known executors have no certificates yet, so these executors cannot register before they
    join.

    Answer: the ids of the executors.
    """

    at: Instant
    for_ms: int


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """An administrator drains an executor: the executor gets no new slots. If there is a deadline,
    the remaining slots end at the deadline.

    Answer: the `Executor`.
    """

    at: Instant
    executor_id: str
    reason: str = ""
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class UndrainRequested:
    """An administrator ends a drain, so that the executor can get new slots again. Answer: the
    `Executor`.
    """

    at: Instant
    executor_id: str


@dataclass(frozen=True, slots=True)
class ForgetRequested:
    """An administrator deletes a lost executor. Answer: None."""

    at: Instant
    executor_id: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed, so timers are possibly due: for leases, lost executors, drain deadlines,
    retries of commands, and retention.

    Answer: None.

    Attributes:
        after_stall: true if this process, or its host, was stopped until just now. The process
            could not receive messages while it was stopped. So the timeouts of executors and leases
            start again now, as after a restart.
    """

    at: Instant
    after_stall: bool = False


@dataclass(frozen=True, slots=True)
class Decide:
    """The last event of every batch: places pending requests, then sends commands.

    Answer: None.
    """

    at: Instant


Event = (
    JobRegistered
    | JobKeptAlive
    | JobEndRequested
    | RequestsSubmitted
    | RequestsCancelled
    | SlotsReleased
    | SlotsReuseRequested
    | ResizeRequested
    | ExecutorRegistered
    | SlotsReported
    | CommandAnswered
    | CommandRefused
    | CommandUndelivered
    | ExecutorProbed
    | ProvisionStarted
    | ProvisionFailed
    | ProvisionEnded
    | ProvisionStopFailed
    | ExecutorsAwaited
    | DrainRequested
    | UndrainRequested
    | ForgetRequested
    | GroupSet
    | GroupDeleted
    | GroupUsersChanged
    | GroupRulesChanged
    | UserLimitsSet
    | UserLimitsDeleted
    | HostPolicySet
    | DeviceCordoned
    | DeviceUncordoned
    | Ticked
    | Decide
)
