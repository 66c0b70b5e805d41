"""Submits and cancels requests, in batches that each fit into one message.

A gang is never split. If a call fails or is cancelled, the client cancels all requests that the
call has possibly submitted, because the caller has no handle of these requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import slots_pb2
from finegrain.values.outcomes import ItemOutcome, ThreadReport
from finegrain_client.call_limits import BATCH_BYTES_MAX, BATCH_ITEMS_MAX, id_batches
from finegrain_client.decoding import read
from finegrain_client.errors import Rejection, rejected
from finegrain_client.job.background import CLEANING_UP
from finegrain_client.job.context import JobContext
from finegrain_client.job.gangs import GangSpec
from finegrain_client.job.ranges import RequestRange, range_message
from finegrain_client.job.request import Request
from finegrain_client.job.watch import JobWatch
from finegrain_client.retry import REFUSALS
from finegrain_client.slot.reusing import Reuse, reuse_once
from finegrain_client.specs import SlotSpec
from finegrain_client.types.status import Gang

Wanted = SlotSpec | GangSpec | Iterable[SlotSpec | GangSpec]


@dataclass(slots=True)
class Piece:
    """A request or a gang. One call must contain the whole piece."""

    requests: list[slots_pb2.SlotRequest]
    gang: slots_pb2.Gang | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the piece within a message.

        Each item adds at most 6 bytes of field number and length.
        """
        size = sum(each.ByteSize() + 6 for each in self.requests)
        return size + (self.gang.ByteSize() + 6 if self.gang is not None else 0)


@dataclass(slots=True)
class Batch:
    """The content of one call."""

    requests: list[slots_pb2.SlotRequest] = field(default_factory=list)
    gangs: list[slots_pb2.Gang] = field(default_factory=list)


def pieces(wanted: Wanted) -> Iterator[Piece]:
    """Yields the requested slots and gangs as pieces, in which every request has a different id."""
    for spec in [wanted] if isinstance(wanted, SlotSpec | GangSpec) else wanted:
        if isinstance(spec, GangSpec):
            gang = spec.message()
            yield Piece(list(spec.requests(gang.gang_id)), gang)
        else:
            for message in spec.messages():
                yield Piece([message])


