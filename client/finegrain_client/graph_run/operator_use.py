"""Reads the managed memory of a job's operators from the executors of its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import FinegrainError
from finegrain.v1 import task_executor_pb2 as te
from finegrain.values.operators import OperatorStatus
from finegrain_client.decoding import read
from finegrain_client.graph_run.state_file import read_addresses, reading
from finegrain_client.graph_run.status import GraphJobStatus
from finegrain_client.retry import call_with_retries
from finegrain_client.slot.tokens import new_token, showing
from finegrain_client.types.status import TaskStatus

if TYPE_CHECKING:
    from finegrain_client.cluster import Cluster

CALLS_AT_ONCE_MAX = 32


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """One operator of one running task: its quota and use of managed memory."""

    chain: str
    subtask: int
    executor_id: str
    operator: OperatorStatus


@dataclass(frozen=True, slots=True)
class OperatorsInUse:
    """The operators of all running tasks of a job.

    `missing` contains the error of each executor that did not answer, by the id of the executor.
    """

    operators: tuple[OperatorUse, ...] = ()
    missing: Mapping[str, str] | None = None


async def read_operator_use(cluster: Cluster, job: GraphJobStatus) -> OperatorsInUse:
    """Returns the operators of a job's running tasks, in the order of `job.tasks`.

    Args:
        cluster: the cluster of the job.
        job: the job, from `read_job_status`.

    Raises:
        NotFound, ConfigurationError: the state file can no longer be read.
    """
    with reading(Path(job.state_file)) as connection:
        addresses = read_addresses(connection)
    running = [each for each in job.tasks if each.running]
    statuses: dict[str, TaskStatus] = {}
    missing: dict[str, str] = {}
    at_once = asyncio.Semaphore(CALLS_AT_ONCE_MAX)

    async def ask(executor_id: str) -> None:
        try:
            async with at_once:
                found = await _tasks_at(cluster, addresses[executor_id], executor_id, job.job_id)
        except FinegrainError as error:
            missing[executor_id] = error.message
        else:
            statuses.update({each.task_id: each for each in found})

    await asyncio.gather(*map(ask, sorted({each.executor_id for each in running})))
    return OperatorsInUse(
        tuple(
            OperatorUse(each.chain, each.subtask, each.executor_id, operator)
            for each in running
            if each.task_id in statuses
            for operator in statuses[each.task_id].operators
        ),
        missing,
    )


async def _tasks_at(
    cluster: Cluster, address: str, executor_id: str, job_id: str
) -> list[TaskStatus]:
    connection = cluster._connection
    token = await new_token(connection, job_id, executor_id)
    link = connection.acquire_executor(address, executor_id)
    try:
        answer = await call_with_retries(
            lambda timeout_s: showing(link.stub, token).ListTasks(
                te.ListTasksRequest(job_id=job_id), timeout=timeout_s
            ),
            where=lambda: address,
            policy=connection.policy,
        )
    finally:
        connection.release_executor(link)
    return read.each(TaskStatus, answer.tasks)
