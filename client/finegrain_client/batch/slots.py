"""Keeps the slots of a batch. This module is the part of the runner that calls the resource
manager.

All requests of a job are members of one range, `<range id>.<index>`. This module repeats a call
until the resource manager answers it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from finegrain.errors import FinegrainError, Unavailable
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import slots_pb2
from finegrain.values.outcomes import ItemOutcome, ThreadReport
from finegrain.values.states import RequestState
from finegrain_client.batch.rows import JobRow
from finegrain_client.batch.scheduler_state import SlotKey
from finegrain_client.errors import Rejection, SlotLost, rejected
from finegrain_client.job.events import JobEvents
from finegrain_client.job.job import Job
from finegrain_client.job.releasing import release
from finegrain_client.retry import Backoff, RetryPolicy
from finegrain_client.slot.reusing import Reuse, reuse
from finegrain_client.slot.slot import Slot
from finegrain_client.specs import SlotSpec
from finegrain_client.types.status import JobEvent, SlotStatus

T = TypeVar("T")
log = logging.getLogger("finegrain_client")

RANGES_MAX = 100
"""Maximum number of intervals in one call."""

RETRY_POLICY = RetryPolicy(first_delay_s=0.2, longest_delay_s=5.0)


@dataclass(frozen=True, slots=True)
class Granted:
    """A request got its slot."""

    key: SlotKey
    member: int
    executor_id: str


@dataclass(frozen=True, slots=True)
class Requeued:
    """The slot of a request was lost, and the request waits for another slot."""

    allocation_id: str
    member: int


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """A request has ended. If `count` is above 1, the members with the next indexes have also
    ended.
    """

    allocation_id: str
    member: int
    state: RequestState
    reason: str
    message: str
    count: int = 1  # number of consecutive members


@dataclass(frozen=True, slots=True)
class WatchEnded:
    """The job or its watch stream has ended."""

    error: FinegrainError


SlotMessage = Granted | Requeued | RequestFinished | WatchEnded


async def retry_until_answered(work: Callable[[], Awaitable[T]], what: str) -> T:
    """Makes a call, repeats it until the resource manager answers, and returns the result.

    Raises:
        FinegrainError: any error of `work` other than Unavailable.
    """
    backoff = Backoff(RETRY_POLICY)
    while True:
        try:
            return await work()
        except Unavailable as error:
            log.warning("%s: %s; trying again", what, error.message)
        await asyncio.sleep(backoff.next_s())


class NewMembersRefused(Exception):
    """The resource manager did not accept the new members of a call of `BatchSlots.reuse`, and has
    released the slots. `error` is None if another request for the members is allowed.
    """

    def __init__(self, error: FinegrainError | None) -> None:
        super().__init__(error)
        self.error = error


class BatchSlots:
    """The requests and slots of one job of a batch."""

    def __init__(self, job: Job, row: JobRow, slot: SlotSpec) -> None:
        self._job = job
        self._range_id = row.range_id
        # With these settings, the resource manager queues the request of a lost slot again by
        # itself.
        self._spec = replace(slot, restart_on_loss=True, restart_on_device_loss=True)
        # Make this message only once, because a batch of short tasks makes many calls.
        (self._template,) = replace(self._spec, count=1, allocation_id=row.range_id).messages()
        self._slots: dict[str, Slot] = {}
        self._events: JobEvents = job.events()

    def slot(self, key: SlotKey) -> Slot | None:
        """Returns a slot of the job, or None if the job does not have this slot any more."""
        slot = self._slots.get(key[0])
        return slot if slot is not None and slot.generation == key[1] else None

    @property
    def held(self) -> list[Slot]:
        """All slots that have not ended."""
        return [each for each in self._slots.values() if not each.has_ended]

    def present(self) -> tuple[list[Granted], list[tuple[int, int]]]:
        """Returns the slots and the waiting members (first and count) at this moment."""
        granted: list[Granted] = []
        waiting: list[tuple[int, int]] = []
        known = next((each for each in self._job.ranges if each.range_id == self._range_id), None)
        if known is None:  # in this case no member waits or has a slot
            return granted, waiting
        waiting += [(first, end - first) for first, end in known.waiting_members()]
        for member, request in known.requests.items():
            slot = request.slot
            if slot is None or slot.has_ended:
                waiting.append((member, 1))  # the slot of this member was lost
                continue
            self._slots[slot.allocation_id] = slot
            key = slot.allocation_id, slot.generation
            granted.append(Granted(key, member, slot.executor_id))
        return granted, waiting

    async def listen(self, deliver: Callable[[SlotMessage], None]) -> None:
        """Delivers all events since this object was created, until the job ends."""
        try:
            async for event in self._events:
                message = self._message_of(event)
                if message is not None:
                    deliver(message)
        except FinegrainError as error:
            deliver(WatchEnded(error))

    async def ask(self, first: int, count: int) -> None:
        """Requests members of the range.

        Raises:
            RequestRejected: the requests can never be served.
            Unavailable: no answer came. If members were accepted, the client cancels them.
            FinegrainError: the resource manager refused the call for another reason.
        """
        spec = replace(self._spec, count=count)
        await self._job.request_range(spec, range_id=self._range_id, first_index=first)

    async def give_up(self, runs: Sequence[tuple[int, int]]) -> None:
        """Cancels waiting members.

        If a member was granted in the meantime, the resource manager releases its slot.
        """
        for start in range(0, len(runs), RANGES_MAX):
            message = rm.CancelRequestsRequest(
                job_id=self._job.job_id,
                ranges=[
                    slots_pb2.RangeMembers(range_id=self._range_id, first_index=first, count=count)
                    for first, count in runs[start : start + RANGES_MAX]
                ],
            )
            await retry_until_answered(partial(self._cancel, message), "cancelling requests")

    async def _cancel(self, message: rm.CancelRequestsRequest) -> None:
        context = self._job._context
        await context.call_manager(
            lambda manager, timeout_s: manager.CancelRequests(message, timeout=timeout_s)
        )

    async def release(
        self, keys: Sequence[SlotKey], reports: Mapping[SlotKey, ThreadReport]
    ) -> None:
        """Releases slots. `reports` says what happened to the threads in the slots."""
        slots = [slot for key in keys if (slot := self.slot(key)) is not None]
        if slots:
            context, by_id = self._job._context, _by_allocation_id(reports)
            await retry_until_answered(
                lambda: release(context, slots, None, by_id), "releasing slots"
            )

    async def reuse(
        self,
        pairs: Sequence[tuple[SlotKey, int]],
        reports: Mapping[SlotKey, ThreadReport],
        new: tuple[int, int] | None = None,
    ) -> list[bool]:
        """Returns for each slot whether the slot may be reused for its member. If the resource
        manager rejects the reuse of a slot, it releases the slot.

        Args:
            pairs: slots, each with a member.
            reports: what happened to the threads in the slots.
            new: first index and count of members that the same call requests; None if all members
                already wait.

        Raises:
            NewMembersRefused: the new members were not accepted, and none of the slots is reused.
            FinegrainError: the resource manager refused the call.
        """
        # A slot may have been lost in the meantime. The call must not name a lost slot, which
        # cannot be reused.
        there = {key: slot for key, _ in pairs if (slot := self.slot(key)) is not None}
        reuses = [(there[key], self._id(member)) for key, member in pairs if key in there]
        if not reuses:
            if new is not None:
                raise NewMembersRefused(None)
            return [False] * len(pairs)
        by_id = _by_allocation_id(reports)
        if new is not None:
            outcomes = await self._reuse_for_new(reuses, by_id, *new)
        else:
            outcomes = await retry_until_answered(
                lambda: reuse(self._job._context, reuses, None, by_id),
                "requesting the reuse of slots",
            )
        agreed = {each.id for each in outcomes if each.ok}
        return [key in there and key[0] in agreed for key, _ in pairs]

    async def _reuse_for_new(
        self, reuses: Sequence[Reuse], reports: Mapping[str, ThreadReport], first: int, count: int
    ) -> list[ItemOutcome]:
        outcomes, of_new = await retry_until_answered(
            lambda: self._job._submission.reuse_for_new(
                reuses, self._template, first, count, reports
            ),
            "requesting the reuse of slots",
        )
        if of_new is None:
            raise NewMembersRefused(None)
        if not of_new.ok:
            raise NewMembersRefused(rejected([Rejection.of(self._range_id, of_new)]))
        return outcomes

    def _message_of(self, event: JobEvent) -> SlotMessage | None:
        member = self._member(event.allocation_id)
        if member is None:
            return None
        if event.state is RequestState.GRANTED:
            if event.slot is None or not self._take(event, event.slot):
                return None
            key = event.allocation_id, event.slot.generation
            return Granted(key, member, event.slot.executor_id)
        if event.state is RequestState.PENDING:
            self._forget(event)
            return Requeued(event.allocation_id, member)
        if event.state.has_ended:
            self._forget(event)
            return RequestFinished(
                event.allocation_id, member, event.state, event.reason, event.message, event.count
            )
        return None

    def _take(self, event: JobEvent, status: SlotStatus) -> bool:
        """Stores the slot of an event.

        Returns False if the slot has ended. A later event reports this end.
        """
        request = self._job._watch.requests.get(event.allocation_id)
        if request is None:
            # The submission got no answer, so the job deleted the handle of the request. But the
            # resource manager had accepted the request. Make a new handle of the slot, so that the
            # slot is used or released.
            known = self._slots.get(event.allocation_id)
            if known is None or known.generation < status.generation:
                self._slots[event.allocation_id] = Slot(self._job._context, status)
            return True
        slot = request.slot
        if slot is None or slot.generation != status.generation:
            return False
        self._slots[event.allocation_id] = slot
        return True

    def _forget(self, event: JobEvent) -> None:
        slot = self._slots.pop(event.allocation_id, None)
        if slot is not None and not slot.has_ended:  # the slot has no `Request` that ends it
            slot.end(
                SlotLost(
                    slot.allocation_id,
                    slot.generation,
                    slot.executor_id,
                    event.reason,
                    event.message,
                ),
                at_once=event.state is not RequestState.RELEASED,
            )

    def _id(self, member: int) -> str:
        return f"{self._range_id}.{member}"

    def _member(self, allocation_id: str) -> int | None:
        range_id, _, member = allocation_id.rpartition(".")
        # Requests of other ranges of the job are not part of the batch.
        return int(member) if range_id == self._range_id and member.isdecimal() else None


def _by_allocation_id(reports: Mapping[SlotKey, ThreadReport]) -> dict[str, ThreadReport]:
    return {allocation_id: report for (allocation_id, _), report in reports.items()}
