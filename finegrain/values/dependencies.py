"""Defines dependencies between jobs: a job waits for another job before it gets slots."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.values.states import JobCondition


@dataclass(frozen=True, slots=True)
class JobDependency:
    """A condition for the first slot of a job: another job must have ended in the given way."""

    job_id: str
    condition: JobCondition = JobCondition.OK
