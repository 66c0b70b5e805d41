"""Implements the handles of ranges: many slot requests that are equal except for their index.

The client keeps only the indexes of waiting members and counts of ended members. A member that was
granted a slot is an ordinary `Request`. `submission.py` submits ranges, and `watch.py` delivers
their events.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable

from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.ids import check_id
from finegrain.intervals import IntervalSet, Run
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import slots_pb2
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import RequestState
from finegrain_client.decoding import read
from finegrain_client.durations import grace
from finegrain_client.errors import Rejection
from finegrain_client.internal import internal
from finegrain_client.job.context import JobContext
from finegrain_client.job.request import Request
from finegrain_client.slot.slot import Slot
from finegrain_client.specs import SlotSpec
from finegrain_client.types.status import JobEvent

RANGE_ID_LENGTH_MAX = 100

INDEX_END = 1_000_000_000_000
"""The upper bound of indexes, exclusive."""


class RequestRange:
    """A range of equal slot requests, each of which waits, has a slot, or has ended.

    Attributes:
        range_id: id of the range. Member `index` has the allocation id `<range_id>.<index>`.
        requests: members that were granted a slot and have not ended, by index.
        ended: number of ended members, by state.
        acknowledged: True if the resource manager has stored the range durably.
        rejection: the reason why the range was rejected as a whole; None if the range was not
            rejected.
    """

    range_id: str
    requests: dict[int, Request]
    ended: Counter[RequestState]
    acknowledged: bool
    rejection: Rejection | None

    def __init__(self, context: JobContext, message: slots_pb2.SlotRequest) -> None:
        self._context = context
        self._template = message
        self._waiting = IntervalSet()
        self._members = IntervalSet()
        self._listeners: set[GrantedSlots] = set()
        self._error: FinegrainError | None = None
        self.range_id = message.allocation_id
        self.requests = {}
        self.ended = Counter()
        self.acknowledged = False
        self.rejection = None

    def __repr__(self) -> str:
        return (
            f"<RequestRange {self.range_id}: {len(self._waiting)} wait, {len(self.requests)} have"
            f" slots, {self.ended.total()} have ended>"
        )

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, index: object) -> bool:
        return index in self._members

    @property
    def waiting(self) -> int:
        """Number of waiting members that never had a slot."""
        return len(self._waiting)

    @property
    def has_ended(self) -> bool:
        """True if all members have ended and can no longer change their state."""
        return self._error is not None or not (self._waiting or self.requests)

    def waiting_members(self) -> list[Run]:
        """Returns the indexes of waiting members that never had a slot, as half-open intervals."""
        return list(self._waiting.runs())

    def index_of(self, allocation_id: str) -> int | None:
        """Returns the index of the member with this allocation id, or None if this is not an id of
        this range.
        """
        range_id, _, digits = allocation_id.rpartition(".")
        if range_id != self.range_id or not (digits.isascii() and digits.isdecimal()):
            return None
        # Only the canonical form is a member's id: "7", not "07".
        return int(digits) if str(int(digits)) == digits else None

    def slots(self) -> GrantedSlots:
        """Iterates over the current slots, then over each new slot; see `GrantedSlots`."""
        slots = GrantedSlots(self, self._listeners.discard)
        # Register the iterator before the current slots are queued, so that no slot is missed.
        if not self.has_ended:
            self._listeners.add(slots)
        for request in self.requests.values():
            if request.slot is not None and not request.slot.has_ended:
                slots.put(request.slot)
        if self.has_ended:
            slots.end(self._error)
        return slots

    async def cancel(self, first_index: int = 0, count: int | None = None) -> ItemOutcome:
        """Cancels members. The resource manager releases the slots of these members.

        Args:
            first_index: index of the first member to cancel.
            count: number of members to cancel, with consecutive indexes; None means all members
                from `first_index` on.

        Raises:
            InvalidArgument: an index is below 0, or `INDEX_END` or above.
            FinegrainError: the call to the resource manager failed.
        """
        message = rm.CancelRequestsRequest(
            job_id=self._context.job_id, ranges=[self._some(first_index, count)]
        )
        answer = await self._context.call_manager(
            lambda manager, timeout_s: manager.CancelRequests(message, timeout=timeout_s)
        )
        return read(ItemOutcome, answer.range_results[0])

    async def release(
        self, first_index: int = 0, count: int | None = None, grace_s: float | None = None
    ) -> ItemOutcome:
        """Releases the slots of members, and cancels members that wait.

        Args:
            first_index: index of the first member to release.
            count: number of members to release, with consecutive indexes; None means all members
                from `first_index` on.
            grace_s: time in seconds between SIGTERM and SIGKILL for tasks that still run; None
                means the executor's default.

        Raises:
            InvalidArgument: an index is below 0, or `INDEX_END` or above.
            FinegrainError: the call to the resource manager failed.
        """
        message = rm.ReleaseSlotsRequest(
            job_id=self._context.job_id,
            ranges=[self._some(first_index, count)],
            grace=grace(grace_s),
        )
        answer = await self._context.call_manager(
            lambda manager, timeout_s: manager.ReleaseSlots(message, timeout=timeout_s)
        )
        return read(ItemOutcome, answer.range_results[0])

    def _some(self, first_index: int, count: int | None) -> slots_pb2.RangeMembers:
        if not 0 <= first_index < INDEX_END:
            raise InvalidArgument("first_index", first_index, f"0 to {INDEX_END - 1}")
        most = INDEX_END - first_index
        if count is not None and not 1 <= count <= most:
            raise InvalidArgument("count", count, f"1 to {most}, or None for all that follow")
        return slots_pb2.RangeMembers(
            range_id=self.range_id, first_index=first_index, count=most if count is None else count
        )

    # The methods below are for the job that owns the range.

    @internal
    def add(self, start: int, end: int) -> int:
        """Adds waiting members `start` to `end` (exclusive). Returns the number of new members."""
        new = self._members.add_run(start, end)
        if new:
            self._waiting.add_run(start, end)
        return new

    @internal
    def attach(self, index: int, request: Request) -> None:
        """Adds a request as the member `index`. Does nothing if this member is already known."""
        if index not in self._members:
            self._members.add(index)
            self.requests[index] = request

    @internal
    def message_of(self, index: int) -> slots_pb2.SlotRequest:
        """Returns the request of one member as a protocol message."""
        message = slots_pb2.SlotRequest()
        message.CopyFrom(self._template)
        message.allocation_id = f"{self.range_id}.{index}"
        return message

    @internal
    def waiting_within(self, start: int, end: int) -> list[Run]:
        """Returns the known waiting members in this interval that never had a slot."""
        return list(self._waiting.runs_within(start, end))

    @internal
    def promote(self, index: int) -> Request | None:
        """Converts a waiting member to a `Request`. Returns None if the member does not wait."""
        if index not in self._waiting:
            return None
        self._waiting.discard(index)
        request = self.requests[index] = Request(self._context, self.message_of(index))
        request.acknowledged = True
        return request

    @internal
    def member_changed(self, index: int) -> None:
        """Updates the range after the request of a member has changed."""
        request = self.requests[index]
        slot = request.slot
        if request.state is RequestState.GRANTED and slot is not None and not slot.has_ended:
            for listener in self._listeners:
                listener.put(slot)
        if request.has_ended:
            del self.requests[index]
            self.ended[request.state] += 1
            for listener in self._listeners:
                listener.forget_member(request.allocation_id)
            self._end_if_done()

    @internal
    def end_waiting(self, start: int, end: int, state: RequestState) -> None:
        """Counts the waiting members from `start` to `end` (exclusive) as ended in `state`."""
        self.ended[state] += self._waiting.remove_run(start, end)
        self._end_if_done()

    @internal
    def reject(self, rejection: Rejection) -> None:
        """Records that the resource manager has rejected the last submitted members."""
        self.rejection = rejection
        self._end_if_done()

    @internal
    def forget(self, start: int, end: int) -> None:
        """Removes members that the resource manager rejected, or that the caller gave up."""
        self._waiting.remove_run(start, end)
        self._members.remove_run(start, end)

    @internal
    def fail(self, error: FinegrainError) -> None:
        """Ends the range with `error`, because the job or its watch stream has ended."""
        if not self.has_ended:
            self._error = error
        # Iterate over a copy, because `end` removes the listener.
        for listener in list(self._listeners):
            listener.end(error)

    def _end_if_done(self) -> None:
        if self.has_ended:
            for listener in list(self._listeners):
                listener.end(None)


class GrantedSlots:
    """Iterates over the slots of a range as they are granted. The iteration ends when all members
    have ended.

    The iteration yields each slot once. A new slot that replaces a lost slot is yielded, too. For
    members that end without a slot, nothing is yielded; `RequestRange.ended` counts these members.
    A slot can be lost before the caller gets it, so check `Slot.has_ended`.

    Raises (from the iteration):
        JobEnded: the job has ended.
    """

    def __init__(self, owner: RequestRange, forget: Callable[[GrantedSlots], None]) -> None:
        self._owner = owner
        self._forget = forget
        self._waiting: deque[Slot] = deque()
        self._yielded: dict[str, int] = {}  # for each allocation id, the newest generation
        self._changed = asyncio.Event()
        self._end: Exception | None = None

    def __aiter__(self) -> AsyncIterator[Slot]:
        return self

    async def __anext__(self) -> Slot:
        while not self._waiting:
            if self._end is not None:
                raise self._end
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Stops listening."""
        self.end(None)

    def put(self, slot: Slot) -> None:
        """Queues a granted slot. Does nothing if the slot was queued before."""
        # Skip a known generation, because the same slot is reported again after a resize.
        if self._yielded.get(slot.allocation_id, 0) < slot.generation:
            self._yielded[slot.allocation_id] = slot.generation
            self._waiting.append(slot)
            self._changed.set()

    def forget_member(self, allocation_id: str) -> None:
        """Forgets the generation of a member that has ended."""
        self._yielded.pop(allocation_id, None)

    def end(self, error: FinegrainError | None) -> None:
        """Ends the iteration. Slots that are already queued can still be read."""
        if self._end is None:
            self._end = error or StopAsyncIteration()
            self._forget(self)
            self._changed.set()


