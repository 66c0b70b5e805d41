"""The callers' side of the writer: callers submit events and reads here and wait for the result.

`Intake` decides what is admitted: nothing while it could not be served, and no more than the limits
allow. Urgent items go before all others. `Runner` serves the batches.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from finegrain.errors import FinegrainError, ResourceExhausted
from resource_manager.engine.explain.paused import Paused
from resource_manager.engine.state import State
from resource_manager.service.engine_driver import Item, MakeEvent
from resource_manager.service.lanes import LaneLimits, Lanes
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.partial_read import PartialRead

T = TypeVar("T")


class Intake(ABC):
    """Admits events and reads and puts them into the lanes. Runs on the event loop."""

    def __init__(self, metrics: ResourceManagerMetrics, limits: LaneLimits) -> None:
        self._metrics = metrics
        self._lanes = Lanes(limits)
        self._arrived = asyncio.Event()

    @abstractmethod
    def _refusal(self) -> FinegrainError | None:
        """Returns the error with which every call is refused at present; None: calls are served."""

    async def submit(
        self,
        make: MakeEvent,
        render: Callable[[Any], T] | None = None,
        *,
        items: int = 1,
        owner: str = "",
        urgent: bool = False,
    ) -> T:
        """Steps an event and returns its result once the change is durable.

        Args:
            make: makes the event, given the moment of its batch.
            render: turns the engine's answer into the result while the state does not change;
                None: the answer itself (only for immutable answers).
            items: how many items the event carries, for the limits.
            owner: the job or connection whose queue the item joins.
            urgent: serve before all others; for keep-alives and answers of executors.

        Returns:
            What `render` returned.

        Raises:
            FinegrainError: the engine refused the event.
            StoreError: the commit failed (nothing was done, or the outcome is unknown and a
                repetition settles it), or the database is away.
            ResourceExhausted: too many items wait.
        """
        item = Item(self._future(), make=make, render=render, items=items)
        result: T = await self._enqueue(item, None if urgent else owner)
        return result

    async def submit_chunks(
        self,
        makes: Sequence[MakeEvent],
        render: Callable[[Any], T] | None = None,
        *,
        items: int,
        owner: str,
    ) -> list[T]:
        """Steps the events of one large call in order; other callers' events run between them.

        The first event is stepped alone. If it is refused, none of the others is stepped.
        Admission counts all events together, so none is refused later because too much waits.

        Args:
            makes: make the events, each given the moment of its batch. At least one.
            render: see `submit`.
            items: how many items one event carries at most.
            owner: see `submit`.

        Returns:
            The results, in the order of `makes`.

        Raises:
            FinegrainError: see `submit`. Other events of the call may have been done.
        """
        first, *rest = (
            Item(self._future(), make=each, render=render, items=items) for each in makes
        )
        self._let_in(owner, items * len(makes))
        # The rest counts as admitted while the first event is stepped, so that other calls of the
        # owner cannot take its place.
        with self._lanes.promised(owner, items * len(rest)):
            self._put(first, owner)
            result: T = await first.future
        # Nothing is awaited between the end of `promised` and these lines, so no item is counted
        # twice or not at all.
        for each in rest:
            self._put(each, owner)
        return [result, *await asyncio.gather(*(each.future for each in rest))]

    async def read(
        self, fn: Callable[[State], T], *, owner: str | None = None, items: int = 1
    ) -> T:
        """Runs a function over the state between two batches.

        `fn` must not keep references to the state.

        Args:
            fn: the function.
            owner: the job or connection whose queue the read joins; None: a short read by the
                resource manager itself, which is served before all others.
            items: how many entries the function looks at, for the limits.

        Returns:
            What the function returned.

        Raises:
            FinegrainError: the function raised it.
            Unavailable: the resource manager is stopping.
            ResourceExhausted: too many items wait.
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
                the database meanwhile, it begins again.
            owner: see `read`; for each slice.
            items: see `read`; for each slice.

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

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def _enqueue(self, item: Item, owner: str | None) -> Any:
        """Queues the item and waits for its result; `owner` None: in the urgent lane."""
        self._let_in(owner, item.items)
        self._put(item, owner)
        return await item.future

    def _let_in(self, owner: str | None, items: int) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal
        try:
            # Only the fair queues are limited here. Urgent items are few: executors, keep-alives
            # (limited by `JobAdmission`) and short reads.
            if owner is not None:
                self._lanes.check(owner, items)
        except ResourceExhausted:
            self._metrics.refused_overload.inc()
            raise

    def _put(self, item: Item, owner: str | None) -> None:
        # Checked again: the runner may have begun to stop since the item was admitted.
        if (refusal := self._refusal()) is not None:
            raise refusal
        if owner is None:
            self._lanes.put_urgent(item)
        else:
            self._lanes.put(item, owner)
        self._arrived.set()


def fail(items: Sequence[Item], error: FinegrainError) -> None:
    """Fails these items for their callers. An item that already has an error keeps it."""
    for item in items:
        item.error = item.error or error
        item.settle()
