"""Expands what people type: the beginning of an id, or the name of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finegrain.errors import InvalidArgument, NotFound, Reason

if TYPE_CHECKING:
    from finegrain_client.blocking import Cluster
    from finegrain_client.types.status import JobStatus

ENDED_STATES = ("CANCELLED", "REJECTED", "RELEASED", "LOST")


def full_allocation_id(cluster: Cluster, text: str) -> str:
    """Returns the full id of a request or slot, active or ended; active ones have priority.

    Raises:
        NotFound: no id begins with `text`.
        InvalidArgument: several ids begin with `text`.
    """
    active = [each.allocation_id for each in cluster.requests(allocation_ids=[text])]
    ended = [] if active else cluster.requests(allocation_ids=[text], states=ENDED_STATES)
    found = active or [each.allocation_id for each in ended]
    return only("request or slot", text, found, Reason.ALLOCATION_UNKNOWN)


def full_job_id(cluster: Cluster, text: str) -> str:
    """Returns the full id of a job, active or ended.

    `text` may be its id, its name if only one job has it, or the beginning of its id. Names have
    priority over beginnings of ids.

    Raises:
        NotFound: there is no such job.
        InvalidArgument: there are several.
    """
    jobs = cluster.jobs(include_ended=True)
    named = [each for each in jobs if each.name == text]
    ids = [each.job_id for each in jobs if each.job_id.startswith(text)]
    if text in ids or (ids and not named):
        return only("job", text, ids, Reason.JOB_UNKNOWN)
    if not named:
        raise NotFound(
            f"no job has the name or id {text!r}, or an id that begins with it; `finegrain jobs "
            "--all` lists them",
            reason=Reason.JOB_UNKNOWN,
            details={"job": text},
        )
    if len(named) > 1:
        raise InvalidArgument(
            "JOB", text, f"the id of one of the jobs with this name: {_described(named)}"
        )
    return named[0].job_id


def _described(jobs: list[JobStatus]) -> str:
    """Returns up to five of these jobs as text, the newest first."""
    # Jobs come in order of arrival, so the last five are the newest.
    some = [f"{each.job_id} ({'ended' if each.ended else 'active'})" for each in jobs[:-6:-1]]
    return ", ".join(some) + (", ..." if len(jobs) > len(some) else "")


def only(what: str, text: str, found: list[str], reason: Reason) -> str:
    """Returns the id that equals `text`; if there is none, the only id that begins with it.

    Args:
        what: what the ids name, such as "request or slot"; for errors.
        text: what the user typed.
        found: the ids to choose from.
        reason: reason code of the error NotFound.

    Raises:
        NotFound: no id begins with `text`.
        InvalidArgument: several ids begin with `text`.
    """
    if text in found:
        return text
    if not found:
        raise NotFound(
            f"no {what} has the id {text!r}, or an id that begins with it", reason=reason
        )
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise InvalidArgument(
            "ID", text, f"more characters of the id of one {what}; it could be {some}"
        )
    return found[0]
