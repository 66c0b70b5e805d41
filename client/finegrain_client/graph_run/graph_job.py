"""Defines the handle of a job that runs a plan, which runs, continues and cancels the job."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import FailedPrecondition
from finegrain_client.batch.job import LEASE_DEFAULT_S
from finegrain_client.graph.plan import Plan
from finegrain_client.graph_run.runner import Runner
from finegrain_client.graph_run.spec import GraphRunSpec
from finegrain_client.graph_run.state_file import GraphStateFile
from finegrain_client.graph_run.values import GraphOutcome, GraphProgress
from finegrain_client.state_folder import JOBS

if TYPE_CHECKING:
    from finegrain_client.cluster import Cluster


class GraphJob:
    """A job that runs a plan on a cluster.

    Attributes:
        state_file: path of the file with the state of the job. Only its owner can read the file.
            The file must be on a local disk.

    Args:
        cluster: the cluster.
        spec: the plan to run. A `GraphRunSpec` adds the environment, the group and other settings
            to the plan. None means to continue the job of `state_file`.
        state_file: path of the state file; None means a new file in the default folder.
        lease_s: lease of the job in seconds. If no runner works on the job for this time, the
            resource manager releases the slots of the job. The next runner then runs the regions of
            these slots again.

    Raises:
        GraphError: the plan cannot run, for example because an operator has no program.
    """

    state_file: Path

    def __init__(
        self,
        cluster: Cluster,
        spec: GraphRunSpec | Plan | None = None,
        *,
        state_file: str | os.PathLike[str] | None = None,
        lease_s: float = LEASE_DEFAULT_S,
    ) -> None:
        self._cluster = cluster
        self._spec = GraphRunSpec(spec) if isinstance(spec, Plan) else spec
        self._lease_s = lease_s
        self._runner: Runner | None = None
        self._cancelled = False
        self._running: asyncio.Task[GraphOutcome] | None = None
        name = self._spec.plan.name if self._spec is not None else ""
        self.state_file = Path(state_file) if state_file else JOBS.new_file(name)

    def __repr__(self) -> str:
        return f"<GraphJob {self.state_file}>"

    async def run(self, on_progress: Callable[[GraphProgress], None] | None = None) -> GraphOutcome:
        """Works on the job until it has ended and all its slots are released.

        If the caller cancels this call, the job is cancelled before the call raises. If the call
        fails, the slots and tasks stay, and another runner can continue the job.

        Args:
            on_progress: a function that is called after every change. The function must not block.

        Returns:
            The outcome of the job. If the job has already ended, this is the stored outcome.

        Raises:
            AlreadyExists: another runner works on the job (STORE_IN_USE), or the file of a new job
                exists.
            NotFound, ConfigurationError: see `read_job_status`.
            FinegrainError: the resource manager refused a call, or a disk failed.
        """
        if self._running is not None and not self._running.done():
            raise FailedPrecondition("this job is already running; await the earlier call")
        file = await asyncio.to_thread(self._open)
        try:
            runner = Runner(self._cluster, file, lease_s=self._lease_s, on_progress=on_progress)
            self._runner = runner
            if self._cancelled:
                runner.cancel()
            self._running = asyncio.create_task(runner.run(), name=f"job {self.state_file}")
            try:
                # If this call is cancelled, the shield keeps the runner working, so that the runner
                # can end the job.
                return await asyncio.shield(self._running)
            except asyncio.CancelledError:
                runner.cancel()
                try:
                    await self._running
                except asyncio.CancelledError:  # a second cancellation: end without cleaning up
                    self._running.cancel()
                    await asyncio.gather(self._running, return_exceptions=True)
                raise
        finally:
            self._runner = None
            file.close()

    def cancel(self) -> None:
        """Cancels the job: `run` returns when its tasks have ended and its slots are released.

        If `run` was not called yet, a later call of `run` cancels the job at once.
        """
        self._cancelled = True
        if self._runner is not None:
            self._runner.cancel()

    def _open(self) -> GraphStateFile:
        if self._spec is None:
            return GraphStateFile.open(self.state_file)
        return GraphStateFile.create(self.state_file, self._spec)
