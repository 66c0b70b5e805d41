"""Everything that can happen to the state. Each event carries its time, since the engine has no
clock.

The docstring of each event says what `step` answers. An event that is rejected as a whole raises a
`FinegrainError` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finegrain.cpu_policy import HostPolicy
from finegrain.resources import ResourceProfile
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.usage import NO_USAGE, Usage
from resource_manager.engine.model.entities import (
    GangSpec,
    Instant,
    RangeSpec,
    Registration,
    RequestSpec,
)
from resource_manager.engine.model.reported import Report

Members = tuple[str, int, int]
"""Some members of a range: its id, the first index, and their number."""


@dataclass(frozen=True, slots=True)
class JobRegistered:
    """A job master registers its job.

    Answer: the `Job`. AlreadyExists if the job is known with other content or another secret.
    """

    at: Instant
    job_id: str
    name: str
    group: str
    lease_ms: int | None
    secret_sha256: str
    request_id_sha256: str


@dataclass(frozen=True, slots=True)
class JobKeptAlive:
    """A sign of life from a job master (a call or an open stream). Answer: the `Job`."""

    at: Instant
    job_id: str
    acknowledged_sequence: int = 0


@dataclass(frozen=True, slots=True)
class JobEndRequested:
    """Ends a job, for its master (reason ENDED) or an operator (TERMINATED). Answer: the `Job`."""

    at: Instant
    job_id: str
    reason: str
    grace_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RequestsSubmitted:
    """Slot requests of one job. Answer: list[ItemOutcome] in the order sent.

    A large call is split into several events. The first one checks limits for all of them:
    `following` are the requests of later events. Those events are `admitted`.
    """

    at: Instant
    job_id: str
    requests: tuple[RequestSpec, ...]
    following: tuple[RequestSpec, ...] = ()
    admitted: bool = False
    gangs: tuple[GangSpec, ...] = ()  # those with members in `requests`; never split over events
    ranges: tuple[RangeSpec, ...] = ()  # queued behind `requests`; their outcomes come last
    following_ranges: tuple[RangeSpec, ...] = ()  # as `following`


@dataclass(frozen=True, slots=True)
class RequestsCancelled:
    """Requests are cancelled. `job_id` None: by an operator.

    Answer: list[ItemOutcome], shorter than what was asked if that is more than one step may do. The
    caller then sends the others again.
    """

    at: Instant
    job_id: str | None
    allocation_ids: tuple[str, ...]
    ranges: tuple[Members, ...] = ()  # their outcomes come last


@dataclass(frozen=True, slots=True)
class SlotsReleased:
    """Slots (id, generation; 0: the current one) are given back. Pending requests among them are
    cancelled.

    `job_id` None: by an operator. Answer: as that of `RequestsCancelled`.
    """

    at: Instant
    job_id: str | None
    slots: tuple[tuple[str, int], ...]
    grace_ms: int | None = None
    ranges: tuple[Members, ...] = ()  # their outcomes come last


@dataclass(frozen=True, slots=True)
class SlotsReuseAsked:
    """Slots whose work is done are offered for reuse by pending requests of their job; if that is
    not agreed they are given back. Each is (id, generation, id of the pending request).

    Answer: list[ItemOutcome]; an outcome without reason means agreed.
    """

    at: Instant
    job_id: str
    slots: tuple[tuple[str, int, str], ...]
    grace_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupSet:
    """A resource group is added or changed. What is None, or not named, stays as it is. A limit of
    None is removed. Answer: the `Group`.
    """

    at: Instant
    name: str
    weight: float | None = None
    parent: str | None = None
    description: str | None = None
    minimum: Mapping[str, int | None] = field(default_factory=dict)
    maximum: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """A resource group is deleted. Answer: None."""

    at: Instant
    name: str


@dataclass(frozen=True, slots=True)
class HostPolicySet:
    """Settings of a host or of the cluster change: those in `policy` are set, those named in
    `clear` (fields of `HostPolicy`) are removed. Answer: the `HostSetting`.
    """

    at: Instant
    executor_id: str  # empty: the cluster
    policy: HostPolicy
    clear: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResizeRequested:
    """A resize of a granted slot. `job_id` None: by an operator.

    `resize_number` 0: the next one. Answer: the `Slot`.
    """

    at: Instant
    job_id: str | None
    allocation_id: str
    generation: int
    resize_number: int
    profile: ResourceProfile
    cpu_limit_milli: int = 0
    wait_for_use: bool = False


@dataclass(frozen=True, slots=True)
class ExecutorRegistered:
    """An executor registers with its present slots. Answer: `RegistrationAnswer`."""

    at: Instant
    registration: Registration
    report: Report


@dataclass(frozen=True, slots=True)
class RegistrationAnswer:
    """The answer to an executor: its registration number, and slots (id, generation) that the
    resource manager does not know.
    """

    registration_number: int
    unowned: tuple[tuple[str, int], ...]
    host_policy: HostPolicy | None = None  # what the operator has set for it
    host_policy_number: int = 0


@dataclass(frozen=True, slots=True)
class SlotsReported:
    """A numbered report, which is also the heartbeat. Answer: `ReportAnswer`."""

    at: Instant
    executor_id: str
    instance_id: str
    registration_number: int
    report: Report
    used: Usage = NO_USAGE


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """The answer to an executor; see ReportSlotsResponse."""

    register_again: bool = False
    send_full_report: bool = False
    unowned: tuple[tuple[str, int], ...] = ()
    acknowledged_report_number: int = 0
    host_policy: HostPolicy | None = None  # settings that it does not follow yet
    host_policy_number: int = 0


@dataclass(frozen=True, slots=True)
class CommandAnswered:
    """An executor answered the command in flight, item by item, with its true state.

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
    """An executor refused the command in flight as a whole (stale epoch or registration, out of
    order).

    The resource manager then trusts nothing that it knows of that executor until it registers
    again. `known_rm_epoch` is the highest epoch that the executor has seen, if it said so. Answer:
    None.
    """

    at: Instant
    executor_id: str
    registration_number: int
    command_number: int
    reason: str
    known_rm_epoch: int = 0


