"""Runs a batch until every thread has its result. The runner uses one job after the other.

The runner takes over the job of an earlier runner, or registers a new job. The runner ends the job
when the batch is done, stopped or cancelled. If the runner fails, or `BatchJob.leave` is called,
the job stays for the next runner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from finegrain.errors import FinegrainError, Reason
from finegrain.values.states import JobOutcome
from finegrain_client.batch.output import sweep
from finegrain_client.batch.report import Report
from finegrain_client.batch.rows import Changes, JobRow, Known
from finegrain_client.batch.scheduler import BatchScheduler
from finegrain_client.batch.session import Session, SessionEnded
from finegrain_client.batch.slots import BatchSlots, retry_until_answered
from finegrain_client.batch.state_file import StateFile
from finegrain_client.batch.values import (
    BatchOutcome,
    BatchState,
    Progress,
    ThreadState,
)
from finegrain_client.errors import JobEnded
from finegrain_client.job.background import unless
from finegrain_client.job.job import Job

if TYPE_CHECKING:
    from finegrain_client.cluster import Cluster

T = TypeVar("T")

FAILURES_SHOWN = 10
ENDING = "ending"
"""Key in the state file under which a runner stores the number of the job that it ends."""

ENDING_S = 20.0
"""Longest time in seconds to try to end the job. If this fails, the job ends later when its lease
expires.
"""


class _StopRequested(Exception):
    """The runner must stop."""


class Runner:
    """Works on one batch; see `BatchJob`.

    Attributes:
        report: the progress of the batch.
    """

    def __init__(
        self,
        cluster: Cluster,
        state: StateFile,
        *,
        lease_s: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._lease_s = lease_s
        # Use only one thread, so that writes keep their order, and only one call uses the
        # connection at a time.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="finegrain-batch")
        self._session: Session | None = None
        self._stop_mode = ""
        self._stop_requested = asyncio.Event()
        self.report = Report(cluster, state.spec.threads, state.create_time, on_progress)

    async def run(self) -> BatchOutcome:
        """Works until the batch is done or stopped, and returns the outcome.

        Raises:
            FinegrainError, OSError: this runner cannot continue, but a new runner possibly can.
        """
        watching = asyncio.create_task(self.report.watch_cluster())
        try:
            await self._on_disk(partial(sweep, self._state.results_dir))
            stop_reason: str | None = None
            while stop_reason is None:
                known = await self._on_disk(self._state.known)
                if len(known.final) == self._state.spec.threads:
                    # The last runner may have been killed after it stored the last result, but
                    # before it ended its job.
                    await self._end_leftover_job(known)
                    stop_reason = ""
                elif self._stop_mode:
                    if self._stop_mode == "cancel":
                        await self._end_leftover_job(known)
                    stop_reason = ""
                else:
                    stop_reason = await self._run_job(known)
            return await self._conclude(stop_reason)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._disk.shutdown()

    def wake(self, stop_mode: str) -> None:
        """Makes `run` return soon.

        Args:
            stop_mode: "cancel" releases all slots and ends the job. "leave" keeps slots, tasks and
                the job for the next runner.
        """
        # Only the first request to stop has an effect.
        self._stop_mode = self._stop_mode or stop_mode
        self._stop_requested.set()
        if self._session is not None:
            self._session.wake(stop_mode)

    async def _run_job(self, known: Known) -> str | None:
        """Works with one job until this job or the batch ends.

        Returns:
            The reason why the batch stops. The reason is empty if the batch is done. The result is
            None if another job must continue the batch.
        """
        async with AsyncExitStack() as stack:
            try:
                job, row = await unless(
                    self._stop_requested, self._attach_or_register(stack, known), _StopRequested
                )
            except _StopRequested:
                return None  # stopped before the resource manager answered
            scheduler = BatchScheduler(self._state.spec, known, row.number)
            if known.job is not None and known.job.number == row.number:
                scheduler.restore_attempts(known.open, known.lost, known.used)
            slots = BatchSlots(job, row, self._state.spec.slot)
            session = Session(
                self._state, scheduler, slots, row, disk=self._disk, notify=self.report.before_write
            )
            self._session = session
            # `wake` may have been called while the job was being registered.
            if self._stop_mode:
                session.wake(self._stop_mode)
            try:
                await session.run()
            except SessionEnded as ended:
                return await self._why_job_ended(ended.error, row)
            finally:
                self._session = None
            # If the session has failed, the code below does not run. So the job stays for the next
            # runner.
            if session.stop_mode != "leave":
                await self._end_job(job, row)
            return scheduler.stopping

    async def _attach_or_register(self, stack: AsyncExitStack, known: Known) -> tuple[Job, JobRow]:
        """Returns the job of the last runner if this job still exists. Otherwise registers a new
        job.
        """
        row = known.job
        if row is not None and not row.ended:
            job = self._cluster.attach_job(row.job_id, lease_s=self._lease_s)
            try:
                return await stack.enter_async_context(job), row
            except JobEnded:
                await self._on_disk(partial(self._state.end_job, row.number))

        async def register() -> Job:
            spec = self._state.spec
            job = self._cluster.job(
                spec.name,
                group=spec.group,
                lease_s=self._lease_s,
                priority=spec.priority,
                labels=spec.job_labels,
                # If a thread has already run, the jobs in `after` have ended. Do not name them,
                # because they are possibly deleted.
                after=() if known.attempts else spec.after,
            )
            return await stack.enter_async_context(job)

        job = await retry_until_answered(register, "registering the batch's job")
        # from now on, only the runner ends the job; the exit of the context does not end it
        job.detached = True
        return job, await self._on_disk(partial(self._state.add_job, job.job_id))

    async def _why_job_ended(self, error: FinegrainError, row: JobRow) -> str | None:
        if not isinstance(error, JobEnded):
            # The watch stream has failed, but the job possibly still exists, so let `run` attach
            # again.
            return None
        await self._on_disk(partial(self._state.end_job, row.number))
        reason = error.details.get("end_reason", "")
        # If the state file says that a runner was ending this job, a runner has ended it, and not
        # an administrator.
        ours = await self._on_disk(partial(self._state.meta, ENDING)) == str(row.number)
        if reason == Reason.DEPENDENCY_FAILED:
            return f"a job that it waits for has ended in another way: {error.message}"
        if reason in (Reason.TERMINATED, Reason.ENDED) and not ours:
            return f"its job was ended from outside the batch: {error.message}"
        return None

    async def end_left_job(self) -> None:
        """Ends the job that an earlier runner has left, and marks the batch as cancelled.

        Raises:
            FinegrainError: the state file cannot be used.
        """
        self._stop_mode = "cancel"
        try:
            await self._end_leftover_job(await self._on_disk(self._state.known))
            await self._conclude("it was cancelled")
        finally:
            self._disk.shutdown()

    async def _end_leftover_job(self, known: Known) -> None:
        row = known.job
        if row is not None and not row.ended:
            await self._end_job(self._cluster.attach_job(row.job_id), row)

    async def _end_job(self, job: Job, row: JobRow) -> None:
        known = await self._on_disk(self._state.known)
        done = sum(each is ThreadState.DONE for each in known.final.values())
        succeeded = done == self._state.spec.threads
        outcome = JobOutcome.SUCCEEDED if succeeded else JobOutcome.FAILED
        # Write this before the call. If this runner is killed after the call, the next runner knows
        # that a runner ended the job, and not an administrator.
        ending = Changes(meta={ENDING: str(row.number)})
        await self._on_disk(partial(self._state.write, row.number, ending))
        try:
            async with asyncio.timeout(ENDING_S):
                await retry_until_answered(
                    partial(job.end, outcome=outcome), "ending the batch's job"
                )
        except (FinegrainError, TimeoutError):
            # the job ends when its lease expires; until then, a new runner can take it over
            return
        await self._on_disk(partial(self._state.end_job, row.number))

    async def _conclude(self, stop_reason: str) -> BatchOutcome:
        # Attempts that did not end may have left partial files.
        await self._on_disk(partial(sweep, self._state.results_dir))
        known = await self._on_disk(self._state.known)
        done = sum(each is ThreadState.DONE for each in known.final.values())
        failed = len(known.final) - done
        left = self._state.spec.threads - len(known.final)
        state = BatchState.ENDED
        if left:
            state = {"cancel": BatchState.CANCELLED, "leave": BatchState.OPEN}.get(
                self._stop_mode, BatchState.STOPPED
            )
        # Read the counts from the file, because only stored results survive this runner.
        changes = self.report.conclude(state, done, failed, stop_reason)
        await self._on_disk(partial(self._state.write, 0, changes))
        failures = await self._on_disk(
            partial(self._state.results, failed_only=True, limit=FAILURES_SHOWN)
        )
        return BatchOutcome(
            state=state,
            threads=self._state.spec.threads,
            done=done,
            failed=failed,
            left=left,
            elapsed_s=self.report.progress.elapsed_s,
            message=stop_reason,
            failures=tuple(failures),
        )

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)
