"""Ranges of requests for blocking callers; what they mean stands with their asyncio twins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from finegrain.intervals import Run
from finegrain_client.blocking.handles import Request, Slot
from finegrain_client.blocking.loop import PrivateLoop
from finegrain_client.errors import Rejection
from finegrain_client.job import ranges as aio_ranges
from finegrain_client.types import status as types


class RequestRange:
    """See `finegrain_client.RequestRange`."""

    def __init__(self, loop: PrivateLoop, inner: aio_ranges.RequestRange) -> None:
        self.loop = loop
        self.inner = inner
        self.range_id = inner.range_id

    def __repr__(self) -> str:
        return self.loop.call(lambda: repr(self.inner))

    def __len__(self) -> int:
        return self.loop.call(lambda: len(self.inner))

    def __contains__(self, index: object) -> bool:
        return self.loop.call(lambda: index in self.inner)

    @property
    def requests(self) -> dict[int, Request]:
        inner = self.loop.call(lambda: dict(self.inner.requests))
        return {index: Request(self.loop, each) for index, each in inner.items()}

    @property
    def ended(self) -> Counter[types.RequestState]:
        return self.loop.call(self.inner.ended.copy)

    @property
    def acknowledged(self) -> bool:
        return self.inner.acknowledged

    @property
    def rejection(self) -> Rejection | None:
        return self.inner.rejection

    @property
    def waiting(self) -> int:
        return self.loop.call(lambda: self.inner.waiting)

    @property
    def has_ended(self) -> bool:
        return self.loop.call(lambda: self.inner.has_ended)

    def waiting_members(self) -> list[Run]:
        return self.loop.call(self.inner.waiting_members)

    def index_of(self, allocation_id: str) -> int | None:
        return self.inner.index_of(allocation_id)

    def slots(self) -> Iterator[Slot]:
        for each in self.loop.iterate(self.loop.call(self.inner.slots)):
            yield Slot(self.loop, each)

    def cancel(self, first_index: int = 0, count: int | None = None) -> types.ItemOutcome:
        return self.loop.run(self.inner.cancel(first_index, count))

    def release(
        self, first_index: int = 0, count: int | None = None, grace_s: float | None = None
    ) -> types.ItemOutcome:
        return self.loop.run(self.inner.release(first_index, count, grace_s))