@dataclass(frozen=True, slots=True)
class CommandUndelivered:
    """The outcome of the command in flight is unknown (deadline, connection lost).

    It is sent again. `cause` says why, for people. Answer: None.
    """

    at: Instant
    executor_id: str
    registration_number: int
    command_number: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ExecutorProbed:
    """An executor that could not be dialled was tried again at this address. `cause` empty: it
    answered.

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
    """A provider could not start an executor; it is unknown whether parts of it run.

    Answer: None.
    """

    at: Instant
    executor_id: str
    message: str


@dataclass(frozen=True, slots=True)
class ProvisionEnded:
    """Nothing is left of a requested executor: it was stopped, or ended by itself.

    Answer: None.
    """

    at: Instant
    executor_id: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProvisionStopFailed:
    """A provider could not stop an executor, or does not know whether it did. Answer: None."""

    at: Instant
    executor_id: str
    message: str


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """An executor takes no new slots; at the deadline, if there is one, its slots are taken away.

    Answer: the `Executor`.
    """

    at: Instant
    executor_id: str
    reason: str = ""
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class UndrainRequested:
    """The executor takes new slots again. Answer: the `Executor`."""

    at: Instant
    executor_id: str


@dataclass(frozen=True, slots=True)
class ForgetRequested:
    """A lost executor is deleted. Answer: None."""

    at: Instant
    executor_id: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: leases, lost executors, drain deadlines, retries of commands, retention.

    Answer: None.

    Attributes:
        after_stall: this process stood still until a moment ago (it or its host was stopped). It
            could receive nothing meanwhile, so silence and leases count from now, as after a
            restart.
    """

    at: Instant
    after_stall: bool = False


@dataclass(frozen=True, slots=True)
class Decide:
    """The last event of every batch: places what is pending, then sends commands.

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
    | SlotsReuseAsked
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
    | DrainRequested
    | UndrainRequested
    | ForgetRequested
    | GroupSet
    | GroupDeleted
    | HostPolicySet
    | Ticked
    | Decide
)
