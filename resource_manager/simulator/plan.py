"""What the driver of a simulated cluster works with: the rules of the service without what does not
exist in virtual time, jobs on their way, and what their threads wait with.
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
    """The same rules without what does not exist here: silence, leases, restarts, limits of memory.

    A thread may ask for no memory, or for no cpu: logs often do not record it.
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
    """How much the engine did. `cpu_s` is seconds of cpu in decisions; so is the longest one."""

    decisions: int = 0
    placed: int = 0
    cpu_s: float = 0.0
    longest_cpu_s: float = 0.0
    moments: int = 0


class Kind(NamedTuple):
    """Requests that are all alike, and how many of them have to start together."""

    profile: ResourceProfile
    labels: Labels
    together: int
    group: str


@dataclass(slots=True, eq=False)
class Submitted:
    """A job on its way: what is to run of it, and what runs."""

    record: JobRecord
    durations_ms: Sequence[int]
    labels: Labels
    running: dict[str, int] = field(default_factory=dict)  # allocation id to number of the run

    @property
    def kind(self) -> Kind:
        """What it waits with."""
        record = self.record
        together = record.threads if record.gang else 1
        return Kind(record.profile, self.labels, together, record.group)

    def request(self, allocation_id: str, gang_id: str = "") -> RequestSpec:
        """What it asks for, for one thread or for a range of them."""
        return RequestSpec(
            allocation_id, self.record.profile, required_labels=self.labels, gang_id=gang_id
        )
