"""Collects the rows and stored counters that a batch of events has changed."""

from __future__ import annotations

from resource_manager.engine.model.effects import Changes
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
    Slot,
    UsageRecord,
    UserLimits,
)

GENERATION_FLOOR = "generation_floor"
"""Name of a counter that is raised when an older backup is restored. New slots get generations
above this counter. So a new slot never has the same generation as a slot that was placed after the
backup was made.
"""

CONTESTED_EPOCH = "contested_epoch"
"""Name of a counter. If the last leader stopped because an executor had seen a higher epoch, the
counter has this higher epoch; otherwise the counter is 0. While the counter is not 0, no resource
manager serves from this database. `finegrain db raise-epoch` and `finegrain db restore` set the
counter to 0.
"""

REGISTERED_WITH = "registered_with/"
"""Prefix of the names of counters, one for each executor: the number of the report with which the
executor last registered. With this number, every leader recognizes a late copy of an earlier
registration.
"""

AWAITED = "awaited/"
"""Prefix of the names of counters, one for each executor: 1 while the executor is awaited (see
`lifecycle/awaited.py`), 0 afterwards.
"""

AWAITED_UNTIL = "awaited_until_time_ms"
"""Name of a counter: the time when the wait for executors ends, as wall time in milliseconds."""

HOST_SETTING_NUMBER = "host_setting_number"
"""Name of a counter: the number of the last change by an administrator to the settings of any host.
"""

FORGOTTEN = "forgotten_registration_number"
"""Name of a counter: the highest registration number of all deleted executors."""

ARRIVAL_NUMBER = "arrival_number"
"""Name of a counter: the last used arrival number; jobs and requests share the numbers."""


