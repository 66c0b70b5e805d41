"""Written by `python -m tests.support.blocking_client`; do not edit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path

from finegrain_client.batch.job import BatchJob as AsyncBatchJob
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.values import BatchOutcome, Progress, ThreadResult
from finegrain_client.blocking.generated import Cluster
from finegrain_client.blocking.handle import Handle


class BatchJob(Handle[AsyncBatchJob]):
    """One command for each of many threads of work, in however few slots there are.

    `BatchJob(cluster, spec).run()` works on a new batch; `BatchJob(cluster, state_file=...).run()`
    takes one up whose runner was killed, stopped or cancelled. What was promised: the command of a
    thread runs *at least once* (again where its slot was lost, where it failed and is retried, and
    as a second run of a straggler), and a thread has *exactly one* result, recorded on disk before
    its slot is used for anything else. Commands that must not run twice need a guard of their own.

    A runner that was killed leaves slots and tasks to the job's lease (`lease_s`): one that is
    started within that time takes them up, with all that they have written meanwhile; later, the
    threads that have no result are run anew under a new job.

    Attributes:
        state_file: where the state is kept: a file for its owner only, on a local disk.
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
        """Nothing happens yet.

        Args:
            spec: what to run; None: what is in the state file. Where both are given and the file
                exists, they have to be the same.
            state_file: None: a new one in the default folder (see `default_folder`).
            results_dir: where outputs go, as `<index>.stdout` and `<index>.stderr`; None: only the
                last 1,000 bytes of each are kept, in the state file.
            lease_s: 1 s to 1 day.

        Raises:
            InvalidArgument: neither spec nor state file, or a bad lease.
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
        """What it runs.

        Raises:
            NotFound, ConfigurationError: there is no such state file, or it is something else.
        """
        return self.inner.spec

    @property
    def progress(self) -> Progress:
        """How far it is; all queued before `run`. For batches that others run see `read_status`."""
        return self.inner.progress

    def run(
        self, on_progress: Callable[[Progress], None] | None = None, *, retry_failed: bool = False
    ) -> BatchOutcome:
        """Works on the batch until every thread has its result, or it is stopped.

        Interrupting this does what `cancel` does, and then raises. If it fails, it leaves slots and
        tasks as they are, for the next runner.

        Args:
            on_progress: called at most five times a second; it may not block.
            retry_failed: threads that have failed for good are tried again.

        Raises:
            AlreadyExists: another runner works on it (STORE_IN_USE), or another batch is in the
                state file.
            NotFound, ConfigurationError: see `read_status`.
            FinegrainError: the resource manager refused us, or a disk failed (DISK_FULL, ...).
        """
        return self.loop.run(self.inner.run(on_progress, retry_failed=retry_failed))

    def cancel(self) -> None:
        """Gives everything back: requests, slots and what runs in them. What has its result keeps
        it, and another `run` goes on with the rest. Returns when it is done.

        Of a batch that nobody runs, the job that its last runner left is ended.

        Raises:
            AlreadyExists: another process works on it: STORE_IN_USE.
            NotFound, ConfigurationError: see `read_status`.
        """
        self.loop.run(self.inner.cancel())

    def leave(self) -> None:
        """Ends the work of this runner and leaves slots and tasks as they are: whoever runs the
        batch before the lease is over takes them up. Returns when it is done.
        """
        self.loop.run(self.inner.leave())

    def results(self, *, failed_only: bool = False) -> Iterator[ThreadResult]:
        """The results so far, by index; one per thread at most.

        Raises:
            NotFound, ConfigurationError: see `read_status`.
        """
        return self.inner.results(failed_only=failed_only)
