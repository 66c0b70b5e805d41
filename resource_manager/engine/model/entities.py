"""What the books hold: jobs, requests, slots, executors.

Durable fields come first in each class; what stands under "runtime" is rebuilt after a restart and
never stored. Times that end in `_time_ms` are wall-clock milliseconds since 1970 and are only ever
shown; whatever a decision hangs on is `_at_ms`, monotonic milliseconds of the present incarnation.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN, CpuPolicy, HostPolicy, QosClass
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.intervals import IntervalSet
from finegrain.resources import Amounts, ResourceProfile
from finegrain.values.isolation import NOTHING_REPORTED, Isolation
from finegrain.values.states import (
    ExecutorState,
    GangPlacement,
    ProvidedExecutorState,
    RequestState,
    SlotState,
)
from finegrain.values.usage import NO_USAGE, Usage
from resource_manager.engine.model.durations import Durations

SlotKey = tuple[str, int]
"""Identity of a slot: allocation id and generation."""


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment: monotonic for decisions, wall clock for people."""

    monotonic_ms: int
    time_ms: int


class JobState(StrEnum):
    """Where a job stands."""

    ACTIVE = "ACTIVE"  # may ask for slots
    ENDED = "ENDED"  # ids are kept for a while, nothing else


ENDED_REQUEST_STATES = frozenset(
    {RequestState.CANCELLED, RequestState.REJECTED, RequestState.RELEASED, RequestState.LOST}
)


Ended = tuple[RequestState, str, str]
"""How a request ended: state, reason and message."""


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A slot request as a job master sent it, already validated. `required_labels` is sorted."""

    allocation_id: str
    profile: ResourceProfile | None  # None: unknown
    cpu_limit_milli: int = 0
    pids_max: int = 0
    required_labels: tuple[tuple[str, str], ...] = ()
    target_address: str = ""
    allow_pending: bool = False
    restart_on_loss: bool = False
    gang_id: str = ""
    cpu_policy: CpuPolicy = PLAIN


class GangState(StrEnum):
    """Where a gang stands as a whole."""

    WAITING = "WAITING"  # in line, or about to end with its job
    ALLOCATING = "ALLOCATING"  # placed; some executors have not confirmed
    GRANTED = "GRANTED"  # each member goes its own way, until one is to be placed again
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class GangSpec:
    """A gang as a job master sent it, already validated. `label` only with SAME_LABEL."""

    gang_id: str
    placement: GangPlacement = GangPlacement.ANYWHERE
    label: str = ""
    timeout_ms: int | None = None  # None: it waits for ever


@dataclass(frozen=True, slots=True)
class RangeSpec:
    """Many equal requests as a job master sent them, already validated.

    `request.allocation_id` is the range's id: member number `index` is `<range_id>.<index>`.
    """

    request: RequestSpec
    first_index: int
    count: int

    @property
    def range_id(self) -> str:
        """Its name; a range may have several parts."""
        return self.request.allocation_id


@dataclass(slots=True)
class RequestRange:
    """A part of a range: one row for all of its members that wait and have never been placed, and
    for those that have ended.
    """

    spec: RangeSpec
    job_id: str
    arrival_number: int  # of its first member; the others follow
    create_time_ms: int
    ended: dict[Ended, IntervalSet] = field(default_factory=dict)  # indexes of those that ended


@dataclass(slots=True)
class Group:
    """A resource group: a flow of flows. An absent dimension of `minimum` or `maximum` has none."""

    name: str
    parent: str = ""  # empty: none
    weight: float = 1.0
    minimum: Amounts = field(default_factory=dict)  # guaranteed: served first until it has that
    maximum: Amounts = field(default_factory=dict)  # what its slots may have at most
    description: str = ""
    create_time_ms: int = 0


@dataclass(slots=True)
class UsageRecord:
    """What a flow had received at one moment, as it is kept over restarts."""

    flow_id: str  # "group/NAME" or "job/ID"
    measure: str  # what service was counted in
    service: float  # received, decayed
    raised: float  # what was added as it began to wait
    time_ms: int  # when that was so
    durations: str = ""  # of a job: how long its threads took, as JSON text


@dataclass(slots=True)
class Gang:
    """A gang of which a member lives, or whose id is still kept with its job."""

    spec: GangSpec
    job_id: str
    arrival_number: int  # of its first member: its place in line
    waiting_since_time_ms: int  # when it began to wait, last
    # runtime
    state: GangState = GangState.WAITING
    members: list[str] = field(default_factory=list)  # allocation ids, in order of arrival
    waiting_until_ms: int | None = None  # monotonic; None: no timeout, or it does not wait

    @property
    def gang_id(self) -> str:
        """Its name."""
        return self.spec.gang_id


@dataclass(frozen=True, slots=True)
class Resize:
    """A change of a slot's size: the whole of what it is to consist of."""

    number: int  # +1 for every one of a slot
    profile: ResourceProfile
    cpu_limit_milli: int
    wait_for_use: bool = False  # below what is in use: wait (True) or refuse (False)
    arrival_number: int = 0  # its place in line
    assignment: CpuAssignment | None = None  # decided when it is ordered; None: as it is


