"""Implements the handle of one slot request.

When the watch stream reports a state, the request gets a slot, ends with an error, or continues to
wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from finegrain.errors import FinegrainError
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import slots_pb2
from finegrain.values.states import RequestState
from finegrain_client.decoding import read
from finegrain_client.errors import (
    Rejection,
    RequestEnded,
    RequestRejected,
    SlotLost,
    StillWaiting,
    rejected,
)
from finegrain_client.internal import internal
from finegrain_client.job.background import Changes
from finegrain_client.job.context import JobContext
from finegrain_client.retry import RetryPolicy
from finegrain_client.slot.slot import Slot
from finegrain_client.types.status import Gang, RequestStatus, SlotStatus

if TYPE_CHECKING:
    from finegrain_client.types.explain import Explanation

REASON_POLICY = RetryPolicy(budget_s=2.0)
"""A short retry policy for the call that reads the reason for a wait, after `granted` has timed
out.
"""


class Request:
    """A slot request, which is queued until it is granted or ends.

    Attributes:
        allocation_id: id of the request and of the slot that will serve the request.
        state: state of the request. `reason` (a stable code) and `message` explain the state.
        slot: latest slot of the request; None if it has no slot yet. `Slot.has_ended` says whether
            the slot has ended.
        gang: the gang to which the request belongs; None if it belongs to no gang.
        acknowledged: True if the resource manager has stored the request durably.
    """

    allocation_id: str
    state: RequestState
    reason: str
    message: str
    slot: Slot | None
    gang: Gang | None
    acknowledged: bool

    def __init__(
        self, context: JobContext, message: slots_pb2.SlotRequest, gang: Gang | None = None
    ) -> None:
        self._context = context
        self._changes = Changes()
        self._error: FinegrainError | None = None
        self._rejection: Rejection | None = None
        self.allocation_id = message.allocation_id
        self.gang = gang
        self.acknowledged = False
        self.state = RequestState.PENDING
        self.reason = ""
        self.message = ""
        self.slot = None

    def __repr__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"<Request {self.allocation_id} {self.state}{why}>"

    @property
    def generation(self) -> int:
        """Generation of `slot`; 0 if the request was never granted."""
        return self.slot.generation if self.slot else 0

    @property
    def has_ended(self) -> bool:
        """True if the request has ended and can no longer change its state."""
        return self._error is not None or self.state.has_ended

    @property
    def rejection(self) -> Rejection | None:
        """The reason why the request was rejected; None if it was not rejected."""
        return self._rejection

    async def granted(self, timeout_s: float | None = None) -> Slot:
        """Waits for the slot and returns it.

        If the wait is cancelled or times out, the request stays queued. If a slot with
        `restart_on_loss` is lost, the call waits for the next slot.

        Args:
            timeout_s: longest time to wait in seconds; None means no limit.

        Raises:
            StillWaiting: (a TimeoutError) the request was not granted within `timeout_s`.
            RequestRejected, RequestEnded, SlotLost: the request ended without a slot. The error is
                GangTimeout (a RequestRejected) if the gang was not placed in time.
            JobEnded: the job has ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while (slot := self._outcome()) is None:
                    await self._changes.next()
                return slot
        except FinegrainError:
            raise  # GangTimeout is also a TimeoutError
        except TimeoutError:
            reason = await self._waiting_reason()
            raise StillWaiting(self.allocation_id, timeout_s or 0, self.state, reason) from None

    async def cancel(self) -> None:
        """Cancels the request. The resource manager releases a slot that was granted in the
        meantime.

        Raises:
            FinegrainError: the call to the resource manager failed.
        """
        message = rm.CancelRequestsRequest(
            job_id=self._context.job_id, allocation_ids=[self.allocation_id]
        )
        await self._context.call_manager(
            lambda manager, timeout_s: manager.CancelRequests(message, timeout=timeout_s)
        )

    async def explain(self, *, executor_id: str = "", max_executors: int = 0) -> Explanation:
        """Explains for each executor why the request does not fit, and after which changes it would
        fit.

        Args:
            executor_id: explain only this executor. If empty, explain all executors.
            max_executors: largest number of executors to list in full; 0 means 20.

        Raises:
            FinegrainError: the call to the resource manager failed.
        """
        return await self._explain(executor_id, max_executors, None)

    async def _waiting_reason(self) -> str:
        """Returns the current reason for waiting, or the last known reason if the call fails."""
        try:
            return (await self._explain("", 1, REASON_POLICY)).primary_reason or self.reason
        except FinegrainError:
            return self.reason

    async def _explain(
        self, executor_id: str, max_executors: int, policy: RetryPolicy | None
    ) -> Explanation:
        message = rm.ExplainRequest(
            allocation_id=self.allocation_id, executor_id=executor_id, max_executors=max_executors
        )
        answer = await self._context.call_manager(
            lambda manager, timeout_s: manager.Explain(message, timeout=timeout_s),
            policy=policy,
        )
        from finegrain_client.types.explain import Explanation

        return read(Explanation, answer)

    @property
    def is_settled(self) -> bool:
        """True if `granted` returns or raises at once."""
        return self.has_ended or (self.slot is not None and not self.slot.has_ended)

    @internal
    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every change, until `off_change`."""
        self._changes.listeners.add(listener)

    @internal
    def off_change(self, listener: Callable[[], None]) -> None:
        """Stops calling `listener`."""
        self._changes.listeners.discard(listener)

    # The methods below are for the job that owns the request.

    @internal
    def update_state(
        self, state: RequestState, reason: str, message: str, slot: SlotStatus | None
    ) -> None:
        """Applies a state that the resource manager reports. Repeated reports change nothing.

        Args:
            state: the reported state.
            reason: stable code of the reason.
            message: text for people.
            slot: the slot, if the state is GRANTED.
        """
        if self._error is not None:
            return
        requeued = self.state is RequestState.PENDING
        self.state, self.reason, self.message = state, reason, message
        if state is RequestState.GRANTED and slot is not None:
            # If the request was queued again and the generation is unchanged, a lost executor has
            # returned with the slot.
            if self.slot is None or requeued or slot.generation > self.slot.generation:
                self._end_slot(at_once=True)
                self.slot = Slot(self._context, slot)
            elif slot.generation == self.slot.generation:  # the slot was resized
                self.slot.size.take(slot, reason, message)
        elif state is RequestState.RELEASED:
            self._end_slot(at_once=False)
        else:
            self._end_slot(at_once=True)
        if state is RequestState.REJECTED and self._rejection is None:
            self._rejection = Rejection(self.allocation_id, reason, message)
        self._changes.notify()

    @internal
    def update_status(self, status: RequestStatus) -> None:
        """Applies a snapshot entry whose state is already known."""
        self.reason = status.reason
        if status.slot is not None and self.slot is not None:
            self.slot.size.reset(status.slot)

    @internal
    def reject(self, rejection: Rejection) -> None:
        """Records that the resource manager rejected the request."""
        self._rejection = rejection
        self.update_state(RequestState.REJECTED, rejection.reason, rejection.message, None)

    @internal
    def fail(self, error: FinegrainError) -> None:
        """Ends the request and its slot, because the job or its watch stream has ended."""
        if self._error is None and not self.state.has_ended:
            self._error = error
            if self.slot is not None:
                self.slot.end(error, at_once=True)
            self._changes.notify()

    def _end_slot(self, *, at_once: bool) -> None:
        if self.slot is None or self.slot.has_ended:
            return
        slot = self.slot
        reason = self.reason if self.state is not RequestState.GRANTED else "SLOT_MISSING"
        message = self.message
        if self.state is RequestState.RELEASED and not reason:
            message = message or "it was released"
        slot.end(
            SlotLost(slot.allocation_id, slot.generation, slot.executor_id, reason, message),
            at_once=at_once,
        )

    def _outcome(self) -> Slot | None:
        if self._error is not None:
            raise self._error
        if self.slot is not None and not self.slot.has_ended:
            return self.slot
        if self._rejection is not None:
            raise rejected([self._rejection])
        # The error of the slot is more precise than the state of the request.
        if self.state is RequestState.LOST and self.slot is not None and self.slot.error:
            raise self.slot.error
        if self.state.has_ended:
            raise RequestEnded(self.allocation_id, self.state, self.reason, self.message)
        return None


async def all_granted(requests: Sequence[Request]) -> list[Slot]:
    """Waits until all requests have a slot at the same time. Returns the slots in the given order.

    Raises:
        RequestRejected: requests were rejected. The error names all rejected requests. The error is
            a GangTimeout if the cause is a gang's timeout.
        FinegrainError: see `Request.granted`.
    """
    try:
        while True:
            slots = [await each.granted() for each in requests]
            if not any(each.has_ended for each in slots):  # no slot was lost during the wait
                return slots
    except RequestRejected:
        refused = [each.rejection for each in requests if each.rejection is not None]
        raise rejected(refused) from None


class AsGranted:
    """Iterates over slots in the order in which they are granted; see `as_granted`."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._ready: deque[Request] = deque()
        self._waiting: dict[Request, Callable[[], None]] = {}
        self._changed = asyncio.Event()
        # Remove duplicates. If a request is given twice, its slot is yielded once.
        for request in dict.fromkeys(requests):
            self._await(request)

    def __aiter__(self) -> AsyncIterator[Slot]:
        return self

    async def __anext__(self) -> Slot:
        while self._ready or self._waiting:
            while self._ready:
                request = self._ready.popleft()
                if request.is_settled:
                    return await request.granted()
                self._await(request)  # the slot was lost before the caller read it
            self._changed.clear()
            await self._changed.wait()
        raise StopAsyncIteration

    def _await(self, request: Request) -> None:
        if request.is_settled:
            self._ready.append(request)
            return
        listener = partial(self._move_if_settled, request)
        self._waiting[request] = listener
        request.on_change(listener)

    def _move_if_settled(self, request: Request) -> None:
        if request.is_settled:
            request.off_change(self._waiting.pop(request))
            self._ready.append(request)
            self._changed.set()


def as_granted(requests: Iterable[Request]) -> AsGranted:
    """Iterates over the slots of `requests` in the order in which they are granted. Each slot comes
    once.

    If a request ends without a slot, the iteration raises the error of `Request.granted`. To get
    the remaining slots, continue with `anext` on the same iterator. If the caller ends the loop
    before the last slot, the remaining requests stay queued.
    """
    return AsGranted(requests)
