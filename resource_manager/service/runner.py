"""The one writer: the only place where the books change, and the order in which that becomes true.

Take what has arrived, step each event, decide, commit all of it in one transaction, and only then
answer the callers and let effects out. While a commit runs the next batch gathers, so that one
fsync serves many callers. Books, commits and reads live on one thread of their own: reads run
between batches and never show what is not durable, and the event loop stays free for calls.

If a commit fails nothing is answered as done: the books in memory are dropped, leadership is taken
anew (a higher epoch) and the books are read again; as long as the database is away, callers are
told so at once. Nothing goes out, answers to reads included, before it is sure that nobody else
leads by now. Knows no rules and no wire form.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from finegrain.errors import (
    FinegrainError,
    Reason,
    ResourceExhausted,
    StoreError,
    Unavailable,
)
from finegrain.logs import get_logger
from resource_manager.engine.effects import Effect
from resource_manager.engine.epochs import EpochSeen
from resource_manager.engine.state import State
from resource_manager.service.books import Books, BooksSuspect, Item, MakeEvent
from resource_manager.service.lease import LeaseKeeper
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.recovery import Recovery, RecoveryLimits
from resource_manager.storage.store import NotLeader, Store, StoreAway

_log = get_logger("finegrain.rm.runner")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Named limits of the writer."""

    batch_items_max: int = 5_000  # items of all events of one batch; a larger event goes alone
    queue_items_max: int = 200_000  # waiting; beyond it callers are told to come back
    overload_retry_s: float = 0.5
    tick_interval_s: float = 0.2
    maintain_interval_s: float = 1.0
    renew_interval_s: float = 0.25
    unsure_max_s: float = 1.0  # a lease in doubt for longer: callers are sent away
    check_interval_s: float = 10.0  # of the invariants; longer where a check takes long
    check_share_max: float = 0.01  # of the writer's time
    recovery: RecoveryLimits = field(default_factory=RecoveryLimits)


class Listener(Protocol):
    """Whoever carries out what was decided; called on the event loop, in order."""

    def on_effects(self, effects: Sequence[Effect]) -> None:
        """Effects of a batch that is durable."""

    def on_reload(self, rm_epoch: int) -> None:
        """The books were read anew: whatever was followed in memory may have gaps."""


