"""The callers' side of the writer: callers submit events and reads to `Intake`, and wait for the
result.

`Intake` admits items up to the limits. While the writer cannot serve items, `Intake` admits no
items. Urgent items are served before all others. `Runner` serves the batches.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from finegrain.errors import FinegrainError, ResourceExhausted
from finegrain.rpc.access import current_caller
from resource_manager.engine.explain.paused import Paused
from resource_manager.engine.state import State
from resource_manager.service.audit import call_queued, current_call
from resource_manager.service.engine_driver import Item, MakeEvent
from resource_manager.service.lanes import LaneLimits, Lanes
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.partial_read import PartialRead
from resource_manager.storage.audit_log import AuditedCall

T = TypeVar("T")


class Intake(ABC):
    """Admits events and reads, and puts them into the lanes. All methods run on the event loop."""

    def __init__(self, metrics: ResourceManagerMetrics, limits: LaneLimits) -> None:
        self._metrics = metrics
        self._lanes = Lanes(limits)
        self._arrived = asyncio.Event()

    @abstractmethod
    def _refusal(self) -> FinegrainError | None:
        """Returns the error with which all calls are rejected now; None: calls are served."""

    async def submit(
        self,
        make: MakeEvent,
        render: Callable[[Any], T] | None = None,
        *,
        items: int = 1,
        owner: str = "",
        urgent: bool = False,
        light: bool = False,
    ) -> T:
        """Submits an event, and returns its result when the change is durable.

        Args:
            make: makes the event from the time of its batch.
            render: makes the result from the engine's answer, at a time when the state does not
                change; None: the result is the answer itself, which must be immutable.
            items: the number of items in the event, for the limits.
            owner: the job or connection whose queue gets the item.
            urgent: whether the item is served before all others, for example a keep-alive.
            light: whether the event changes a few rows at most; see `EngineDriver.is_light`.

        Returns:
            The result of `render`.

        Raises:
            FinegrainError: the engine rejected the event.
            StoreError: the commit failed, or the database cannot be reached. If the outcome is
                unknown, the caller can repeat the call.
            ResourceExhausted: too many items are waiting.
        """
        item = self._event(make, render, items, light=light)
        result: T = await self._enqueue(item, None if urgent else owner)
        return result

    async def submit_chunks(
        self,
        makes: Sequence[MakeEvent],
        render: Callable[[Any], T] | None = None,
        *,
        items: int,
        owner: str,
        light: bool = False,
    ) -> list[T]:
        """Submits the events of one large call. The writer steps them one after the other, and can
        serve other callers in between.

        The first event is stepped alone. If it is rejected, the other events are not stepped. All
        events are admitted together, so no event is rejected later because too many items are
        waiting.

        Args:
            makes: functions that make the events from the time of their batch. There must be at
                least one.
            render: see `submit`.
            items: the maximum number of items in one event.
            owner: see `submit`.
            light: see `submit`.

        Returns:
            The results, in the order of `makes`.

        Raises:
            FinegrainError: see `submit`. Other events of the call possibly had their effect.
        """
        first, *rest = (self._event(each, render, items, light=light) for each in makes)
        self._let_in(owner, items * len(makes))
        # While the first event is stepped, the other events are counted as admitted. So other calls
        # of the owner cannot use the places of these events.
        with self._lanes.promised(owner, items * len(rest)):
            self._put(first, owner)
            result: T = await first.future
        # There is no await between the end of `promised` and these lines, so each item is counted
        # exactly once.
        for each in rest:
            self._put(each, owner)
        return [result, *await asyncio.gather(*(each.future for each in rest))]

    async def put(self, metas: Mapping[str, str | None], *, audited: bool = True) -> None:
        """Stores values that belong to the whole cluster. None deletes a value.

        Args:
            metas: the values by key.
            audited: whether the audit log records the call in progress. False if the values only
                follow from another change.

        Raises:
            StoreError: the commit failed, or the database cannot be reached.
            Unavailable: the resource manager is stopping.
        """
        call = current_call() if audited else None
        await self._enqueue(Item(self._future(), metas=metas, audited=call), None)

    async def record(self, call: AuditedCall) -> None:
        """Adds an entry to the audit log for a change that was made elsewhere.

        Raises:
            StoreError: the commit failed, or the database cannot be reached.
            Unavailable: the resource manager is stopping.
        """
        await self._enqueue(Item(self._future(), metas={}, audited=call), None)

    async def read(
        self, fn: Callable[[State], T], *, owner: str | None = None, items: int = 1
    ) -> T:
        """Runs a function on the state between two batches.

        Args:
            fn: the function. The function must not keep references to the state.
            owner: the job or connection whose queue gets the read; None: a short read by the
                resource manager itself. Such a read is served before all others.
            items: the number of entries that the function reads, for the limits.

        Returns:
            The result of the function.

        Raises:
            FinegrainError: the function raised it.
            Unavailable: the resource manager is stopping.
            ResourceExhausted: too many items are waiting.
        """
        item = Item(self._future(), read=fn, items=items)
        result: T = await self._enqueue(item, owner)
        return result

    async def read_in_slices(
        self, begin: Callable[[State], Paused[T]], *, owner: str | None = None, items: int = 1
    ) -> T:
        """Runs a long read over the state in slices, with other batches in between.

        Args:
            begin: begins the read, which pauses between its slices. If the state is read again from
                the database meanwhile, the read begins again.
            owner: the owner of each slice; see `read`.
            items: the number of entries that one slice reads, for the limits.

        Returns:
            The result of the read.

        Raises the errors of `read`.
        """
        partial = PartialRead(begin)
        while (done := await self.read(partial.run_slice, owner=owner, items=items)) is None:
            pass
        return done[0]

    def _refuse_all(self, error: FinegrainError) -> None:
        fail(self._lanes.drain(), error)

    def _event(
        self, make: MakeEvent, render: Callable[[Any], Any] | None, items: int, *, light: bool
    ) -> Item:
        audited = current_call()
        return Item(
            self._future(),
            make=make,
            render=render,
            items=items,
            # The entry of a recorded call can need a read of the audit log.
            is_light=light and audited is None,
            actor=current_caller().name,
            audited=audited,
        )

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def _enqueue(self, item: Item, owner: str | None) -> Any:
        """Queues the item, in the urgent lane if `owner` is None, and waits for its result."""
        self._let_in(owner, item.items)
        self._put(item, owner)
        return await item.future

    def _let_in(self, owner: str | None, items: int) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal
        try:
            # Only the fair queues have a limit here. Urgent items are few: answers of executors,
            # keep-alives (limited by `JobAdmission`) and short reads.
            if owner is not None:
                self._lanes.check(owner, items)
        except ResourceExhausted:
            self._metrics.refused_overload.inc()
            raise

    def _put(self, item: Item, owner: str | None) -> None:
        # The refusal is checked again, because the runner can begin to stop after the admission.
        if (refusal := self._refusal()) is not None:
            raise refusal
        if owner is None:
            self._lanes.put_urgent(item)
        else:
            self._lanes.put(item, owner)
        if item.audited is not None:
            call_queued()
        self._arrived.set()


def fail(items: Sequence[Item], error: FinegrainError) -> None:
    """Reports the error to the callers of these items.

    An item that already has an error keeps it.
    """
    for item in items:
        item.error = item.error or error
        item.settle()
