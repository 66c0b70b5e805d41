"""Iterates over the slots of several requests, in the order in which they are granted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from finegrain_client.blocking.generated import Request, Slot


class AsGranted:
    """Iterates over slots in the order in which they are granted; see `as_granted`."""

    def __init__(self, requests: Sequence[Request]) -> None:
        from finegrain_client.job.request import as_granted as async_as_granted

        self.loop = requests[0].loop if requests else None
        inner = [each.inner for each in requests]
        self.inner = self.loop.call(lambda: async_as_granted(inner)) if self.loop else None

    def __iter__(self) -> Iterator[Slot]:
        return self

    def __next__(self) -> Slot:
        if self.loop is None or self.inner is None:
            raise StopIteration
        try:
            return Slot(self.loop, self.loop.run(anext(self.inner)))
        except StopAsyncIteration:
            raise StopIteration from None


def as_granted(requests: Iterable[Request]) -> AsGranted:
    """Iterates over the slots of `requests` in the order in which they are granted. Each slot comes
    once.

    If a request ends without a slot, the iteration raises the error of `Request.granted`. To get
    the remaining slots, continue with `next` on the same iterator. If the caller ends the loop
    before the last slot, the remaining requests stay queued.
    """
    return AsGranted(list(requests))
