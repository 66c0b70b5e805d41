"""Implements the stream of a job's events that `Job.events` returns.

A listener receives each event exactly once and in order, beginning when it starts to listen. If a
listener does not read fast enough, its stream ends with an error. So the listener always notices
that it misses events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from finegrain.errors import FinegrainError, OutOfRange
from finegrain_client.types.status import JobEvent

EVENTS_WAITING_MAX = 100_000
"""Maximum number of unread events of one listener."""


class JobEvents:
    """Iterates over the events of one job from now on. The iteration ends when the job ends.

    Raises (from the iteration):
        OutOfRange: more than `EVENTS_WAITING_MAX` events are unread.
        JobEnded: the job was ended, but not by this client.
    """

    def __init__(self, forget: Callable[[JobEvents], None]) -> None:
        self._forget = forget
        self._waiting: deque[JobEvent] = deque()
        self._changed = asyncio.Event()
        self._end: Exception | None = None

    def __aiter__(self) -> AsyncIterator[JobEvent]:
        return self

    async def __anext__(self) -> JobEvent:
        while not self._waiting:
            if self._end is not None:
                raise self._end
            # No change can get lost here: no other code runs between the check and the wait.
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Stops listening."""
        self.end(None)

    def put(self, event: JobEvent) -> None:
        """Adds an event. The job calls this method."""
        if self._end is not None:
            return
        if len(self._waiting) >= EVENTS_WAITING_MAX:
            self.end(
                OutOfRange(
                    f"{EVENTS_WAITING_MAX} events were not consumed in time, so this stream has "
                    "ended; start another one",
                    details={},
                )
            )
            return
        self._waiting.append(event)
        self._changed.set()

    def end(self, error: FinegrainError | None) -> None:
        """Ends the stream. Events that are already queued can still be read."""
        if self._end is None:
            self._end = error or StopAsyncIteration()
            # Remove the stream from the job, which would otherwise continue to fill a stream
            # without a reader.
            self._forget(self)
            self._changed.set()
