"""The single writer of the resource manager: the only place where the engine's state changes.

The writer takes the calls that have arrived, steps each event, runs `Decide` and commits all
changes in one transaction. Only then does it answer the callers and release the effects.
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
    unsure_max_s: float = 1.0  # callers are refused once the lease is in doubt for longer
    recovery: RecoveryLimits = field(default_factory=RecoveryLimits)


class Listener(Protocol):
    """Carries out what the writer decided. Called on the event loop, in order."""

    def on_effects(self, effects: Sequence[Effect]) -> None:
        """Receives the effects of a batch that is durable."""

    def on_reload(self, rm_epoch: int) -> None:
        """The state was read again: what the listener follows in memory may have gaps."""


class Runner(Intake):
    """Owns the engine's state while this process leads.

    The next batch gathers during a commit, so one fsync serves many callers. State, commits and
    reads belong to one dedicated thread, so the event loop stays free for calls. Reads run between
    batches and never show a change that is not durable.

    If a commit fails, no call of the batch is answered as done. The writer drops the state in
    memory, takes leadership again at a higher epoch, and reads the state from the database. While
    the database is away, callers are refused at once. Before anything leaves the process, answers
    to reads included, the writer confirms that no other process has become the leader.

    Call `start` first; then call `submit` and `read` (see `Intake`) from the event loop. When the
    process has to end, the runner resolves `fatal` with the error that says why.
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
        """Epoch of this incarnation."""
        return self._driver.rm_epoch

    @property
    def healthy(self) -> bool:
        """True while requests are accepted and granted."""
        return self._refusal() is None and not self._driver.broken

    async def start(self, listener: Listener) -> int:
        """Takes leadership, reads the state and begins to serve.

        Args:
            listener: receives the effects of every durable batch.

        Returns:
            The epoch of this incarnation.

        Raises:
            StoreError: the database cannot be used, or another process leads.
            InvariantBroken: the rows in the database contradict each other.
        """
        self._listener = listener
        await self._in_thread(self._driver.lead)
        # Renewals must run during the read: reading a large state can take longer than the lease.
        self._lease.start()
        try:
            await self._in_thread(self._driver.read)
        except BaseException:
            self._lease.pause()
            raise
        # Another process may have taken over while the state was read.
        if self.fatal.done():
            raise self.fatal.result()
        self._writer = asyncio.create_task(self._run(), name="rm-writer")
        self._writer.add_done_callback(self._writer_ended)
        self._timers = [
            asyncio.create_task(self._tick(), name="rm-tick"),
        ]
        return self.rm_epoch

    async def stop(self) -> None:
        """Serves the calls that wait, then closes the database. New callers are refused at once."""
        self._closing = True
        self._arrived.set()
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        for task in self._timers:
            task.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        self._refuse_all(Unavailable("the resource manager is stopping; try again"))
        # Kept until here, because the last batch is answered only while the lease holds.
        self._lease.pause()
        # On the writer's thread, so that no commit can be running.
        await self._in_thread(self._driver.store.close)
        self._lease.stop()
        self._thread.shutdown(wait=False)

    async def confirm(self) -> None:
        """Returns once it is certain that no other process leads. Call it before every command.

        Raises:
            NotLeader: another process leads; this process is about to end.
            StoreError: the database does not say who leads.
        """
        try:
            await self._lease.confirm()
        except NotLeader as error:
            self._fail(error)
            raise

    async def in_store(self, fn: Callable[[Store], T]) -> T:
        """Runs a read-only call of the store (event logs), concurrently with the writer."""
        return await asyncio.get_running_loop().run_in_executor(None, fn, self._driver.store)

    def _refusal(self) -> FinegrainError | None:
        if self._writer is None:
            return Unavailable("the resource manager is starting; try again")
        if self._closing or self.fatal.done():
            return Unavailable("the resource manager is stopping; try again")
        return self._recovery.refusal() or self._lease.outage

    async def _in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, fn, *args)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            # Cleared before the lanes are looked at, so that an item that comes later wakes the
            # loop again.
            self._arrived.clear()
            while self._lanes or self._tick_due or (self._driver.unfinished and not self._closing):
                # Without events a batch does nothing unless ticked, so unfinished work is a tick.
                ticked, self._tick_due = self._tick_due or self._driver.unfinished, False
                batch = self._lanes.gather()
                self._metrics.queue_items.set(self._lanes.waiting_items)
                await self._serve(batch, ticked=ticked)
                if self.fatal.done():
                    return
                if not self._closing:  # when closing, the state may not have been read again
                    await self._maintain()
            if self._closing:
                return

    def _writer_ended(self, task: asyncio.Task[None]) -> None:
        """Ends the process if the writer failed, so that no caller waits indefinitely."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("writer_failed", exc_info=error)
            self._fail(FinegrainError(f"the writer failed: {error!r}"))

    async def _serve(self, batch: list[Item], *, ticked: bool) -> None:
        self._serving = batch
        try:
            effects = await self._in_thread(self._driver.run_batch, batch, ticked)
            # Even a batch of reads: a former leader's answers may be out of date.
            if batch or effects:
                await self._lease.confirm()
        except NotLeader as error:
            fail(batch, Unavailable(error.message, reason=Reason.NOT_LEADER))
            self._fail(error)
        # Executors follow a newer leader, or the database is older than they are. Nothing was
        # stored.
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
            # Callers are answered before the reload, which can take long.
            fail(batch, _public(error))
            await self._reload(error)
        else:
            # Only here, after commit and confirmation, does anything leave this process.
            for item in batch:
                item.settle()
            if effects and self._listener is not None:
                self._listener.on_effects(effects)

    async def _replaced(self) -> NotLeader | None:
        """Returns `NotLeader` if a successor is the reason why executors know a newer epoch.

        That error explains more than `EpochSeen`. None: no successor is known, or the database
        does not answer.
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
            # The next start meets the same executor, and stores it then.
            _log.warning("contest_not_stored", error=problem.message)

    def _fail(self, error: FinegrainError) -> None:
        # The first reason counts. Others follow from it.
        if not self.fatal.done():
            _log.info("stepping_down", reason=error.reason.value)  # `main` logs the error itself
            self.fatal.set_result(error)
        self._refuse_all(Unavailable("the resource manager is stopping", reason=Reason.NOT_LEADER))

    async def _reload(self, cause: BaseException) -> None:
        """Takes leadership and reads the state again, as soon as the database is back.

        The first attempt follows at once, unless the database is away. Further attempts wait
        between `RecoveryLimits.pause_s` and `pause_max_s`.
        """
        at_once = not isinstance(cause, StoreAway)
        while not self._closing:
            if (final := self._recovery.failed(cause, time.monotonic())) is not None:
                self._fail(final)
                return
            if (away := self._recovery.refusal()) is not None:
                self._refuse_all(away)
            if not at_once:
                # A failure that repeats at once would fill the log and load the database.
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
                _log.warning("books_reloaded", rm_epoch=self.rm_epoch)
                self._metrics.reloads.inc()
                # Calls in flight belong to the dropped state, and streams may have missed events.
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
        """Refuses callers while the database does not say who leads: another process may."""
        self._lease.check()
        if (outage := self._lease.outage) is not None:
            self._refuse_all(outage)
            # The batch in flight may still commit. Its callers learn the outcome by repeating.
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
                return  # the check goes on after the next batch


def _public(error: BaseException) -> FinegrainError:
    """Returns the error for the callers of a batch that was dropped."""
    if isinstance(error, StoreError):
        return error
    return StoreError("the change could not be stored and was not applied; try again")
