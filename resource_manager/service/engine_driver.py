"""Runs the engine on the writer's thread: reads the state, steps batches, checks invariants.

For a batch, the driver steps every event, runs `Decide`, and commits the changes. It makes the
answers and runs the reads only after the commit. All methods block, and must be called by the
writer: on its thread, or for the steps of a light batch on the event loop while the thread is idle.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping
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
from resource_manager.engine.model.changes import CONTESTED_EPOCH
from resource_manager.engine.model.effects import (
    Changes,
    Effect,
    PublishClusterEvent,
    PublishJobEvent,
    StepResult,
)
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.events import Decide, Event, Ticked
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.hosts import ReportNumbers
from resource_manager.engine.restoring import restore
from resource_manager.engine.state import State
from resource_manager.service.audit import RefusalCounts, outcome_of
from resource_manager.service.checking import Findings, StateCheck
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.storage.audit_log import ENTRIES_MAX, OK, AuditChain, AuditedCall
from resource_manager.storage.store import Contested, Store

_log = get_logger("finegrain.rm.state")

MakeEvent = Callable[[Instant], Event]
"""A function that makes an event with the time of its batch. So times in the state never
decrease.
"""

CHECK_WINDOW_S = 60.0
CHECKED_AT_ONCE_S = 0.05
"""The longest time, in seconds, for which a state is checked before callers are served. The check
of a large state continues between the first batches.
"""

LIGHT_ITEMS_MAX = 8
"""Largest number of requests, slots or outcomes in a light event; see `EngineDriver.is_light`."""

LIGHT_BATCH_MAX = 32
"""The largest number of items in a light batch."""

LIGHT_S = 0.002
"""A batch is light only if the previous batch took at most this time, in seconds."""

Step = Callable[[State, Event], StepResult]


@dataclass(slots=True, eq=False)
class Item:
    """An item of a batch: an event (`make`), values to store (`metas`), or a read (`read`).
    `future` is the future of the caller.
    """

    future: asyncio.Future[Any]
    make: MakeEvent | None = None
    render: Callable[[Any], Any] | None = None  # makes the result from the engine's answer
    read: Callable[[State], Any] | None = None
    items: int = 1  # number of the call's rows, for the limits
    is_light: bool = False  # True: the event changes a few rows at most
    actor: str = ""  # identity of the caller, for cluster events
    audited: AuditedCall | None = None
    metas: Mapping[str, str | None] | None = None  # values to store; None deletes a value
    value: Any = None
    error: BaseException | None = None

    def settle(self) -> None:
        """Resolves the caller's future. The method must run on the event loop."""
        # The future is done if the caller has cancelled the call, or was rejected while the batch
        # was running.
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


class StateSuspect(Exception):
    """A step failed, and the state has possibly been changed only in part. The state must be read
    again.
    """


