"""Where each thread of work of a batch stands, and which one comes next.

Decides the order: lowest first; those that wait for their next try come back when they are due.
Refuses to know slots. Pure.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

from finegrain_client.batch.values import ThreadState

TODO, RUNNING, DELAYED, DONE, FAILED = range(5)
ENDED = (DONE, FAILED)


class Threads:
    """One byte per thread, and who is next.

    Attributes:
        counts: threads by state.
    """

    def __init__(self, threads: int, final: Mapping[int, ThreadState]) -> None:
        self._state = bytearray(threads)
        for thread, state in final.items():
            self._state[thread] = DONE if state is ThreadState.DONE else FAILED
        self._todo = [thread for thread in range(threads) if self._state[thread] == TODO]
        self._due: list[tuple[float, int]] = []
        self.counts = Counter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __getitem__(self, thread: int) -> int:
        return self._state[thread]

    @property
    def left(self) -> int:
        """How many have no result."""
        return len(self) - self.counts[DONE] - self.counts[FAILED]

    @property
    def next_due(self) -> float | None:
        """When the next one that waits for its next try may be run; None: none waits."""
        return self._due[0][0] if self._due else None

    def set(self, thread: int, state: int) -> None:
        """It stands there now."""
        self.counts[self._state[thread]] -= 1
        self._state[thread] = state
        self.counts[state] += 1

    def to_do(self, thread: int) -> None:
        """It is to be run."""
        self.set(thread, TODO)
        heapq.heappush(self._todo, thread)

    def delay(self, thread: int, due: float) -> None:
        """It is to be run, but not before `due`."""
        self.set(thread, DELAYED)
        heapq.heappush(self._due, (due, thread))

    def wake(self, now: float) -> None:
        """Those that are due are to be run."""
        while self._due and self._due[0][0] <= now:
            thread = heapq.heappop(self._due)[1]
            if self._state[thread] == DELAYED:
                self.to_do(thread)

    def next(self, preferred: int) -> int | None:
        """Takes `preferred` if that is to be run, else the lowest that is; None: there is none."""
        if preferred < len(self) and self._state[preferred] == TODO:
            return preferred
        while self._todo:
            thread = heapq.heappop(self._todo)
            if self._state[thread] == TODO:
                return thread
        return None
