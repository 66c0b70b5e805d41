"""A job for blocking callers; what it means stands with its asyncio twin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from finegrain_client.blocking.handles import Request, Slot
from finegrain_client.blocking.loop import PrivateLoop
from finegrain_client.blocking.ranges import RequestRange
from finegrain_client.job import job as aio_job
from finegrain_client.job.gangs import GangSpec
from finegrain_client.specs import SlotSpec
from finegrain_client.types import status as types


class Job:
    """See `finegrain_client.Job`."""

    def __init__(self, loop: PrivateLoop, inner: aio_job.Job) -> None:
        self.loop = loop
        self.inner = inner
        self.name = inner.name
        self.group = inner.group
        self.detached = inner.detached

    def __repr__(self) -> str:
        return repr(self.inner)

    def __enter__(self) -> Self:
        try:
            self.loop.run(self.inner.__aenter__())
        except BaseException as error:
            if self.inner.secret:  # interrupted when the job was there already
                self.loop.run(self.inner.__aexit__(type(error), error, None))
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.loop.run(self.inner.__aexit__(kind, error, trace))

    @property
    def job_id(self) -> str:
        return self.inner.job_id

    @property
    def secret(self) -> str:
        return self.inner.secret

    @property
    def lease_s(self) -> float:
        return self.inner.lease_s

    @property
    def requests(self) -> list[Request]:
        inner = self.loop.call(lambda: self.inner.requests)
        return [Request(self.loop, each) for each in inner]

    @property
    def ranges(self) -> list[RequestRange]:
        inner = self.loop.call(lambda: self.inner.ranges)
        return [RequestRange(self.loop, each) for each in inner]

    def request_slots(
        self,
        specs: SlotSpec | GangSpec | Iterable[SlotSpec | GangSpec],
        *,
        raise_on_reject: bool = True,
    ) -> list[Request]:
        work = self.inner.request_slots(specs, raise_on_reject=raise_on_reject)
        return [Request(self.loop, each) for each in self.loop.run(work)]

    def request_gang(
        self,
        members: SlotSpec | Sequence[SlotSpec],
        *,
        placement: types.GangPlacement | str = types.GangPlacement.ANYWHERE,
        label: str = "",
        timeout_s: float | None = None,
        gang_id: str = "",
    ) -> list[Slot]:
        work = self.inner.request_gang(
            members, placement=placement, label=label, timeout_s=timeout_s, gang_id=gang_id
        )
        return [Slot(self.loop, each) for each in self.loop.run(work)]

    def request_range(
        self,
        spec: SlotSpec,
        *,
        range_id: str = "",
        first_index: int = 0,
        raise_on_reject: bool = True,
    ) -> RequestRange:
        work = self.inner.request_range(
            spec, range_id=range_id, first_index=first_index, raise_on_reject=raise_on_reject
        )
        return RequestRange(self.loop, self.loop.run(work))

    def cancel(self, requests: Sequence[Request]) -> list[types.ItemOutcome]:
        return self.loop.run(self.inner.cancel([each.inner for each in requests]))

    def release(
        self, slots: Sequence[Slot], grace_s: float | None = None
    ) -> list[types.ItemOutcome]:
        return self.loop.run(self.inner.release([each.inner for each in slots], grace_s))

    def reuse(
        self, wishes: Sequence[tuple[Slot, Request | str]], grace_s: float | None = None
    ) -> list[types.ItemOutcome]:
        inner = [
            (slot.inner, each if isinstance(each, str) else each.inner) for slot, each in wishes
        ]
        return self.loop.run(self.inner.reuse(inner, grace_s))

    def events(self) -> Iterator[types.JobEvent]:
        return self.loop.iterate(self.loop.call(self.inner.events))

    def serve_offers(
        self,
        address: str = "127.0.0.1:0",
        *,
        insecure: bool = False,
    ) -> str:
        return self.loop.run(self.inner.serve_offers(address, insecure=insecure))

    def end(self, grace_s: float | None = None) -> None:
        self.loop.run(self.inner.end(grace_s))
