"""When to look at what again. Knows times and names; what is to be done when one is due,
`step.py` knows.

A timer may ring early: whoever handles it looks at the entity's true deadline and arms it anew. So
a lease that is renewed a thousand times costs one entry, not a thousand.
"""

from __future__ import annotations

import heapq
from enum import StrEnum

_BACKOFF_DOUBLINGS_MAX = 16


class Timer(StrEnum):
    """What a timer is about; the id that goes with it names a job, an executor, a
    gang or a slot's request."""

    LEASE = "LEASE"  # a job's lease may have lapsed
    RETENTION = "RETENTION"  # an ended job may be forgotten
    SILENCE = "SILENCE"  # an executor may be lost
    DRAIN = "DRAIN"  # an executor's drain deadline may have passed
    COMMAND = "COMMAND"  # a command may be sent again
    PROBE = "PROBE"  # an executor that could not be dialled may be tried again
    REFUSAL = "REFUSAL"  # an executor may be asked again for what it refused
    INFEASIBLE = "INFEASIBLE"  # requests that no executor could host may have to be rejected
    GANG = "GANG"  # a gang may have waited for too long
    RESIZE = "RESIZE"  # a slot may be asked again whether it can shrink
    PLAN = "PLAN"  # executors may have to be asked for
    PROVISION = "PROVISION"  # one that was asked for may be late, idle, or to be stopped again
    STARVATION = "STARVATION"  # somebody may have been passed over for too long
    USAGE = "USAGE"  # what flows have received is to be kept
    HISTORY = "HISTORY"  # old cluster events may be forgotten


class Timers:
    """A lazy priority queue with at most one live entry per timer and id.

    Attributes:
        listening_since_ms: before this moment (monotonic) nobody could be heard, so nobody's
            silence counts from an earlier one.
    """

    def __init__(self) -> None:
        self.listening_since_ms = 0
        self._heap: list[tuple[int, Timer, str]] = []
        self._armed: dict[tuple[Timer, str], int] = {}

    def arm(self, timer: Timer, entity_id: str, due_ms: int) -> None:
        """Rings at `due_ms` (monotonic) at the latest; an earlier ring that is armed already
        stays.
        """
        armed = self._armed.get((timer, entity_id))
        if armed is None or due_ms < armed:
            self._armed[timer, entity_id] = due_ms
            heapq.heappush(self._heap, (due_ms, timer, entity_id))

    def pop_due(self, now_ms: int) -> list[tuple[Timer, str]]:
        """Everything that is due, each once, in order of time."""
        due: list[tuple[Timer, str]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, timer, entity_id = heapq.heappop(self._heap)
            if self._armed.get((timer, entity_id)) == at_ms:
                del self._armed[timer, entity_id]
                due.append((timer, entity_id))
        return due

    def next_due_ms(self) -> int | None:
        """When the next one may ring; None if none is armed."""
        return self._heap[0][0] if self._heap else None


def backoff_ms(failures: int, shortest_ms: int, longest_ms: int) -> int:
    """Doubles with every failure, within bounds."""
    return min(longest_ms, shortest_ms << min(failures, _BACKOFF_DOUBLINGS_MAX))
