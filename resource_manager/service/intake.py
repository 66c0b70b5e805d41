"""Where callers hand in what they want of the books, and wait for it.

Decides what is let in (nothing while it could not be served, no more than may wait) and who goes
before others. Refuses to know how a batch is served, and what becomes of the books.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from finegrain.errors import FinegrainError, ResourceExhausted
from resource_manager.engine.state import State
from resource_manager.service.engine_driver import Item, MakeEvent
from resource_manager.service.lanes import LaneLimits, Lanes
from resource_manager.service.metrics import ResourceManagerMetrics

T = TypeVar("T")


class Intake(ABC):
    """The callers' side of the writer; on the event loop."""

    def __init__(self, metrics: ResourceManagerMetrics, limits: LaneLimits) -> None:
        self._metrics = metrics
        self._lanes = Lanes(limits)
        self._arrived = asyncio.Event()

    @abstractmethod
    def _refusal(self) -> FinegrainError | None:
        """What everybody is refused with at present; None: whoever comes is served."""

    async def submit(
        self,
        make: MakeEvent,
        render: Callable[[Any], T] | None = None,
        *,
        items: int = 1,
        owner: str = "",
        urgent: bool = False,
    ) -> T:
        """Steps an event and answers when it is durable.

        Args:
            make: the event for the moment it is given.
            render: turns the engine's answer into the result while the books stand still; None:
                the answer itself (use it only where it is immutable).
            items: how many items the event carries, for the limits.
            owner: who takes turns with others: a job, a connection.
            urgent: goes before others: signs of life and answers of executors.

        Raises:
            FinegrainError: as the engine refuses; StoreError when the commit failed (nothing is
                done, or the outcome is unknown and a repetition settles it) or the database is
                away; ResourceExhausted when too much waits.
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
        """Steps the events of one large call in order, and others' calls between them.

        The first one goes ahead: if it is refused, none of the others is stepped. Admission counts
        all of them together; afterwards none is refused because too much waits.

        Args:
            makes: the events, each for the moment it is given.
            render: see `submit`.
            items: how many items one event carries at most.
            owner: see `submit`.

        Raises:
            FinegrainError: see `submit`; the other parts may have been done.
        """
        first, *rest = (
            Item(self._future(), make=each, render=render, items=items) for each in makes
        )
        self._let_in(owner, items * len(makes))
        with self._lanes.promised(owner, items * len(rest)):
            self._put(first, owner)
            result: T = await first.future
        for each in rest:
            self._put(each, owner)
        return [result, *await asyncio.gather(*(each.future for each in rest))]

    async def read(
        self, fn: Callable[[State], T], *, owner: str | None = None, items: int = 1
    ) -> T:
        """Runs a function over the books between two batches. It must not keep what it sees.

        Args:
            fn: the function.
            owner: who takes turns with others; None: a small question of the service's own, which
                is answered before anything else is done.
            items: how much there is to look at, for the limits.

        Raises:
            FinegrainError: as the function does; Unavailable while stopping; ResourceExhausted when
                too much waits.
        """
        item = Item(self._future(), read=fn, items=items)
        result: T = await self._enqueue(item, owner)
        return result

    def _refuse_all(self, error: FinegrainError) -> None:
        fail(self._lanes.drain(), error)

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def _enqueue(self, item: Item, owner: str | None) -> Any:
        """Waits for the item's turn; `owner` None: before all others."""
        self._let_in(owner, item.items)
        self._put(item, owner)
        return await item.future

    def _let_in(self, owner: str | None, items: int) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal
        try:
            if owner is not None:
                self._lanes.check(owner, items)
        except ResourceExhausted:
            self._metrics.refused_overload.inc()
            raise

    def _put(self, item: Item, owner: str | None) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal
        if owner is None:
            self._lanes.put_urgent(item)
        else:
            self._lanes.put(item, owner)
        self._arrived.set()


def fail(items: Sequence[Item], error: FinegrainError) -> None:
    """Tells whoever waits for these that nothing came of them; one with an error keeps it."""
    for item in items:
        item.error = item.error or error
        item.settle()