class ChangeTracker:
    """Collects changed rows, by id, until `take` is called. So each row is stored once per batch,
    with its state at the time of `take`.

    Attributes:
        noted: number of changed rows and log entries so far. Only those kinds of rows count that
            one step can change in large numbers. `take` does not reset the number.
    """

    def __init__(self) -> None:
        self.noted = 0
        self._reset()

    def _reset(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._requests: dict[str, Request] = {}
        self._slots: dict[tuple[str, int], Slot] = {}
        self._moved_requests: dict[str, Request] = {}
        self._moved_slots: dict[tuple[str, int], Slot] = {}
        self._executors: dict[str, Executor] = {}
        self._gangs: dict[str, Gang] = {}
        self._provisions: dict[str, Provision] = {}
        self._ranges: dict[tuple[str, int], RequestRange] = {}
        self._groups: dict[str, Group] = {}
        self._user_limits: dict[str, UserLimits] = {}
        self._usage_records: dict[str, UsageRecord] = {}
        self._host_settings: dict[str, HostSetting] = {}
        self._deleted_jobs: dict[str, None] = {}
        self._deleted_requests: dict[str, None] = {}
        self._deleted_slots: dict[tuple[str, int], None] = {}
        self._deleted_executors: dict[str, None] = {}
        self._deleted_gangs: dict[str, None] = {}
        self._deleted_provisions: dict[str, None] = {}
        self._deleted_ranges: dict[tuple[str, int], None] = {}
        self._deleted_groups: dict[str, None] = {}
        self._deleted_user_limits: dict[str, None] = {}
        self._deleted_usage_records: dict[str, None] = {}
        self._deleted_host_settings: dict[str, None] = {}
        self._job_events: list[JobEvent] = []
        self._cluster_events: list[ClusterEvent] = []
        self._trimmed_job_events: dict[str, int] = {}
        self._trimmed_cluster_events: int | None = None
        self._counters: dict[str, int] = {}

    def job(self, job: Job) -> None:
        """Records that a job is new or changed."""
        self._jobs[job.job_id] = job

    def request(self, request: Request) -> None:
        """Records that a request is new."""
        self.noted += 1
        self._requests[request.spec.allocation_id] = request

    def request_moved(self, request: Request) -> None:
        """Records that a request has changed its state."""
        self.noted += 1
        allocation_id = request.spec.allocation_id
        if allocation_id not in self._requests:
            self._moved_requests[allocation_id] = request

    def slot(self, slot: Slot) -> None:
        """Records that a slot is new."""
        self.noted += 1
        self._slots[slot.allocation_id, slot.generation] = slot

    def slot_moved(self, slot: Slot) -> None:
        """Records that a slot has changed its state, or that its executor has reported more data
        about the slot.
        """
        self.noted += 1
        key = (slot.allocation_id, slot.generation)
        if key not in self._slots:
            self._moved_slots[key] = slot

    def executor(self, executor: Executor) -> None:
        """Records that an executor is new or changed."""
        self.noted += 1
        executor_id = executor.registration.executor_id
        self._executors[executor_id] = executor
        self._deleted_executors.pop(executor_id, None)

    def gang(self, gang: Gang) -> None:
        """Records that a gang is new or changed."""
        self.noted += 1
        self._gangs[gang.gang_id] = gang

    def provision(self, provision: Provision) -> None:
        """Records that a provision is new or changed."""
        self._provisions[provision.executor_id] = provision

    def request_range(self, part: RequestRange) -> None:
        """Records that a part of a range is new, or that members of the part have ended."""
        self.noted += 1
        self._ranges[part.spec.range_id, part.spec.first_index] = part

    def group(self, group: Group) -> None:
        """Records that a group is new or changed."""
        self._groups[group.name] = group
        self._deleted_groups.pop(group.name, None)

    def user_limits(self, limits: UserLimits) -> None:
        """Records that the limits of a user are new or changed."""
        self._user_limits[limits.user_id] = limits
        self._deleted_user_limits.pop(limits.user_id, None)

    def usage(self, record: UsageRecord) -> None:
        """Records the usage of a flow."""
        self._usage_records[record.flow_id] = record
        self._deleted_usage_records.pop(record.flow_id, None)

    def host_setting(self, setting: HostSetting) -> None:
        """Records that settings of a host are new or changed."""
        self._host_settings[setting.executor_id] = setting
        self._deleted_host_settings.pop(setting.executor_id, None)

    def counter(self, name: str, value: int) -> None:
        """Records the new value of a counter."""
        self._counters[name] = value

    def job_event(self, event: JobEvent) -> None:
        """Adds an entry to a job's log."""
        self.noted += 1
        self._job_events.append(event)

    def cluster_event(self, event: ClusterEvent) -> None:
        """Adds an entry to the cluster's history."""
        self.noted += 1
        self._cluster_events.append(event)

    def trim_job_events(self, job_id: str, sequence: int) -> None:
        """Records that entries of a job's log up to this number are deleted."""
        self._trimmed_job_events[job_id] = sequence

    def trim_cluster_events(self, sequence: int) -> None:
        """Records that entries of the cluster's history up to this number are deleted."""
        self._trimmed_cluster_events = sequence

    def delete_slot(self, slot: Slot) -> None:
        """Records that a slot is deleted."""
        self.noted += 1
        key = (slot.allocation_id, slot.generation)
        self._slots.pop(key, None)
        self._moved_slots.pop(key, None)
        self._deleted_slots[key] = None

    def delete_executor(self, executor_id: str) -> None:
        """Records that an executor is deleted. The caller must delete each slot of the executor."""
        self._executors.pop(executor_id, None)
        self._deleted_executors[executor_id] = None

    def delete_gang(self, gang: Gang) -> None:
        """Records that a gang is deleted."""
        self.noted += 1
        self._gangs.pop(gang.gang_id, None)
        self._deleted_gangs[gang.gang_id] = None

    def delete_provision(self, provision: Provision) -> None:
        """Records that a provision is deleted, because nothing is left of its executor."""
        self._provisions.pop(provision.executor_id, None)
        self._deleted_provisions[provision.executor_id] = None

    def delete_range(self, part: RequestRange) -> None:
        """Records that a part of a range is deleted."""
        self.noted += 1
        key = (part.spec.range_id, part.spec.first_index)
        self._ranges.pop(key, None)
        self._deleted_ranges[key] = None

    def delete_group(self, group: Group) -> None:
        """Records that a group is deleted."""
        self._groups.pop(group.name, None)
        self._deleted_groups[group.name] = None

    def delete_user_limits(self, user: str) -> None:
        """Records that the limits of a user are deleted."""
        self._user_limits.pop(user, None)
        self._deleted_user_limits[user] = None

    def delete_usage(self, flow_id: str) -> None:
        """Records that the stored usage of a flow is deleted."""
        self._usage_records.pop(flow_id, None)
        self._deleted_usage_records[flow_id] = None

    def delete_host_setting(self, executor_id: str) -> None:
        """Records that a host no longer has settings."""
        self._host_settings.pop(executor_id, None)
        self._deleted_host_settings[executor_id] = None

    def delete_request(self, request: Request) -> None:
        """Records that a request is deleted."""
        self.noted += 1
        allocation_id = request.spec.allocation_id
        self._requests.pop(allocation_id, None)
        self._moved_requests.pop(allocation_id, None)
        self._deleted_requests[allocation_id] = None

    def delete_job(self, job: Job) -> None:
        """Records that a job is deleted with its events. The caller must delete each request of the
        job.
        """
        self._jobs.pop(job.job_id, None)
        self._trimmed_job_events.pop(job.job_id, None)
        self._job_events = [event for event in self._job_events if event.job_id != job.job_id]
        self._deleted_jobs[job.job_id] = None

    def take(self) -> Changes:
        """Returns all changes since the last call.

        The rows are the entities themselves and not copies, so the rows must be stored before the
        next step.
        """
        changes = Changes(
            jobs=list(self._jobs.values()),
            requests=list(self._requests.values()),
            slots=list(self._slots.values()),
            moved_requests=list(self._moved_requests.values()),
            moved_slots=list(self._moved_slots.values()),
            executors=list(self._executors.values()),
            gangs=list(self._gangs.values()),
            provisions=list(self._provisions.values()),
            ranges=list(self._ranges.values()),
            groups=list(self._groups.values()),
            user_limits=list(self._user_limits.values()),
            usage_records=list(self._usage_records.values()),
            host_settings=list(self._host_settings.values()),
            deleted_jobs=list(self._deleted_jobs),
            deleted_requests=list(self._deleted_requests),
            deleted_slots=list(self._deleted_slots),
            deleted_executors=list(self._deleted_executors),
            deleted_gangs=list(self._deleted_gangs),
            deleted_provisions=list(self._deleted_provisions),
            deleted_ranges=list(self._deleted_ranges),
            deleted_groups=list(self._deleted_groups),
            deleted_user_limits=list(self._deleted_user_limits),
            deleted_usage_records=list(self._deleted_usage_records),
            deleted_host_settings=list(self._deleted_host_settings),
            job_events=self._job_events,
            cluster_events=self._cluster_events,
            trimmed_job_events=list(self._trimmed_job_events.items()),
            trimmed_cluster_events=self._trimmed_cluster_events,
            counters=self._counters,
        )
        self._reset()
        return changes


class Numbers:
    """The stored counters. Some counters are the last number of a sequence whose numbers are used
    only once. The other counters are lower bounds that are still needed after entities were
    deleted.

    Attributes:
        arrival: last used arrival number; jobs and requests share the numbers.
        host_setting: number of the last change to the settings of any host.
        forgotten_registration: highest registration number of all deleted executors.
        generation_floor: new slots get generations above this number.
    """

    def __init__(self, changes: ChangeTracker) -> None:
        self._changes = changes
        self.arrival = 0
        self.host_setting = 0
        self.forgotten_registration = 0
        self.generation_floor = 0

    def next_arrival(self, count: int = 1) -> int:
        """Takes `count` consecutive arrival numbers, and returns the first number."""
        self.arrival += count
        self._changes.counter(ARRIVAL_NUMBER, self.arrival)
        return self.arrival - count + 1

    def keep_registration(self, number: int) -> None:
        """Records the registration number of an executor that is deleted. If the executor registers
        again, it gets a higher number. So the executor cannot mistake new commands for old
        commands.
        """
        self.forgotten_registration = max(self.forgotten_registration, number)
        self._changes.counter(FORGOTTEN, self.forgotten_registration)
