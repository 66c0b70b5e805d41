"""A queue of timers. Each timer names an entity to check at a time. `step.py` calls the handlers.

A timer may fire too early. So its handler compares the time with the entity's actual deadline, and
arms the timer again if the deadline is later. So a lease that is renewed 1,000 times needs only one
entry.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import StrEnum

_BACKOFF_DOUBLINGS_MAX = 16


class Timer(StrEnum):
    """The kind of a timer. The id of a timer names a job, an executor, a gang, or the request of a
    slot.
    """

    LEASE = "LEASE"  # a job's lease may have expired
    RETENTION = "RETENTION"  # an ended job may be deleted
    SILENCE = "SILENCE"  # an executor may be lost
    DRAIN = "DRAIN"  # an executor's drain deadline may have passed
    COMMAND = "COMMAND"  # a command may be sent again
    PROBE = "PROBE"  # an unreachable executor may be probed again
    REFUSAL = "REFUSAL"  # slots of a class that an executor refused may be placed there again
    INFEASIBLE = "INFEASIBLE"  # requests that no executor could host may have to be rejected
    GANG = "GANG"  # a gang may have waited for too long
    REQUEST = "REQUEST"  # a request may have waited for too long
    RANGE = "RANGE"  # the members of a part of a range may have waited for too long
    RESIZE = "RESIZE"  # a refused resize may be tried again
    PLAN = "PLAN"  # new executors may be needed
    PROVISION = "PROVISION"  # the order to stop a provisioned executor may be sent again
    STARVATION = "STARVATION"  # a request may be starved
    USAGE = "USAGE"  # usage of flows is stored
    HISTORY = "HISTORY"  # old cluster events may be deleted


class Timers:
    """A lazy priority queue with at most one valid entry per timer and id.

    Attributes:
        left_over: due timers that the next `Decide` handles, because the work of a step is limited.
        listening_since_ms: monotonic time since which the process can receive messages. Silence of
            an executor counts only from then on.
    """

    def __init__(self) -> None:
        self.listening_since_ms = 0
        self._heap: list[tuple[int, Timer, str]] = []
        self._armed: dict[tuple[Timer, str], int] = {}
        self.left_over: dict[tuple[Timer, str], None] = {}

    def arm(self, timer: Timer, entity_id: str, due_ms: int) -> None:
        """Makes a timer fire at `due_ms` or earlier. If the timer is already armed for an earlier
        time, it does not change.

        Args:
            timer: the kind of timer.
            entity_id: id of the entity; empty if there is only one timer of this kind.
            due_ms: monotonic time.
        """
        armed = self._armed.get((timer, entity_id))
        if armed is None or due_ms < armed:
            self._armed[timer, entity_id] = due_ms
            heapq.heappush(self._heap, (due_ms, timer, entity_id))

    def put_off(self, timer: Timer, entity_id: str) -> None:
        """Lets the next `Decide` call the handler again, because the handler has work left."""
        self.left_over[timer, entity_id] = None

    def due(self, now_ms: int) -> Iterator[tuple[Timer, str]]:
        """Yields all due timers, each once: first the left-over timers, then the other timers in
        order of time.

        If the caller stops early, the remaining timers are left over.
        """
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, timer, entity_id = heapq.heappop(self._heap)
            # This entry is outdated if the timer was later armed for an earlier time.
            if self._armed.get((timer, entity_id)) == at_ms:
                del self._armed[timer, entity_id]
                self.left_over[timer, entity_id] = None
        for each in list(self.left_over):
            del self.left_over[each]
            yield each

    def next_due_ms(self) -> int | None:
        """Returns the time when the next timer may fire. Outdated entries are included; None: the
        queue is empty.
        """
        return self._heap[0][0] if self._heap else None


def backoff_ms(failures: int, shortest_ms: int, longest_ms: int) -> int:
    """Returns a back-off that doubles with every failure.

    Args:
        failures: number of failures before this one.
        shortest_ms: the back-off for 0 earlier failures.
        longest_ms: upper limit.
    """
    return min(longest_ms, shortest_ms << min(failures, _BACKOFF_DOUBLINGS_MAX))
