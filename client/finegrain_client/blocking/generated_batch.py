"""Written by `python -m tests.support.blocking_client`; do not edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finegrain_client.batch.job import BatchJob as AsyncBatchJob
from finegrain_client.blocking.handle import Handle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike
    from pathlib import Path

    from finegrain_client.batch.spec import BatchSpec
    from finegrain_client.batch.values import BatchOutcome, Progress, ThreadResult
    from finegrain_client.blocking.generated import Cluster


class BatchJob(Handle["AsyncBatchJob"]):
    """One command for each of many threads of work, in any number of slots.

    `BatchJob(cluster, spec).run()` runs a new batch. `BatchJob(cluster, state_file=...).run()`
    resumes a batch whose runner was killed, stopped or cancelled.

    The command of a thread runs *at least once*. It runs again in three cases: the slot was lost,
    the command failed and is retried, or the thread is a straggler and gets a second run. A thread
    has *exactly one* result, which is on disk before its slot is reused or released. If the work
    must not be done twice, the command must check this itself.

    If a runner is killed, its slots and tasks continue until the lease of the job (`lease_s`)
    expires. A runner that starts within this time takes over the slots and tasks, with all output.
    A runner that starts later registers a new job, and repeats all threads that have no result.

    Attributes:
        state_file: path of the file with the state of the batch. Only its owner can read the file.
            The file must be on a local disk.
    """

    def __init__(
        self,
        cluster: Cluster,
        spec: BatchSpec | None = None,
        *,
        state_file: str | PathLike[str] | None = None,
        results_dir: str | PathLike[str] | None = None,
        lease_s: float = 300.0,
    ) -> None:
        """Checks the arguments; `run` does the work.

        Args:
            cluster: the cluster to run on.
            spec: the command and its threads; None means the spec in the state file. If both exist,
                they must be equal.
            state_file: path of the state file; None means a new file in the default folder (see
                `default_folder`).
            results_dir: folder for the output, as `<index>.stdout` and `<index>.stderr`; None means
                that only the last 1,000 bytes of each stream are kept, in the state file.
            lease_s: lease of the batch's job, 1 s to 1 day.

        Raises:
            InvalidArgument: spec and state file are both missing, or the lease is out of range.
        """
        super().__init__(
            cluster.loop,
            AsyncBatchJob(
                cluster.inner, spec, state_file=state_file, results_dir=results_dir, lease_s=lease_s
            ),
        )

    @property
    def state_file(self) -> Path:
        return self.inner.state_file

    @property
    def spec(self) -> BatchSpec:
        """The spec of the batch. If no spec was given, it is read from the state file.

        Raises:
            NotFound, ConfigurationError: the file does not exist, or is not a state file.
        """
        return self.inner.spec

    @property
    def progress(self) -> Progress:
        """The progress so far. Before `run`, all threads are queued.

        For batches of other runners, see `read_status`.
        """
        return self.inner.progress

    def run(
        self, on_progress: Callable[[Progress], None] | None = None, *, retry_failed: bool = False
    ) -> BatchOutcome:
        """Works on the batch until every thread has its result, or the batch is stopped.

        If this call is cancelled, it first cancels the batch, in the same way as `cancel`. If this
        call raises any other error, slots and tasks stay for the next runner.

        Args:
            on_progress: a function that is called at most five times a second. The function must
                not block.
            retry_failed: if true, failed threads without remaining retries run again.

        Returns:
            The outcome of the batch.

        Raises:
            AlreadyExists: another runner works on the batch (STORE_IN_USE), or the state file
                belongs to another batch.
            NotFound, ConfigurationError: see `read_status`.
            FinegrainError: the resource manager refused a call, or a disk failed (DISK_FULL, ...).
        """
        return self.loop.run(self.inner.run(on_progress, retry_failed=retry_failed))

    def cancel(self) -> None:
        """Cancels the batch with its requests, slots and tasks. Returns when all of them have
        ended.

        Results so far are kept, and another `run` continues with the remaining threads. If no
        runner works on the batch, this method ends the job that the last runner left.

        Raises:
            AlreadyExists: STORE_IN_USE: another process works on the batch.
            NotFound, ConfigurationError: see `read_status`.
        """
        self.loop.run(self.inner.cancel())

    def leave(self) -> None:
        """Ends this runner. Its slots and tasks continue. Returns when the runner has ended.

        A runner that starts before the lease ends takes over the slots and tasks.
        """
        self.loop.run(self.inner.leave())

    def results(self, *, failed_only: bool = False) -> Iterator[ThreadResult]:
        """Returns the results so far, ordered by index, with at most one result per thread.

        Raises:
            NotFound, ConfigurationError: see `read_status`.
        """
        return self.inner.results(failed_only=failed_only)
