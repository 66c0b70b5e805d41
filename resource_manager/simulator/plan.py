"""Types of the simulated cluster: adapted engine settings, submitted jobs, and kinds of
requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from finegrain.resources import ResourceProfile
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.settings import DAY_MS, EngineSettings
from resource_manager.simulator.log import JobRecord
from resource_manager.simulator.nodes import Labels

_FOR_EVER_MS = 100_000 * DAY_MS
_WITHOUT_LIMIT = 2**31


def simulated(settings: EngineSettings) -> EngineSettings:
    """Returns the settings with changes that a simulation needs.

    A simulation has no silent executors, leases or restarts. It also has no limits that protect the
    memory of a real service. Threads are allowed to request no memory or no cpu, because logs often
    do not record these amounts.
    """
    return replace(
        settings,
        lost_timeout_ms=_FOR_EVER_MS,
        ended_retention_ms=0,
        cluster_events_age_ms=_FOR_EVER_MS,
        jobs_max=_WITHOUT_LIMIT,
        requests_max=_WITHOUT_LIMIT,
        job_requests_max=_WITHOUT_LIMIT,
        gang_members_max=_WITHOUT_LIMIT,
        cpu_milli_min=0,
        memory_bytes_min=0,
        fairness=replace(settings.fairness, usage_interval_ms=_FOR_EVER_MS),
    )


@dataclass(slots=True)
class Effort:
    """The work of the engine. `cpu_s` is the cpu time of all decisions, and `longest_cpu_s` is the
    cpu time of the longest decision.
    """

    decisions: int = 0
    placed: int = 0
    cpu_s: float = 0.0
    longest_cpu_s: float = 0.0
    moments: int = 0


class Kind(NamedTuple):
    """Properties of equal requests. `together` is the number of requests that must start at the
    same time.
    """

    profile: ResourceProfile
    labels: Labels
    together: int
    group: str


@dataclass(slots=True, eq=False)
class Submitted:
    """A job that was submitted. It has the durations of its threads, and its running threads."""

    record: JobRecord
    durations_ms: Sequence[int]
    labels: Labels
    expected_ms: int | None = None
    # by allocation id: number of the run in the log
    running: dict[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """The kind of the job's requests."""
        record = self.record
        together = record.threads if record.gang else 1
        return Kind(record.profile, self.labels, together, record.group)

    def request(self, allocation_id: str, gang_id: str = "") -> RequestSpec:
        """Returns the request of one thread, or of a range of threads."""
        return RequestSpec(
            allocation_id,
            self.record.profile,
            required_labels=self.labels,
            gang_id=gang_id,
            expected_run_time_ms=self.expected_ms,
        )
