"""Checks time limits of slots and wait timeouts of requests. It notes the times itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from finegrain.errors import Reason
from finegrain.values.states import RequestState
from resource_manager.engine.model.effects import Effect, PublishJobEvent
from resource_manager.engine.state import State
from task_executor.engine.slots import CarveState, Slot, SlotKey

if TYPE_CHECKING:
    from tests.simulation.executor import Executor

SLACK_MS = 1_000
"""The time by which an executor may end a slot too late: it checks time limits only from time to
time.
"""

STARTS_MS = 6_000
"""The time that an executor has after its start: it first waits until unknown slots are removed."""


@dataclass
class Count:
    """The start of the time limit of a slot.

    Attributes:
        limit_ms: the time limit.
        since_ms: the start of the limit. A crash may lose a later start that was not saved yet, so
            there may be several.
        reuse: number of the last reuse that the executor has learned.
    """

    limit_ms: int
    since_ms: list[int]
    reuse: int = 0


@dataclass
class Waits:
    """The times since which requests wait, while one manager leads."""

    since_ms: dict[str, int] = field(default_factory=dict)
    restored: frozenset[str] | None = None  # requests that waited when the manager began
    overdue: set[str] = field(default_factory=set)  # overdue at the last tick


class TimeChecks:
    """Records when time limits and timeouts started."""

    def __init__(self) -> None:
        self.did: Counter[str] = Counter()
        self._counts: dict[SlotKey, Count] = {}
        self._ready_ms: dict[str, int] = {}  # by executor: the time of its last start
        self._agreed_ms: dict[SlotKey, int] = {}  # when a job master learned of a reuse
        # by executor: the time at which it sent the last report that was answered
        self._reported_ms: dict[str, int] = {}
        self._waits: WeakKeyDictionary[State, Waits] = WeakKeyDictionary()

    # -- time limits of slots --------------------------------------------------------------

    def starts(self, executor: Executor) -> None:
        """Records that an executor starts, or is ready."""
        self._ready_ms[executor.name] = executor.loop.now_ms

    def carved(self, slot: Slot) -> None:
        """Records that a slot was carved: its time limit starts."""
        if slot.spec.time_limit_ms is not None:
            assert slot.limited_since_ms is not None
            self._counts[slot.key] = Count(slot.spec.time_limit_ms, [slot.limited_since_ms])

    def reused(self, executor: Executor, key: SlotKey, reuse: int) -> None:
        """Records that an executor has learned of a reuse. The time limit starts again, once for
        each reuse.
        """
        count, slot = self._counts.get(key), executor.table.get(key)
        if count is None or slot is None or slot.state is not CarveState.ALLOCATED:
            return
        # A crash may have lost a reuse that was not saved. The manager then names it again.
        if reuse > count.reuse or len(count.since_ms) > 1:
            count.since_ms.append(executor.loop.now_ms)
            count.reuse = reuse
            self.did["counts again"] += 1

    def agreed(self, key: SlotKey, now_ms: int) -> None:
        """Records that a job master may reuse a slot."""
        self._agreed_ms[key] = now_ms

    def reported(self, executor: Executor, sent_ms: int) -> None:
        """Records that an executor has received the answer to a report."""
        self._reported_ms[executor.name] = sent_ms

    def restored(self) -> None:
        """Records that a backup replaced the database, which does not contain later reuses."""
        self._agreed_ms.clear()

    def kept(self, key: SlotKey, reuse: int) -> None:
        """Records that an executor has saved a reuse."""
        count = self._counts.get(key)
        if count is not None and count.reuse == reuse:
            count.since_ms = count.since_ms[-1:]

    def over(self, executor: Executor, keys: Iterable[SlotKey]) -> Iterator[str]:
        """Checks slots that an executor ends now at their time limits; yields problems."""
        now_ms = executor.loop.now_ms
        for key in keys:
            count = self._counts[key]
            self.did["time limits"] += 1
            early_ms = min(count.since_ms) + count.limit_ms - now_ms
            if early_ms > 0:
                yield f"{executor.name} ends {key} {early_ms} ms before its time limit"
            agreed_ms = self._agreed_ms.get(key, -1)
            if count.since_ms[-1] < agreed_ms < self._reported_ms.get(executor.name, 0):
                yield f"{executor.name} ends {key}, and does not know that it was reused"
            yield from self._late(executor, key, count)

    def running(self, executors: Iterable[Executor]) -> Iterator[str]:
        """Yields slots that should have ended at their time limits."""
        for executor in executors:
            for slot in executor.table if executor.up else ():
                count = self._counts.get(slot.key)
                if count is not None and slot.state is CarveState.ALLOCATED:
                    yield from self._late(executor, slot.key, count, STARTS_MS)

    def _late(
        self, executor: Executor, key: SlotKey, count: Count, more_ms: int = 0
    ) -> Iterator[str]:
        now_ms, due_ms = executor.loop.now_ms, max(count.since_ms) + count.limit_ms
        able_ms = max(self._ready_ms[executor.name], executor.stopped_until_ms) + more_ms
        if now_ms - max(due_ms, able_ms) > SLACK_MS:
            yield f"{key} on {executor.name} goes on {now_ms - due_ms} ms after its time limit"

    def healed(self, state: State, executor: Executor) -> Iterator[str]:
        """Yields slots whose executor has not learned of their last reuse."""
        for slot in executor.table:
            booked = state.slots.get((slot.key.allocation_id, slot.key.generation))
            if booked is not None and booked.reuse_number > slot.reuse_number:
                yield (
                    f"{slot.key} was reused {booked.reuse_number} times, and {executor.name} knows"
                    f" of {slot.reuse_number}"
                )

    # -- wait timeouts of requests ---------------------------------------------------------

    def decided(self, state: State, effects: Iterable[Effect], now_ms: int) -> Iterator[str]:
        """Checks which requests a batch has rejected because they waited too long; yields
        problems.
        """
        waits = self._waits.setdefault(state, Waits())
        for effect in effects:
            if isinstance(effect, PublishJobEvent) and effect.event.reason == Reason.TIMED_OUT:
                yield from self._timed_out(state, waits, effect.event.allocation_id, now_ms)
        now = _waiting(state)
        waits.since_ms = {name: waits.since_ms.get(name, now_ms) for name in now}
        if waits.restored is None:
            waits.restored = frozenset(now) if state.considered_arrival else frozenset()

    def _timed_out(self, state: State, waits: Waits, name: str, now_ms: int) -> Iterator[str]:
        self.did["timeouts"] += 1
        request = state.requests.get(name)
        since_ms = waits.since_ms.get(name)
        # The wait of other requests began before they were noted.
        if request is None or request.generation or since_ms is None:
            return
        timeout_ms = request.spec.wait_timeout_ms
        if timeout_ms is None:
            yield f"{name} has no timeout, and is rejected for it"
        elif name not in (waits.restored or ()) and now_ms - since_ms < timeout_ms:
            yield f"{name} is rejected after {now_ms - since_ms} ms, and may wait {timeout_ms} ms"

    def late(self, state: State, now_ms: int) -> Iterator[str]:
        """Yields requests that wait for longer than their timeout. Called after a tick."""
        waits = self._waits.get(state)
        if waits is None:  # with many hosts, these checks are left out
            return
        overdue = {
            name
            for name, timeout_ms in _waiting(state).items()
            if now_ms - waits.since_ms.get(name, now_ms) > timeout_ms
        }
        for name in sorted(overdue & waits.overdue):
            yield f"{name} still waits {now_ms - waits.since_ms[name]} ms, beyond its timeout"
        waits.overdue = overdue


def _waiting(state: State) -> dict[str, int]:
    """Returns the timeouts of requests that wait and are not members of a range."""
    return {
        name: timeout_ms
        for name, request in state.requests.items()
        if request.state is RequestState.PENDING
        and (timeout_ms := request.spec.wait_timeout_ms) is not None
        and request.job_id not in state.endings
        and state.ranges.named(name) is None
    }
