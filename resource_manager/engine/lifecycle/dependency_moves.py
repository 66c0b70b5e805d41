"""Checks the jobs on which a new job depends. The new job waits until these jobs have ended. Then
the new job can get slots. If one of these jobs did not have the required outcome, the engine ends
the new job.

In this module, a job counts as ended when its last request has ended, even if its last slots are
still being freed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from finegrain.errors import InvalidArgument, NotFound, Reason
from finegrain.values.dependencies import JobDependency
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import Job, JobState
from resource_manager.engine.queue.dependencies import JobDependencies
from resource_manager.engine.queue.queue import WaitingQueue

DEPENDENCIES_MAX = 100
"""A job can depend on at most this many jobs."""


@dataclass(slots=True, eq=False)
class DependencyMoves:
    """Checks, adds and removes the dependencies of jobs, and releases or ends the jobs that
    wait.
    """

    journal: Journal
    dependencies: JobDependencies
    endings: dict[str, Ending]
    flows: FlowTree
    jobs: dict[str, Job]
    queue: WaitingQueue

    def check(self, job_id: str, depends_on: tuple[JobDependency, ...]) -> None:
        """Checks the dependencies of a new job.

        Raises:
            InvalidArgument: the job depends on itself, names a job twice, or names too many jobs.
            NotFound: a job is not known.
        """
        if len(depends_on) > DEPENDENCIES_MAX:
            expected = f"at most {DEPENDENCIES_MAX}"
            raise InvalidArgument("depends_on", f"{len(depends_on)} jobs", expected)
        named: set[str] = set()
        for at, each in enumerate(depends_on):
            field = f"depends_on[{at}].job_id"
            # Only existing jobs can be named, so a longer cycle is not possible.
            if each.job_id == job_id:
                expected = "another job; a job cannot wait for itself"
                raise InvalidArgument(field, each.job_id, expected)
            if each.job_id in named:
                raise InvalidArgument(field, each.job_id, "each job once")
            if each.job_id not in self.jobs:
                raise NotFound(
                    f"{field} is {each.job_id}, but this job is not known; register it first. A"
                    " job that has ended is forgotten after some time",
                    reason=Reason.JOB_UNKNOWN,
                    details={"job_id": each.job_id},
                )
            named.add(each.job_id)

    def adopt(self, job: Job) -> None:
        """Begins to watch the dependencies of a job that is new or restored. If some of its
        dependencies are not met yet, the job waits. If a dependency cannot be met any more, the
        next `Decide` ends the job.
        """
        for each in job.depends_on:
            other = self.jobs.get(each.job_id)
            # A job can be missing only after a restart. Such a job had ended with the required
            # outcome, and was deleted before the restart.
            if other is None:
                continue
            ended = other.state is JobState.ENDED and other.job_id not in self.endings
            if ended and each.condition.is_met(other.outcome):
                continue
            self.dependencies.add(job.job_id, each)
            if ended:
                self.dependencies.note_end(other.job_id)
        if self.dependencies.awaited(job.job_id):
            self.flows.hold_job(job.job_id)

    def job_ended(self, job_id: str) -> None:
        """Removes the dependencies of a job that has ended, so that the job no longer waits for
        other jobs.
        """
        self.dependencies.discard(job_id)
        self.flows.drop_hold(job_id)

    def handle_ended(self, end: Callable[[Job], None]) -> None:
        """Handles the jobs that wait for jobs that have ended. Removes each dependency whose
        condition is met. If a condition is not met, ends the waiting job. Stops when the step is
        full.

        Args:
            end: the function that ends a job with the reason DEPENDENCY_FAILED.
        """
        dependencies = self.dependencies
        while dependencies.ended and not self.journal.is_full:
            # Each iteration handles one waiting job, and thereby removes at least one dependency.
            awaited = self.jobs[next(iter(dependencies.ended))]
            job = self.jobs[dependencies.first_waiting(awaited.job_id)]
            condition = dependencies.awaited(job.job_id)[awaited.job_id]
            if not condition.is_met(awaited.outcome):
                self.journal.cluster_event(
                    "job_dependency_failed",
                    job_id=job.job_id,
                    reason=Reason.DEPENDENCY_FAILED,
                    message=f"it depends on job {awaited.job_id} ({awaited.name}), which has"
                    f" {awaited.outcome}",
                )
                end(job)
                continue
            dependencies.remove(job.job_id, awaited.job_id)
            if not dependencies.awaited(job.job_id):
                self._release(job)

    def _release(self, job: Job) -> None:
        self.flows.release_job(job.job_id)
        self.queue.restart_clocks(job.job_id)
        self.journal.cluster_event(
            "job_dependencies_met",
            job_id=job.job_id,
            message="all jobs that it waited for have ended",
        )
