"""A queue of timers. Each timer names an entity to check at a time. `step.py` calls the handlers.

A timer can fire too early. So its handler compares the time with the entity's actual deadline, and
arms the timer again if the deadline is later. Therefore a lease that is renewed 1,000 times needs
only one entry.
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

    LEASE = "LEASE"  # a job's lease has possibly expired
    RETENTION = "RETENTION"  # an ended job can possibly be deleted
    SILENCE = "SILENCE"  # an executor is possibly lost
    DRAIN = "DRAIN"  # an executor's drain deadline has possibly passed
    COMMAND = "COMMAND"  # a command must possibly be sent again
    PROBE = "PROBE"  # an unreachable executor can be probed again
    REFUSAL = "REFUSAL"  # an executor that refused a class can get slots of this class again
    INFEASIBLE = "INFEASIBLE"  # requests that no executor could host must possibly be rejected
    GANG = "GANG"  # a gang has possibly waited for too long
    REQUEST = "REQUEST"  # a request has possibly waited for too long
    RANGE = "RANGE"  # the members of a part of a range have possibly waited for too long
    RESIZE = "RESIZE"  # a refused resize can be tried again
    PLAN = "PLAN"  # new executors are possibly needed
    PROVISION = "PROVISION"  # a provider must possibly get an order to stop an executor again
    STARVATION = "STARVATION"  # a request is possibly starved
    USAGE = "USAGE"  # usage of flows must be stored
    HISTORY = "HISTORY"  # old cluster events must possibly be deleted


class Timers:
    """A lazy priority queue with at most one valid entry per timer and id.

    Attributes:
        left_over: timers that are already due and that the next `Decide` handles, because the work
            of a step is limited.
        listening_since_ms: monotonic time since which the process can receive messages. The silence
            of an executor counts only from this time on.
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
        """Yields each due timer once: first the left-over timers, then the other timers in order of
        time.

        If the caller does not read all timers, the remaining timers are left over.
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
        """Returns the time of the first entry, which is possibly outdated. So no timer fires before
        this time. Returns None if the queue is empty.
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
