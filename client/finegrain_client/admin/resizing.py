"""Resizes and parks slots of any job, for administrators."""

from __future__ import annotations

import asyncio

from finegrain.errors import FailedPrecondition, FinegrainError, NotFound, Reason
from finegrain.resources import ResourceProfile
from finegrain.v1 import cluster_pb2 as pb
from finegrain_client.connection import Connection
from finegrain_client.decoding import read
from finegrain_client.durations import duration
from finegrain_client.errors import ResizeRefused, SlotLost, StillResizing
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
from finegrain_client.types import status as types

POLL_INTERVAL_S = 20.0
"""Seconds between two reads of a slot with a pending resize, if no event about the slot arrives."""


class Resizing:
    """The changes of one slot.

    Args:
        connection: the connection to the resource manager.
        allocation_id: the slot.
    """

    def __init__(self, connection: Connection, allocation_id: str) -> None:
        self._connection = connection
        self._allocation_id = allocation_id

    async def change(
        self,
        change: SizeChange,
        *,
        wait_for_use: bool,
        wait: bool,
        timeout_s: float | None,
    ) -> types.SlotStatus:
        """Changes the size, or parks the slot; see `Operations.resize`."""
        status: types.SlotStatus | None = None
        try:
            async with asyncio.timeout(timeout_s):
                # Read the position in the event log first, so that no event about the change is
                # missed.
                next_sequence = await self._next_sequence()
                status = await self._request_size(change, wait_for_use=wait_for_use)
                return await self._resized(status, change, next_sequence) if wait else status
        except FinegrainError:
            raise
        except TimeoutError:
            waiting = status.resizes[-1].message if status is not None and status.resizes else ""
            raise StillResizing(self._allocation_id, timeout_s or 0, waiting) from None

    async def withdraw(self) -> types.SlotStatus:
        """Withdraws all pending changes; see `Operations.withdraw_resize`."""
        status = await self._slot()
        size = status.profile, status.cpu_limit_milli
        return await self._resize(status, size, wait_for_use=True)

    async def _request_size(self, change: SizeChange, *, wait_for_use: bool) -> types.SlotStatus:
        for tries_left in reversed(range(TRIES_MAX)):
            status = await self._slot()
            try:
                size = change.target(status)
                return await self._resize(
                    status, size, wait_for_use=wait_for_use, park=change.parks
                )
            except FailedPrecondition as error:
                # Another client has requested a change meanwhile. Read the slot again, to get a
                # number above the number of that change.
                if error.reason is not Reason.STALE_RESIZE or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _resize(
        self,
        status: types.SlotStatus,
        size: tuple[ResourceProfile, int],
        *,
        wait_for_use: bool,
        park: bool = False,
    ) -> types.SlotStatus:
        message = pb.ClusterServiceResizeSlotRequest(
            allocation_id=status.allocation_id,
            generation=status.generation,
            resize_number=status.resize_number + 1,
            profile=profile_message(size[0]),
            cpu_limit_milli=cap_message(*size),
            when_in_use=when_in_use(wait_for_use=wait_for_use),
            park=park,
        )
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.ResizeSlot(message, timeout=timeout_s)
        )
        return read(types.SlotStatus, answer.slot)

    async def _resized(
        self, requested: types.SlotStatus, change: SizeChange, next_sequence: int
    ) -> types.SlotStatus:
        """Waits for the outcome of a resize. Reads the slot after every event about the slot."""
        status, number, message = requested, requested.resize_number, ""
        while True:
            reason = Reason.RESIZE_REFUSED if message else ""
            found = outcome(status, change, number, reason, message)
            if isinstance(found, types.SlotStatus):
                return found
            if found is not None and not message:
                # The status already shows a refusal whose event was not read yet. Read the event,
                # which has the reason.
                message, next_sequence = await self._news(next_sequence, wait_s=0.0)
                if message:
                    continue
            if found is not None:
                raise found
            message, next_sequence = await self._news(next_sequence)
            request = await request_of(self._connection, self._allocation_id)
            if (
                request is None
                or request.slot is None
                or (request.slot.generation != requested.generation)
            ):
                why = "it ended before it was resized"
                raise SlotLost(
                    requested.allocation_id, requested.generation, requested.executor_id, "", why
                )
            status = request.slot
            # If the number is lower, the resource manager was restored from older state and no
            # longer knows the change.
            if status.resize_number < number:
                raise ResizeRefused(status, number, FORGOTTEN)

    async def _news(self, next_sequence: int, wait_s: float = POLL_INTERVAL_S) -> tuple[str, int]:
        """Waits for events about the slot, for at most `wait_s`.

        Returns the reason why a change was refused (empty if no change was refused), and the next
        sequence number.
        """
        answer = await self._events(self._allocation_id, next_sequence, wait_s)
        refused = [each.message for each in answer.events if each.kind == "slot_resize_refused"]
        return refused[-1] if refused else "", answer.next_sequence

    async def _next_sequence(self) -> int:
        answer = await self._events("", 0, 0.0)
        return answer.next_sequence

    async def _events(
        self, subject_id: str, from_sequence: int, wait_s: float
    ) -> pb.ListEventsResponse:
        message = pb.ListEventsRequest(
            from_sequence=from_sequence,
            subject_id=subject_id,
            # The first call needs only the position, not the events.
            page_size=1 if not from_sequence else 0,
            wait=duration(wait_s) if wait_s else None,
        )
        # The server can wait for up to `wait_s` before it answers, so the call needs a longer
        # timeout.
        answer: pb.ListEventsResponse = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.ListEvents(
                message, timeout=max(timeout_s, wait_s + 10)
            )
        )
        return answer

    async def _slot(self) -> types.SlotStatus:
        found = await request_of(self._connection, self._allocation_id)
        if found is None:
            raise NotFound(
                f"allocation {self._allocation_id} is not known, or has ended",
                reason=Reason.ALLOCATION_UNKNOWN,
                details={"allocation_id": self._allocation_id},
            )
        if found.slot is None:
            raise FailedPrecondition(
                f"request {self._allocation_id} is {found.state} and has no slot yet; only slots "
                "can be resized: cancel the request and submit a new one",
                reason=Reason.SLOT_NOT_READY,
                details={"allocation_id": self._allocation_id, "state": found.state},
            )
        return found.slot
