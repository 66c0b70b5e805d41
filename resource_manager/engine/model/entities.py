"""The entities of the state, such as jobs, requests, slots and executors.

Stored fields come first in each class. Fields below the comment "runtime" are never stored. After a
restart, runtime fields are computed from the stored fields. Times named `_time_ms` are wall-clock
milliseconds since 1970, mostly for people. Times named `_at_ms`, `_since_ms` or `_until_ms` are
monotonic milliseconds of this process. Decisions use only monotonic times.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN, CpuPolicy, HostPolicy, QosClass
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.devices.condition import DeviceCondition
from finegrain.intervals import IntervalSet
from finegrain.mapping.frozen import checked_frozen
from finegrain.resources import Amounts, ResourceProfile
from finegrain.values.dependencies import JobDependency
from finegrain.values.group_rules import GroupRule
from finegrain.values.isolation import NOTHING_REPORTED, Isolation
from finegrain.values.states import (
    ExecutorState,
    GangPlacement,
    JobOutcome,
    ProvidedExecutorState,
    RequestState,
    SlotState,
)
from resource_manager.engine.model.durations import Durations
from resource_manager.engine.model.run_times import RecentDurations

SlotKey = tuple[str, int]
"""Identity of a slot: allocation id and generation."""


@dataclass(frozen=True, slots=True)
class Instant:
    """One point in time, by two clocks: monotonic for decisions, wall clock for people."""

    monotonic_ms: int
    time_ms: int


class JobState(StrEnum):
    """The state of a job."""

    ACTIVE = "ACTIVE"  # the job is allowed to request slots
    ENDED = "ENDED"  # the rows of the job are kept for some time, so that its ids stay known


ENDED_REQUEST_STATES = frozenset(
    {RequestState.CANCELLED, RequestState.REJECTED, RequestState.RELEASED, RequestState.LOST}
)


Ended = tuple[RequestState, str, str]
"""The end of a request: its final state, the reason and the message."""


@checked_frozen
class RequestSpec:
    """A slot request from a job master, after its validation. `required_labels` is sorted."""

    allocation_id: str
    profile: ResourceProfile | None  # None: the slot gets the executor's default profile
    cpu_limit_milli: int = 0
    pids_max: int = 0
    required_labels: tuple[tuple[str, str], ...] = ()
    target_address: str = ""
    allow_pending: bool = False
    restart_on_loss: bool = False
    gang_id: str = ""
    cpu_policy: CpuPolicy = PLAIN
    restart_on_device_loss: bool = False
    # longest time of one slot of the request, after which the executor ends the slot; None: there
    # is no limit
    time_limit_ms: int | None = None
    # hint: the probable duration of the work in the slot; None: the duration is not known
    expected_run_time_ms: int | None = None
    # longest time that the request waits for a slot; None: the request waits indefinitely
    wait_timeout_ms: int | None = None
    priority: int = 0  # order within the job; the highest comes first
    # if true, the slot can be taken back for a request that is not revocable and fits nowhere
    revocable: bool = False


class GangState(StrEnum):
    """The state of a gang as a whole."""

    WAITING = "WAITING"  # the gang is queued, or its job has ended and the gang ends soon
    # All members have slots, but some executors have not confirmed their slots yet.
    ALLOCATING = "ALLOCATING"
    # the members are now independent, until one of them must be placed again
    GRANTED = "GRANTED"
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class GangSpec:
    """A gang from a job master, after its validation. `label` is set only with SAME_LABEL."""

    gang_id: str
    placement: GangPlacement = GangPlacement.ANYWHERE
    label: str = ""
    timeout_ms: int | None = None  # None: the gang waits indefinitely


EQUAL_IN_GANG = ("restart_on_loss", "restart_on_device_loss", "priority", "revocable")
"""Attributes of requests that must have the same value for all members of a gang. The fields of the
messages have the same names.
"""


@dataclass(frozen=True, slots=True)
class RangeSpec:
    """A range: many equal requests from a job master, after their validation.

    `request.allocation_id` is the id of the range. The member with number `index` has the id
    `<range_id>.<index>`.
    """

    request: RequestSpec
    first_index: int
    count: int

    @property
    def range_id(self) -> str:
        """Id of the range; a range can have several parts."""
        return self.request.allocation_id


@dataclass(slots=True)
class RequestRange:
    """A part of a range. One row represents all members that have ended or were never placed."""

    spec: RangeSpec
    job_id: str
    # arrival number of the first member; the next members have the next numbers
    arrival_number: int
    create_time_ms: int
    # indexes of members that have ended
    ended: dict[Ended, IntervalSet] = field(default_factory=dict)


@dataclass(slots=True)
class Group:
    """A resource group. A dimension that is missing in `minimum` has no guaranteed amount, and a
    dimension that is missing in `maximum` has no limit.
    """

    name: str
    parent: str = ""  # name of the parent group; empty: the group has no parent
    weight: float = 1.0
    # guaranteed amounts: the group is served first until its slots have booked these amounts
    minimum: Amounts = field(default_factory=dict)
    # largest amounts that the group's slots are allowed to book together
    maximum: Amounts = field(default_factory=dict)
    description: str = ""
    create_time_ms: int = 0
    # identities that are allowed to use the group and the groups below it; "*" means all users
    users: tuple[str, ...] = ()
    # rules that choose this group for jobs, sorted by their order
    rules: tuple[GroupRule, ...] = ()


@dataclass(slots=True)
class UserLimits:
    """The limits of all jobs of an identity together. A dimension that is missing has no limit."""

    user_id: str  # identity such as "user/alice"; "*" means each user without separate limits
    maximum: Amounts = field(default_factory=dict)


@dataclass(slots=True)
class UsageRecord:
    """The stored usage of a flow at one time."""

    flow_id: str  # id of the flow: "group/NAME" or "job/ID"
    measure: str  # the unit of `service`, see `Measure`
    service: float  # the usage, decayed until `time_ms`
    # the amount by which the flow was raised, decayed; this amount counts in addition to `service`
    raised: float
    time_ms: int  # the time of these values, by the wall clock
    durations: str = ""  # for a job: the durations of its threads, as JSON text


@dataclass(slots=True)
class Gang:
    """A gang. The gang is kept until its job is deleted."""

    spec: GangSpec
    job_id: str
    arrival_number: int  # arrival number of the gang's first member
    waiting_since_time_ms: int  # time when the gang was last queued
    # runtime: these fields are never stored
    state: GangState = GangState.WAITING
    members: list[str] = field(default_factory=list)  # allocation ids, in order of arrival
    # Time of the monotonic clock; None: there is no timeout, or the gang is not queued.
    waiting_until_ms: int | None = None

    @property
    def gang_id(self) -> str:
        """Id of the gang."""
        return self.spec.gang_id


@dataclass(frozen=True, slots=True)
class Resize:
    """A resize of a slot: the complete new size."""

    number: int  # increases by 1 with every resize of the slot
    profile: ResourceProfile
    cpu_limit_milli: int
    # if the tasks use more than the new size, the resize waits (true) or is refused (false)
    wait_for_use: bool = False
    arrival_number: int = 0  # determines the place of the resize in the queue
    # the new assignment, set when the resize is ordered; None: the assignment does not change
    assignment: CpuAssignment | None = None


@dataclass(slots=True)
class Job:
    """A job and its lease."""

    job_id: str
    name: str
    group: str
    lease_ms: int | None  # None: the job is detached and needs no keep-alives
    owner: str
    request_id_sha256: str
    arrival_number: int
    create_time_ms: int
    state: JobState = JobState.ACTIVE
    end_reason: str = ""
    end_time_ms: int | None = None
    outcome: JobOutcome | None = None  # None: the job has not ended
    # jobs that must end before this job gets its first slot; jobs that have ended are included
    depends_on: tuple[JobDependency, ...] = ()
    priority: int = 0  # order within the group; the highest comes first
    last_sequence: int = 0  # sequence number of the last event in the job's log
    trimmed_sequence: int = 0  # events up to this number were deleted
    specified: bool | None = (
        # True if the job's requests have profiles, and False if they have none. The value is None
        # until the first request.
        None
    )
    witness_allocation_id: str = ""  # the first request, which decided `specified`
    # runtime: these fields are never stored
    lease_until_ms: int = 0
    acknowledged_sequence: int = 0
    arrivals: array[int] = field(
        default_factory=lambda: array("q")
    )  # arrival numbers of its stored requests, in order, including ended requests
    live_requests: int = 0  # number of requests that have not ended
    slot_keys: set[tuple[str, int]] = field(default_factory=set)  # the slots of the job
    # durations of the job's threads; stored with the job's usage
    durations: Durations | None = None
    # the latest durations, by class
    run_times: dict[Hashable, RecentDurations] = field(default_factory=dict)


@dataclass(slots=True)
class Request:
    """A slot request and its state."""

    spec: RequestSpec
    job_id: str
    arrival_number: int
    create_time_ms: int
    state: RequestState = RequestState.PENDING
    reason: str = ""
    message: str = ""
    generation: int = 0
    end_time_ms: int | None = None
    # runtime: these fields are never stored
    # monotonic time; None: there is no timeout, or the deadline is not computed yet
    waiting_until_ms: int | None = None

    @property
    def allocation_id(self) -> str:
        """Identity of the request and of its slots."""
        return self.spec.allocation_id


@dataclass(slots=True)
class Slot:
    """A slot. Its identity is (`allocation_id`, `generation`)."""

    allocation_id: str
    generation: int
    job_id: str
    executor_id: str
    profile: ResourceProfile  # for a request without a profile: the executor's default
    cpu_limit_milli: int
    pids_max: int
    cpus: str = ""  # empty: the slot runs in the executor's shared pool
    state: SlotState = SlotState.PENDING
    allocated_time_ms: int | None = None
    isolation: Isolation | None = None  # the isolation that the executor reported
    resize_number: int = 0  # number of the last requested resize
    # the ordered resize: a resize that is not confirmed yet, and that was sent to the executor or
    # is part of the next command
    ordered: Resize | None = None
    # the waiting resize: it is queued, in back-off, or waits for the end of `ordered`
    wanted: Resize | None = None
    assignment: CpuAssignment | None = None  # None: the slot runs in the whole shared pool (QoS LS)
    time_limit_ms: int | None = None  # the executor ends the slot after this time; None: no limit
    # how often the slot was reused; counted only with a time limit, which starts again each time
    reuse_number: int = 0
    revocable: bool = False  # see `RequestSpec.revocable`
    # Id of the request for which the slot is being revoked. That request has booked the capacity,
    # so the slot books nothing. Empty if the slot is not being revoked.
    revoked_for: str = ""
    # runtime: these fields are never stored
    # wall time at which the grace period of a revoked slot ends; None: the time is not known
    revoked_until_time_ms: int | None = None
    booked: Amounts = field(default_factory=dict)
    cost: float = 0.0  # cost per second while the slot accrues usage
    placed_with_command: int = (
        # number of the command that ordered the slot; 0: a command of an earlier registration
        0
    )
    grace_ms: int | None = None  # grace period in the next command that frees the slot
    # monotonic time when the thread of work in the slot began; None: the time is not known
    thread_since_ms: int | None = None
    # id of the request for which the slot was last reused; empty: the slot was not reused, or the
    # id is not known
    works_for: str = ""
    # the request's CPU policy; None: the request has no labels or rules about neighbors
    policy: CpuPolicy | None = None

    @property
    def best_effort(self) -> bool:
        """True if the slot books best-effort cpu."""
        return self.assignment is not None and self.assignment.qos is QosClass.BE

    @property
    def is_parked(self) -> bool:
        """True if the slot has given up its GPUs, and its processes still exist."""
        return self.assignment is not None and bool(self.assignment.parked_devices)


SLOT_RUNTIME = (
    "revoked_until_time_ms booked cost placed_with_command grace_ms thread_since_ms works_for"
    " policy"
)
"""Fields of a slot that are not stored."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The data that an executor sent when it registered. `labels` is sorted."""

    executor_id: str
    instance_id: str
    address: str
    total: Amounts
    reserved: Amounts
    default_profile: ResourceProfile
    labels: tuple[tuple[str, str], ...] = ()
    slots_max: int = 0
    shared_cpus: str = ""
    # HostTopology as compact JSON text, because dicts would need ten times the memory
    topology: str = "{}"
    isolation: Isolation = NOTHING_REPORTED
    boot_id: str = ""
    protocol_version: str = ""
    software_version: str = ""
    # shape with which a provider started the executor; empty: no provider started the executor
    provided_as: str = ""
    host_cpus: str = "{}"  # HostCpus as compact JSON text, to save memory


