"""Defines the state that a job shares with its requests, slots and tasks.

This state is the job's identity, its connection and its background tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from finegrain.errors import FailedPrecondition, FinegrainError, NotFound, Reason
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain_client.connection import Connection
from finegrain_client.errors import JobEnded
from finegrain_client.job.background import Background
from finegrain_client.retry import RetryPolicy

if TYPE_CHECKING:
    from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceAsyncStub

T = TypeVar("T")

LEASE_DEFAULT_S = 30.0

END_REPORT_S = 10.0
"""Longest time in seconds to wait until the watch stream reports the end of a job or slot, after
the answer to a call, or the executor, has reported the end.
"""


def as_job_ended(job_id: str, error: FinegrainError) -> FinegrainError:
    """Returns JobEnded if `error` says that the job has ended or is unknown. Otherwise returns
    `error`.
    """
    over = isinstance(error, FailedPrecondition) and error.reason is Reason.JOB_ENDED
    unknown = isinstance(error, NotFound) and error.reason is Reason.JOB_UNKNOWN
    # An unknown job can also be another job, for example a dependency.
    if over or (unknown and error.details.get("job_id", job_id) == job_id):
        return JobEnded(
            f"job {job_id} has ended: {error.message}", reason=error.reason, details=error.details
        )
    return error


@dataclass(slots=True)
class JobContext:
    """The shared state of one job.

    Attributes:
        registered: true after the resource manager has accepted the job.
        tokens: allocation tokens, by allocation id and generation. A token is kept only while the
            watch applies the message with which the token arrived.
    """

    connection: Connection
    job_id: str
    registered: bool = False
    background: Background = field(default_factory=Background)
    tokens: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def take_token(self, message: rm.JobEvent | rm.RequestStatus) -> None:
        """Stores the allocation token that has arrived with a slot."""
        if message.token:
            self.tokens[message.slot.allocation_id, message.slot.generation] = message.token

    async def call_manager(
        self,
        call: Callable[[ResourceManagerServiceAsyncStub, float], Awaitable[T]],
        *,
        policy: RetryPolicy | None = None,
    ) -> T:
        """Makes a unary call about this job to the resource manager; see `Connection.call_manager`.

        Raises:
            JobEnded: the job has ended, or the resource manager does not know it any more. The
                watch stream reports this too, but possibly later.
            FinegrainError: see `Connection.call_manager`.
        """
        try:
            return await self.connection.call_manager(call, policy=policy)
        except (FailedPrecondition, NotFound) as error:
            raise as_job_ended(self.job_id, error) from error.__cause__
