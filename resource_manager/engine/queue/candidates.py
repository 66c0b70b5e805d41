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

    def __contains__(self, shape: SchedulingClass) -> bool:
        return shape in self._stands

    def begin(self, shapes: Iterable[SchedulingClass]) -> None:
        """These, in place of what there was."""
        self._stands, self._at = {}, {}
        for shape in shapes:
            if (head := shape.head()) is not None:
                self._stands[shape] = head
                self._at[head] = shape
        self._heap = sorted(self._at)

    def put(self, shape: SchedulingClass, number: int) -> None:
        """Lets a shape stand at the place of this arrival number."""
        self.discard(shape)
        self._stands[shape] = number
        self._at[number] = shape
        heapq.heappush(self._heap, number)

    def advance(self, shape: SchedulingClass, number: int) -> None:
        """The same, if the shape has its turn in this round, and only later than that."""
        if self._stands.get(shape, -1) > number:
            self.put(shape, number)

    def discard(self, shape: SchedulingClass) -> None:
        """Takes a shape out."""
        number = self._stands.pop(shape, None)
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
        shape = self._at[number]
        self.discard(shape)
        return shape

    def until(self) -> int | None:
        """Arrival number at which a shape stands next, at the earliest."""
        heap, at = self._heap, self._at
        while heap and heap[0] not in at:
            heapq.heappop(heap)
        return heap[0] if heap else None