@dataclass(slots=True)
class Provision:
    """An executor that was requested from a provider. The row is deleted when the provider reports
    that no part of the executor is left.
    """

    executor_id: str  # the id with which the executor registers; no other executor gets this id
    shape: str
    number: int  # provisions are numbered in the order of their requests
    cause: str  # reason why the executor was requested, as a text for people
    ask_time_ms: int
    state: ProvidedExecutorState = ProvidedExecutorState.ASKED
    handle: str = ""  # the provider's id of the executor; needed to stop the executor
    message: str = ""  # reason of the last state change, for people
    # runtime: these fields are never stored
    # the executor is stopped if it has not registered before this time
    deadline_at_ms: int | None = None
    # monotonic time since which the executor has no slots; None: the executor has slots, or has not
    # registered
    idle_since_ms: int | None = None
    stop_failures: int = 0


@dataclass(frozen=True, slots=True)
class Cordon:
    """A device that gets no new slots, because an administrator has cordoned it."""

    type: str
    uuid: str
    minor: int  # the device's minor number at the time of the cordon
    reason: str = ""
    time_ms: int = 0


@dataclass(slots=True)
class HostSetting:
    """Settings that an administrator made at runtime, for one host or for the cluster. An
    administrator can make settings for a host before the host exists.
    """

    executor_id: str  # id of the executor; empty: the setting is for the whole cluster
    policy: HostPolicy
    number: int  # increases by 1 with every change of any setting
    set_time_ms: int = 0
    cordons: tuple[Cordon, ...] = ()  # the cordoned devices of this host


