"""The single writer of the resource manager. Only the writer changes the engine's state.

The writer takes all calls that have arrived as a batch. It steps each event, runs `Decide`, and
commits all changes in one transaction. After the commit, it answers the callers and carries out the
effects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from finegrain.errors import FinegrainError, Reason, StoreError, Unavailable
from finegrain.logs import get_logger
from resource_manager.engine.executors.reports import EpochSeen
from resource_manager.engine.model.effects import Effect
from resource_manager.service.engine_driver import EngineDriver, Item, StateSuspect
from resource_manager.service.intake import Intake, fail
from resource_manager.service.lanes import LaneLimits
from resource_manager.service.lease import LeaseKeeper
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.recovery import Recovery, RecoveryLimits
from resource_manager.storage.store import NotLeader, Store, StoreAway

_log = get_logger("finegrain.rm.runner")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Limits and intervals of the writer."""

    lanes: LaneLimits = field(default_factory=LaneLimits)
    tick_interval_s: float = 0.2
    maintain_interval_s: float = 1.0
    renew_interval_s: float = 0.25
    unsure_max_s: float = 1.0  # callers are rejected if the lease is unconfirmed for longer
    recovery: RecoveryLimits = field(default_factory=RecoveryLimits)


class Listener(Protocol):
    """Carries out the writer's decisions. The methods are called on the event loop, in order."""

    def on_effects(self, effects: Sequence[Effect]) -> None:
        """Carries out the effects of a durable batch."""

    def on_reload(self, rm_epoch: int) -> None:
        """Called after the state was read again. The listener has possibly missed events."""