@dataclass(slots=True)
class Job:
    """A job and its lease."""

    job_id: str
    name: str
    group: str
    lease_ms: int | None  # None: detached
    secret_sha256: str
    request_id_sha256: str
    arrival_number: int
    create_time_ms: int
    state: JobState = JobState.ACTIVE
    end_reason: str = ""
    end_time_ms: int | None = None
    last_sequence: int = 0  # of its event log
    trimmed_sequence: int = 0  # events up to this one are no longer kept
    specified: bool | None = (
        None  # whether its requests are specified or unknown (D9); None: none seen yet
    )
    witness_allocation_id: str = ""  # the first request, which settled `specified`
    # runtime
    lease_until_ms: int = 0
    acknowledged_sequence: int = 0
    arrivals: array[int] = field(
        default_factory=lambda: array("q")
    )  # arrival numbers of all requests kept, in order, ended ones included
    live_requests: int = 0  # those that have not ended
    slot_keys: set[tuple[str, int]] = field(default_factory=set)  # slots that exist
    durations: Durations | None = None  # of its threads; kept with its tally


@dataclass(slots=True)
class Request:
    """A slot request and where it stands."""

    spec: RequestSpec
    job_id: str
    arrival_number: int
    create_time_ms: int
    state: RequestState = RequestState.PENDING
    reason: str = ""
    message: str = ""
    generation: int = 0
    end_time_ms: int | None = None

    @property
    def allocation_id(self) -> str:
        """Identity of the request and of its slot."""
        return self.spec.allocation_id


@dataclass(slots=True)
class Slot:
    """A slot; its identity is (`allocation_id`, `generation`)."""

    allocation_id: str
    generation: int
    job_id: str
    executor_id: str
    profile: ResourceProfile  # resolved: what it really consists of
    cpu_limit_milli: int
    pids_max: int
    cpus: str = ""  # empty: the executor's shared pool
    state: SlotState = SlotState.PENDING
    allocated_time_ms: int | None = None
    isolation: Isolation | None = None  # as the executor reported it
    resize_number: int = 0  # of the last change of size that was asked for
    ordered: Resize | None = None  # the executor has it or gets it; outcome unknown
    wanted: Resize | None = None  # waits in line
    assignment: CpuAssignment | None = None  # None: LS, in the whole shared pool
    # runtime
    booked: Amounts = field(default_factory=dict)
    cost: float = 0.0  # what it is charged per second, while it accrues
    placed_with_command: int = (
        0  # command of the present registration that carries it; 0: an earlier one
    )
    grace_ms: int | None = None  # for the free that is to come
    thread_since_ms: int | None = None  # monotonic: it serves its present thread; None: not known
    works_for: str = ""  # the request whose work it took over last; empty: none, or not known

    @property
    def best_effort(self) -> bool:
        """True if it books best-effort cpu."""
        return self.assignment is not None and self.assignment.qos is QosClass.BE