def check_range(spec: SlotSpec, range_id: str, first_index: int) -> None:
    """Checks the arguments of `Job.request_range`.

    Args:
        spec: the request of each member.
        range_id: id of the range; an empty value means that an id is generated later.
        first_index: index of the first member.

    Raises:
        InvalidArgument: the arguments do not make a valid range.
    """
    if range_id:
        check_id("range_id", range_id)
        if len(range_id) > RANGE_ID_LENGTH_MAX:
            raise InvalidArgument("range_id", range_id, f"at most {RANGE_ID_LENGTH_MAX} characters")
    if spec.target_address:
        raise InvalidArgument(
            "target_address", spec.target_address, "empty: executors do not offer members directly"
        )
    if spec.allocation_id:
        raise InvalidArgument(
            "allocation_id", spec.allocation_id, "empty: members are named by range_id and index"
        )
    if type(first_index) is not int or not 0 <= first_index <= INDEX_END - spec.count:
        raise InvalidArgument(
            "first_index", first_index, f"an integer from 0 to {INDEX_END - spec.count}"
        )


def range_message(
    template: slots_pb2.SlotRequest, first_index: int, count: int
) -> slots_pb2.RequestRange:
    """Returns the message that requests members of a range.

    Args:
        template: the request of each member, with the id of the range as its allocation id.
        first_index: index of the first member.
        count: number of members.
    """
    request = slots_pb2.SlotRequest()
    request.CopyFrom(template)
    request.allocation_id = ""
    return slots_pb2.RequestRange(
        range_id=template.allocation_id, first_index=first_index, count=count, request=request
    )


def members_of(event: JobEvent) -> tuple[str, int, int] | None:
    """Splits an event's allocation id into range id, first index and member count.

    Returns None if the id does not have the form of a range member.
    """
    range_id, dot, digits = event.allocation_id.rpartition(".")
    if not dot or not (digits.isascii() and digits.isdecimal()):
        return None
    return range_id, int(digits), max(1, event.count)
