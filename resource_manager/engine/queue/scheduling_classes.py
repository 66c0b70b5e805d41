"""Defines scheduling classes (equal requests), and the job queues of each class.

Requests with equal profile, labels and CPU policy fit on the same hosts. So the result of a failed
search is stored once for each class. A job queue stores arrival numbers as intervals, so a million
requests that arrived together need no more memory than one request. `ActiveQueues` sorts the active
queues of a job by their oldest requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from finegrain.cpu_policy import PLAIN, CpuPolicy
from finegrain.intervals import IntervalSet, Run
from finegrain.resources import ResourceProfile
from resource_manager.engine.model.scheduling_key import (
    DEFAULT_LANE,
    PRIORITY_STEP,
    CpuKey,
    Labels,
    Lane,
    Needs,
    SchedulingKey,
    WaitingKey,
    is_topology_constrained,
)

_NEVER = 1 << 62
"""A number that is higher than every arrival number."""

INACTIVE = -1
"""The position of a job queue that is not active. No place in a job has this value."""

ALL_JOBS = ""
"""Replaces the id of the job if requests are served in order of arrival."""

STALE_MAX = 64
"""The number of entries that a heap can have in addition to two entries for each queue. A heap with
more entries is rebuilt without its outdated entries.
"""


IDLE_CLASSES_MAX = 1_024
"""The largest number of classes without pending requests that are kept with their cached search
results.
"""


@dataclass(slots=True, eq=False)
class Cursor:
    """The point at which the last search for a class stopped, in one tier of hosts
    (`placement/policies.py`).

    The class fits on no host before the position `frontier`, except possibly on the hosts at the
    positions `again`. `version` is the version of the index at the end of that search, and
    `log_length` is the length of the index's growth log at the same moment.
    """

    version: int = -1
    log_length: int = 0
    frontier: int = 0
    again: frozenset[int] = frozenset()


NOT_SEARCHED = (-1, 0)
"""The value of `SchedulingClass.searched` if the last search found a host, or did not check all
hosts.
"""


@dataclass(slots=True, eq=False)
class SchedulingClass:
    """Equal requests that are pending.

    Attributes:
        number: the number of the class in the order of creation. The number breaks ties.
        profile: the resource profile of the requests, or None if the requests get default slots.
        labels: the labels that a host must carry.
        needs: the amounts that a host must have. The value is None until the amounts are computed
            (see `placement/columns.py`).
        cpus: the CPU policy of the requests, or None if the requests have no CPU policy.
        waiting: the number of pending requests.
        job_queues: the job queues of the class, by job.
        inactive: the job queues that wait until a host has room for the class.
        tried: True if the class was tried after its first request arrived.
        cursors: for each tier of hosts, the point at which the last search stopped.
        searched: the version of the index, and the length of the index's growth log, at the time of
            the last search. The value is `NOT_SEARCHED` if that search found a host or did not
            check all hosts.
        verdict: cached pair (version of the cluster, feasibility).
        reason: cached pair (version of the state, the reason why the requests wait).
        need: cached pair (version of the cluster, the largest amounts that one request books).
        heads: a heap of the first arrival numbers of the job queues. Some entries are possibly
            outdated; see `head`.
        lane: the attributes of the requests that do not matter for the choice of a host.
        key: the scheduling key that all requests of the class have.
        waiting_key: the key by which the queue finds the class.
        best_effort: True if the requests book best-effort cpu.
        topology_constrained: True if amounts alone do not decide whether a request fits on a host.
    """

    number: int
    profile: ResourceProfile | None
    labels: Labels
    cpus: CpuKey | None = None
    needs: Needs | None = None
    waiting: int = 0
    job_queues: dict[str, JobQueue] = field(default_factory=dict)
    inactive: dict[JobQueue, None] = field(default_factory=dict)
    tried: bool = True
    cursors: dict[tuple[object, ...], Cursor] = field(default_factory=dict)
    searched: tuple[int, int] = NOT_SEARCHED
    verdict: tuple[int, str] | None = None
    reason: tuple[int, str] | None = None
    need: tuple[int, dict[str, int]] | None = None
    heads: list[tuple[int, JobQueue]] = field(default_factory=list)
    lane: Lane = DEFAULT_LANE
    key: SchedulingKey = field(init=False)
    waiting_key: WaitingKey = field(init=False)
    best_effort: bool = field(init=False)
    topology_constrained: bool = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.profile, self.labels, self.cpus
        self.waiting_key = self.key, self.lane
        self.best_effort = self.cpus is not None and self.cpus[0].best_effort
        self.topology_constrained = is_topology_constrained(self.profile, self.cpus)

    @property
    def policy(self) -> CpuPolicy:
        """The CPU policy of the requests."""
        return PLAIN if self.cpus is None else self.cpus[0]

    def head(self) -> int | None:
        """Returns the arrival number of the oldest request, or None if no request is pending."""
        heads = self.heads
        # Requests leave in any order, so entries can be outdated. An entry is corrected only in
        # this method, when it is at the top of the heap.
        while heads:
            number, job_queue = heads[0]
            if not job_queue.numbers:
                heapq.heappop(heads)
            elif job_queue.numbers.first != number:
                heapq.heapreplace(heads, (job_queue.numbers.first, job_queue))
            else:
                return number
        return None

    def first_queues(self, most: int) -> list[JobQueue]:
        """Returns up to `most` job queues, ordered by their oldest requests. The cost does not
        depend on the number of other queues.
        """
        found: dict[JobQueue, None] = {}
        while len(found) < most and self.head() is not None:
            # the heap can have several entries of one queue, so use a dict
            found[heapq.heappop(self.heads)[1]] = None
        # Add the popped queues again, with one entry for each queue.
        for job_queue in found:
            heapq.heappush(self.heads, (job_queue.numbers.first, job_queue))
        return list(found)

    def activate(self, job_queue: JobQueue, number: int) -> None:
        """Updates `heads` after the number of a job queue's oldest request has become `number`,
        which is lower than the number before.
        """
        heapq.heappush(self.heads, (number, job_queue))
        # Rebuild the heap when it has more than about two entries for each queue.
        if len(self.heads) > STALE_MAX + 2 * len(self.job_queues):
            self.heads = [
                (job_queue.numbers.first, job_queue) for job_queue in self.job_queues.values()
            ]
            heapq.heapify(self.heads)

    def runs(self) -> Iterator[Run]:
        """Yields, in order, the arrival numbers of all requests as intervals. An interval can begin
        directly after the end of the previous interval. The class must not change during the
        iteration.
        """
        # `head` corrects the first entry. The loop corrects every later entry when it is at the
        # top.
        self.head()
        left = list(self.heads)
        while left:
            number, job_queue = heapq.heappop(left)
            start = job_queue.numbers.next_from(number)
            if start is None:
                continue
            if left and left[0][0] <= start:  # another entry possibly comes first now
                if left[0][1] is not job_queue or left[0][0] != start:
                    heapq.heappush(left, (start, job_queue))
                continue  # the entry was put back, or its queue was already listed
            _, end = next(job_queue.numbers.runs_within(start, _NEVER))
            # The interval ends where an entry of another queue begins.
            if left:
                end = min(end, left[0][0])
            yield start, end
            heapq.heappush(left, (end, job_queue))

    def numbers(self) -> Iterator[int]:
        """Yields, in order, the arrival numbers of all requests. The class must not change during
        the iteration.
        """
        for start, end in self.runs():
            yield from range(start, end)

    def count_before(self, number: int) -> int:
        """Returns the number of requests whose arrival number is lower than `number`."""
        return sum(
            job_queue.numbers.count_within(0, number) for job_queue in self.job_queues.values()
        )


@dataclass(slots=True, eq=False)
class JobQueue:
    """The pending requests of one job in one class.

    Attributes:
        numbers: the arrival numbers of the requests.
        position: the place by which the active queues of a job are sorted. The position is either
            the place of the first number of `numbers`, or the lower place of a request that has
            left the queue. The position of a queue that is not active is `INACTIVE`.
        blocked_by: the id of the group whose quota blocks the queue, or empty if no quota blocks
            it.
        may_reject: True if some requests of the queue can be rejected as infeasible. False if all
            requests have `allow_pending`, so that they wait until a suitable executor registers.
        priority: the priority by which the queue is sorted in its job.
    """

    scheduling_class: SchedulingClass
    job_id: str
    active_queues: ActiveQueues
    numbers: IntervalSet = field(default_factory=IntervalSet)
    position: int = INACTIVE
    blocked_by: str = ""
    may_reject: bool = False
    priority: int = 0

    @property
    def place(self) -> int:
        """The place of the oldest request; see `place_of`."""
        return self.numbers.first - self.priority * PRIORITY_STEP

    def __lt__(self, other: JobQueue) -> bool:
        """Lets heaps compare entries with equal numbers. At most one of the entries with the same
        number is current, so their order does not matter.
        """
        return False


class ActiveQueues:
    """The active queues of one job, or of all jobs if requests are served in order of arrival.

    The heap can contain outdated entries. An outdated entry is skipped when it is at the top. If
    there are too many outdated entries, all of them are removed.

    Attributes:
        active_count: the number of active queues.
    """

    __slots__ = ("_heap", "active_count", "job_id")

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.active_count = 0
        self._heap: list[tuple[int, JobQueue]] = []

    def activate(self, job_queue: JobQueue) -> bool:
        """Activates a job queue. Returns whether it is the only active queue."""
        self._put(job_queue, job_queue.place)
        self.active_count += 1
        return self.active_count == 1

    def deactivate(self, job_queue: JobQueue) -> bool:
        """Makes a job queue inactive. Returns whether no active queue is left."""
        job_queue.position = INACTIVE
        self.active_count -= 1
        if not self.active_count:
            self._heap.clear()
        return not self.active_count

    def advance(self, job_queue: JobQueue) -> None:
        """Moves an active queue forward after its oldest request has changed."""
        if (place := job_queue.place) < job_queue.position:
            self._put(job_queue, place)

    def first(self) -> JobQueue | None:
        """Returns the queue with the lowest place, or None if no queue is active."""
        heap = self._heap
        while heap:
            number, job_queue = heap[0]
            if job_queue.position != number:
                heapq.heappop(heap)
            elif (head := job_queue.place) != number:
                # The oldest request has left the queue, so the queue moves back in the order.
                job_queue.position = head
                heapq.heapreplace(heap, (head, job_queue))
            else:
                return job_queue
        return None

    def until(self, job_queue: JobQueue) -> int | None:
        """Returns the position of the second queue in the order, or None if only one queue is
        active.

        `job_queue` must be the first queue.
        """
        heap = self._heap
        # Pop the entry of the first queue and outdated entries, so that the second queue is at the
        # top.
        heapq.heappop(heap)
        while heap and (heap[0][1].position != heap[0][0] or heap[0][1] is job_queue):
            heapq.heappop(heap)
        number = heap[0][0] if heap else None
        heapq.heappush(heap, (job_queue.position, job_queue))
        return number

    def _put(self, job_queue: JobQueue, number: int) -> None:
        job_queue.position = number
        heapq.heappush(self._heap, (number, job_queue))
        # Rebuild the heap when it has more than about two entries for each active queue.
        if len(self._heap) > STALE_MAX + 2 * self.active_count:
            there = {
                job_queue: number
                for number, job_queue in self._heap
                if job_queue.position == number
            }
            self._heap = [(number, job_queue) for job_queue, number in there.items()]
            heapq.heapify(self._heap)


class KnownClasses:
    """All scheduling classes by their keys.

    Attributes:
        waited_with: the classes that have pending requests, by key.
    """

    def __init__(self) -> None:
        self.waited_with: dict[WaitingKey, SchedulingClass] = {}
        self._idle: dict[
            WaitingKey, SchedulingClass
            # classes without pending requests. The first class is the class that has been unused
            # for the longest time.
        ] = {}
        # for each set of labels, the number of classes with pending requests
        self._required: dict[Labels, int] = {}
        self._made = 0

    def is_required(self, labels: Labels) -> bool:
        """Returns whether a class with pending requests requires these labels."""
        return labels in self._required

    def of(self, key: WaitingKey) -> SchedulingClass:
        """Returns the class with this key. The class possibly has no pending requests."""
        scheduling_class = self.waited_with.get(key) or self._idle.get(key)
        if scheduling_class is None:
            scheduling_class = self._make(key)
            self._retire(key, scheduling_class)
        return scheduling_class

    def begin(self, key: WaitingKey) -> SchedulingClass:
        """Returns the class with this key. The caller must add the first pending request of the
        class.
        """
        scheduling_class = self._idle.pop(key, None) or self._make(key)
        self.waited_with[key] = scheduling_class
        self._required[scheduling_class.labels] = self._required.get(scheduling_class.labels, 0) + 1
        return scheduling_class

    def end(self, scheduling_class: SchedulingClass) -> None:
        """Records that a class has no pending requests any more."""
        key = scheduling_class.waiting_key
        del self.waited_with[key]
        self._required[scheduling_class.labels] -= 1
        if not self._required[scheduling_class.labels]:
            del self._required[scheduling_class.labels]
        scheduling_class.heads.clear()
        self._retire(key, scheduling_class)

    def _retire(self, key: WaitingKey, scheduling_class: SchedulingClass) -> None:
        """Keeps a class with its cached search results, for later equal requests. If too many
        classes are kept, the method deletes the class that has been unused for the longest time.
        """
        self._idle[key] = scheduling_class
        if len(self._idle) > IDLE_CLASSES_MAX:
            del self._idle[next(iter(self._idle))]

    def _make(self, key: WaitingKey) -> SchedulingClass:
        self._made += 1
        placement_key, lane = key
        return SchedulingClass(self._made, *placement_key, lane=lane)