class Runner(Intake):
    """Owns the engine's state while this process leads.

    The calls of the next batch are collected during a commit, so one fsync serves many callers. One
    separate thread changes the state, commits and reads, so the event loop stays free for calls.
    Only short steps run on the event loop. Reads run between batches, so they never show a change
    that is not on disk yet.

    If a commit fails, all calls of the batch fail. The writer drops the state in memory, becomes
    the leader again at a higher epoch, and reads the state from the database. While the database
    cannot be reached, callers are rejected at once. Answers (even to reads) and effects leave the
    process only after the writer has confirmed that no other process has become the leader.

    Call `start` first. Then call `submit` and `read` (see `Intake`) from the event loop. When the
    process must end, the runner resolves `fatal` with the error.
    """

    def __init__(
        self,
        driver: EngineDriver,
        metrics: ResourceManagerMetrics,
        *,
        limits: RunnerLimits | None = None,
    ) -> None:
        self._driver = driver
        self._limits = limits or RunnerLimits()
        super().__init__(metrics, self._limits.lanes)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rm-writer")
        self._lease = LeaseKeeper(
            driver.store,
            self._limits.renew_interval_s,
            self._fail,
            unsure_max_s=self._limits.unsure_max_s,
        )
        self._serving: list[Item] = []
        self._listener: Listener | None = None
        self._tick_due = False
        self._closing = False
        self._writer: asyncio.Task[None] | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._recovery = Recovery(self._limits.recovery)
        self._maintain_due_at = 0.0
        self.fatal: asyncio.Future[FinegrainError] = asyncio.get_running_loop().create_future()

    @property
    def rm_epoch(self) -> int:
        """The epoch with which this process leads; 0: it does not lead yet."""
        return self._driver.rm_epoch

    @property
    def healthy(self) -> bool:
        """True while this resource manager accepts and grants requests."""
        return self._refusal() is None and not self._driver.broken

    async def start(self, listener: Listener) -> int:
        """Becomes the leader, reads the state, and starts to serve.

        Args:
            listener: receives the effects of every durable batch.

        Returns:
            The epoch at which this process leads.

        Raises:
            StoreError: the database cannot be used, or another process leads.
            InvariantBroken: the rows in the database contradict each other.
        """
        self._listener = listener
        await self._in_thread(self._driver.lead)
        # Renewals run during the read, because reading a large state can take longer than the
        # lease.
        self._lease.start()
        try:
            await self._in_thread(self._driver.read)
        except BaseException:
            self._lease.pause()
            raise
        # Another process has possibly taken over while the state was read.
        if self.fatal.done():
            raise self.fatal.result()
        self._writer = asyncio.create_task(self._run(), name="rm-writer")
        self._writer.add_done_callback(self._writer_ended)
        self._timers = [
            asyncio.create_task(self._tick(), name="rm-tick"),
        ]
        # The writer continues the check of a large state, even if no call comes.
        if self._driver.check_due:
            self._tick_due = True
            self._arrived.set()
        return self.rm_epoch

    async def stop(self) -> None:
        """Serves the waiting calls, then closes the database. New callers are rejected at once."""
        self._closing = True
        self._arrived.set()
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        for task in self._timers:
            task.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        self._refuse_all(Unavailable("the resource manager is stopping; try again"))
        # Renew the lease until here: the last batch is answered only while the lease is valid.
        self._lease.pause()
        # Close the store on the writer's thread. So no commit is running at this time.
        await self._in_thread(self._driver.store.close)
        self._lease.stop()
        self._thread.shutdown(wait=False)

    async def confirm(self) -> None:
        """Returns when it is certain that no other process leads. Call this before every command.

        Raises:
            NotLeader: another process leads, so this process will end.
            StoreError: the database does not report the leader.
        """
        try:
            await self._lease.confirm()
        except NotLeader as error:
            self._fail(error)
            raise

    async def in_store(self, fn: Callable[[Store], T]) -> T:
        """Runs a read-only call of the store (for event logs), concurrently with the writer."""
        return await asyncio.get_running_loop().run_in_executor(None, fn, self._driver.store)

    def _refusal(self) -> FinegrainError | None:
        if self._writer is None:
            return Unavailable("the resource manager is starting; try again")
        if self._closing or self.fatal.done():
            return Unavailable("the resource manager is stopping; try again")
        return self._recovery.refusal() or self._lease.outage

    async def _in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, fn, *args)

    async def _run_batch(self, batch: list[Item], *, ticked: bool) -> list[Effect]:
        driver = self._driver
        if not driver.is_light(batch, ticked):
            return await self._in_thread(driver.run_batch, batch, ticked)
        effects, changes = driver.step_batch(batch, ticked)
        if changes is not None:
            await self._in_thread(driver.commit, changes)
        driver.finish_batch(batch, effects)
        return effects

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            # Clear the event before the lanes are checked. So a later item wakes the loop again.
            self._arrived.clear()
            unfinished = self._driver.unfinished
            while self._lanes or self._tick_due or (unfinished and not self._closing):
                # A batch without events continues unfinished work only if it also runs the timers
                # (a tick). So unfinished work causes a tick.
                ticked, self._tick_due = self._tick_due or unfinished, False
                batch = self._lanes.gather()
                self._metrics.queue_items.set(self._lanes.waiting_items)
                await self._serve(batch, ticked=ticked)
                if self.fatal.done():
                    return
                if not self._closing:  # while the runner closes, there is possibly no state
                    await self._maintain()
                unfinished = self._driver.unfinished
            if self._closing:
                return

    def _writer_ended(self, task: asyncio.Task[None]) -> None:
        """If the writer's task failed, ends the process. So no caller waits indefinitely."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("writer_failed", exc_info=error)
            self._fail(FinegrainError(f"the writer failed: {error!r}"))

    async def _serve(self, batch: list[Item], *, ticked: bool) -> None:
        self._serving = batch
        try:
            effects = await self._run_batch(batch, ticked=ticked)
            # The lease is confirmed even for reads, because the answers of a former leader are
            # possibly outdated.
            if batch or effects:
                await self._lease.confirm()
        except NotLeader as error:
            fail(batch, Unavailable(error.message, reason=Reason.NOT_LEADER))
            self._fail(error)
        # An executor knows a newer epoch: it obeys a newer leader, or the database is older than
        # the state of the executors. Nothing was stored.
        except EpochSeen as error:
            fail(batch, Unavailable(error.message, reason=Reason.NOT_LEADER))
            replaced = await self._replaced()
            if replaced is None:
                await self._contest(error)
            self._fail(replaced or error)
        except Exception as error:
            suspect = isinstance(error, StateSuspect)
            (self._metrics.step_failures if suspect else self._metrics.commit_failures).inc()
            _log.error("batch_dropped", error=str(error), events=len(batch), exc_info=error)
            # Callers are answered first, because the reload can take long.
            fail(batch, _public(error))
            await self._reload(error)
        else:
            # Answers and effects leave the process only here, after the commit and the
            # confirmation.
            for item in batch:
                item.settle()
            if effects and self._listener is not None:
                self._listener.on_effects(effects)

    async def _replaced(self) -> NotLeader | None:
        """Returns `NotLeader` if executors know a newer epoch because another process leads.

        This error explains more than `EpochSeen`. None means one of two things: no other leader is
        known, or the database does not answer.
        """
        try:
            await self._lease.renew()
        except NotLeader as error:
            return error
        except FinegrainError as error:
            _log.warning("renewal_failed", error=error.message)
        return None

    async def _contest(self, error: EpochSeen) -> None:
        try:
            await self._in_thread(self._driver.contest, error.seen)
        except FinegrainError as problem:
            # The next start will receive a report of the same executor, and then store the record.
            _log.warning("contest_not_stored", error=problem.message)

    def _fail(self, error: FinegrainError) -> None:
        # Only the first error counts, because later errors follow from it.
        if not self.fatal.done():
            _log.info("stepping_down", reason=error.reason.value)  # `main` logs the error itself
            self.fatal.set_result(error)
        self._refuse_all(Unavailable("the resource manager is stopping", reason=Reason.NOT_LEADER))

    async def _reload(self, cause: BaseException) -> None:
        """When the database can be reached again, becomes the leader and reads the state again.

        The first attempt is made at once, unless there is an outage. There is a pause before each
        further attempt, from `RecoveryLimits.pause_s` up to `pause_max_s`.
        """
        at_once = not isinstance(cause, StoreAway)
        while not self._closing:
            if (final := self._recovery.failed(cause, time.monotonic())) is not None:
                self._fail(final)
                return
            if (away := self._recovery.refusal()) is not None:
                self._refuse_all(away)
            if not at_once:
                # The pause limits the load of the database and the size of the log if failures
                # repeat.
                await asyncio.sleep(self._recovery.pause_s())
            at_once = False
            try:
                await self._in_thread(self._driver.load)
            except NotLeader as error:
                self._fail(error)
                return
            except Exception as error:
                if not isinstance(error, StoreAway):
                    _log.error("reload_failed", error=str(error), exc_info=error)
                cause = error
            else:
                self._recovery.recovered(time.monotonic())
                _log.warning("state_reloaded", rm_epoch=self.rm_epoch)
                self._metrics.reloads.inc()
                # Commands in flight belong to the dropped state, and streams have possibly missed
                # events.
                if self._listener is not None:
                    self._listener.on_reload(self.rm_epoch)
                return

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._limits.tick_interval_s
            await asyncio.sleep(self._limits.tick_interval_s)
            self._metrics.loop_lag.observe(max(0.0, loop.time() - due))
            self._watch_lease()
            self._tick_due = True
            self._arrived.set()

    def _watch_lease(self) -> None:
        """Rejects callers while another process is possibly the leader."""
        self._lease.check()
        if (outage := self._lease.outage) is not None:
            self._refuse_all(outage)
            # The commit of the batch in flight can still succeed. The callers can repeat their
            # calls to learn the outcome.
            for item in self._serving:
                if not item.future.done():
                    item.future.set_exception(outage)

    async def _maintain(self) -> None:
        moment = time.monotonic()
        if moment >= self._maintain_due_at:
            self._maintain_due_at = moment + self._limits.maintain_interval_s
            try:
                await self._in_thread(self._driver.store.maintain)
            except NotLeader as error:
                self._fail(error)
            except FinegrainError as error:
                _log.warning("maintenance_failed", error=error.message)
        while self._driver.check_due:
            await self._in_thread(self._driver.check_slice)
            if self._lanes or self._tick_due or self._driver.unfinished:
                return  # the check continues after the next batch


def _public(error: BaseException) -> FinegrainError:
    """Returns the error for the callers of a dropped batch."""
    if isinstance(error, StoreError):
        return error
    return StoreError("the change could not be stored and was not applied; try again")
