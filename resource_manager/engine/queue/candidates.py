"""The scheduling classes that one pass has yet to try, ordered by their oldest request."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resource_manager.engine.queue.scheduling_classes import SchedulingClass


class ClassPass:
    """Classes of one pass, in order of their oldest request.

    A class that moves or is removed leaves its old arrival number in the heap. Such a number is
    dropped when it comes to the top.
    """

    def __init__(self) -> None:
        self._heap: list[int] = []  # arrival numbers
        self._at: dict[int, SchedulingClass] = {}
        self._head_of: dict[SchedulingClass, int] = {}  # the reverse

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, scheduling_class: SchedulingClass) -> bool:
        return scheduling_class in self._head_of

    def begin(self, scheduling_classes: Iterable[SchedulingClass]) -> None:
        """Begins a pass over these classes."""
        self._head_of, self._at = {}, {}
        for scheduling_class in scheduling_classes:
            if (head := scheduling_class.head()) is not None:
                self._head_of[scheduling_class] = head
                self._at[head] = scheduling_class
        self._heap = sorted(self._at)

    def put(self, scheduling_class: SchedulingClass, number: int) -> None:
        """Adds a class at this arrival number, or moves it there."""
        self.discard(scheduling_class)
        self._head_of[scheduling_class] = number
        self._at[number] = scheduling_class
        heapq.heappush(self._heap, number)

    def advance(self, scheduling_class: SchedulingClass, number: int) -> None:
        """Moves a class of this pass forward to this arrival number, if its own is higher. A class
        that is not in the pass is ignored.
        """
        if self._head_of.get(scheduling_class, -1) > number:
            self.put(scheduling_class, number)

    def discard(self, scheduling_class: SchedulingClass) -> None:
        """Removes a class, if it is in the pass."""
        number = self._head_of.pop(scheduling_class, None)
        if number is not None:
            del self._at[number]

    def first(self) -> int | None:
        """Returns the arrival number of the oldest request of all classes; None: there is none."""
        while (number := self.until()) is not None:
            head = self._at[number].head()
            if head is None or head == number:
                return number
            self.put(self._at[number], head)  # older requests of the class have left meanwhile
        return None

    def take(self) -> SchedulingClass | None:
        """Removes and returns the first class; None: the pass is over."""
        number = self.first()
        if number is None:
            return None
        scheduling_class = self._at[number]
        self.discard(scheduling_class)
        return scheduling_class

    def until(self) -> int | None:
        """Returns a lower bound of `first`, without reading the job queues; None: the pass is
        over.
        """
        heap, at = self._heap, self._at
        while heap and heap[0] not in at:
            heapq.heappop(heap)
        return heap[0] if heap else None
