"""Written by `python -m tests.support.blocking_client`; do not edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finegrain_client.blocking.handle import Handle
from finegrain_client.graph_run.graph_job import GraphJob as AsyncGraphJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike
    from pathlib import Path

    from finegrain_client.blocking.generated import Cluster
    from finegrain_client.graph.plan import Plan
    from finegrain_client.graph_run.spec import GraphRunSpec
    from finegrain_client.graph_run.values import GraphOutcome, GraphProgress


class GraphJob(Handle["AsyncGraphJob"]):
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

    def __init__(
        self,
        cluster: Cluster,
        spec: GraphRunSpec | Plan | None = None,
        *,
        state_file: str | PathLike[str] | None = None,
        lease_s: float = 300.0,
    ) -> None:
        super().__init__(
            cluster.loop, AsyncGraphJob(cluster.inner, spec, state_file=state_file, lease_s=lease_s)
        )

    @property
    def state_file(self) -> Path:
        return self.inner.state_file

    def run(self, on_progress: Callable[[GraphProgress], None] | None = None) -> GraphOutcome:
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
        return self.loop.run(self.inner.run(on_progress))

    def cancel(self) -> None:
        """Cancels the job: `run` returns when its tasks have ended and its slots are released.

        If `run` was not called yet, a later call of `run` cancels the job at once.
        """
        self.loop.call(self.inner.cancel)
