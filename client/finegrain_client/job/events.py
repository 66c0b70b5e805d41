"""What happens to a job, for whoever wants to listen.

Decides that a listener hears everything from the moment of asking, in order and once, or is told
that it was too slow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from finegrain.errors import FinegrainError, OutOfRange
from finegrain_client.types.status import JobEvent

EVENTS_WAITING_MAX = 100_000
"""Events that one listener may be behind."""


class JobEvents:
    """The events of one job from the moment of asking; ends with the job.

    Raises (from the iteration):
        OutOfRange: more than `EVENTS_WAITING_MAX` events behind.
        JobEnded: somebody else ended the job.
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
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Stops listening."""
        self.end(None)

    def put(self, event: JobEvent) -> None:
        """Another event, from the job."""
        if self._end is not None:
            return
        if len(self._waiting) >= EVENTS_WAITING_MAX:
            self.end(
                OutOfRange(f"{EVENTS_WAITING_MAX} events were not taken; listen again", details={})
            )
            return
        self._waiting.append(event)
        self._changed.set()

    def end(self, error: FinegrainError | None) -> None:
        """No more will come; what waits can still be taken."""
        if self._end is None:
            self._end = error or StopAsyncIteration()
            self._forget(self)
            self._changed.set()
