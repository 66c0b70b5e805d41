"""Implements `finegrain job status JOB`, which shows a job, and `finegrain explain JOB`, which
shows why regions of a job wait.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from finegrain.errors import FinegrainError, NotFound
from finegrain_cli.connection import PATIENCE_S, open_cluster, open_cluster_async
from finegrain_cli.job.text import print_explanation, print_status
from finegrain_cli.text.output import OutputFormat
from finegrain_client.graph_run.operator_use import OperatorsInUse, read_operator_use
from finegrain_client.graph_run.status import GraphJobStatus, read_job_status


def show_status(path: Path, form: OutputFormat) -> None:
    """Prints a job.

    Raises:
        FinegrainError: the state file cannot be read.
    """
    job = read_job_status(path)
    print_status(job, _operators_of(job), form)


def _operators_of(job: GraphJobStatus) -> OperatorsInUse:
    if not any(each.running for each in job.tasks):
        return OperatorsInUse()

    async def ask() -> OperatorsInUse:
        async with open_cluster_async(PATIENCE_S) as cluster:
            return await read_operator_use(cluster, job)

    try:
        return asyncio.run(ask())
    # If the call fails, for example because the caller has no suitable role, show the job without
    # its operators.
    except FinegrainError as error:
        hosts = {each.executor_id for each in job.tasks if each.running}
        return OperatorsInUse(missing=dict.fromkeys(sorted(hosts), error.message))


def explain_job(path: Path, executor_id: str, max_executors: int, form: OutputFormat) -> None:
    """Prints what each region of a job waits for.

    Args:
        path: state file of the job.
        executor_id: the only executor to explain. If empty, all executors are explained.
        max_executors: maximum number of executors to list for each request.
        form: table or JSON.

    Raises:
        FinegrainError: the state file cannot be read, or the resource manager refused the call.
    """
    job = read_job_status(path)
    waits = {}
    if job.requests:
        with open_cluster() as cluster:
            for each in job.requests:
                try:
                    waits[each.region] = cluster.explain(
                        each.allocation_ids[0], executor_id=executor_id, max_executors=max_executors
                    )
                except NotFound:
                    pass  # the runner has not sent this request yet
    print_explanation(job, waits, form)
