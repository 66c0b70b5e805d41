"""Refuses jobs and requests that exceed a limit of their owner."""

from __future__ import annotations

from collections.abc import Mapping

from finegrain.errors import ResourceExhausted
from resource_manager.engine.fairness.users import JOBS, REQUESTS, Users
from resource_manager.engine.model.entities import Job


def check_jobs(users: Users, owner: str) -> None:
    """Checks that the limits of an owner allow one more job.

    Raises:
        ResourceExhausted: the owner has as many live jobs as its limit. A job is live until the job
            has ended and all its slots are removed.
    """
    most = users.limits_of(owner).get(JOBS)
    live = len(users.jobs_of(owner))
    if most is not None and live >= most:
        raise ResourceExhausted(
            f"{owner} has {live} live jobs, and its limit is {most}; end a job, or ask an"
            f" administrator for a higher limit (finegrain users set {owner} --max-jobs)",
            details={"user": owner, "limit": JOBS, "used": live, "asked": 1, "maximum": most},
        )


def check_requests(users: Users, jobs: Mapping[str, Job], owner: str, new: int) -> None:
    """Checks that the limits of an owner allow more requests.

    Args:
        users: the limits.
        jobs: all jobs.
        owner: the owner of the job that submits.
        new: the number of requests that the job submits.

    Raises:
        ResourceExhausted: the owner would have more live requests (requests that have not ended)
            than its limit allows.
    """
    most = users.limits_of(owner).get(REQUESTS)
    if most is None:
        return
    live = sum(jobs[each].live_requests for each in users.jobs_of(owner))
    if live + new > most:
        raise ResourceExhausted(
            f"{owner} has {live} requests and slots in all its jobs and submits {new} more, and its"
            f" limit is {most}; cancel or release some, or ask an administrator for a higher limit"
            f" (finegrain users set {owner} --max-requests)",
            details={"user": owner, "limit": REQUESTS, "used": live, "asked": new, "maximum": most},
        )
