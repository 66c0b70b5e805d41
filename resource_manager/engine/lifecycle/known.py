"""Looks up jobs, requests and executors by id. Raises an error for users if the id is unknown."""

from __future__ import annotations

from finegrain.errors import FailedPrecondition, NotFound, Reason
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Job, JobState, Request
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.requests import Requests


def known_host(hosts: Hosts, executor_id: str) -> Host:
    """Returns the host of an executor.

    Raises:
        NotFound: no executor has this id.
    """
    host = hosts.get(executor_id)
    if host is None:
        raise NotFound(
            f"executor {executor_id} is not known",
            reason=Reason.EXECUTOR_UNKNOWN,
            details={"executor_id": executor_id},
        )
    return host


def known_job(jobs: dict[str, Job], job_id: str) -> Job:
    """Returns the job.

    Raises:
        NotFound: no job has this id, or the job was deleted some time after its end.
    """
    job = jobs.get(job_id)
    if job is None:
        raise NotFound(
            f"job {job_id} is not known; register it first",
            reason=Reason.JOB_UNKNOWN,
            details={"job_id": job_id},
        )
    return job


def active_job(jobs: dict[str, Job], job_id: str) -> Job:
    """Returns the job if it has not ended.

    Raises:
        NotFound: no job has this id.
        FailedPrecondition: the job has ended.
    """
    job = known_job(jobs, job_id)
    if job.state is JobState.ENDED:
        raise FailedPrecondition(
            f"job {job_id} has ended ({job.end_reason}); register a new job",
            reason=Reason.JOB_ENDED,
            details={"job_id": job_id, "end_reason": job.end_reason},
        )
    return job


def known_request(requests: Requests, allocation_id: str) -> Request:
    """Returns the request.

    Raises:
        NotFound: no request has this id, or the request was deleted with its job.
    """
    request = requests.named(allocation_id)
    if request is None:
        raise NotFound(
            f"allocation {allocation_id} is not known; it was never accepted, or was deleted some"
            " time after the end of its job",
            reason=Reason.ALLOCATION_UNKNOWN,
            details={"allocation_id": allocation_id},
        )
    return request


def taken(allocation_id: str) -> ItemOutcome:
    """Returns the outcome for a new request whose allocation id another request already has."""
    return ItemOutcome(
        allocation_id,
        Reason.ALREADY_EXISTS,
        f"allocation {allocation_id} exists with other content or another owner; choose a new id",
    )