class Runner:
    """Owns the books of this incarnation.

    `start` first; then `submit` and `read` from the event loop; `fatal` is set when the process has
    to end, with the error that says why.
    """

    def __init__(
        self,
        books: Books,
        metrics: ResourceManagerMetrics,
        *,
        limits: RunnerLimits | None = None,
    ) -> None:
        self._books = books
        self._metrics = metrics
        self._limits = limits or RunnerLimits()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rm-writer")
        self._lease = LeaseKeeper(books.store, self._limits.renew_interval_s, self._die)
        self._unsure_since_s: float | None = None
        self._serving: list[Item] = []
        self._listener: Listener | None = None
        self._urgent: deque[Item] = deque()
        self._queue: deque[Item] = deque()
        self._waiting_items = 0
        self._arrived = asyncio.Event()
        self._tick_due = False
        self._closing = False
        self._writer: asyncio.Task[None] | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._recovery = Recovery(self._limits.recovery)
        self._check_due_at = 0.0
        self._maintain_due_at = 0.0
        self.fatal: asyncio.Future[FinegrainError] = asyncio.get_running_loop().create_future()

    @property
    def rm_epoch(self) -> int:
        """The present incarnation."""
        return self._books.rm_epoch

    @property
    def healthy(self) -> bool:
        """True while requests are accepted and granted."""
        return self._writer is not None and not (
            self._closing
            or self.fatal.done()
            or self._books.broken
            or self._recovery.refusal() is not None
        )

    async def start(self, listener: Listener) -> int:
        """Takes leadership, reads the books and begins; answers with the epoch.

        Raises:
            StoreError: the database cannot be used, or another process leads.
            InvariantBroken: what it holds contradicts itself.
        """
        self._listener = listener
        await self._in_thread(self._books.lead)
        self._lease.start()
        try:
            await self._in_thread(self._books.read)
        except BaseException:
            self._lease.pause()
            raise
        if self.fatal.done():
            raise self.fatal.result()
        self._writer = asyncio.create_task(self._run(), name="rm-writer")
        self._writer.add_done_callback(self._writer_ended)
        self._timers = [
            asyncio.create_task(self._tick(), name="rm-tick"),
        ]
        return self.rm_epoch

    async def stop(self) -> None:
        """Serves what waits, then gives the database back. New callers are refused at once."""
        self._closing = True
        self._arrived.set()
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        for task in self._timers:
            task.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        self._refuse_all(Unavailable("the resource manager is stopping; try again"))
        self._lease.pause()
        await self._in_thread(self._books.store.close)
        self._lease.stop()
        self._thread.shutdown(wait=False)

    async def submit(
        self,
        make: MakeEvent,
        render: Callable[[Any], T] | None = None,
        *,
        items: int = 1,
        urgent: bool = False,
    ) -> T:
        """Steps an event and answers when it is durable.

        Args:
            make: the event for the moment it is given.
            render: turns the engine's answer into the result while the books stand still; None:
                the answer itself (use it only where it is immutable).
            items: how many items the event carries, for the limits.
            urgent: goes before others: signs of life and answers of executors.

        Raises:
            FinegrainError: as the engine refuses; StoreError when the commit failed (nothing is
                done, or the outcome is unknown and a repetition settles it) or the database is
                away; ResourceExhausted when too much waits.
        """
        if not urgent and self._waiting_items + items > self._limits.queue_items_max:
            self._metrics.refused_overload.inc()
            raise ResourceExhausted(
                f"{self._waiting_items} items wait to be written, which is the limit; try again",
                details={"limit": self._limits.queue_items_max},
                retry_after_s=self._limits.overload_retry_s,
            )
        item = Item(self._future(), make=make, render=render, items=items)
        result: T = await self._enqueue(item, urgent=urgent)
        return result

    async def read(self, fn: Callable[[State], T]) -> T:
        """Runs a function over the books between two batches. It must not keep what it sees.

        Raises:
            FinegrainError: as the function does; Unavailable while stopping.
        """
        result: T = await self._enqueue(Item(self._future(), read=fn), urgent=True)
        return result

    async def confirm(self) -> None:
        """Returns when nobody else can be leading; to be called before anything is commanded.

        Raises:
            NotLeader: somebody does; this process is about to end.
            StoreError: the database does not say.
        """
        try:
            await self._lease.be_sure()
        except NotLeader as error:
            self._die(error)
            raise

    async def in_store(self, fn: Callable[[Store], T]) -> T:
        """Runs a read-only call of the store (event logs) beside the writer."""
        return await asyncio.get_running_loop().run_in_executor(None, fn, self._books.store)

    # The event loop's side.

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def _enqueue(self, item: Item, *, urgent: bool) -> Any:
        if self._writer is None:
            raise Unavailable("the resource manager is starting; try again")
        if self._closing or self.fatal.done():
            raise Unavailable("the resource manager is stopping; try again")
        if (away := self._recovery.refusal() or self._doubt()) is not None:
            raise away
        (self._urgent if urgent else self._queue).append(item)
        self._waiting_items += item.items
        self._arrived.set()
        return await item.future

    async def _in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, fn, *args)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._urgent or self._queue or self._tick_due:
                ticked, self._tick_due = self._tick_due, False
                await self._serve(self._gather(), ticked=ticked)
                if self.fatal.done():
                    return
                if not self._closing:  # else the books may not have been read again
                    await self._maintain()
            if self._closing:
                return

    def _writer_ended(self, task: asyncio.Task[None]) -> None:
        """A writer that fails must not leave its callers waiting for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("writer_failed", exc_info=error)
            self._die(FinegrainError(f"the writer failed: {error!r}"))

    def _gather(self) -> list[Item]:
        """Everything urgent, then others in order up to the limit."""
        batch = list(self._urgent)
        self._urgent.clear()
        items = sum(item.items for item in batch)
        while self._queue and (
            not batch or items + self._queue[0].items <= self._limits.batch_items_max
        ):
            item = self._queue.popleft()
            items += item.items
            batch.append(item)
        self._waiting_items -= items
        self._metrics.queue_items.set(self._waiting_items)
        return batch

    async def _serve(self, batch: list[Item], *, ticked: bool) -> None:
        self._serving = batch
        try:
            effects = await self._in_thread(self._books.turn, batch, ticked)
            if batch or effects:
                await self._lease.be_sure()
        except NotLeader as error:
            self._fail(batch, Unavailable(error.message, reason=Reason.NOT_LEADER))
            self._die(error)
        except EpochSeen as error:
            self._fail(batch, Unavailable(error.message, reason=Reason.NOT_LEADER))
            self._die(await self._replaced() or error)
        except Exception as error:
            suspect = isinstance(error, BooksSuspect)
            (self._metrics.step_failures if suspect else self._metrics.commit_failures).inc()
            _log.error("batch_dropped", error=str(error), events=len(batch), exc_info=error)
            self._fail(batch, _public(error))
            await self._reload(error)
        else:
            for item in batch:
                item.settle()
            if effects and self._listener is not None:
                self._listener.on_effects(effects)

    async def _replaced(self) -> NotLeader | None:
        """The plainer reason why others know a newer epoch, where it is the reason."""
        try:
            await self._lease.ask()
        except NotLeader as error:
            return error
        except FinegrainError as error:
            _log.warning("renewal_failed", error=error.message)
        return None

    def _fail(self, batch: list[Item], error: FinegrainError) -> None:
        for item in batch:
            item.error = item.error or error
            item.settle()

    def _die(self, error: FinegrainError) -> None:
        if not self.fatal.done():
            _log.info("stepping_down", reason=error.reason.value)  # whoever ends us says more
            self.fatal.set_result(error)
        self._refuse_all(Unavailable("the resource manager is stopping", reason=Reason.NOT_LEADER))

    def _refuse_all(self, error: FinegrainError) -> None:
        waiting = [*self._urgent, *self._queue]
        self._urgent.clear()
        self._queue.clear()
        self._waiting_items = 0
        self._fail(waiting, error)

    async def _reload(self, cause: BaseException) -> None:
        """Reads the books anew, as soon as there is a database to read them from."""
        at_once = not isinstance(cause, StoreAway)
        while not self._closing:
            if (final := self._recovery.failed(cause, time.monotonic())) is not None:
                self._die(final)
                return
            if (away := self._recovery.refusal()) is not None:
                self._refuse_all(away)
            if not at_once:
                await asyncio.sleep(self._recovery.pause_s())
            at_once = False
            try:
                await self._in_thread(self._books.load)
            except NotLeader as error:
                self._die(error)
                return
            except Exception as error:
                if not isinstance(error, StoreAway):
                    _log.error("reload_failed", error=str(error), exc_info=error)
                cause = error
            else:
                self._recovery.recovered(time.monotonic())
                _log.warning("books_reloaded", rm_epoch=self.rm_epoch)
                self._metrics.reloads.inc()
                if self._listener is not None:
                    self._listener.on_reload(self.rm_epoch)
                return

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._limits.tick_interval_s
            await asyncio.sleep(self._limits.tick_interval_s)
            self._metrics.loop_lag.observe(max(0.0, loop.time() - due))
            self._watch_lease(time.monotonic())
            self._tick_due = True
            self._arrived.set()

    def _watch_lease(self, moment_s: float) -> None:
        """Sends callers away while the database does not say who leads: another may by now."""
        if self._lease.sure:
            self._unsure_since_s = None
            return
        if self._unsure_since_s is None:
            self._unsure_since_s = moment_s
        if (doubt := self._doubt()) is not None:
            self._refuse_all(doubt)
            for item in self._serving:  # what becomes of it is unknown; a repetition settles it
                if not item.future.done():
                    item.future.set_exception(doubt)

    def _doubt(self) -> Unavailable | None:
        since_s = self._unsure_since_s
        if since_s is None or time.monotonic() - since_s < self._limits.unsure_max_s:
            return None
        return Unavailable(
            "the database does not say whether this resource manager still leads; try again",
            reason=Reason.NOT_LEADER,
        )

    async def _maintain(self) -> None:
        moment = time.monotonic()
        if moment >= self._maintain_due_at:
            self._maintain_due_at = moment + self._limits.maintain_interval_s
            try:
                await self._in_thread(self._books.store.maintain)
            except NotLeader as error:
                self._die(error)
            except FinegrainError as error:
                _log.warning("maintenance_failed", error=error.message)
        if moment >= self._check_due_at and not self._books.broken:
            took_s = await self._in_thread(self._books.check)
            pause_s = max(self._limits.check_interval_s, took_s / self._limits.check_share_max)
            self._check_due_at = time.monotonic() + pause_s


def _public(error: BaseException) -> FinegrainError:
    """What the callers of a batch that came to nothing are told."""
    if isinstance(error, StoreError):
        return error
    return StoreError("the change could not be stored and was not made; try again")
