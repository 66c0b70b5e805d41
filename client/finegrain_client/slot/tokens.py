"""Gets allocation tokens, and shows them to executors. With such a token, an executor lets a job
master use the slots of its job.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from finegrain.rpc.access import TOKEN_KEY
from finegrain.v1 import resource_manager_pb2 as rm

if TYPE_CHECKING:
    from finegrain.v1.task_executor_pb2_grpc import TaskExecutorServiceAsyncStub
    from finegrain_client.connection import Connection
    from finegrain_client.job.context import JobContext


class _Showing:
    """A stub that shows a token in all its calls."""

    def __init__(self, stub: TaskExecutorServiceAsyncStub, token: bytes) -> None:
        self._stub = stub
        self._metadata = ((TOKEN_KEY, token),)

    def __getattr__(self, method: str) -> Any:
        return partial(getattr(self._stub, method), metadata=self._metadata)


def showing(stub: TaskExecutorServiceAsyncStub, token: bytes) -> TaskExecutorServiceAsyncStub:
    """Returns a stub that shows this token in all its calls."""
    return cast("TaskExecutorServiceAsyncStub", _Showing(stub, token))


async def new_token(
    caller: Connection | JobContext,
    job_id: str,
    executor_id: str,
    *,
    allocation_id: str = "",
    generation: int = 0,
) -> bytes:
    """Gets an allocation token from the resource manager.

    Args:
        caller: the connection to the cluster, with the identity of the job's owner, or the
            context of the job.
        job_id: the job.
        executor_id: the executor that must accept the token.
        allocation_id: the slot; an empty value means that the token is for the output of the job's
            tasks.
        generation: generation of the slot.

    Raises:
        FinegrainError: see `call_with_retries`.
    """
    message = rm.GetAllocationTokenRequest(
        job_id=job_id,
        executor_id=executor_id,
        allocation_id=allocation_id,
        generation=generation,
    )
    answer = await caller.call_manager(
        lambda manager, timeout_s: manager.GetAllocationToken(message, timeout=timeout_s)
    )
    return answer.token
