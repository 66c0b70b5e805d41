"""Keeps the dependencies of jobs: for each job that waits, the jobs whose end it waits for.

A job names its dependencies when it registers. So it can only wait for jobs that already exist, and
there are no cycles. A job that waits has a maximum of 0 slots (`FlowTree.hold_job`). The
dependencies have no rows of their own: after a restart, they are derived from the rows of the jobs.
"""

from __future__ import annotations

from finegrain.values.dependencies import JobDependency
from finegrain.values.states import JobCondition


class JobDependencies:
    """The jobs that wait, and the jobs for which they wait.

    Attributes:
        ended: jobs that have ended, while the jobs that wait for them must still be handled.
    """

    def __init__(self) -> None:
        self._awaited: dict[str, dict[str, JobCondition]] = {}  # the key is the job that waits
        self._waiting: dict[str, dict[str, None]] = {}  # the key is the awaited job
        self.ended: dict[str, None] = {}

    def add(self, job_id: str, dependency: JobDependency) -> None:
        """Records that a job waits for another job."""
        self._awaited.setdefault(job_id, {})[dependency.job_id] = dependency.condition
        self._waiting.setdefault(dependency.job_id, {})[job_id] = None

    def awaited(self, job_id: str) -> dict[str, JobCondition]:
        """Returns the jobs for which a job still waits. If there are none, the job can get
        slots.
        """
        return self._awaited.get(job_id, {})

    def is_awaited(self, job_id: str) -> bool:
        """Returns whether another job waits for this job."""
        return job_id in self._waiting

    def first_waiting(self, job_id: str) -> str:
        """Returns the oldest of the jobs that wait for this job."""
        return next(iter(self._waiting[job_id]))

    def note_end(self, job_id: str) -> None:
        """Records that a job and all its requests have ended."""
        if job_id in self._waiting:
            self.ended[job_id] = None

    def remove(self, job_id: str, awaited_id: str) -> None:
        """Removes one dependency of a job, because the awaited job has ended."""
        of_job, jobs = self._awaited[job_id], self._waiting[awaited_id]
        del of_job[awaited_id], jobs[job_id]
        if not of_job:
            del self._awaited[job_id]
        if not jobs:
            del self._waiting[awaited_id]
            self.ended.pop(awaited_id, None)

    def discard(self, job_id: str) -> None:
        """Removes all dependencies of a job, because the job itself has ended."""
        for awaited_id in list(self.awaited(job_id)):
            self.remove(job_id, awaited_id)
