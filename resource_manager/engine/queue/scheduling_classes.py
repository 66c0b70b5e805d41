"""Defines scheduling classes (equal requests), and the job queues of each class.

Requests with the same profile, labels and CPU policy fit the same hosts. So the result of a failed
search is stored once for each class. A job queue stores arrival numbers as intervals, so a million
requests that arrived together need as much memory as one request. `ActiveQueues` orders the active
queues of a job by their oldest request.
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
    Needs,
    SchedulingKey,
    is_topology_constrained,
)

_NEVER = 1 << 62
"""Larger than every arrival number."""

INACTIVE = -1
"""Position of a job queue that is not active."""

STALE_MAX = 64
"""A heap may have this many entries in addition to two for each queue. Then its outdated entries
are removed.
"""


IDLE_CLASSES_MAX = 1_024
"""At most this many classes without pending requests are kept, with their cached search results."""


@dataclass(slots=True, eq=False)
class Cursor:
    """Where the search for a class stopped in one tier of its index.

    No host before position `frontier` fits, except perhaps the hosts at the positions `again`. This
    was true when the index had this `version`, and its growth log had `log_length` entries.
    """

    version: int = -1
    log_length: int = 0
    frontier: int = 0
    again: frozenset[int] = frozenset()


NOT_SEARCHED = (-1, 0)
"""Value of `SchedulingClass.searched` if the last search found a host, or did not check all
hosts.
"""


@dataclass(slots=True, eq=False)
class SchedulingClass:
    """Equal requests that are pending.

    Attributes:
        number: order of creation; breaks ties.
        profile: the resource profile of the requests; None: they get default slots.
        labels: labels that a host must carry.
        needs: amounts that a host must have; None: not computed yet (see `placement/columns.py`).
        cpus: the CPU policy of the requests; None: the requests have no CPU policy.
        waiting: number of pending requests.
        job_queues: the job queues of the class, by job.
        inactive: job queues that wait until a host has room for the class.
        tried: whether the class was tried since its first request arrived.
        cursors: where the last search stopped, by tier of hosts.
        searched: the version of the index and the length of its growth log at the last search, if
            this search checked all hosts and found no host.
        verdict: cached (version of the cluster, feasibility).
        reason: cached (version of the state, reason why the requests wait).
        need: cached (version of the cluster, largest amounts that one request books).
        heads: heap of the first arrival numbers of job queues. Some entries may be outdated; see
            `head`.
        key: the key that all requests of the class share.
        best_effort: True if the requests book best-effort cpu.
        topology_constrained: True if amounts alone are not sufficient to decide whether a request
            fits on a host.
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
    key: SchedulingKey = field(init=False)
    best_effort: bool = field(init=False)
    topology_constrained: bool = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.profile, self.labels, self.cpus
        self.best_effort = self.cpus is not None and self.cpus[0].best_effort
        self.topology_constrained = is_topology_constrained(self.profile, self.cpus)

    @property
    def policy(self) -> CpuPolicy:
        """The CPU policy of the requests."""
        return PLAIN if self.cpus is None else self.cpus[0]

    def head(self) -> int | None:
        """Returns the arrival number of the oldest request; None: there is no request."""
        heads = self.heads
        # Requests leave in any order, so entries may be outdated. They are corrected only here,
        # when they are at the top.
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
            # the heap may have several entries of one queue
            found[heapq.heappop(self.heads)[1]] = None
        # Adds the popped queues again, with one entry for each queue.
        for job_queue in found:
            heapq.heappush(self.heads, (job_queue.numbers.first, job_queue))
        return list(found)

    def activate(self, job_queue: JobQueue, number: int) -> None:
        """Updates `heads` after the oldest request of a job queue became `number`, which is lower
        than before.
        """
        heapq.heappush(self.heads, (number, job_queue))
        # Rebuilds the heap when it has more than about two entries for each queue.
        if len(self.heads) > STALE_MAX + 2 * len(self.job_queues):
            self.heads = [
                (job_queue.numbers.first, job_queue) for job_queue in self.job_queues.values()
            ]
            heapq.heapify(self.heads)

    def runs(self) -> Iterator[Run]:
        """Yields the arrival numbers of all requests in order, as intervals. An interval may begin
        directly after the end of the previous interval. The class must not change during the
        iteration.
        """
        # Corrects the first entry. The loop corrects other entries when they are at the top.
        self.head()
        left = list(self.heads)
        while left:
            number, job_queue = heapq.heappop(left)
            start = job_queue.numbers.next_from(number)
            if start is None:
                continue
            if left and left[0][0] <= start:  # another entry may come first
                if left[0][1] is not job_queue or left[0][0] != start:
                    heapq.heappush(left, (start, job_queue))
                continue  # a second entry of the same queue
            _, end = next(job_queue.numbers.runs_within(start, _NEVER))
            # The next number may belong to another queue.
            if left:
                end = min(end, left[0][0])
            yield start, end
            heapq.heappush(left, (end, job_queue))

    def numbers(self) -> Iterator[int]:
        """Yields the arrival numbers of all requests in order. The class must not change during the
        iteration.
        """
        for start, end in self.runs():
            yield from range(start, end)

    def count_before(self, number: int) -> int:
        """Returns how many requests have an arrival number below this one."""
        return sum(
            job_queue.numbers.count_within(0, number) for job_queue in self.job_queues.values()
        )


