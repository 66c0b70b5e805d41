"""Chooses the job queue that is served next, and how many of its requests are placed together.

The fairness tree chooses the job. Of the active queues of this job, the queue with the highest
priority comes first. If several queues have the highest priority, the queue with the oldest request
comes first. Without a tree, requests are served in order of arrival, and priorities have no effect.

`ClassPass` sorts the scheduling classes of a pass by their oldest requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from math import inf

from finegrain.errors import InvariantBroken
from resource_manager.engine.fairness.choice import RUN_PART, order_key_of, run_length
from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.model.scheduling_key import PRIORITY_STEP
from resource_manager.engine.queue.non_batchable import NonBatchable, NonBatchables, Rank
from resource_manager.engine.queue.scheduling_classes import (
    ALL_JOBS,
    ActiveQueues,
    JobQueue,
    SchedulingClass,
)


class ClassPass:
    """The classes of one pass, in the order of their oldest requests.

    When a class moves or is removed, its old arrival number stays in the heap until this number is
    at the top.
    """

    def __init__(self) -> None:
        self._heap: list[int] = []  # heap of arrival numbers
        self._at: dict[int, SchedulingClass] = {}
        self._head_of: dict[SchedulingClass, int] = {}  # the inverse of `_at`

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, scheduling_class: SchedulingClass) -> bool:
        return scheduling_class in self._head_of

    def begin(self, scheduling_classes: Iterable[SchedulingClass]) -> None:
        """Starts a pass with these classes."""
        self._head_of, self._at = {}, {}
        for scheduling_class in scheduling_classes:
            if (head := scheduling_class.head()) is not None:
                self._head_of[scheduling_class] = head
                self._at[head] = scheduling_class
        self._heap = sorted(self._at)

    def put(self, scheduling_class: SchedulingClass, number: int) -> None:
        """Adds a class with this arrival number. If the pass contains the class already, moves the
        class to this number.
        """
        self.discard(scheduling_class)
        self._head_of[scheduling_class] = number
        self._at[number] = scheduling_class
        heapq.heappush(self._heap, number)

    def advance(self, scheduling_class: SchedulingClass, number: int) -> None:
        """Moves a class forward to this arrival number, if its present number is higher. A class
        that is not in the pass is ignored.
        """
        if self._head_of.get(scheduling_class, -1) > number:
            self.put(scheduling_class, number)

    def discard(self, scheduling_class: SchedulingClass) -> None:
        """Removes a class from the pass, if the pass contains it."""
        number = self._head_of.pop(scheduling_class, None)
        if number is not None:
            del self._at[number]

    def first(self) -> int | None:
        """Returns the arrival number of the oldest request of all classes, or None if no class is
        left.
        """
        heap, at = self._heap, self._at
        while heap:
            number = heap[0]
            if number not in at:
                heapq.heappop(heap)
                continue
            head = at[number].head()
            if head is None or head == number:
                return number
            self.put(at[number], head)  # the class's oldest request has left the queue
        return None

    def take(self) -> SchedulingClass | None:
        """Removes and returns the first class. Returns None if the pass has ended, because no class
        is left.
        """
        number = self.first()
        if number is None:
            return None
        scheduling_class = self._at[number]
        self.discard(scheduling_class)
        return scheduling_class


TOGETHER_MAX = 1_024
"""The largest number of requests that are placed together. All these requests are looked up before
the search finds out how many of them fit. So the limit avoids useless lookups.
"""


class ServiceOrder:
    """The active job queues of each job, with the non-batchable items.

    Attributes:
        non_batchables: the pending gangs and resizes.
    """

    def __init__(self, flows: FlowTree | None, *, fair: bool) -> None:
        """Creates an order without queues and items.

        Args:
            flows: the fairness tree. If it is None, requests are served in order of arrival.
            fair: whether the fairness tree orders the jobs. If it is False, requests are served in
                order of arrival.
        """
        self._tree = flows if fair else None
        self.non_batchables = NonBatchables(flows, fair=fair)
        self._by_job: dict[str, ActiveQueues] = {}
        self._paused: list[Flow] = []
        self._closed = False  # True while the limit of the whole cluster admits no request

    def active(self) -> dict[str, ActiveQueues]:
        """Returns the active queues by job id. If requests are served in order of arrival, the only
        key is "".
        """
        return dict(self._by_job)

    def active_queues_of(self, job_id: str) -> ActiveQueues:
        """Returns the collection of the job's active queues. Creates the collection if it does not
        exist. If requests are served in order of arrival, all jobs share one collection.
        """
        owner = job_id if self._tree is not None else ALL_JOBS
        among = self._by_job.get(owner)
        if among is None:
            among = self._by_job[owner] = ActiveQueues(owner)
        return among

    def forget(self, job_id: str) -> None:
        """Deletes the collection of a job that has no queues."""
        if self._tree is not None:
            del self._by_job[job_id]

    def activate(self, job_queue: JobQueue) -> None:
        """Activates a job queue."""
        if job_queue.active_queues.activate(job_queue) and self._tree is not None:
            self._tree.activate(job_queue.job_id)

    def deactivate(self, job_queue: JobQueue) -> None:
        """Makes a job queue inactive."""
        if job_queue.active_queues.deactivate(job_queue) and self._tree is not None:
            self._tree.deactivate(job_queue.job_id)

    @property
    def is_fair(self) -> bool:
        """True if the fairness tree orders the jobs."""
        return self._tree is not None

    def first_queue_of(self, job_id: str) -> JobQueue:
        """Returns the active queue of a job that is served next. The job must have an active
        queue.
        """
        job_queue = self._by_job[job_id].first()
        if job_queue is None:
            raise InvariantBroken(f"the active job {job_id} has no active queue")
        return job_queue

    def next_queue(self) -> JobQueue | None:
        """Returns the active job queue that is served next, or None if there is no active queue."""
        if self._closed:
            return None
        if self._tree is None:
            job_queues = self._by_job.get(ALL_JOBS)
        else:
            job = self._tree.first_job()
            # A job is active in the tree only while it has an active queue, so `_by_job` contains
            # the job.
            job_queues = self._by_job[job.name] if job is not None else None
        return job_queues.first() if job_queues is not None else None

    def next_non_batchable(self, job_queue: JobQueue | None) -> NonBatchable | None:
        """If the next gang or resize of the pass comes before `job_queue`, removes this item from
        the pass and returns it. The caller must remove the returned item from `non_batchables` or
        block it.

        Args:
            job_queue: the job queue that is served next. If it is None, the next item is always
                returned.
        """
        if not self.non_batchables.in_pass:
            return None
        rank: Rank | None = None
        if job_queue is not None:
            rank = ((), job_queue.position)
            if self._tree is not None:
                job = self._tree.jobs[job_queue.job_id]
                rank = (order_key_of(self._tree, job), job_queue.position)
        return self.non_batchables.next_before(rank)

    def is_alone(self, job_queue: JobQueue) -> bool:
        """Returns whether no other job has requests, gangs or resizes that could be served."""
        if self._tree is None:
            return True
        job = self._tree.jobs[job_queue.job_id]
        # If every group that contains the job has only one active child, no other job is active.
        return not self.non_batchables.in_pass and all(flow.active == 1 for flow in job.ancestors())

    def run_length(self, job_queue: JobQueue, cost: float) -> float:
        """Returns the number of slots that a queue can get before another job comes first.

        Args:
            job_queue: the job queue.
            cost: the cost of each slot per second.
        """
        if self._tree is None:
            return inf
        job = self._tree.jobs[job_queue.job_id]
        length = run_length(self._tree, job, cost)
        if self.non_batchables.in_pass and self.non_batchables.until(job_queue.job_id) is None:
            # The next gang or resize belongs to another job, but the tree does not consider gangs
            # and resizes when it computes the run length. So shorten the run, so that the next gang
            # or resize is served soon.
            length = min(length, max(1, job.running // RUN_PART))
        return length

    def next_of(self, job_queue: JobQueue, most: float) -> list[int]:
        """Returns up to `most` arrival numbers from the head of a job queue that precede every
        other pending item of the job.
        """
        # The queue is the first of its job. So its first request precedes all other items of the
        # job.
        if most == 1:
            return [job_queue.numbers.first]
        # `most` can be infinite, and `int` does not accept infinity.
        count = TOGETHER_MAX if most > TOGETHER_MAX else int(most)
        # Compute the place at which another item of the job comes next: a request in another queue,
        # a gang or a resize.
        until = job_queue.active_queues.until(job_queue)
        if self.non_batchables.in_pass:
            item = self.non_batchables.until(job_queue.job_id if self._tree is not None else "")
            until = item if until is None or (item is not None and item < until) else until
        if until is not None:
            # Convert the place to the arrival number that a request of this queue would have there.
            until += job_queue.priority * PRIORITY_STEP
        found: list[int] = []
        for start, end in job_queue.numbers.peek(count):
            if until is not None and end > until:
                # The other item comes before the later requests of this queue.
                found.extend(range(start, until))
                break
            found.extend(range(start, end))
        return found

    def pause(self, group_id: str) -> bool:
        """Skips a group, or the whole cluster, until `resume_paused` is called. The caller pauses a
        group if its quota admits none of the classes that have room.

        Returns:
            True if the group was paused. False if requests are served in order of arrival, because
            groups have no effect on this order.
        """
        if self._tree is None:
            return False
        flow = self._tree.named(group_id)
        if flow is None or flow.parent is None:
            # The limit of the whole cluster is reached, so no job is next in order until the pause
            # ends.
            self._closed = True
            return True
        self._tree.pause(flow)
        self._paused.append(flow)
        return True

    def resume_paused(self) -> None:
        """Ends the pause of all groups."""
        self._closed = False
        while self._paused and self._tree is not None:
            self._tree.resume(self._paused.pop())
