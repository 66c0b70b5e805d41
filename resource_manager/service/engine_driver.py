"""Drives the engine on the writer's thread: reads the state, steps batches, checks invariants.

Within a batch every event is stepped, then `Decide`, then the changes are committed; only then
answers are made and reads are run. Everything here blocks and belongs to one thread.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from finegrain.errors import (
    FinegrainError,
    IllegalTransition,
    InvariantBroken,
    Unavailable,
)
from finegrain.logs import get_logger
from finegrain.values.states import RequestState
from resource_manager.engine.executors.reports import EpochSeen
from resource_manager.engine.model.effects import Effect, PublishJobEvent, StepResult
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.events import Decide, Event, Ticked
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.hosts import Heard
from resource_manager.engine.restoring import restore
from resource_manager.engine.state import State
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.storage.store import Store

_log = get_logger("finegrain.rm.books")

MakeEvent = Callable[[Instant], Event]
"""Events are made at the moment of their batch, so that time never runs backwards in the books."""

Step = Callable[[State, Event], StepResult]
Check = Callable[[State], Sequence[str]]


@dataclass(slots=True, eq=False)
class Item:
    """An event, or (`make` None) a read, and whoever waits for it."""

    future: asyncio.Future[Any]
    make: MakeEvent | None = None
    render: Callable[[Any], Any] | None = None  # answer to result, run before the next batch
    read: Callable[[State], Any] | None = None
    items: int = 1
    value: Any = None
    error: BaseException | None = None

    def settle(self) -> None:
        """Tells whoever waits; on the event loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


class StateSuspect(Exception):
    """A step failed, and may have left the state half-changed: it must be read again."""