def batches(
    many: Iterable[Piece], *, items_max: int = BATCH_ITEMS_MAX, bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[Batch]:
    """Puts pieces, in order, into batches. Each batch fits into one call.

    Args:
        many: the pieces. A single piece that exceeds a limit becomes a separate batch.
        items_max: maximum number of requests in a batch.
        bytes_max: maximum size of a batch in bytes.
    """
    batch, batch_bytes = Batch(), 0
    for piece in many:
        size = piece.size_bytes
        items = len(batch.requests) + len(piece.requests)
        if batch.requests and (items > items_max or batch_bytes + size > bytes_max):
            yield batch
            batch, batch_bytes = Batch(), 0
        batch.requests += piece.requests
        if piece.gang is not None:
            batch.gangs.append(piece.gang)
        batch_bytes += size
    if batch.requests:
        yield batch


class Submission:
    """Submits and cancels the requests of one job."""

    def __init__(self, context: JobContext, watch: JobWatch) -> None:
        self._context = context
        self._watch = watch

    async def submit(self, wanted: Wanted, *, raise_on_reject: bool) -> list[Request]:
        """Submits requests; see `Job.request_slots`."""
        many = list(pieces(wanted))
        requests: list[Request] = []
        for piece in many:
            gang = read(Gang, piece.gang) if piece.gang is not None else None
            requests += [self._request(each, gang) for each in piece.requests]
        # Add the handles before the calls: the watch stream can be faster than an answer.
        self._watch.requests.update({each.allocation_id: each for each in requests})
        tried: list[Batch] = []
        try:
            for batch in batches(many):
                # Record the batch before the call: even if the call fails, the batch may have been
                # accepted.
                tried.append(batch)
                await self._send(batch)
        except BaseException as error:
            if isinstance(error, REFUSALS):
                # the batch was rejected as a whole, so no request of the batch was stored
                del tried[-1]
            # Remove the handles first, so that they receive no more events.
            self._forget([each.allocation_id for each in requests])
            self._withdraw([each.allocation_id for one in tried for each in one.requests])
            raise
        rejections = [each.rejection for each in requests if each.rejection is not None]
        if rejections and raise_on_reject:
            # The caller gets no handles, so accepted requests must not stay queued.
            self.give_up([each for each in requests if each.rejection is None])
            raise rejected(rejections)
        return requests

    async def submit_range(self, spec: SlotSpec, range_id: str, first: int) -> RequestRange:
        """Submits members of a range; see `Job.request_range`.

        A rejection is in `RequestRange.rejection`.
        """
        (template,) = replace(spec, count=1, allocation_id=range_id).messages()
        # Add the range before the call: the watch stream can be faster than the answer.
        known = self._watch.ranges.by_id.setdefault(range_id, RequestRange(self._context, template))
        known.rejection = None
        members = first, first + spec.count
        is_new = known.add(*members) == spec.count
        message = rm.RequestResourceRequest(
            job_id=self._context.job_id, ranges=[range_message(template, first, spec.count)]
        )
        try:
            answer = await self._context.call_manager(
                lambda manager, timeout_s: manager.RequestResource(message, timeout=timeout_s)
            )
        except BaseException as error:
            # Cancel the members only if all of them are new. If the call repeats an earlier call,
            # other code possibly uses the members.
            if is_new:
                known.forget(*members)
                self._watch.ranges.drop_if_ended(known)
                if not isinstance(error, REFUSALS) and self._watch.error is None:
                    self._withdraw_members(range_id, *members)
            raise
        known.acknowledged = True
        outcome = read(ItemOutcome, answer.range_results[0])
        if not outcome.ok:
            if is_new:
                known.forget(*members)
            known.reject(Rejection.of(range_id, outcome))
        self._watch.ranges.drop_if_ended(known)
        return known

    async def reuse_for_new(
        self,
        pairs: Sequence[Reuse],
        template: slots_pb2.SlotRequest,
        first: int,
        count: int,
        reports: Mapping[str, ThreadReport],
    ) -> tuple[list[ItemOutcome], ItemOutcome | None]:
        """Submits members of a range, and reuses slots for them in the same call. It is safe to
        repeat the call.

        Args:
            pairs: slots, each with the allocation id of a new member.
            template: the request of each member, with the id of the range.
            first: index of the first new member.
            count: number of new members.
            reports: see `reuse_once`.

        Returns:
            The outcomes of the pairs, and the outcome of the new members. The latter is None if the
            resource manager has an older version, which ignores new members.
        """
        range_id = template.allocation_id
        # Add the members before the call: the watch stream can be faster than the answer.
        known = self._watch.ranges.by_id.setdefault(range_id, RequestRange(self._context, template))
        members = first, first + count
        known.add(*members)
        message = range_message(template, first, count)
        outcomes, of_ranges = await reuse_once(self._context, pairs, reports, ranges=[message])
        known.acknowledged = True
        if not of_ranges or not of_ranges[0].ok:
            known.forget(*members)
        self._watch.ranges.drop_if_ended(known)
        return outcomes, of_ranges[0] if of_ranges else None

    def _withdraw_members(self, range_id: str, first: int, end: int) -> None:
        members = slots_pb2.RangeMembers(range_id=range_id, first_index=first, count=end - first)
        self._context.background.start(
            self._cancel_members(members),
            f"{CLEANING_UP} {end - first} members of range {range_id}",
        )

    async def _cancel_members(self, members: slots_pb2.RangeMembers) -> None:
        message = rm.CancelRequestsRequest(job_id=self._context.job_id, ranges=[members])
        await self._context.call_manager(
            lambda manager, timeout_s: manager.CancelRequests(message, timeout=timeout_s)
        )

    def give_up(self, requests: Iterable[Request]) -> None:
        """Drops the handles of requests, and starts to cancel the requests in the background."""
        ids = [each.allocation_id for each in requests if not each.has_ended]
        self._forget(ids)
        self._withdraw(ids)

    async def cancel(self, ids: Sequence[str]) -> list[ItemOutcome]:
        """Cancels requests. Returns one outcome per request."""
        outcomes: list[ItemOutcome] = []
        for some in id_batches(ids):
            message = rm.CancelRequestsRequest(job_id=self._context.job_id, allocation_ids=some)
            answer = await self._context.call_manager(
                lambda manager, timeout_s, message=message: manager.CancelRequests(  # type: ignore[misc]
                    message, timeout=timeout_s
                )
            )
            outcomes += read.each(ItemOutcome, answer.results)
        return outcomes

    def _request(self, message: slots_pb2.SlotRequest, gang: Gang | None) -> Request:
        return Request(self._context, message, gang)

    async def _send(self, batch: Batch) -> None:
        message = rm.RequestResourceRequest(
            job_id=self._context.job_id, requests=batch.requests, gangs=batch.gangs
        )
        answer = await self._context.call_manager(
            lambda manager, timeout_s: manager.RequestResource(message, timeout=timeout_s)
        )
        for sent, result in zip(batch.requests, answer.results, strict=True):
            request = self._watch.requests.get(sent.allocation_id)
            if request is None:
                continue  # the watch stream has already reported the end of the request
            request.acknowledged = True
            if result.HasField("error"):
                request.reject(Rejection.of(sent.allocation_id, read(ItemOutcome, result)))
                del self._watch.requests[sent.allocation_id]

    def _forget(self, ids: Iterable[str]) -> None:
        for allocation_id in ids:
            self._watch.requests.pop(allocation_id, None)

    def _withdraw(self, ids: Sequence[str]) -> None:
        if ids and self._watch.error is None:
            self._context.background.start(
                self._cancel_all(ids),
                f"{CLEANING_UP} {len(ids)} requests of job {self._context.job_id}",
            )

    async def _cancel_all(self, ids: Sequence[str]) -> None:
        await self.cancel(ids)