@dataclass(slots=True, eq=False)
class JobQueue:
    """The pending requests of one job in one class.

    Attributes:
        numbers: the arrival numbers of the requests.
        position: the arrival number by which the queue is ordered among the job's active queues. It
            is the first of `numbers`, or the lower number of a request that has left the queue.
            `INACTIVE`: the queue is not active.
        blocked_by: id of the group whose quota blocks the queue; empty: no quota blocks it.
        may_reject: True if some of its requests may be rejected as infeasible. False: all of them
            have `allow_pending`, so they wait until a suitable executor registers.
    """

    scheduling_class: SchedulingClass
    job_id: str
    active_queues: ActiveQueues
    numbers: IntervalSet = field(default_factory=IntervalSet)
    position: int = INACTIVE
    blocked_by: str = ""
    may_reject: bool = False

    def __lt__(self, other: JobQueue) -> bool:
        """Lets heaps compare entries with equal numbers. At most one of such entries is current, so
        their order does not matter.
        """
        return False


class ActiveQueues:
    """The active queues of one job, or of all jobs if requests are served in order of arrival.

    The heap may have outdated entries. They are skipped when they are at the top, and removed when
    there are too many.

    Attributes:
        active_count: number of active queues.
    """

    __slots__ = ("_heap", "active_count", "job_id")

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.active_count = 0
        self._heap: list[tuple[int, JobQueue]] = []

    def activate(self, job_queue: JobQueue) -> bool:
        """Activates a job queue. Returns True if it is now the only active queue."""
        self._put(job_queue, job_queue.numbers.first)
        self.active_count += 1
        return self.active_count == 1

    def deactivate(self, job_queue: JobQueue) -> bool:
        """Makes a job queue inactive. Returns True if it was the only active queue."""
        job_queue.position = INACTIVE
        self.active_count -= 1
        if not self.active_count:
            self._heap.clear()
        return not self.active_count

    def advance(self, job_queue: JobQueue, number: int) -> None:
        """Moves an active queue forward, because its oldest request is now `number`."""
        if number < job_queue.position:
            self._put(job_queue, number)

    def first(self) -> JobQueue | None:
        """Returns the queue with the oldest request; None: no queue is active."""
        heap = self._heap
        while heap:
            number, job_queue = heap[0]
            if job_queue.position != number:
                heapq.heappop(heap)
            elif (head := job_queue.numbers.first) != number:
                # The oldest request of the queue has left, so the queue moves back in the order.
                job_queue.position = head
                heapq.heapreplace(heap, (head, job_queue))
            else:
                return job_queue
        return None

    def until(self, job_queue: JobQueue) -> int | None:
        """Returns the position of the second queue; None: there is no second queue.

        `job_queue` must be the first queue.
        """
        heap = self._heap
        # Pops the entry of the first queue, then outdated entries. The second queue is then on top.
        heapq.heappop(heap)
        while heap and (heap[0][1].position != heap[0][0] or heap[0][1] is job_queue):
            heapq.heappop(heap)
        number = heap[0][0] if heap else None
        heapq.heappush(heap, (job_queue.position, job_queue))
        return number

    def _put(self, job_queue: JobQueue, number: int) -> None:
        job_queue.position = number
        heapq.heappush(self._heap, (number, job_queue))
        # Rebuilds the heap when it has more than about two entries for each active queue.
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
        waited_with: the classes with pending requests.
    """

    def __init__(self) -> None:
        self.waited_with: dict[SchedulingKey, SchedulingClass] = {}
        self._idle: dict[
            SchedulingKey, SchedulingClass
        ] = {}  # classes without pending requests; the longest unused class comes first
        self._required: dict[Labels, int] = {}  # number of classes with pending requests
        self._made = 0

    def is_required(self, labels: Labels) -> bool:
        """Returns True if a class with pending requests requires these labels."""
        return labels in self._required

    def of(self, key: SchedulingKey) -> SchedulingClass:
        """Returns the class with this key; it need not have pending requests."""
        scheduling_class = self.waited_with.get(key) or self._idle.get(key)
        if scheduling_class is None:
            scheduling_class = self._make(key)
            self._retire(key, scheduling_class)
        return scheduling_class

    def begin(self, key: SchedulingKey) -> SchedulingClass:
        """Returns the class with this key, when its first pending request arrives."""
        scheduling_class = self._idle.pop(key, None) or self._make(key)
        self.waited_with[key] = scheduling_class
        self._required[scheduling_class.labels] = self._required.get(scheduling_class.labels, 0) + 1
        return scheduling_class

    def end(self, scheduling_class: SchedulingClass) -> None:
        """Records that a class no longer has pending requests."""
        key = scheduling_class.key
        del self.waited_with[key]
        self._required[scheduling_class.labels] -= 1
        if not self._required[scheduling_class.labels]:
            del self._required[scheduling_class.labels]
        scheduling_class.heads.clear()
        self._retire(key, scheduling_class)

    def _retire(self, key: SchedulingKey, scheduling_class: SchedulingClass) -> None:
        """Keeps a class and its cached search results for the next equal request. If too many
        classes are kept, the method deletes the class that was unused for longest.
        """
        self._idle[key] = scheduling_class
        if len(self._idle) > IDLE_CLASSES_MAX:
            del self._idle[next(iter(self._idle))]

    def _make(self, key: SchedulingKey) -> SchedulingClass:
        self._made += 1
        return SchedulingClass(self._made, *key)