NOTHING_SET = HostPolicy()
"""Settings without any value."""


@dataclass(frozen=True, slots=True)
class CpuState:
    """The current state of a host's cpus, as its executor reports it; see CpuState in
    cpus.proto.
    """

    offline_cpus: CpuSet = EMPTY
    kubelet_cpus: CpuSet = EMPTY  # cpus that a kubelet has allocated to its containers
    # memory that a kubelet has allocated: NUMA node, bytes
    kubelet_memory: tuple[tuple[int, int], ...] = ()
    kubelet_policy: HostPolicy = NOTHING_SET
    kubelet: str = ""  # KubeletReport as compact JSON text, for people; empty: no kubelet is known
    host_policy_number: int = 0  # number of the settings that the executor has applied
    squeezed_cpus: CpuSet = EMPTY
    notes: tuple[str, ...] = ()


NO_CPU_STATE = CpuState()


@dataclass(slots=True)
class Executor:
    """An executor, as the resource manager knows it."""

    registration: Registration
    registration_number: int
    draining: bool = False
    drain_reason: str = ""
    drain_deadline_time_ms: int | None = None
    first_seen_time_ms: int = 0
    lost: bool = False  # true if `state` is LOST; this flag is stored, and `state` is not stored
    # runtime: these fields are never stored
    state: ExecutorState = ExecutorState.UNCONFIRMED
    report_number: int = 0
    report_at_ms: int = 0
    report_time_ms: int = 0
    reported_available: Amounts | None = None
    cpu_state: CpuState = NO_CPU_STATE
    device_conditions: tuple[DeviceCondition, ...] = ()  # the conditions in the last full report
    command_number: int = 0
    drain_deadline_at_ms: int | None = None

    @property
    def executor_id(self) -> str:
        """Id of the executor."""
        return self.registration.executor_id


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One entry of a job's event log. An entry with the state GRANTED is the slot offer and has
    `slot`.
    """

    job_id: str
    sequence: int
    time_ms: int
    allocation_id: str
    state: RequestState
    reason: str = ""
    message: str = ""
    # the result of `slot_to_dict` or `ended_slot_to_dict` in `engine/lifecycle/journal.py`
    slot: dict[str, object] | None = None
    count: int = 1  # number of described range members: the named member and the next by index


@dataclass(slots=True)
class ClusterEvent:
    """One entry of the cluster's history. The service adds the actor: the identity whose call
    caused the entry.
    """

    sequence: int
    time_ms: int
    kind: str
    executor_id: str = ""
    job_id: str = ""
    allocation_id: str = ""
    reason: str = ""
    message: str = ""
    actor: str = ""
