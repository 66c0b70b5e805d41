"""Checks the dependencies of a job, and reads dependencies from the JSON of state files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from finegrain.ids import check_id
from finegrain.values.dependencies import JobDependency
from finegrain.values.states import JobCondition


def dependencies(after: Iterable[JobDependency | str]) -> tuple[JobDependency, ...]:
    """Returns the dependencies. An id without a condition means that the job must succeed.

    Raises:
        InvalidArgument: an id is not allowed.
    """
    found = tuple(JobDependency(each) if isinstance(each, str) else each for each in after)
    for each in found:
        check_id("after", each.job_id)
    return found


def dependencies_from_json(items: Iterable[Mapping[str, str]]) -> tuple[JobDependency, ...]:
    """Reads dependencies from the JSON form of their fields."""
    return tuple(JobDependency(each["job_id"], JobCondition(each["condition"])) for each in items)