SLOT_RUNTIME = "booked cost placed_with_command grace_ms thread_since_ms works_for"
"""Fields of a slot that are not stored."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What an executor announced of itself. `labels` is sorted."""

    executor_id: str
    instance_id: str
    address: str
    total: Amounts
    reserved: Amounts
    default_profile: ResourceProfile
    labels: tuple[tuple[str, str], ...] = ()
    slots_max: int = 0
    shared_cpus: str = ""
    topology: str = "{}"  # HostTopology as compact JSON text, opaque here: a tenth of its dicts
    isolation: Isolation = NOTHING_REPORTED
    boot_id: str = ""
    protocol_version: str = ""
    software_version: str = ""
    provided_as: str = ""  # executor shape as which a provider started it; empty: none did
    host_cpus: str = "{}"  # HostCpus as compact JSON text, likewise


@dataclass(slots=True)
class Provision:
    """An executor that was asked for, from then until nothing of it is left."""

    executor_id: str  # the name that it registers with; never used again
    shape: str
    number: int  # order of asking
    cause: str  # why it was asked for, for people
    ask_time_ms: int
    state: ProvidedExecutorState = ProvidedExecutorState.ASKED
    handle: str = ""  # what its provider needs to stop it
    message: str = ""  # what went on since, for people
    # runtime
    deadline_at_ms: int | None = None  # given up then, if it has not registered
    idle_since_ms: int | None = None  # monotonic; None: it has slots, or has not registered
    stop_failures: int = 0


@dataclass(slots=True)
class HostSetting:
    """What an operator has set at runtime for one host, known or not, or for the cluster."""

    executor_id: str  # empty: the cluster
    policy: HostPolicy
    number: int  # +1 for every change of any
    set_time_ms: int = 0


NOTHING_SET = HostPolicy()
"""The settings of a layer that says nothing."""


@dataclass(frozen=True, slots=True)
class CpuState:
    """What an executor sees of its host's cpus at present; see CpuState in cpus.proto."""

    offline_cpus: CpuSet = EMPTY
    kubelet_cpus: CpuSet = EMPTY  # that a kubelet gave to containers of its own
    kubelet_memory: tuple[tuple[int, int], ...] = ()  # bytes that it did, by NUMA node
    kubelet_policy: HostPolicy = NOTHING_SET
    kubelet: str = ""  # KubeletReport as compact JSON text, for people; empty: there is none
    host_policy_number: int = 0  # that it follows
    squeezed_cpus: CpuSet = EMPTY
    notes: tuple[str, ...] = ()


NO_CPU_STATE = CpuState()


@dataclass(slots=True)
class Executor:
    """An executor and what the RM believes of it."""

    registration: Registration
    registration_number: int
    draining: bool = False
    drain_reason: str = ""
    drain_deadline_time_ms: int | None = None
    first_seen_time_ms: int = 0
    lost: bool = False  # durable part of `state`
    # runtime
    state: ExecutorState = ExecutorState.UNCONFIRMED
    report_number: int = 0
    report_at_ms: int = 0
    report_time_ms: int = 0
    reported_available: Amounts | None = None
    cpu_state: CpuState = NO_CPU_STATE
    used: Usage = NO_USAGE
    command_number: int = 0
    drain_deadline_at_ms: int | None = None

    @property
    def executor_id(self) -> str:
        """Its name."""
        return self.registration.executor_id


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One entry of a job's event log. GRANTED is the slot offer and carries `slot`."""

    job_id: str
    sequence: int
    time_ms: int
    allocation_id: str
    state: RequestState
    reason: str = ""
    message: str = ""
    slot: dict[str, object] | None = None  # see engine/model/offers.py: slot_to_dict
    count: int = 1  # members of a range: the one named, and those with the indexes that follow


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One entry of the cluster's history."""

    sequence: int
    time_ms: int
    kind: str
    executor_id: str = ""
    job_id: str = ""
    allocation_id: str = ""
    reason: str = ""
    message: str = ""
