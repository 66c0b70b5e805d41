"""Which shape is looked at next, in one round. Knows places in line, not what fits."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resource_manager.engine.queue.scheduling_classes import SchedulingClass


class Round:
    """Shapes that are to be looked at, whoever waits longest with one first.

    Nobody is searched for in the heap: numbers at which no shape stands any more are passed over
    when their turn comes.
    """

    def __init__(self) -> None:
        self._heap: list[int] = []  # arrival numbers
        self._at: dict[int, SchedulingClass] = {}
        self._stands: dict[SchedulingClass, int] = {}  # the reverse

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, scheduling_class: SchedulingClass) -> bool:
        return scheduling_class in self._stands

    def begin(self, scheduling_classes: Iterable[SchedulingClass]) -> None:
        """These, in place of what there was."""
        self._stands, self._at = {}, {}
        for scheduling_class in scheduling_classes:
            if (head := scheduling_class.head()) is not None:
                self._stands[scheduling_class] = head
                self._at[head] = scheduling_class
        self._heap = sorted(self._at)

    def put(self, scheduling_class: SchedulingClass, number: int) -> None:
        """Lets a shape stand at the place of this arrival number."""
        self.discard(scheduling_class)
        self._stands[scheduling_class] = number
        self._at[number] = scheduling_class
        heapq.heappush(self._heap, number)

    def advance(self, scheduling_class: SchedulingClass, number: int) -> None:
        """The same, if the shape has its turn in this round, and only later than that."""
        if self._stands.get(scheduling_class, -1) > number:
            self.put(scheduling_class, number)

    def discard(self, scheduling_class: SchedulingClass) -> None:
        """Takes a shape out."""
        number = self._stands.pop(scheduling_class, None)
        if number is not None:
            del self._at[number]

    def first(self) -> int | None:
        """Arrival number of whoever waits longest with one of the shapes."""
        while (number := self.until()) is not None:
            head = self._at[number].head()
            if head is None or head == number:
                return number
            self.put(self._at[number], head)  # those before it have left meanwhile
        return None

    def take(self) -> SchedulingClass | None:
        """Takes out the shape whose turn it is."""
        number = self.first()
        if number is None:
            return None
        scheduling_class = self._at[number]
        self.discard(scheduling_class)
        return scheduling_class

    def until(self) -> int | None:
        """Arrival number at which a shape stands next, at the earliest."""
        heap, at = self._heap, self._at
        while heap and heap[0] not in at:
            heapq.heappop(heap)
        return heap[0] if heap else None
