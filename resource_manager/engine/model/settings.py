"""Numbers that the rules hang on: time limits, sizes and the placement strategy.

Whoever starts the RM decides them; the engine only reads them. Durations are milliseconds, amounts
are integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from finegrain.resources import MIB, Amounts, ResourceProfile

Strategy = Literal["pack", "spread"]

Order = Literal["fair", "arrival"]
"""Who is served next: who has received least by weight, or who came first, groups aside."""

Measure = Literal["dominant", "slots", "cpu"]
"""What the service of a slot is counted in, per second: the largest share of the cluster that it
has, 1, or its cores."""

SECOND_MS = 1_000
HOUR_MS = 3_600 * SECOND_MS
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class ExecutorShape:
    """One kind of executor that a provider can start. `labels` is sorted."""

    name: str
    provider: str
    total: Amounts
    default_profile: ResourceProfile  # what an unknown request gets there
    labels: tuple[tuple[str, str], ...] = ()
    slots_max: int = 0  # 0: no limit
    cost: float = 1.0  # only compared with other shapes'
    count_max: int = 0  # of them at a time; 0: no limit
    start_timeout_ms: int = 120 * SECOND_MS  # to register in


@dataclass(frozen=True, slots=True)
class Provisioning:
    """How the cluster grows and shrinks by itself. Totals are over all executors that are not lost
    and those that were asked for.
    """

    shapes: tuple[ExecutorShape, ...] = ()
    total_min: Amounts = field(default_factory=dict)
    total_max: Amounts = field(default_factory=dict)  # a dimension that is absent has no limit
    idle_timeout_ms: int = 60 * SECOND_MS  # without slots; then it is given back
    provided_lost_timeout_ms: int = 300 * SECOND_MS  # lost for so long: it is given back
    plan_interval_ms: int = 1 * SECOND_MS  # between two passes
    planned_requests_max: int = 10_000  # that one pass looks at
    backoff_min_ms: int = 1 * SECOND_MS  # of a shape whose executors fail to come
    backoff_max_ms: int = 300 * SECOND_MS

    def __bool__(self) -> bool:
        """True if there is anybody to ask."""
        return bool(self.shapes)


@dataclass(frozen=True, slots=True)
class Fairness:
    """Who is served next, when there is not enough for all."""

    order: Order = "fair"
    usage_measure: Measure = "dominant"
    half_life_ms: int | None = 900 * SECOND_MS  # service received counts half then; None: for ever
    lookahead_ms: int = 30 * SECOND_MS  # what runs counts as if it had run for so much longer
    usage_interval_ms: int = 10 * SECOND_MS  # between two times that tallies are stored
    starvation_timeout_ms: int = 300 * SECOND_MS  # passed over for so long: capacity is held
    starvation_placements: int = 0  # likewise, for so many placements of others; 0: no such limit
    reservations_max: int = 8  # held at once; 0: none
    reserved_part_max: float = 0.1  # of anything, held for all but who was passed over longest


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Everything that an operator may set about the rules."""

    # Executors.
    report_interval_ms: int = 3 * SECOND_MS
    lost_timeout_ms: int = 15 * SECOND_MS

    # Placement. "pack" takes the first hosts by name with room and among them the one that the
    # request suits best: one while fewer than 8 hosts are in use (first fit), one more for every 8.
    # "spread" takes the least loaded one.
    strategy: Strategy = "pack"
    pack_candidates: int = 8  # hosts with room that "pack" compares at most; 1 is first fit
    label_indexes_max: int = 64  # label selectors whose hosts are kept sorted out
    classes_tried_max: int = 1_000  # in vain, by one decision; the next one goes on from there
    hosts_asked_max: int = 256  # likewise, whether their cpus and NUMA nodes suit

    # Requests.
    cpu_milli_min: int = 10
    memory_bytes_min: int = 4 * MIB
    job_requests_max: int = 1_000_000  # live requests of one job
    job_scheduling_classes_max: int = (
        10_000  # different ones that a job waits with at once; each takes turns
    )
    requests_max: int = 2_000_000  # of all jobs together: each takes about a KiB of memory
    infeasible_after_ms: int = 30 * SECOND_MS  # no executor could host it for so long: rejected

    # Jobs.
    jobs_max: int = 100_000  # live jobs
    lease_default_ms: int = 30 * SECOND_MS
    lease_min_ms: int = 1 * SECOND_MS
    lease_max_ms: int = DAY_MS

    # Commands: back-off after one whose outcome is unknown, and items in one command.
    command_retry_min_ms: int = 250
    command_retry_max_ms: int = 5 * SECOND_MS
    command_items_max: int = 1_000

    # An executor that reports and cannot be dialled: when nothing more is placed there, and how
    # often it is tried then.
    unreachable_after_ms: int = 10 * SECOND_MS  # of failed deliveries of one command
    refused_commands_max: int = 5  # in a row; likewise
    probe_min_ms: int = 1 * SECOND_MS
    probe_max_ms: int = 30 * SECOND_MS

    # A host that refused a shape is not asked for it again before this, unless its state changes.
    refusal_backoff_min_ms: int = 1 * SECOND_MS
    refusal_backoff_max_ms: int = 300 * SECOND_MS

    # Who is served next.
    fairness: Fairness = field(default_factory=Fairness)

    # Gangs: what one may consist of.
    gang_members_max: int = 1_000

    # A slot that uses more memory than it is to have is asked again after this.
    resize_retry_min_ms: int = 1 * SECOND_MS
    resize_retry_max_ms: int = 30 * SECOND_MS

    # Executors that are started and stopped as they are needed.
    provisioning: Provisioning = field(default_factory=Provisioning)

    # Retention.
    job_events_max: int = 100_000
    cluster_events_max: int = 1_000_000
    cluster_events_age_ms: int = 7 * DAY_MS
    ended_retention_ms: int = DAY_MS
