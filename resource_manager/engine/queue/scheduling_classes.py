"""Equal requests that wait, and the lines in which they do. Knows arrival numbers; whether anything
fits, and which job comes first, is not its business.

Requests that ask for the same (profile, labels and CPU policy) form a *shape*: where one of them
does not fit, none does, so a failed search is remembered once per shape.

What one job waits with of one shape is a *line*: the arrival numbers of its requests, as runs, so
that a million of them that came together cost as much as one. A job's lines stand side by side,
each at the number of who waits longest in it (`ActiveQueues`). A line that cannot be served is
*parked*: it stands there no more until whatever stopped it is over.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from finegrain.cpu_policy import PLAIN, CpuPolicy
from finegrain.intervals import IntervalSet, Run
from finegrain.resources import ResourceProfile
from resource_manager.engine.model.scheduling_key import (
    CpuKey,
    Labels,
    SchedulingKey,
    amounts_only,
    is_exact,
    need_of,
)

_NEVER = 1 << 62
"""Above every arrival number."""

INACTIVE = -1
"""Instead of the number at which a line stands."""

STALE_MAX = 64
"""Places at which nobody stands any more that a heap may have beside as many as are of use."""


IDLE_SHAPES_MAX = 1_024
"""Shapes remembered although nobody waits with them."""


@dataclass(slots=True, eq=False)
class Cursor:
    """How far a shape's search has come in its index: no host before `frontier` fits, but perhaps
    those at the positions `again`, as of `log_length`.
    """

    version: int = -1
    log_length: int = 0
    frontier: int = 0
    again: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class SchedulingClass:
    """Equal requests that wait.

    Attributes:
        cpus: what they say of their cpus; None: nothing.
        pooled_need: columns of the index and amounts that a host with one memory pool must have;
            where `exact`, more may be needed.
        separate_need: the same on a host with a pool per memory part.
        waiting: how many.
        lines: by job.
        parked: those that were found waiting in vain while nothing fitted.
        tried: since somebody began to wait with it.
        verdict: (version of the cluster, feasibility) as last judged.
        reason: (state of the books, why it waits) as last asked.
        need: (version of the cluster, what one books at most) as last asked.
    """

    number: int  # order of making; for ties
    profile: ResourceProfile | None
    labels: Labels
    pooled_need: dict[str, int]
    separate_need: dict[str, int]
    cpus: CpuKey | None = None
    waiting: int = 0
    lines: dict[str, JobQueue] = field(default_factory=dict)
    parked: dict[JobQueue, None] = field(default_factory=dict)
    tried: bool = True
    cursor: Cursor = field(default_factory=Cursor)
    strict_cursor: Cursor = field(default_factory=Cursor)  # among hosts that look exactly at all
    verdict: tuple[int, str] | None = None
    reason: tuple[int, str] | None = None
    need: tuple[int, dict[str, int]] | None = None
    heads: list[tuple[int, JobQueue]] = field(default_factory=list)  # see `head`

    @property
    def key(self) -> SchedulingKey:
        """What all of them ask for."""
        return self.profile, self.labels, self.cpus

    @property
    def amounts(self) -> tuple[dict[str, int], dict[str, int]]:
        """`pooled_need` and `separate_need` without columns of cpus: as far as amounts can tell."""
        if self.cpus is None:
            return self.pooled_need, self.separate_need
        return amounts_only(self.pooled_need), amounts_only(self.separate_need)

    @property
    def policy(self) -> CpuPolicy:
        """What they say of their cpus."""
        return PLAIN if self.cpus is None else self.cpus[0]

    @property
    def best_effort(self) -> bool:
        """True if they book best-effort cpu."""
        return self.cpus is not None and self.cpus[0].best_effort

    @property
    def exact(self) -> bool:
        """True if amounts alone never say whether a host can serve one."""
        return self.cpus is not None and is_exact(self.profile, self.cpus)

    def head(self) -> int | None:
        """Arrival number of who waits longest with it; None: nobody waits."""
        heads = self.heads
        while heads:
            number, job_queue = heads[0]
            if not job_queue.numbers:
                heapq.heappop(heads)
            elif job_queue.numbers.first != number:
                heapq.heapreplace(heads, (job_queue.numbers.first, job_queue))
            else:
                return number
        return None

    def first_lines(self, most: int) -> list[JobQueue]:
        """The lines of those who wait longest with it, one line each, in their order; so many at
        most. All others are not looked at.
        """
        found: dict[JobQueue, None] = {}
        while len(found) < most and self.head() is not None:
            found[heapq.heappop(self.heads)[1]] = None  # some stand there more than once
        for job_queue in found:
            heapq.heappush(self.heads, (job_queue.numbers.first, job_queue))
        return list(found)

    def stand(self, job_queue: JobQueue, number: int) -> None:
        """Who waits longest in a line of this shape has this number now, which is lower than it
        was.
        """
        heapq.heappush(self.heads, (number, job_queue))
        if len(self.heads) > STALE_MAX + 2 * len(self.lines):
            self.heads = [(job_queue.numbers.first, job_queue) for job_queue in self.lines.values()]
            heapq.heapify(self.heads)

    def runs(self) -> Iterator[Run]:
        """Arrival numbers of those who wait, in order, as runs that follow one another (and may
        touch). Nobody may come or leave meanwhile.
        """
        self.head()
        left = list(self.heads)
        while left:
            number, job_queue = heapq.heappop(left)
            start = job_queue.numbers.next_from(number)
            if start is None:
                continue
            if left and left[0][0] <= start:  # at the earliest
                if left[0][1] is not job_queue or left[0][0] != start:
                    heapq.heappush(left, (start, job_queue))
                continue  # the same once more
            _, end = next(job_queue.numbers.runs_within(start, _NEVER))
            if left:
                end = min(end, left[0][0])
            yield start, end
            heapq.heappush(left, (end, job_queue))

    def numbers(self) -> Iterator[int]:
        """Arrival numbers of those who wait, in order. Likewise."""
        for start, end in self.runs():
            yield from range(start, end)

    def count_before(self, number: int) -> int:
        """How many wait with it who came before a number."""
        return sum(job_queue.numbers.count_within(0, number) for job_queue in self.lines.values())


@dataclass(slots=True, eq=False)
class JobQueue:
    """What one job waits with of one shape.

    Attributes:
        numbers: arrival numbers of those who wait.
        stands: at which of them it stands among its job's lines; the first, or one before it that
            left meanwhile. `INACTIVE`: it does not.
        stopped_by: the group whose maximum it was parked for; empty: it was not.
        served_ms: when something of it was placed last; None: nothing was.
        served_placements: of everybody, until then.
        may_reject: whether some of its requests may be rejected while they wait; False: all of them
            allow to wait for an executor that may come.
    """

    shape: SchedulingClass
    job_id: str
    among: ActiveQueues
    numbers: IntervalSet = field(default_factory=IntervalSet)
    stands: int = INACTIVE
    stopped_by: str = ""
    served_ms: int | None = None
    served_placements: int = 0
    may_reject: bool = False

    def placed(self, now_ms: int, placements: int) -> None:
        """Something of it was placed; `placements` of everybody until now."""
        self.served_ms, self.served_placements = now_ms, placements

    def __lt__(self, other: JobQueue) -> bool:
        """Of two that a heap has at one number, one is no more; which comes first, is all one."""
        return False


class ActiveQueues:
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
        self._heap: list[tuple[int, JobQueue]] = []

    def stand(self, job_queue: JobQueue) -> bool:
        """Lets a line that is parked stand here; True if it is the only one."""
        self._put(job_queue, job_queue.numbers.first)
        self.standing += 1
        return self.standing == 1

    def park(self, job_queue: JobQueue) -> bool:
        """Lets a line stand here no more; True if it was the only one."""
        job_queue.stands = INACTIVE
        self.standing -= 1
        if not self.standing:
            self._heap.clear()
        return not self.standing

    def advance(self, job_queue: JobQueue, number: int) -> None:
        """Somebody stands in a line here again, perhaps before all others."""
        if number < job_queue.stands:
            self._put(job_queue, number)

    def first(self) -> JobQueue | None:
        """The line of who waits longest."""
        heap = self._heap
        while heap:
            number, job_queue = heap[0]
            if job_queue.stands != number:
                heapq.heappop(heap)
            elif (head := job_queue.numbers.first) != number:
                job_queue.stands = head
                heapq.heapreplace(heap, (head, job_queue))
            else:
                return job_queue
        return None

    def until(self, job_queue: JobQueue) -> int | None:
        """Arrival number at which another line stands next, given the first one."""
        heap = self._heap
        heapq.heappop(heap)
        while heap and (heap[0][1].stands != heap[0][0] or heap[0][1] is job_queue):
            heapq.heappop(heap)
        number = heap[0][0] if heap else None
        heapq.heappush(heap, (job_queue.stands, job_queue))
        return number

    def _put(self, job_queue: JobQueue, number: int) -> None:
        job_queue.stands = number
        heapq.heappush(self._heap, (number, job_queue))
        if len(self._heap) > STALE_MAX + 2 * self.standing:
            there = {
                job_queue: number for number, job_queue in self._heap if job_queue.stands == number
            }
            self._heap = [(number, job_queue) for job_queue, number in there.items()]
            heapq.heapify(self._heap)


def make_scheduling_class(number: int, key: SchedulingKey) -> SchedulingClass:
    """The shape of requests that ask for this."""
    profile, labels, cpus = key
    return SchedulingClass(
        number=number,
        profile=profile,
        labels=labels,
        pooled_need=need_of(profile, cpus, separate_pools=False),
        separate_need=need_of(profile, cpus, separate_pools=True),
        cpus=cpus,
    )


class KnownClasses:
    """All shapes, by what they ask for.

    Attributes:
        waited_with: those that somebody waits with.
    """

    def __init__(self) -> None:
        self.waited_with: dict[SchedulingKey, SchedulingClass] = {}
        self._idle: dict[
            SchedulingKey, SchedulingClass
        ] = {}  # nobody waits with them; longest unused first
        self._asked_for: dict[Labels, int] = {}  # shapes that somebody waits with
        self._made = 0

    def is_asked_for(self, labels: Labels) -> bool:
        """True if somebody waits with a shape that asks for these labels."""
        return labels in self._asked_for

    def of(self, key: SchedulingKey) -> SchedulingClass:
        """The shape of requests that ask for this, whether or not anybody waits with it."""
        scheduling_class = self.waited_with.get(key) or self._idle.get(key)
        if scheduling_class is None:
            scheduling_class = self._make(key)
            self._retire(key, scheduling_class)
        return scheduling_class

    def begin(self, key: SchedulingKey) -> SchedulingClass:
        """Somebody begins to wait who asks for this."""
        scheduling_class = self._idle.pop(key, None) or self._make(key)
        self.waited_with[key] = scheduling_class
        self._asked_for[scheduling_class.labels] = (
            self._asked_for.get(scheduling_class.labels, 0) + 1
        )
        return scheduling_class

    def end(self, scheduling_class: SchedulingClass) -> None:
        """The last one who waited with a shape has left."""
        key = scheduling_class.key
        del self.waited_with[key]
        self._asked_for[scheduling_class.labels] -= 1
        if not self._asked_for[scheduling_class.labels]:
            del self._asked_for[scheduling_class.labels]
        scheduling_class.heads.clear()
        self._retire(key, scheduling_class)

    def _retire(self, key: SchedulingKey, scheduling_class: SchedulingClass) -> None:
        """Keeps what was learnt about a shape, for the next one who asks for the same."""
        self._idle[key] = scheduling_class
        if len(self._idle) > IDLE_SHAPES_MAX:
            del self._idle[next(iter(self._idle))]

    def _make(self, key: SchedulingKey) -> SchedulingClass:
        self._made += 1
        return make_scheduling_class(self._made, key)
