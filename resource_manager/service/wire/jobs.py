"""Decodes the outcome of a job and the jobs on which a job depends."""

from __future__ import annotations

from collections.abc import Sequence

from finegrain.errors import InvalidArgument
from finegrain.ids import check_id
from finegrain.rpc.mapping.fields import members_of
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.values.dependencies import JobDependency
from finegrain.values.states import JobCondition, JobOutcome

_OUTCOMES = members_of(JobOutcome, rm_pb2.JobOutcome.DESCRIPTOR) | {
    rm_pb2.JOB_OUTCOME_UNSPECIFIED: JobOutcome.SUCCEEDED
}
_CONDITIONS = members_of(JobCondition, rm_pb2.JobCondition.DESCRIPTOR) | {
    rm_pb2.JOB_CONDITION_UNSPECIFIED: JobCondition.OK
}


def job_outcome(number: int) -> JobOutcome:
    """Decodes the outcome with which a job master ends its job.

    Raises:
        InvalidArgument: the number is not known.
    """
    outcome = _OUTCOMES.get(number)
    if outcome is None:
        raise InvalidArgument("outcome", number, "a known JobOutcome")
    return outcome


def dependencies(messages: Sequence[rm_pb2.JobDependency]) -> tuple[JobDependency, ...]:
    """Decodes the dependencies of a new job. The engine checks whether the jobs exist.

    Raises:
        InvalidArgument: an id is malformed, or a condition is not known.
    """
    found = []
    for at, each in enumerate(messages):
        field = f"depends_on[{at}]"
        condition = _CONDITIONS.get(each.condition)
        if condition is None:
            raise InvalidArgument(f"{field}.condition", each.condition, "a known JobCondition")
        found.append(JobDependency(check_id(f"{field}.job_id", each.job_id), condition))
    return tuple(found)
