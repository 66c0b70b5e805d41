"""Effects: actions that `step` returns, and that the caller performs after the state is stored.

An effect can be performed more than once: its ids and numbers make it idempotent. Rows to store are
not effects: `State.changes.take()` returns the changed rows of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from resource_manager.engine.model.audit import AuditEntry
from resource_manager.engine.model.entities import (
    ClusterEvent,
    Executor,
    Gang,
    Group,
    HostSetting,
    Job,
    JobEvent,
    Provision,
    Request,
    RequestRange,
    Resize,
    Slot,
    UsageRecord,
    UserLimits,
)


@dataclass(frozen=True, slots=True)
class SlotOrder:
    """One slot to carve. `slot` is a copy from the time of the command."""

    slot: Slot
    owner: str
    target_address: str = ""


@dataclass(frozen=True, slots=True)
class SendAllocate:
    """Allocate slots on an executor (TaskExecutorService.AllocateSlots). The result arrives as the
    event CommandAnswered, CommandRefused or CommandUndelivered.

    `known_report_number` is the number of the last adopted report of the executor.
    """

    executor_id: str
    address: str
    registration_number: int
    command_number: int
    orders: tuple[SlotOrder, ...]
    known_report_number: int = 0


@dataclass(frozen=True, slots=True)
class SendFree:
    """Free slots (id, generation, grace_ms) on an executor (TaskExecutorService.FreeSlots). The
    result arrives as for SendAllocate.
    """

    executor_id: str
    address: str
    registration_number: int
    command_number: int
    slots: tuple[tuple[str, int, int | None], ...]
    known_report_number: int = 0


@dataclass(frozen=True, slots=True)
class SendResize:
    """Resize a slot on an executor (TaskExecutorService.ResizeSlot). The result arrives as for
    SendAllocate.
    """

    executor_id: str
    address: str
    registration_number: int
    command_number: int
    allocation_id: str
    generation: int
    resize: Resize


@dataclass(frozen=True, slots=True)
class ProbeExecutor:
    """Check whether the resource manager can connect to an executor. The result arrives as
    ExecutorProbed. If the result is lost, the result of the next probe replaces it.
    """

    executor_id: str
    address: str


@dataclass(frozen=True, slots=True)
class PublishJobEvent:
    """Send an entry of a job's log to the watchers of the job. The entry is stored with the
    batch.
    """

    event: JobEvent


@dataclass(frozen=True, slots=True)
class PublishClusterEvent:
    """Send an entry of the cluster's history to its watchers. The entry is stored with the
    batch.
    """

    event: ClusterEvent


@dataclass(frozen=True, slots=True)
class StartExecutor:
    """Tell a provider to start an executor of a shape with this id. The result arrives as
    ProvisionStarted or ProvisionFailed.

    If `again` is true, the provider has possibly received this order before, and has possibly
    started the executor.
    """

    executor_id: str
    shape: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class StopExecutor:
    """Tell a provider to stop an executor. The provider must also remove all parts of the executor.
    The executor is possibly running, has ended, or was never started. The result arrives as
    ProvisionEnded or ProvisionStopFailed.
    """

    executor_id: str
    shape: str
    handle: str = ""


Effect = (
    SendAllocate
    | SendFree
    | SendResize
    | ProbeExecutor
    | StartExecutor
    | StopExecutor
    | PublishJobEvent
    | PublishClusterEvent
)


@dataclass(slots=True)
class StepResult:
    """The result of one event: the answer to its sender, and effects in order."""

    answer: object = None
    effects: list[Effect] = field(default_factory=list)


@dataclass(slots=True)
class Changes:
    """All changed rows of a batch, which are stored in one transaction.

    Rows in `moved_requests` and `moved_slots` are already in the store. Only some of their columns
    are stored again. For a request, these are state, reason, message, generation and end. For a
    slot, these are state, time, cpus and isolation.
    """

    jobs: list[Job] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    executors: list[Executor] = field(default_factory=list)
    gangs: list[Gang] = field(default_factory=list)
    provisions: list[Provision] = field(default_factory=list)
    ranges: list[RequestRange] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    user_limits: list[UserLimits] = field(default_factory=list)
    usage_records: list[UsageRecord] = field(default_factory=list)
    host_settings: list[HostSetting] = field(default_factory=list)
    moved_requests: list[Request] = field(default_factory=list)
    moved_slots: list[Slot] = field(default_factory=list)
    deleted_jobs: list[str] = field(default_factory=list)  # deleted with their requests and events
    deleted_requests: list[str] = field(default_factory=list)
    deleted_slots: list[tuple[str, int]] = field(default_factory=list)
    deleted_executors: list[str] = field(default_factory=list)
    # gangs of a deleted job are deleted with the job, and are not listed here
    deleted_gangs: list[str] = field(default_factory=list)
    deleted_provisions: list[str] = field(default_factory=list)
    # (range_id, first_index); the ranges of a deleted job are deleted with the job, and not listed
    deleted_ranges: list[tuple[str, int]] = field(default_factory=list)
    deleted_groups: list[str] = field(default_factory=list)
    deleted_user_limits: list[str] = field(default_factory=list)
    deleted_usage_records: list[str] = field(default_factory=list)
    deleted_host_settings: list[str] = field(default_factory=list)
    job_events: list[JobEvent] = field(default_factory=list)
    cluster_events: list[ClusterEvent] = field(default_factory=list)
    trimmed_job_events: list[tuple[str, int]] = field(
        default_factory=list
    )  # (job_id, sequence number of the last entry to delete)
    trimmed_cluster_events: int | None = None  # last sequence that is deleted
    counters: dict[str, int] = field(
        default_factory=dict
    )  # name of the counter: "arrival_number", "cluster_sequence", ...
    # The service adds the values below, which the engine does not know.
    audit: list[AuditEntry] = field(default_factory=list)
    trimmed_audit: int | None = None  # last sequence that is deleted
    metas: dict[str, str | None] = field(default_factory=dict)  # None deletes a value

    def __bool__(self) -> bool:
        """Returns True if there is anything to store."""
        return any(
            (
                self.jobs,
                self.requests,
                self.slots,
                self.executors,
                self.gangs,
                self.provisions,
                self.ranges,
                self.groups,
                self.user_limits,
                self.usage_records,
                self.host_settings,
                self.moved_requests,
                self.moved_slots,
                self.deleted_jobs,
                self.deleted_requests,
                self.deleted_slots,
                self.deleted_executors,
                self.deleted_gangs,
                self.deleted_provisions,
                self.deleted_ranges,
                self.deleted_groups,
                self.deleted_user_limits,
                self.deleted_usage_records,
                self.deleted_host_settings,
                self.job_events,
                self.cluster_events,
                self.trimmed_job_events,
                self.trimmed_cluster_events is not None,
                self.counters,
                self.audit,
                self.trimmed_audit is not None,
                self.metas,
            )
        )


@dataclass(slots=True)
class Snapshot:
    """All stored rows, as the store returns them at a start."""

    rm_epoch: int
    jobs: list[Job] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    executors: list[Executor] = field(default_factory=list)
    gangs: list[Gang] = field(default_factory=list)
    provisions: list[Provision] = field(default_factory=list)
    ranges: list[RequestRange] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    usage_records: list[UsageRecord] = field(default_factory=list)
    host_settings: list[HostSetting] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    user_limits: list[UserLimits] = field(default_factory=list)
