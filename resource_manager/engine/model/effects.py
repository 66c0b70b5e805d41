"""What `step` wants done, after the books are durable. Every effect may be repeated: it carries ids
and numbers.

Rows to store are not effects: `State.changes.take()` hands over what a batch touched, each row
once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
)


@dataclass(frozen=True, slots=True)
class SlotOrder:
    """One slot to carve: a frozen copy of the books at the time of the order."""

    slot: Slot
    job_secret_sha256: str
    target_address: str = ""


@dataclass(frozen=True, slots=True)
class SendAllocate:
    """Order slots at an executor (TaskExecutorService.AllocateSlots) and answer with
    CommandAnswered, -Refused or
    -Undelivered."""

    executor_id: str
    address: str
    registration_number: int
    command_number: int
    orders: tuple[SlotOrder, ...]


@dataclass(frozen=True, slots=True)
class SendFree:
    """Take slots (id, generation, grace_ms) down at an executor (TaskExecutorService.FreeSlots);
    likewise.
    """

    executor_id: str
    address: str
    registration_number: int
    command_number: int
    slots: tuple[tuple[str, int, int | None], ...]


@dataclass(frozen=True, slots=True)
class SendResize:
    """Change the size of a slot at an executor (TaskExecutorService.ResizeSlot); likewise."""

    executor_id: str
    address: str
    registration_number: int
    command_number: int
    allocation_id: str
    generation: int
    resize: Resize


@dataclass(frozen=True, slots=True)
class ProbeExecutor:
    """Find out whether an executor can be dialled, without asking anything of it, and answer with
    ExecutorProbed. An answer that gets lost does no harm: another probe follows.
    """

    executor_id: str
    address: str


@dataclass(frozen=True, slots=True)
class PublishJobEvent:
    """Push an entry of a job's log to its watchers. It is stored with the batch."""

    event: JobEvent


@dataclass(frozen=True, slots=True)
class PublishClusterEvent:
    """Push an entry of the cluster's history to whoever waits for it.

    It is stored with the batch.
    """

    event: ClusterEvent


@dataclass(frozen=True, slots=True)
class StartExecutor:
    """Let a provider start an executor of a shape under this id, and answer with ProvisionStarted
    or -Failed.

    `again`: it may have been told before, and may have done so.
    """

    executor_id: str
    shape: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class StopExecutor:
    """Let a provider stop an executor and all that belongs to it, whether or not it runs or ever
    ran, and answer with ProvisionEnded or -StopFailed.
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
    """What one event led to: the answer for whoever brought the event, and effects in order."""

    answer: object = None
    effects: list[Effect] = field(default_factory=list)


@dataclass(slots=True)
class Changes:
    """Rows that a batch touched, each once, as they are now. Stored in one transaction.

    What has moved was stored before; of it only where it stands now is stored again (state, reason,
    message, generation and end of a request; state, time, cpus and isolation of a slot).
    """

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
    moved_requests: list[Request] = field(default_factory=list)
    moved_slots: list[Slot] = field(default_factory=list)
    deleted_jobs: list[str] = field(default_factory=list)  # with their requests and events
    deleted_requests: list[str] = field(default_factory=list)
    deleted_slots: list[tuple[str, int]] = field(default_factory=list)
    deleted_executors: list[str] = field(default_factory=list)
    deleted_gangs: list[str] = field(default_factory=list)  # a job takes its own with it
    deleted_provisions: list[str] = field(default_factory=list)
    deleted_ranges: list[tuple[str, int]] = field(
        default_factory=list
    )  # (range_id, first_index); a job takes its own with it
    deleted_groups: list[str] = field(default_factory=list)
    deleted_usage_records: list[str] = field(default_factory=list)
    deleted_host_settings: list[str] = field(default_factory=list)
    job_events: list[JobEvent] = field(default_factory=list)
    cluster_events: list[ClusterEvent] = field(default_factory=list)
    trimmed_job_events: list[tuple[str, int]] = field(
        default_factory=list
    )  # (job_id, up to and including)
    trimmed_cluster_events: int | None = None  # up to and including
    counters: dict[str, int] = field(
        default_factory=dict
    )  # "arrival_number", "cluster_sequence", ...

    def __bool__(self) -> bool:
        """True if there is anything to store."""
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
                self.deleted_usage_records,
                self.deleted_host_settings,
                self.job_events,
                self.cluster_events,
                self.trimmed_job_events,
                self.trimmed_cluster_events is not None,
                self.counters,
            )
        )


@dataclass(slots=True)
class Snapshot:
    """Everything durable, as the store hands it over at the start of an incarnation."""

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
