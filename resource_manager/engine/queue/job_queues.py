"""Lines: what each job waits with. Knows arrival numbers; what fits, and which job comes first, is
not its business.

What one job waits with of one shape is a *line*: the arrival numbers of its requests, as runs, so
that a million of them that came together cost as much as one. A job's lines stand side by side,
each at the number of who waits longest in it (`JobLines`). A line that cannot be served is
*parked*: it stands there no more until whatever stopped it is over.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from finegrain.intervals import IntervalSet
from resource_manager.engine.queue.scheduling_classes import STALE_MAX, Shape

PARKED = -1
"""Instead of the number at which a line stands."""


@dataclass(slots=True, eq=False)
class Line:
    """What one job waits with of one shape.

    Attributes:
        numbers: arrival numbers of those who wait.
        stands: at which of them it stands among its job's lines; the first, or one before it that
            left meanwhile. `PARKED`: it does not.
        stopped_by: the group whose maximum it was parked for; empty: it was not.
        served_ms: when something of it was placed last; None: nothing was.
        served_placements: of everybody, until then.
        may_reject: whether some of its requests may be rejected while they wait; False: all of them
            allow to wait for an executor that may come.
    """

    shape: Shape
    job_id: str
    among: JobLines
    numbers: IntervalSet = field(default_factory=IntervalSet)
    stands: int = PARKED
    stopped_by: str = ""
    served_ms: int | None = None
    served_placements: int = 0
    may_reject: bool = False

    def placed(self, now_ms: int, placements: int) -> None:
        """Something of it was placed; `placements` of everybody until now."""
        self.served_ms, self.served_placements = now_ms, placements

    def __lt__(self, other: Line) -> bool:
        """Of two that a heap has at one number, one is no more; which comes first, is all one."""
        return False


class JobLines:
    """Lines of one job that are not parked (or, where arrival alone decides, of all jobs).

    Nobody is searched for in the heap: places at which no line stands any more are passed over when
    their turn comes, and thrown out when they are the most.

    Attributes:
        standing: how many lines are not parked.
    """

    __slots__ = ("_heap", "job_id", "standing")

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.standing = 0
        self._heap: list[tuple[int, Line]] = []

    def stand(self, line: Line) -> bool:
        """Lets a line that is parked stand here; True if it is the only one."""
        self._put(line, line.numbers.first)
        self.standing += 1
        return self.standing == 1

    def park(self, line: Line) -> bool:
        """Lets a line stand here no more; True if it was the only one."""
        line.stands = PARKED
        self.standing -= 1
        if not self.standing:
            self._heap.clear()
        return not self.standing

    def advance(self, line: Line, number: int) -> None:
        """Somebody stands in a line here again, perhaps before all others."""
        if number < line.stands:
            self._put(line, number)

    def first(self) -> Line | None:
        """The line of who waits longest."""
        heap = self._heap
        while heap:
            number, line = heap[0]
            if line.stands != number:
                heapq.heappop(heap)
            elif (head := line.numbers.first) != number:
                line.stands = head
                heapq.heapreplace(heap, (head, line))
            else:
                return line
        return None

    def until(self, line: Line) -> int | None:
        """Arrival number at which another line stands next, given the first one."""
        heap = self._heap
        heapq.heappop(heap)
        while heap and (heap[0][1].stands != heap[0][0] or heap[0][1] is line):
            heapq.heappop(heap)
        number = heap[0][0] if heap else None
        heapq.heappush(heap, (line.stands, line))
        return number

    def _put(self, line: Line, number: int) -> None:
        line.stands = number
        heapq.heappush(self._heap, (number, line))
        if len(self._heap) > STALE_MAX + 2 * self.standing:
            there = {line: number for number, line in self._heap if line.stands == number}
            self._heap = [(number, line) for line, number in there.items()]
            heapq.heapify(self._heap)
