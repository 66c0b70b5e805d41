"""Defines the handle of a batch, which runs, resumes and cancels the batch.

The handle finds the state file of the batch, and ensures that only one runner works on the batch.
`runner.py` does the work.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import FailedPrecondition, FinegrainError, InvalidArgument, Reason
from finegrain_client.batch.runner import Runner
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.state_file import StateFile, reading
from finegrain_client.batch.status import default_state_file, read_thread_results
from finegrain_client.batch.values import BatchOutcome, BatchState, Progress, ThreadResult

if TYPE_CHECKING:
    from finegrain_client.cluster import Cluster

LEASE_DEFAULT_S = 300.0
"""Time in seconds within which another runner can take over slots and tasks of a killed runner."""


class BatchJob:
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

    state_file: Path

    def __init__(
        self,
        cluster: Cluster,
        spec: BatchSpec | None = None,
        *,
        state_file: str | os.PathLike[str] | None = None,
        results_dir: str | os.PathLike[str] | None = None,
        lease_s: float = LEASE_DEFAULT_S,
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
        if spec is None and state_file is None:
            raise InvalidArgument("spec", None, "a spec, or the state_file of an existing batch")
        if not 1 <= lease_s <= 86_400:
            raise InvalidArgument("lease_s", lease_s, "1 to 86400 seconds")
        self._cluster = cluster
        self._spec = spec
        self._results_dir = Path(results_dir).absolute() if results_dir is not None else None
        self._lease_s = lease_s
        self._runner: Runner | None = None
        self._stop_mode = ""  # set before there is a runner
        self._running: asyncio.Task[BatchOutcome] | None = None
        name = spec.name if spec is not None else ""
        self.state_file = Path(state_file) if state_file else default_state_file(name)

    def __repr__(self) -> str:
        return f"<BatchJob {self.state_file}>"

    @property
    def spec(self) -> BatchSpec:
        """The spec of the batch. If no spec was given, it is read from the state file.

        Raises:
            NotFound, ConfigurationError: the file does not exist, or is not a state file.
        """
        if self._spec is None:
            with reading(self.state_file) as connection:
                query = "select value from meta where key = 'spec'"
                self._spec = BatchSpec.from_json(connection.execute(query).fetchone()[0])
        return self._spec

    @property
    def progress(self) -> Progress:
        """The progress so far. Before `run`, all threads are queued.

        For batches of other runners, see `read_status`.
        """
        if self._runner is not None:
            return self._runner.report.progress
        threads = self.spec.threads
        return Progress(BatchState.OPEN, threads, 0, 0, 0, threads)

    async def run(
        self,
        on_progress: Callable[[Progress], None] | None = None,
        *,
        retry_failed: bool = False,
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
        if self._running is not None and not self._running.done():
            raise FailedPrecondition("this batch is already running; await the earlier call")
        self._runner, self._stop_mode = None, ""
        work = self._work(on_progress, retry_failed=retry_failed)
        self._running = asyncio.create_task(work, name=f"batch {self.state_file}")
        try:
            # If this call is cancelled, the shield keeps the batch running, so that the batch can
            # release its slots.
            return await asyncio.shield(self._running)
        except asyncio.CancelledError:
            self._wake("cancel")
            try:
                await self._running
            except asyncio.CancelledError:  # cancelled a second time: end without cleaning up
                self._running.cancel()
                await asyncio.gather(self._running, return_exceptions=True)
            raise

    async def cancel(self) -> None:
        """Cancels the batch with its requests, slots and tasks. Returns when all of them have
        ended.

        Results so far are kept, and another `run` continues with the remaining threads. If no
        runner works on the batch, this method ends the job that the last runner left.

        Raises:
            AlreadyExists: STORE_IN_USE: another process works on the batch.
            NotFound, ConfigurationError: see `read_status`.
        """
        await self._end("cancel")

    async def leave(self) -> None:
        """Ends this runner. Its slots and tasks continue. Returns when the runner has ended.

        A runner that starts before the lease ends takes over the slots and tasks.
        """
        if self._running is not None:
            await self._end("leave")

    def results(self, *, failed_only: bool = False) -> Iterator[ThreadResult]:
        """Returns the results so far, ordered by index, with at most one result per thread.

        Raises:
            NotFound, ConfigurationError: see `read_status`.
        """
        return read_thread_results(self.state_file, failed_only=failed_only)

    async def _work(
        self, on_progress: Callable[[Progress], None] | None, *, retry_failed: bool
    ) -> BatchOutcome:
        state = await asyncio.to_thread(self._open)
        self._spec = state.spec
        try:
            # Do this before the runner reads the state, so that the failed threads run again.
            if retry_failed:
                await asyncio.to_thread(state.forget_failures)
            self._runner = Runner(
                self._cluster, state, lease_s=self._lease_s, on_progress=on_progress
            )
            # `cancel` or `leave` may have been called before there was a runner.
            self._wake(self._stop_mode)
            return await self._runner.run()
        except OSError as error:
            # Some errors of this package are also OSErrors (TimeoutError is an OSError), so raise
            # them unchanged.
            if isinstance(error, FinegrainError):
                raise
            raise _not_kept(state, error) from error
        finally:
            state.close()

    def _wake(self, stop_mode: str) -> None:
        self._stop_mode = stop_mode
        if stop_mode and self._runner is not None:
            self._runner.wake(stop_mode)

    async def _end(self, stop_mode: str) -> None:
        if self._running is not None and not self._running.done():
            self._wake(stop_mode)
            # Only the caller of `run` must get the error of the run, and `wait` does not raise this
            # error.
            await asyncio.wait([self._running])
            return
        state = await asyncio.to_thread(StateFile.open, self.state_file)
        try:
            runner = Runner(self._cluster, state, lease_s=self._lease_s, on_progress=None)
            await runner.end_left_job()
        finally:
            state.close()

    def _open(self) -> StateFile:
        if self._spec is None or self.state_file.exists():
            state = StateFile.open(self.state_file)
            # A batch must not have results of different commands.
            if self._spec is not None and state.spec.to_json() != self._spec.to_json():
                state.close()
                raise InvalidArgument(
                    "spec",
                    self._spec,
                    f"the spec in {self.state_file}, or another state_file for a new batch",
                )
            if self._results_dir not in (None, state.results_dir):
                state.close()
                raise InvalidArgument(
                    "results_dir",
                    str(self._results_dir),
                    f"None, or {state.results_dir}, with which {self.state_file} was created",
                )
            return state
        return StateFile.create(self.state_file, self._spec, self._results_dir)


def _not_kept(state: StateFile, error: OSError) -> FinegrainError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return FinegrainError(
        f"outputs cannot be stored in {state.results_dir}: {error.strerror or error}; "
        f"{'free some space there' if full else 'fix the cause'} and run the batch again",
        reason=Reason.DISK_FULL if full else Reason.CONFIGURATION,
        details={"path": state.results_dir},
    )
