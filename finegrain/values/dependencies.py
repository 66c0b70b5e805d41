"""Defines what one job needs of another job before it gets slots."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.values.states import JobCondition


@dataclass(frozen=True, slots=True)
class JobDependency:
    """A job gets its first slot only after another job has ended as the condition says."""

    job_id: str
    condition: JobCondition = JobCondition.OK
