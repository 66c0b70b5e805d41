"""A batch as its owner holds it: run, taken up again, cancelled.

Decides which state file a batch has, and that one runner works on it. Refuses to know how.
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
"""How long slots and tasks of a batch outlive its runner, so that another one can take them up."""


class BatchJob:
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
        if spec is None and state_file is None:
            raise InvalidArgument("spec", None, "what to run, or the state_file of a batch")
        if not 1 <= lease_s <= 86_400:
            raise InvalidArgument("lease_s", lease_s, "1 to 86400 seconds")
        self._cluster = cluster
        self._spec = spec
        self._results_dir = Path(results_dir).absolute() if results_dir is not None else None
        self._lease_s = lease_s
        self._runner: Runner | None = None
        self._stop_mode = ""  # of whoever ends it before there is a runner
        self._running: asyncio.Task[BatchOutcome] | None = None
        name = spec.name if spec is not None else ""
        self.state_file = Path(state_file) if state_file else default_state_file(name)

    def __repr__(self) -> str:
        return f"<BatchJob {self.state_file}>"

    @property
    def spec(self) -> BatchSpec:
        """What it runs.

        Raises:
            NotFound, ConfigurationError: there is no such state file, or it is something else.
        """
        if self._spec is None:
            with reading(self.state_file) as connection:
                query = "select value from meta where key = 'spec'"
                self._spec = BatchSpec.from_json(connection.execute(query).fetchone()[0])
        return self._spec

    @property
    def progress(self) -> Progress:
        """How far it is; all queued before `run`. For batches that others run see `read_status`."""
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
        """Works on the batch until every thread has its result, or it is stopped.

        Cancelling this does what `cancel` does, and then raises. If it fails, it leaves slots and
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
        if self._running is not None and not self._running.done():
            raise FailedPrecondition("this batch is being run already; await that")
        self._runner, self._stop_mode = None, ""
        work = self._work(on_progress, retry_failed=retry_failed)
        self._running = asyncio.create_task(work, name=f"batch {self.state_file}")
        try:
            return await asyncio.shield(self._running)
        except asyncio.CancelledError:
            self._wake("cancel")
            try:
                await self._running
            except asyncio.CancelledError:  # once more: whoever asks so is in a hurry
                self._running.cancel()
                await asyncio.gather(self._running, return_exceptions=True)
            raise

    async def cancel(self) -> None:
        """Gives everything back: requests, slots and what runs in them. What has its result keeps
        it, and another `run` goes on with the rest. Returns when it is done.

        Of a batch that nobody runs, the job that its last runner left is ended.

        Raises:
            AlreadyExists: another process works on it: STORE_IN_USE.
            NotFound, ConfigurationError: see `read_status`.
        """
        await self._end("cancel")

    async def leave(self) -> None:
        """Ends the work of this runner and leaves slots and tasks as they are: whoever runs the
        batch before the lease is over takes them up. Returns when it is done.
        """
        if self._running is not None:
            await self._end("leave")

    def results(self, *, failed_only: bool = False) -> Iterator[ThreadResult]:
        """The results so far, by index; one per thread at most.

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
            if retry_failed:
                await asyncio.to_thread(state.forget_failures)
            self._runner = Runner(
                self._cluster, state, lease_s=self._lease_s, on_progress=on_progress
            )
            self._wake(self._stop_mode)
            return await self._runner.run()
        except OSError as error:
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
            if self._spec is not None and state.spec.to_json() != self._spec.to_json():
                state.close()
                raise InvalidArgument(
                    "spec",
                    self._spec,
                    f"the one in {self.state_file}, or another state_file for another batch",
                )
            if self._results_dir not in (None, state.results_dir):
                state.close()
                raise InvalidArgument(
                    "results_dir",
                    str(self._results_dir),
                    f"None, or {state.results_dir}, which {self.state_file} began with",
                )
            return state
        return StateFile.create(self.state_file, self._spec, self._results_dir)


def _not_kept(state: StateFile, error: OSError) -> FinegrainError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return FinegrainError(
        f"outputs cannot be kept in {state.results_dir}: {error.strerror or error}; "
        f"{'make room there' if full else 'see to that'} and run the batch again",
        reason=Reason.DISK_FULL if full else Reason.CONFIGURATION,
        details={"path": state.results_dir},
    )
