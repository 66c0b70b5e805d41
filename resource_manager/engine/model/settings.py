"""Settings of the engine: time limits, sizes and the placement strategy.

The program that starts the resource manager sets them; the engine only reads them. Durations are
milliseconds, amounts are integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from finegrain.resources import MIB, Amounts, ResourceProfile

Strategy = Literal["pack", "spread", "balanced"]
"""How a host is chosen among those with room; see `placement/policies.py`."""

Order = Literal["fair", "arrival"]
"""Who is served next: the least usage for its weight, or the earliest arrival (groups do not
count).
"""

Measure = Literal["dominant", "slots", "cpu"]
"""Unit of service per second of a slot: its largest share of the cluster in any dimension, 1, or
its cores.
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
    default_profile: ResourceProfile  # what a request of unknown size gets there
    labels: tuple[tuple[str, str], ...] = ()
    slots_max: int = 0  # 0: no limit
    cost: float = 1.0  # relative to other shapes
    count_max: int = 0  # executors of it at a time; 0: no limit
    start_timeout_ms: int = 120 * SECOND_MS  # time to register in


@dataclass(frozen=True, slots=True)
class Provisioning:
    """How the cluster grows and shrinks by itself. Totals are over all executors that are not lost
    and those that were requested.
    """

    shapes: tuple[ExecutorShape, ...] = ()
    total_min: Amounts = field(default_factory=dict)
    total_max: Amounts = field(default_factory=dict)  # a dimension that is absent has no limit
    idle_timeout_ms: int = 60 * SECOND_MS  # without slots for this long: it is given back
    provided_lost_timeout_ms: int = 300 * SECOND_MS  # lost for this long: it is given back
    plan_interval_ms: int = 1 * SECOND_MS  # between two passes
    planned_requests_max: int = 10_000  # requests that one pass considers
    backoff_min_ms: int = 1 * SECOND_MS  # of a shape whose executors fail to start
    backoff_max_ms: int = 300 * SECOND_MS

    def __bool__(self) -> bool:
        """Returns True if there are shapes to request."""
        return bool(self.shapes)


@dataclass(frozen=True, slots=True)
class Fairness:
    """Who is served next when there is not enough for all."""

    order: Order = "fair"
    usage_measure: Measure = "dominant"
    # age at which service counts half; None: always in full
    half_life_ms: int | None = 900 * SECOND_MS
    # running slots count as if they had run for this much longer
    lookahead_ms: int = 30 * SECOND_MS
    usage_interval_ms: int = 10 * SECOND_MS  # between two times that usage is stored
    starvation_timeout_ms: int = 300 * SECOND_MS  # starved for this long: capacity is reserved
    # the same after this many placements of others; 0: no such limit
    starvation_placements: int = 0
    reservations_max: int = 8  # at a time; 0: none
    # of any resource, for all reservations but that of the longest starved request
    reserved_part_max: float = 0.1


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All settings that an operator may change."""

    # Executors.
    report_interval_ms: int = 3 * SECOND_MS
    lost_timeout_ms: int = 15 * SECOND_MS

    # Placement. "pack" takes hosts in use before empty ones, and of the first ones by name the one
    # that suits the request best. "spread" takes the least loaded host, "balanced" the one whose
    # free cpu and memory come closest to proportion.
    strategy: Strategy = "pack"
    pack_candidates: int = 8  # upper limit of hosts that "pack" compares; 1 is first fit
    label_indexes_max: int = 64  # label selectors that have their own index of hosts
    classes_tried_max: int = 1_000  # failed tries per decision; the next one goes on from there
    # hosts per decision whose cpus and NUMA nodes are checked without success
    hosts_asked_max: int = 256

    # Requests.
    cpu_milli_min: int = 10
    memory_bytes_min: int = 4 * MIB
    job_requests_max: int = 1_000_000  # of one job, not ended
    job_scheduling_classes_max: int = 10_000  # different ones among a job's pending requests
    requests_max: int = 2_000_000  # of all jobs together; each takes about a KiB of memory
    infeasible_after_ms: int = 30 * SECOND_MS  # rejected if no executor could host it for this long

    # Jobs.
    jobs_max: int = 100_000  # jobs that have not ended
    lease_default_ms: int = 30 * SECOND_MS
    lease_min_ms: int = 1 * SECOND_MS
    lease_max_ms: int = DAY_MS

    # Commands: back-off after an unknown outcome, and items in one command.
    command_retry_min_ms: int = 250
    command_retry_max_ms: int = 5 * SECOND_MS
    command_items_max: int = 1_000

    # Executors that report and cannot be dialled: when nothing more is placed there, and how often
    # they are probed then.
    unreachable_after_ms: int = 10 * SECOND_MS  # of failed deliveries of one command
    refused_commands_max: int = 5  # refusals in a row
    probe_min_ms: int = 1 * SECOND_MS
    probe_max_ms: int = 30 * SECOND_MS

    # A host that refused a scheduling class is not tried with it before this, unless its state
    # changes.
    refusal_backoff_min_ms: int = 1 * SECOND_MS
    refusal_backoff_max_ms: int = 300 * SECOND_MS

    # Which job is served next.
    fairness: Fairness = field(default_factory=Fairness)

    # Gangs.
    gang_members_max: int = 1_000

    # A resize to less memory than the slot uses is tried again after this.
    resize_retry_min_ms: int = 1 * SECOND_MS
    resize_retry_max_ms: int = 30 * SECOND_MS

    # Executors that are started and stopped as needed.
    provisioning: Provisioning = field(default_factory=Provisioning)

    # Retention.
    job_events_max: int = 100_000
    cluster_events_max: int = 1_000_000
    cluster_events_age_ms: int = 7 * DAY_MS
    ended_retention_ms: int = DAY_MS
