"""What people mean by the beginning of an id, or by the name of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finegrain.errors import InvalidArgument, NotFound, Reason

if TYPE_CHECKING:
    from finegrain_client.blocking import Cluster
    from finegrain_client.types.status import JobStatus

ENDED_STATES = ("CANCELLED", "REJECTED", "RELEASED", "LOST")


def full_allocation_id(cluster: Cluster, text: str) -> str:
    """The full id of a request or slot, whether it lives or has ended.

    Raises:
        NotFound: there is none.
        InvalidArgument: it could be several.
    """
    active = [each.allocation_id for each in cluster.requests(allocation_ids=[text])]
    ended = [] if active else cluster.requests(allocation_ids=[text], states=ENDED_STATES)
    found = active or [each.allocation_id for each in ended]
    return only("request or slot", text, found, Reason.ALLOCATION_UNKNOWN)


def full_job_id(cluster: Cluster, text: str) -> str:
    """The full id of a job, whether it lives or has ended: by its id, by its name if it is the only
    one of that name, or by the beginning of its id.

    Raises:
        NotFound: there is none.
        InvalidArgument: it could be several.
    """
    jobs = cluster.jobs(include_ended=True)
    named = [each for each in jobs if each.name == text]
    ids = [each.job_id for each in jobs if each.job_id.startswith(text)]
    if text in ids or (ids and not named):
        return only("job", text, ids, Reason.JOB_UNKNOWN)
    if not named:
        raise NotFound(
            f"no job is called {text!r} or has an id that is or begins so;"
            " `finegrain jobs --all` lists them",
            reason=Reason.JOB_UNKNOWN,
            details={"job": text},
        )
    if len(named) > 1:
        raise InvalidArgument("JOB", text, f"the id of one of those called so: {_described(named)}")
    return named[0].job_id


def _described(jobs: list[JobStatus]) -> str:
    """Some of these, the newest first."""
    some = [f"{each.job_id} ({'ended' if each.ended else 'lives'})" for each in jobs[:-6:-1]]
    return ", ".join(some) + (", ..." if len(jobs) > len(some) else "")


def only(what: str, text: str, found: list[str], reason: Reason) -> str:
    """The one that is meant, of those that are `text` or begin so.

    Raises:
        NotFound: there is none.
        InvalidArgument: it could be several.
    """
    if text in found:
        return text
    if not found:
        raise NotFound(f"no {what} is or begins with {text!r}", reason=reason)
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise InvalidArgument("ID", text, f"more letters of one {what}; it could be {some}")
    return found[0]
