"""Settings of the engine: time limits, sizes and the placement strategy.

The program that starts the resource manager sets these values, and the engine only reads them.
Durations are milliseconds, amounts are integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from finegrain.cpu_policy import HostPolicy
from finegrain.resources import MIB, Amounts, ResourceProfile
from finegrain.values.bounds import CPU_MILLI_MIN

Strategy = Literal["pack", "spread", "balanced"]
"""The way in which one of several suitable hosts is chosen; see `placement/policies.py`."""

Order = Literal["fair", "arrival"]
"""The order in which waiting requests are served. With "fair", the flow with the lowest virtual
time comes first. With "arrival", requests are served in the order of their arrival, and groups do
not matter.
"""

Measure = Literal["dominant", "slots", "cpu"]
"""The cost of a slot per second. "dominant": the slot's largest share of the cluster in any
dimension. "slots": each slot costs 1. "cpu": the slot's cores.
"""

SECOND_MS = 1_000
HOUR_MS = 3_600 * SECOND_MS
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class ExecutorShape:
    """One kind of executor that a provider can start. `labels` is sorted."""

    name: str
    provider: str
    total: Amounts
    default_profile: ResourceProfile  # the profile of slots for requests without a profile
    labels: tuple[tuple[str, str], ...] = ()
    slots_max: int = 0  # 0: no limit
    cost: float = 1.0  # the cost of one executor, relative to other shapes
    count_max: int = 0  # largest number of executors of this shape at a time; 0: no limit
    start_timeout_ms: int = 120 * SECOND_MS  # time within which an executor must register


@dataclass(frozen=True, slots=True)
class Provisioning:
    """Settings for starting and stopping executors automatically. Totals include all executors that
    are not lost, and all requested executors that have not registered.
    """

    shapes: tuple[ExecutorShape, ...] = ()
    total_min: Amounts = field(default_factory=dict)
    total_max: Amounts = field(default_factory=dict)  # a missing dimension has no limit
    idle_timeout_ms: int = 60 * SECOND_MS  # an executor without slots for this long is given back
    # a provider's executor that is lost for this long is given back
    provided_lost_timeout_ms: int = 300 * SECOND_MS
    plan_interval_ms: int = 1 * SECOND_MS  # time between two planning passes
    planned_requests_max: int = 10_000  # requests that one planning pass considers
    backoff_min_ms: int = 1 * SECOND_MS  # first pause for a shape whose executors fail to start
    backoff_max_ms: int = 300 * SECOND_MS

    def __bool__(self) -> bool:
        """Returns True if there are shapes to request."""
        return bool(self.shapes)


@dataclass(frozen=True, slots=True)
class Fairness:
    """Settings of the order in which jobs and groups are served."""

    order: Order = "fair"
    usage_measure: Measure = "dominant"
    # usage that is this old counts half; None: usage does not decay
    half_life_ms: int | None = 900 * SECOND_MS
    # for the virtual time, each running slot counts as if it had already run for this additional
    # time
    lookahead_ms: int = 30 * SECOND_MS
    usage_interval_ms: int = 10 * SECOND_MS  # longest time between two writes of a changing usage
    # if a request waits for this time while other requests are placed, capacity is reserved for it
    starvation_timeout_ms: int = 300 * SECOND_MS
    # capacity is also reserved after this many placements of other requests; 0: placements do not
    # matter
    starvation_placements: int = 0
    reservations_max: int = 8  # largest number of reservations at a time; 0: no reservations
    # largest part of each resource that can be reserved; the limit does not apply to the request
    # that has been starved for the longest time
    reserved_part_max: float = 0.1
    slots_max: int = 0  # largest number of slots in the whole cluster at a time; 0: no limit


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All settings that an administrator can change."""

    # Executors.
    report_interval_ms: int = 3 * SECOND_MS
    lost_timeout_ms: int = 15 * SECOND_MS

    # Placement. "pack" takes hosts in use before empty hosts. Among the first `pack_candidates`
    # suitable hosts by name, "pack" takes the host that suits the request best. "spread" takes the
    # least loaded host. "balanced" takes the host where the slot makes the free fractions of cpu
    # and memory most equal.
    strategy: Strategy = "pack"
    pack_candidates: int = 8  # "pack" compares at most this many hosts; 1 means first fit
    label_indexes_max: int = 64  # largest number of label selectors with their own index
    # one `Decide` tries at most this many scheduling classes without success; the next `Decide`
    # tries the remaining classes
    classes_tried_max: int = 300
    # one `Decide` checks cpus and NUMA nodes on at most this many hosts without success
    hosts_asked_max: int = 256

    # Requests.
    cpu_milli_min: int = CPU_MILLI_MIN
    memory_bytes_min: int = 4 * MIB
    job_requests_max: int = 1_000_000  # live requests of one job
    job_scheduling_classes_max: int = 10_000  # scheduling classes among a job's pending requests
    requests_max: int = 2_000_000  # live requests of all jobs; each takes about 1 KiB of memory
    # if for this time no executor could host a request, even when empty, the request is rejected
    infeasible_after_ms: int = 30 * SECOND_MS

    # Jobs.
    jobs_max: int = 100_000  # jobs that have not ended
    lease_default_ms: int = 30 * SECOND_MS
    lease_min_ms: int = 1 * SECOND_MS
    lease_max_ms: int = DAY_MS

    # Commands: back-off after an unknown outcome, and items in one command.
    command_retry_min_ms: int = 250
    command_retry_max_ms: int = 5 * SECOND_MS
    command_items_max: int = 1_000

    # An executor that sends reports but does not receive commands counts as unreachable after one
    # of these two limits. An unreachable executor gets no new slots, and is probed at growing
    # intervals.
    unreachable_after_ms: int = 10 * SECOND_MS  # one command was undeliverable for this time
    refused_commands_max: int = 5  # refused commands in a row
    probe_min_ms: int = 1 * SECOND_MS
    probe_max_ms: int = 30 * SECOND_MS

    # A host that has refused a slot of a scheduling class gets no slot of this class for a time
    # between these two limits. The time ends earlier if the state of the host changes.
    refusal_backoff_min_ms: int = 1 * SECOND_MS
    refusal_backoff_max_ms: int = 300 * SECOND_MS

    # If true, revocable slots are taken back for requests that are not revocable and fit nowhere.
    revocation: bool = False
    # The time that the tasks of a revoked slot have between SIGTERM and SIGKILL.
    revocation_grace_ms: int = 10 * SECOND_MS

    # Order in which jobs are served.
    fairness: Fairness = field(default_factory=Fairness)

    # Gangs.
    gang_members_max: int = 1_000

    # A resize that an executor could not carry out is tried again after a time between these two
    # limits.
    resize_retry_min_ms: int = 1 * SECOND_MS
    resize_retry_max_ms: int = 30 * SECOND_MS

    # Default settings of all hosts. A setting from an administrator, the executor or a kubelet has
    # precedence. Cpus are reserved host by host, so this policy reserves no cpus.
    cluster_policy: HostPolicy = field(default_factory=HostPolicy)

    # Settings for executors that are started and stopped automatically.
    provisioning: Provisioning = field(default_factory=Provisioning)

    # Retention: how long entries and ended jobs are kept.
    job_events_max: int = 100_000
    cluster_events_max: int = 1_000_000
    cluster_events_age_ms: int = 7 * DAY_MS
    ended_retention_ms: int = DAY_MS
