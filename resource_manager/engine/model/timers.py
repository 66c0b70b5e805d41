"""A timer queue: which entity must be checked when. `step.py` calls the handlers.

A timer may fire early: its handler checks the entity's real deadline and arms it again. So a lease
that is renewed a thousand times costs one entry, not a thousand.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import StrEnum

_BACKOFF_DOUBLINGS_MAX = 16


class Timer(StrEnum):
    """What a timer checks. The id with it names a job, an executor, a gang, or a slot's request."""

    LEASE = "LEASE"  # a job's lease may have lapsed
    RETENTION = "RETENTION"  # an ended job may be deleted
    SILENCE = "SILENCE"  # an executor may be lost
    DRAIN = "DRAIN"  # an executor's drain deadline may have passed
    COMMAND = "COMMAND"  # a command may be sent again
    PROBE = "PROBE"  # an executor that could not be dialled may be tried again
    REFUSAL = "REFUSAL"  # an executor may be tried again with what it refused
    INFEASIBLE = "INFEASIBLE"  # requests that no executor could host may have to be rejected
    GANG = "GANG"  # a gang may have waited for too long
    RESIZE = "RESIZE"  # a refused resize may be tried again
    PLAN = "PLAN"  # new executors may be needed
    PROVISION = "PROVISION"  # a requested executor may be late, idle, or to be stopped again
    STARVATION = "STARVATION"  # a request may be starved
    USAGE = "USAGE"  # usage of flows is stored
    HISTORY = "HISTORY"  # old cluster events may be deleted


class Timers:
    """A lazy priority queue with at most one valid entry per timer and id.

    Attributes:
        left_over: timers that are due and wait for the next decision, because a step does a limited
            amount of work.
        listening_since_ms: before this moment (monotonic) the process could receive nothing, so
            silence counts only from then on.
    """

    def __init__(self) -> None:
        self.listening_since_ms = 0
        self._heap: list[tuple[int, Timer, str]] = []
        self._armed: dict[tuple[Timer, str], int] = {}
        self.left_over: dict[tuple[Timer, str], None] = {}

    def arm(self, timer: Timer, entity_id: str, due_ms: int) -> None:
        """Makes a timer fire at `due_ms` or earlier. If it is armed for an earlier time, it stays
        so.

        Args:
            timer: what to check.
            entity_id: of the entity; empty: there is only one.
            due_ms: monotonic.
        """
        armed = self._armed.get((timer, entity_id))
        if armed is None or due_ms < armed:
            self._armed[timer, entity_id] = due_ms
            heapq.heappush(self._heap, (due_ms, timer, entity_id))

    def put_off(self, timer: Timer, entity_id: str) -> None:
        """Lets the next decision continue what a timer has begun."""
        self.left_over[timer, entity_id] = None

    def due(self, now_ms: int) -> Iterator[tuple[Timer, str]]:
        """Yields all timers that are due, each once: those left over first, then in order of time.

        If the caller stops early, the others are left over.
        """
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, timer, entity_id = heapq.heappop(self._heap)
            # Otherwise it is outdated: the timer was armed for an earlier time later on, and has
            # fired.
            if self._armed.get((timer, entity_id)) == at_ms:
                del self._armed[timer, entity_id]
                self.left_over[timer, entity_id] = None
        for each in list(self.left_over):
            del self.left_over[each]
            yield each

    def next_due_ms(self) -> int | None:
        """Returns when the next timer may fire; None: none is armed."""
        return self._heap[0][0] if self._heap else None


def backoff_ms(failures: int, shortest_ms: int, longest_ms: int) -> int:
    """Returns a back-off that doubles with every failure.

    Args:
        failures: number of failures before this one.
        shortest_ms: the back-off after none.
        longest_ms: upper limit.
    """
    return min(longest_ms, shortest_ms << min(failures, _BACKOFF_DOUBLINGS_MAX))