class EngineDriver:
    """Keeps the engine's state, and the store that makes the state durable.

    Args:
        store: the database.
        settings: the engine's settings.
        metrics: the metrics that count durations and failures.
        holder: the name of this process in the lease, for people.
        address: the address at which other processes call this process. This address is stored with
            the lease.
        step: replaces the engine's step, for tests.
        check: a function that replaces the check of all invariants; tests use it.
        check_window_s: the time in which all invariants must be checked once, in seconds.
        clock: replaces the clock, for tests.
        audit_entries_max: number of entries that the audit log keeps.
        light_s: a batch is light only if the previous batch took at most this time, in seconds.
    """

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        metrics: ResourceManagerMetrics,
        *,
        holder: str,
        address: str = "",
        step: Step | None = None,
        check: Findings | None = None,
        check_window_s: float = CHECK_WINDOW_S,
        clock: Callable[[], Instant] | None = None,
        audit_entries_max: int = ENTRIES_MAX,
        light_s: float = LIGHT_S,
    ) -> None:
        self.store = store
        self._settings = settings
        self._metrics = metrics
        self._holder = holder
        # While this process leads, standbys report these addresses to callers and browsers.
        self.address = address
        self.page_address = ""
        self._step = step or _engine_step()
        self._check = StateCheck(check or _engine_check(), check_window_s)
        self._clock = clock or now
        self.refusals = RefusalCounts(lambda: self._clock().time_ms)
        self._audit = AuditChain(audit_entries_max)
        self._state: State | None = None
        # Numbers of the last reports in states that this process has dropped.
        self._report_numbers: ReportNumbers = {}
        self.rm_epoch = 0
        # broken invariants; no slots are granted while this list is not empty
        self.broken: list[str] = []
        self._decision_due = False  # True: events wait for the end of the first check
        self._light_s = light_s
        self._decided_s = 0.0  # time of the steps and of the decision of the latest batch
        self._last_batch_ms = 0  # monotonic time of the latest batch or tick; 0: none yet
        self._stalled = False  # True: the process was paused since the latest tick

    @property
    def state(self) -> State:
        """The engine's state.

        Raises:
            Unavailable: the state has not been read yet.
        """
        if self._state is None:
            raise Unavailable("the resource manager is starting; try again")
        return self._state

    @property
    def unfinished(self) -> bool:
        """True if the last decision is incomplete and needs another batch, even without callers."""
        if self._state is None or not self._decides:
            return False
        return self._state.unfinished or self._decision_due

    @property
    def _decides(self) -> bool:
        """True if slots are granted: all invariants were checked, and none is broken."""
        return self._check.complete and not self.broken

    def load(self) -> None:
        """Becomes the leader at a higher epoch, and reads the state.

        Raises:
            FinegrainError: see `lead` and `read`.
        """
        self.lead()
        self.read()

    def lead(self) -> None:
        """Becomes the leader at a higher epoch, and drops the state in memory.

        Raises:
            StoreError: another process leads (STORE_IN_USE), or the database cannot be used.
            NotLeader: this process led, and another process has taken over.
        """
        # Keep the numbers of applied reports. A registration that was superseded before the reload
        # must still be rejected.
        if self._state is not None:
            self._report_numbers |= self._state.hosts.report_numbers()
        # The state is dropped first. If the next line fails, another process has possibly changed
        # the database.
        self._state = None
        self.rm_epoch = self.store.lead(
            self._holder,
            above_epoch=self.rm_epoch,
            address=self.address,
            page_address=self.page_address,
        )
        self._metrics.rm_epoch.set(self.rm_epoch)

    def read(self) -> None:
        """Reads the state from the store.

        The read can take long, so the caller must renew the lease during the read.

        Raises:
            StoreError: the database cannot be used.
            InvariantBroken: the rows contradict each other.
            Contested: an earlier leader stopped because an executor knew a newer epoch.
        """
        with _no_collections():
            snapshot = self.store.load()
            self._audit.load(self.store)
            if seen := snapshot.counters.get(CONTESTED_EPOCH, 0):
                raise Contested(seen)
            # The stored state has the epoch of the previous leader.
            snapshot.rm_epoch = self.rm_epoch
            self._state = restore(snapshot, self._settings, self._clock())
            self._state.hosts.restore_report_numbers(self._report_numbers)
            del snapshot
        if others := self._state.usage_checkpoints.restarted:
            _log.warning(
                "usage_measure_changed", flows=others, service=self._settings.fairness.usage_measure
            )
        # All invariants are checked once before slots are granted from the state. Calls that grant
        # nothing do not wait until a large state is checked.
        self._report(self._check.run(self.state, CHECKED_AT_ONCE_S))

    def contest(self, seen_epoch: int) -> None:
        """Records in the database that an executor knows a newer epoch. After that, no process
        serves from this database until an administrator has decided which database to keep.

        Each restart raises the epoch. Without this record, after some restarts the epoch would be
        as high as the epoch that executors have seen. Executors would then free all slots that are
        not in this database.

        Raises:
            StoreError: the record could not be stored.
        """
        self.store.commit(Changes(counters={CONTESTED_EPOCH: seen_epoch}))

    def is_light(self, batch: list[Item], ticked: bool) -> bool:
        """Returns True if the steps of a batch are so short that they can run on the event loop.

        A hand-over to the writer's thread and back takes longer than such steps. The time of a
        decision depends on the state, so the time of the previous batch counts, too.
        """
        return (
            not ticked
            and len(batch) <= LIGHT_BATCH_MAX
            and self._decided_s <= self._light_s
            and all(item.is_light for item in batch)
        )

    def run_batch(self, batch: list[Item], ticked: bool) -> list[Effect]:
        """Runs one batch: `step_batch`, `commit` and `finish_batch`. Afterwards, the batch is
        durable, and every item has its value or its error.

        Args:
            batch: the events and reads, in the order in which they are served.
            ticked: whether the timers run too.

        Returns:
            The effects, in order.

        Raises:
            Exception: see `step_batch` and `commit`.
        """
        effects, changes = self.step_batch(batch, ticked)
        # A batch that changes nothing needs no transaction.
        if changes is not None:
            self.commit(changes)
        self.finish_batch(batch, effects)
        return effects

    def commit(self, changes: Changes) -> None:
        """Stores the changes of a batch.

        Raises:
            StoreError: the commit failed.
            NotLeader: the commit failed because another process leads.
            InvariantBroken: the changed rows contradict each other. Nothing was stored.
        """
        started = time.perf_counter()
        self.store.commit(changes)
        self._metrics.commit_seconds.observe(time.perf_counter() - started)

    def finish_batch(self, batch: list[Item], effects: list[Effect]) -> None:
        """Makes the answers and runs the reads of a batch that is durable. Earlier, they could show
        a change that is not on disk yet.
        """
        self._observe_grants(effects)
        for item in batch:
            self._finish(item)

    @property
    def check_due(self) -> bool:
        """True if a slice of the invariants should be checked now."""
        return not self.broken and self._check.due()

    def check_slice(self) -> None:
        """Checks some of the invariants. If an invariant is broken, no more slots are granted."""
        self._report(self._check.run_slice(self.state))

    def _report(self, found: list[str]) -> None:
        self.broken = found
        self._metrics.ledger_mismatches.set(len(found))
        if found:
            _log.error("invariants_broken", found=found[:20], count=len(found))

    def step_batch(self, batch: list[Item], ticked: bool) -> tuple[list[Effect], Changes | None]:
        """Steps the events of a batch, and decides. Returns the effects and the changes to store;
        None: there is nothing to store.

        Args:
            batch: see `run_batch`.
            ticked: whether the timers run too.

        Raises:
            EpochSeen: an executor knows a newer epoch. Nothing was stored, and this process must
                not send commands.
            StateSuspect: a step failed, and the state must be read again.
        """
        effects: list[Effect] = []
        if not ticked and all(item.make is None and item.metas is None for item in batch):
            return effects, None
        started = time.perf_counter()
        # All events of a batch get the same time. So their order does not change their times.
        at = self._clock()
        metas: dict[str, str | None] = {}
        self._notice_stall(at)
        for item in batch:
            # The caller cancelled the call while the call waited. So the call must have no effect.
            if item.future.cancelled():
                continue
            if item.make is not None:
                effects += self._step_item(item, item.make(at))
            metas.update(item.metas or {})
            if item.audited is not None:
                outcome = OK if item.error is None else outcome_of(item.error)
                self._audit.add(at.time_ms, item.audited, outcome)
        # Timers run after the events, so that the keep-alives of this batch still count.
        if ticked:
            effects += self._step_internal(Ticked(at, after_stall=self._stalled))
            self._stalled = False
            for call, outcome, count in self.refusals.take():
                self._audit.add(at.time_ms, call, outcome, count)
        # While an invariant is broken or not checked, no slots are granted. The other events are
        # still stepped.
        self._decision_due = not self._check.complete
        if self._decides:
            effects += self._step_internal(Decide(at))
        changes = self.state.changes.take()
        changes.metas.update(metas)
        self._audit.put_into(changes, self.store)
        self._decided_s = time.perf_counter() - started
        self._metrics.decision_seconds.observe(self._decided_s)
        return effects, changes or None

    def _notice_stall(self, at: Instant) -> None:
        """Detects that this process did not run for some time, for example because it was
        suspended.

        Normally, several ticks come in one report interval. During a longer gap, reports of
        executors have possibly arrived that are not read yet. So the next tick must not count
        executors as lost.
        """
        before_ms, self._last_batch_ms = self._last_batch_ms, at.monotonic_ms
        stood_still_ms = at.monotonic_ms - before_ms
        if before_ms and stood_still_ms > self._settings.report_interval_ms:
            self._stalled = True
            _log.warning("stood_still", milliseconds=stood_still_ms)

    def _observe_grants(self, effects: list[Effect]) -> None:
        # Generations start above `generation_floor`, which a restore from a backup raises.
        first = self.state.numbers.generation_floor + 1
        for effect in effects:
            if not isinstance(effect, PublishJobEvent):
                continue
            event = effect.event
            # GRANTED with a reason reports a resize.
            if event.state is not RequestState.GRANTED or event.reason:
                continue
            request = self.state.requests.get(event.allocation_id)
            if request is not None and request.generation == first:
                waited_ms = max(0, event.time_ms - request.create_time_ms)
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
            item.error = error  # the engine rejected the event; the state is unchanged
            return []
        except Exception as error:
            item.error = FinegrainError(
                "the resource manager failed while it handled this call; see its log"
            )
            raise StateSuspect(f"{type(event).__name__}: {error!r}") from error
        item.value = result.answer
        for effect in result.effects:
            if isinstance(effect, PublishClusterEvent):
                effect.event.actor = item.actor
        return result.effects

    def _step_internal(self, event: Event) -> list[Effect]:
        try:
            return self._step(self.state, event).effects
        except Exception as error:
            raise StateSuspect(f"{type(event).__name__}: {error!r}") from error

    def _finish(self, item: Item) -> None:
        """Makes the result from the engine's answer, or runs the read."""
        if item.error is not None or item.future.cancelled():
            return
        try:
            if item.read is not None:
                item.value = item.read(self.state)
            elif item.render is not None:
                item.value = item.render(item.value)
        # The change is durable, but the answer to the caller could not be made.
        except Exception as error:
            item.error = error


@contextmanager
def _no_collections() -> Iterator[None]:
    """Disables the cyclic garbage collector while the state is read, and then freezes the state.

    The state contains no cycles. One collection over a million objects stops the process for a
    large part of a second. After `gc.freeze`, later collections skip these objects.
    """
    gc.unfreeze()  # a state that was frozen earlier is possibly garbage now
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def now() -> Instant:
    """Returns the present time: time since boot, including suspension, and the wall clock."""
    return Instant(
        monotonic_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000,
        time_ms=time.time_ns() // 1_000_000,
    )


def _engine_step() -> Step:
    from resource_manager.engine.step import step

    return step


def _engine_check() -> Findings:
    from resource_manager.engine.invariants.all import findings

    return findings
