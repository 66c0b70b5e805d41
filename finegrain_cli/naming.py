"""Finds the full id that a user means. The user typed a part of the id, the name of a job, or
`last`.

The resource manager has an index of ids by their end. So this module need not list all items.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from finegrain.errors import InvalidArgument, NotFound, Reason
from finegrain_cli.last import LAST, last_allocation_id, last_job_id

if TYPE_CHECKING:
    from finegrain.values.dependencies import JobDependency
    from finegrain_client.blocking import Cluster
    from finegrain_client.types.status import JobStatus

ENDED_STATES = ("CANCELLED", "REJECTED", "RELEASED", "LOST")
NAMED_MAX = 100
"""Up to this number of jobs, the names of jobs are looked up by id. For more jobs, a list of all
jobs is faster.
"""


def full_allocation_id(cluster: Cluster, text: str) -> str:
    """Returns the full id of a request or slot. Active ids have priority over ended ids.

    Raises:
        NotFound: no id begins or ends with `text`.
        InvalidArgument: several ids begin or end with `text`.
    """
    is_last = text == LAST
    text = last_allocation_id() if is_last else text
    active = [each.allocation_id for each in cluster.requests(allocation_ids=[text])]
    ended = [] if active else cluster.requests(allocation_ids=[text], states=ENDED_STATES)
    found = active or [each.allocation_id for each in ended]
    if is_last and not found:
        raise _last_not_here("request", text, Reason.ALLOCATION_UNKNOWN)
    return only("request or slot", text, found, Reason.ALLOCATION_UNKNOWN)


def full_job_id(cluster: Cluster, text: str) -> str:
    """Returns the full id of a job, active or ended.

    `text` can be the job's id, the job's name if only one job has this name, or the beginning or
    end of the id. Names have priority over parts of ids.

    Raises:
        NotFound: there is no such job.
        InvalidArgument: several jobs match.
    """
    is_last = text == LAST
    text = last_job_id() if is_last else text
    jobs = cluster.jobs(include_ended=True, matching=[text])
    named = [each for each in jobs if each.name == text]
    ids = best_matches(text, (each.job_id for each in jobs))
    if text in ids or (ids and not named):
        return only("job", text, ids, Reason.JOB_UNKNOWN)
    if not named and is_last:
        raise _last_not_here("job", text, Reason.JOB_UNKNOWN)
    if not named:
        raise NotFound(
            f"no job has the name or id {text!r}, or an id that begins or ends with it; `finegrain "
            "jobs --all` lists them",
            reason=Reason.JOB_UNKNOWN,
            details={"job": text},
        )
    if len(named) > 1:
        raise InvalidArgument(
            "JOB", text, f"the id of one of the jobs with this name: {_described(named)}"
        )
    return named[0].job_id


def dependencies(texts: Iterable[str]) -> tuple[JobDependency, ...]:
    """Returns the jobs that `--after JOB[:CONDITION]` names, with their full ids.

    Raises:
        InvalidArgument: a condition is not known, or several jobs match.
        NotFound: there is no such job.
    """
    texts = tuple(texts)
    if not texts:
        return ()
    from finegrain.values.dependencies import JobDependency
    from finegrain.values.states import JobCondition
    from finegrain_cli.connection import open_cluster

    found = []
    with open_cluster() as cluster:
        for text in texts:
            # A name can contain colons, so only a known word after the last colon is a condition.
            name, _, word = text.rpartition(":")
            if not name or word.upper() not in set(JobCondition):
                name, word = text, "ok"
            job_id = full_job_id(cluster, name)
            found.append(JobDependency(job_id, JobCondition(word.upper())))
    return tuple(found)


def _last_not_here(what: str, full_id: str, reason: Reason) -> NotFound:
    return NotFound(
        f"`{LAST}` is {what} {full_id}, which this cluster does not know; it is of another "
        "cluster, or has ended long ago",
        reason=reason,
    )


def job_names(cluster: Cluster, job_ids: Iterable[str]) -> dict[str, str]:
    """Returns the names of jobs, by id."""
    ids = sorted(set(job_ids))
    if not ids:
        return {}
    matching = ids if len(ids) <= NAMED_MAX else []
    return {each.job_id: each.name for each in cluster.jobs(include_ended=True, matching=matching)}


def _described(jobs: list[JobStatus]) -> str:
    """Returns a text that lists up to five of the jobs, the newest first."""
    # Jobs come in order of arrival, so the last five are the newest.
    some = [f"{each.job_id} ({'ended' if each.ended else 'active'})" for each in jobs[:-6:-1]]
    return ", ".join(some) + (", ..." if len(jobs) > len(some) else "")


def best_matches(text: str, ids: Iterable[Any]) -> list[str]:
    """Returns the id that equals `text`. If no id equals `text`, returns the ids that end with
    `text`. If no id ends with `text`, returns the ids that begin with `text`.
    """
    known = [str(each) for each in ids]
    if text in known:
        return [text]
    ends = [each for each in known if each.endswith(text)]
    return ends or [each for each in known if each.startswith(text)]


def only(what: str, text: str, found: list[str], reason: Reason) -> str:
    """Returns the id that equals `text`. If no id equals `text`, returns the only id in `found`.

    Args:
        what: the kind of objects that the ids name, such as "request or slot", for errors.
        text: the text that the user typed.
        found: the ids that match `text`.
        reason: reason code of the error NotFound.

    Raises:
        NotFound: `found` is empty.
        InvalidArgument: `found` has several ids.
    """
    if text in found:
        return text
    if not found:
        raise NotFound(
            f"no {what} has the id {text!r}, or an id that begins or ends with it", reason=reason
        )
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise InvalidArgument(
            "ID", text, f"more characters of the id of one {what}; it could be {some}"
        )
    return found[0]
