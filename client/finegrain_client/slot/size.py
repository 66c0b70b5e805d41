"""Keeps the size of one slot and the changes of this size, as its job master knows them.

Events, snapshots and answers to calls can arrive in any order, and each of them can contain the
outcome of a change. This module ignores older states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from finegrain.errors import FailedPrecondition, FinegrainError, Reason
from finegrain.resources import ResourceProfile
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain_client.decoding import read
from finegrain_client.errors import ResizeRefused, SlotLost
from finegrain_client.job.context import JobContext
from finegrain_client.slot.resizing import (
    FORGOTTEN,
    TRIES_MAX,
    SizeChange,
    cap_message,
    outcome,
    profile_message,
    request_of,
    when_in_use,
)
from finegrain_client.types.status import SlotStatus


class _Waiter:
    """Waits for the outcome of one change."""

    def __init__(self, change: SizeChange, resize_number: int) -> None:
        self._change = change
        self._news = asyncio.Event()
        self._outcome: SlotStatus | FinegrainError | None = None
        self.number = resize_number

    def update(self, status: SlotStatus, reason: str, message: str) -> None:
        if found := outcome(status, self._change, self.number, reason, message):
            self.settle(found)
        # If its number is lower, the status is older than the change, or the resource manager has
        # lost the change.
        elif status.resize_number < self.number:
            self._news.set()

    def settle(self, found: SlotStatus | FinegrainError) -> None:
        # Keep the first outcome: a later end of the slot must not hide a change that was made.
        self._outcome = self._outcome or found
        self._news.set()

    async def news(self) -> SlotStatus | None:
        """Waits for a status. Returns the status if the slot has the change, and None otherwise."""
        await self._news.wait()
        self._news.clear()
        if isinstance(self._outcome, FinegrainError):
            raise self._outcome
        return self._outcome


class SlotSize:
    """The size of one slot.

    Attributes:
        status: the newest known status of the slot.
    """

    def __init__(self, context: JobContext, status: SlotStatus) -> None:
        self._context = context
        self._waiters: set[_Waiter] = set()
        self.status = status

    def take(self, status: SlotStatus, reason: str = "", message: str = "") -> None:
        """Applies a status that an event reports. An older status does not replace a newer status.

        Args:
            status: the reported status.
            reason: reason of the event, for example "RESIZE_REFUSED".
            message: message of the event.
        """
        if status.resize_number >= self.status.resize_number:
            self.status = status
        for each in self._waiters:
            each.update(status, reason, message)

    def reset(self, status: SlotStatus) -> None:
        """Applies the current status of the resource manager, even if it is older than the known
        status.

        The current status is older if the resource manager was restored from older state.
        """
        self.status = status
        for each in self._waiters:
            each.update(status, "", "")

    def end(self, error: FinegrainError) -> None:
        """Ends all waits with `error`, because the slot has ended."""
        for each in self._waiters:
            each.settle(error)

    def equals(self, status: SlotStatus) -> bool:
        """True if the slot has the size that `status` shows."""
        ours = self.status
        return (ours.profile, ours.cpu_limit_milli) == (status.profile, status.cpu_limit_milli)

    async def change(self, change: SizeChange, *, wait_for_use: bool) -> SlotStatus:
        """Requests a change, and waits until the slot has the new size; see `Slot.resize`."""
        for tries_left in reversed(range(TRIES_MAX)):
            number, size = self.status.resize_number + 1, change.target(self.status)
            # Create the waiter before the call: the watch stream can report the outcome before the
            # call returns.
            with self._expecting(change, number) as waiter:
                try:
                    status = await self._request(
                        size, number, wait_for_use=wait_for_use, park=change.parks
                    )
                except FailedPrecondition as error:
                    if error.reason is not Reason.STALE_RESIZE or not tries_left:
                        raise
                else:
                    self._apply_answer(status)
                    return await self._done(waiter)
            # Another client has requested a change meanwhile, so the next try starts from the
            # current status.
            self.reset(await self._fetch_status())
        raise AssertionError("the last try returns or raises")

    async def _done(self, waiter: _Waiter) -> SlotStatus:
        """Waits for the outcome of a change that the resource manager has acknowledged."""
        while (status := await waiter.news()) is None:
            self.reset(now := await self._fetch_status())
            if now.resize_number < waiter.number:
                raise ResizeRefused(now, waiter.number, FORGOTTEN)
        return status

    async def withdraw(self) -> SlotStatus:
        """Withdraws all pending changes; see `Slot.withdraw_resize`."""
        for tries_left in reversed(range(TRIES_MAX)):
            # A new change to the current size replaces all pending changes.
            size = self.status.profile, self.status.cpu_limit_milli
            try:
                status = await self._request(size, self.status.resize_number + 1, wait_for_use=True)
            except FailedPrecondition as error:
                if error.reason is not Reason.STALE_RESIZE or not tries_left:
                    raise
            else:
                self._apply_answer(status)
                return status
            self.reset(await self._fetch_status())
        raise AssertionError("the last try returns or raises")

    def _apply_answer(self, status: SlotStatus) -> None:
        # If the number is not higher, ignore the answer, because the watch stream was faster.
        if status.resize_number > self.status.resize_number:
            self.take(status)

    @contextmanager
    def _expecting(self, change: SizeChange, resize_number: int) -> Iterator[_Waiter]:
        waiter = _Waiter(change, resize_number)
        self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)

    async def _request(
        self,
        size: tuple[ResourceProfile, int],
        number: int,
        *,
        wait_for_use: bool,
        park: bool = False,
    ) -> SlotStatus:
        message = rm.ResourceManagerServiceResizeSlotRequest(
            job_id=self._context.job_id,
            allocation_id=self.status.allocation_id,
            generation=self.status.generation,
            resize_number=number,
            profile=profile_message(size[0]),
            cpu_limit_milli=cap_message(*size),
            when_in_use=when_in_use(wait_for_use=wait_for_use),
            park=park,
        )
        answer = await self._context.call_manager(
            lambda manager, timeout_s: manager.ResizeSlot(message, timeout=timeout_s)
        )
        return read(SlotStatus, answer.slot)

    async def _fetch_status(self) -> SlotStatus:
        ours = self.status
        found = await request_of(self._context.connection, ours.allocation_id)
        if found is None or found.slot is None or found.slot.generation != ours.generation:
            why = "it was gone before it could be resized"
            raise SlotLost(ours.allocation_id, ours.generation, ours.executor_id, "", why)
        return found.slot