class EngineDriver:
    """The engine's state, and the store that keeps it."""

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        metrics: ResourceManagerMetrics,
        *,
        holder: str,
        address: str = "",
        step: Step | None = None,
        check: Check | None = None,
        clock: Callable[[], Instant] | None = None,
    ) -> None:
        self.store = store
        self._settings = settings
        self._metrics = metrics
        self._holder = holder
        self.address = address  # told to those who find another one in the lead
        self._step = step or _engine_step()
        self._check = check or _engine_check()
        self._clock = clock or now
        self._state: State | None = None
        self._heard: Heard = {}  # by books of this process that were dropped
        self.rm_epoch = 0
        self.broken: list[str] = []  # invariants found broken; nothing is granted any more
        self._last_batch_ms = 0  # monotonic: when the latest change of the books began; 0: none
        self._stalled = False  # since the latest tick

    @property
    def state(self) -> State:
        """The books.

        Raises:
            Unavailable: they have not been read yet.
        """
        if self._state is None:
            raise Unavailable("the resource manager is starting; try again")
        return self._state

    @property
    def unfinished(self) -> bool:
        """True if the next turn has something to do although nobody may ask for it."""
        return self._state is not None and not self.broken and self._state.unfinished

    def load(self) -> None:
        """Takes leadership and reads the books; at a higher epoch each time. Raises as both."""
        self.lead()
        self.read()

    def lead(self) -> None:
        """Takes leadership at a higher epoch; whatever was known before is dropped.

        Raises:
            StoreError, NotLeader: as the store says.
        """
        if self._state is not None:
            self._heard |= self._state.hosts.heard()
        self._state = None
        self.rm_epoch = self.store.lead(
            self._holder, above_epoch=self.rm_epoch, address=self.address
        )
        self._metrics.rm_epoch.set(self.rm_epoch)

    def read(self) -> None:
        """Reads the books; the lease has to be renewed meanwhile, since large ones take long.

        Raises:
            StoreError: as the store says.
            InvariantBroken: the rows contradict each other.
        """
        with _no_collections():
            snapshot = self.store.load()
            snapshot.rm_epoch = self.rm_epoch
            self._state = restore(snapshot, self._settings, self._clock())
            self._state.hosts.remember(self._heard)
            del snapshot
        if others := self._state.usage_checkpoints.restarted:
            _log.warning(
                "usage_measure_changed", flows=others, service=self._settings.fairness.usage_measure
            )
        self.check()

    def run_batch(self, batch: list[Item], ticked: bool) -> list[Effect]:
        """One batch: afterwards it is durable and every item has its value or its error.

        Raises:
            StoreError, NotLeader, InvariantBroken: the commit failed.
            EpochSeen: the books are not the newest; nothing was stored, nothing may be commanded.
            StateSuspect: a step failed; the books must be read anew.
        """
        effects: list[Effect] = []
        if ticked or any(item.make is not None for item in batch):
            effects = self._change(batch, ticked)
        for item in batch:
            self._finish(item)
        return effects

    def check(self) -> float:
        """Checks all invariants; answers with the seconds that took."""
        started = time.perf_counter()
        found = list(self._check(self.state))
        self.broken = found
        self._metrics.ledger_mismatches.set(len(found))
        if found:
            _log.error("invariants_broken", found=found[:20], count=len(found))
        return time.perf_counter() - started

    def _change(self, batch: list[Item], ticked: bool) -> list[Effect]:
        started = time.perf_counter()
        effects: list[Effect] = []
        at = self._clock()
        self._notice_stall(at)
        for item in batch:
            if item.make is not None and not item.future.cancelled():
                effects += self._step_item(item, item.make(at))
        if ticked:  # last, so that signs of life that waited here count before anybody is lost
            effects += self._step_internal(Ticked(at, after_stall=self._stalled))
            self._stalled = False
        if not self.broken:
            effects += self._step_internal(Decide(at))
        changes = self.state.changes.take()
        decided = time.perf_counter()
        self._metrics.decision_seconds.observe(decided - started)
        if changes:
            self.store.commit(changes)
            self._metrics.commit_seconds.observe(time.perf_counter() - decided)
        self._observe_grants(effects)
        return effects

    def _notice_stall(self, at: Instant) -> None:
        """Ticks come many times in a report interval. Where they did not, we stood still, and what
        was sent to us meanwhile has not been read yet.
        """
        before_ms, self._last_batch_ms = self._last_batch_ms, at.monotonic_ms
        stood_still_ms = at.monotonic_ms - before_ms
        if before_ms and stood_still_ms > self._settings.report_interval_ms:
            self._stalled = True
            _log.warning("stood_still", milliseconds=stood_still_ms)

    def _observe_grants(self, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, PublishJobEvent) or effect.event.reason:
                continue  # a grant has no reason: with one, a slot's size is told about
            request = self.state.requests.get(effect.event.allocation_id)
            # Placements are numbered from the floor on, which a restore raises.
            first = (
                request is not None
                and request.generation == self.state.numbers.generation_floor + 1
            )
            if request is not None and first and effect.event.state is RequestState.GRANTED:
                waited_ms = max(0, effect.event.time_ms - request.create_time_ms)
                self._metrics.request_wait_seconds.observe(waited_ms / 1000)

    def _step_item(self, item: Item, event: Event) -> list[Effect]:
        try:
            result = self._step(self.state, event)
        except (IllegalTransition, InvariantBroken) as error:
            item.error = error
            raise StateSuspect(f"{type(event).__name__}: {error}") from error
        except EpochSeen as error:
            item.error = error
            raise
        except FinegrainError as error:
            item.error = error  # refused as a whole; the books are as before
            return []
        except Exception as error:
            item.error = FinegrainError("the resource manager failed at this call; see its log")
            raise StateSuspect(f"{type(event).__name__}: {error!r}") from error
        item.value = result.answer
        return result.effects

    def _step_internal(self, event: Event) -> list[Effect]:
        try:
            return self._step(self.state, event).effects
        except Exception as error:
            raise StateSuspect(f"{type(event).__name__}: {error!r}") from error

    def _finish(self, item: Item) -> None:
        """Turns the answer into the result, or runs the read."""
        if item.error is not None or item.future.cancelled():
            return
        try:
            if item.read is not None:
                item.value = item.read(self.state)
            elif item.render is not None:
                item.value = item.render(item.value)
        except Exception as error:
            item.error = error


@contextmanager
def _no_collections() -> Iterator[None]:
    """Lets the cyclic garbage collector alone while the books are read, and afterwards keeps it
    from looking through them again and again: they hold no cycles, and looking at a million
    objects stops everything for a good part of a second.
    """
    gc.unfreeze()  # what an earlier reading froze may be garbage by now
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def now() -> Instant:
    """This moment: time since boot, suspension included, and the wall clock."""
    return Instant(
        monotonic_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000,
        time_ms=time.time_ns() // 1_000_000,
    )


def _engine_step() -> Step:
    from resource_manager.engine.step import step

    return step


def _engine_check() -> Check:
    from resource_manager.engine.invariants.all import check_invariants

    return check_invariants
