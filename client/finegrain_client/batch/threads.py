"""Keeps the state of each thread of work, and chooses the thread that runs next.

The thread with the lowest index runs first. Delayed threads are queued again when their delay is
over.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

from finegrain_client.batch.values import ThreadState

TODO, RUNNING, DELAYED, DONE, FAILED = range(5)
ENDED = (DONE, FAILED)


class Threads:
    """One byte of state per thread, and a heap of the threads to run.

    Attributes:
        counts: number of threads by state.
    """

    def __init__(self, threads: int, final: Mapping[int, ThreadState]) -> None:
        self._state = bytearray(threads)
        for thread, state in final.items():
            self._state[thread] = DONE if state is ThreadState.DONE else FAILED
        # The list is ascending, so it is a valid heap.
        self._todo = [thread for thread in range(threads) if self._state[thread] == TODO]
        self._due: list[tuple[float, int]] = []
        self.counts = Counter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __getitem__(self, thread: int) -> int:
        return self._state[thread]

    @property
    def left(self) -> int:
        """Number of threads without a result."""
        return len(self) - self.counts[DONE] - self.counts[FAILED]

    @property
    def next_due(self) -> float | None:
        """The time when the next delayed thread may run; None if no thread is delayed."""
        return self._due[0][0] if self._due else None

    def set(self, thread: int, state: int) -> None:
        """Sets the state of a thread."""
        self.counts[self._state[thread]] -= 1
        self._state[thread] = state
        self.counts[state] += 1

    def to_do(self, thread: int) -> None:
        """Queues a thread to run."""
        self.set(thread, TODO)
        heapq.heappush(self._todo, thread)

    def delay(self, thread: int, due: float) -> None:
        """Queues a thread to run, but not before `due`."""
        self.set(thread, DELAYED)
        heapq.heappush(self._due, (due, thread))

    def wake(self, now: float) -> None:
        """Queues the delayed threads whose delay is over."""
        while self._due and self._due[0][0] <= now:
            thread = heapq.heappop(self._due)[1]
            # Skip a thread that has got its result from another attempt in the meantime.
            if self._state[thread] == DELAYED:
                self.to_do(thread)

    def next(self, preferred: int) -> int | None:
        """Returns `preferred` if this thread is queued. Otherwise returns the queued thread with
        the lowest index, or None if no thread is queued.
        """
        if preferred < len(self) and self._state[preferred] == TODO:
            return preferred
        while self._todo:
            thread = heapq.heappop(self._todo)
            # Skip a thread that an earlier call has already returned as `preferred`: it is still in
            # the heap.
            if self._state[thread] == TODO:
                return thread
        return None
