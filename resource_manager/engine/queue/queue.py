"""Holds everything that is pending, and decides what is tried next.

Equal requests form a *scheduling class*. The requests of one job in a class form a *job queue*.
Classes are tried in *passes*. A pass searches once for a host with room for each class, and may
span several decisions. If no host has room for a class, the class is blocked until a host with its
labels has more room. Among the classes with room, `order.py` picks the job queue that is served
next. A job queue is inactive while its class is blocked or a quota blocks it; the job's other
queues are still served. Gangs and resizes (`non_batchable.py`) take part in the same passes.

Example: one host has 3 free cpus, and two jobs with equal weight have run nothing yet.

    class    job queues (arrival numbers)    result of the search
    1 cpu    job A: 1 to 2; job B: 4 to 8    has room: `fitting`
    8 cpus   job A: 3                        no room: `blocked`

For each free cpu the fairness tree picks a job: A (on a tie, the job that has waited longest), B,
then A again. So requests 1, 4 and 2 are placed. The host has no room for the class of 1 cpu any
more, so this class is blocked, too. When a slot ends, the host has more room. Both classes are
unblocked (`for_next_pass`), and the next pass tries each of them once. Request 5 is placed, and the
class of 8 cpus is blocked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from finegrain.errors import InvariantBroken
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.model.entities import Request, RequestSpec, Slot
from resource_manager.engine.model.scheduling_key import (
    Labels,
    SchedulingKey,
    scheduling_key,
)
from resource_manager.engine.queue.blocked import QuotaBlocked
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.order import ClassPass, ServiceOrder
from resource_manager.engine.queue.scheduling_classes import (
    INACTIVE,
    JobQueue,
    KnownClasses,
    SchedulingClass,
)


class WaitingQueue:
    """All pending requests, by scheduling class and job.

    A class is in exactly one of `current_pass`, `fitting`, `for_next_pass` and `blocked`, with one
    exception: from `next_class` until the caller reports the result of its search, it is in none.

    Attributes:
        order: picks the job queue that is served next.
        non_batchables: gangs and resizes that are pending.
        current_pass: classes that have yet to be tried in this pass.
        fitting: classes that were tried in this pass, and that a host has room for.
        for_next_pass: classes that are new, or were unblocked during this pass.
        blocked: classes that no host has room for, by labels.
        quota_blocked: job queues that the quota of a group blocks.
        quota_version: version of the hosts when quotas were checked last.
        by_job: the job queues of each job; jobs without any are not in it.
        passes: number of passes begun.
        moves: rises whenever a request enters or leaves.
    """

    def __init__(self, flows: FlowTree | None = None, *, fair: bool = True) -> None:
        """Makes an empty queue.

        Args:
            flows: the fairness tree; it must contain every job whose requests are added. None:
                requests are served in order of arrival.
            fair: False: requests are served in order of arrival. The tree is still updated.
        """
        self._flows = flows
        self.order = ServiceOrder(flows, fair=fair)
        self.non_batchables = self.order.non_batchables
        self.starvation = self.non_batchables.starvation
        self.current_pass = ClassPass()
        self.fitting: dict[SchedulingClass, None] = {}
        self.for_next_pass: dict[SchedulingClass, None] = {}
        self.blocked: dict[Labels, dict[SchedulingClass, None]] = {}
        self.quota_blocked = QuotaBlocked()
        self.quota_version = -1
        self.by_job: dict[str, dict[JobQueue, None]] = {}
        self.passes = 0
        self.moves = 0
        self._known = KnownClasses()
        self._fitting_blocked: dict[
            SchedulingClass, None
        ] = {}  # in `blocked` although hosts have room, because quotas block all their queues
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __contains__(self, request: Request) -> bool:
        job_queue = self.queue_of(request.spec, request.job_id)
        return job_queue is not None and request.arrival_number in job_queue.numbers

    # What is pending.

    def is_required(self, labels: Labels) -> bool:
        """True if a pending request requires hosts with these labels."""
        return self._known.is_required(labels) or self.non_batchables.is_required(labels)

    def classes(self) -> list[SchedulingClass]:
        """Returns the classes that have pending requests."""
        return list(self._known.waited_with.values())

    def is_pending(self, scheduling_class: SchedulingClass) -> bool:
        """Returns True if the class has pending requests."""
        return self._known.waited_with.get(scheduling_class.key) is scheduling_class

    def job_queues(self) -> list[JobQueue]:
        """Returns all job queues, class by class."""
        return [
            job_queue
            for scheduling_class in self._known.waited_with.values()
            for job_queue in scheduling_class.job_queues.values()
        ]

    def class_of(self, spec: RequestSpec) -> SchedulingClass:
        """Returns the class of a request, whether or not any such request is pending."""
        return self._known.of(scheduling_key(spec))

    def class_for(self, key: SchedulingKey) -> SchedulingClass:
        """Returns the class of requests with this key, whether or not any is pending."""
        return self._known.of(key)

    def new_classes(self, job_id: str, specs: Iterable[RequestSpec]) -> int:
        """Returns how many classes a submission of these specs would add to those in which the job
        has pending requests.
        """
        keys = {scheduling_key(spec) for spec in specs}
        scheduling_classes = (self._known.waited_with.get(key) for key in keys)
        return sum(
            scheduling_class is None or job_id not in scheduling_class.job_queues
            for scheduling_class in scheduling_classes
        )

    def queue_of(self, spec: RequestSpec, job_id: str) -> JobQueue | None:
        """Returns the queue of a job's requests like this one; None: none is pending."""
        scheduling_class = self._known.waited_with.get(scheduling_key(spec))
        return scheduling_class.job_queues.get(job_id) if scheduling_class is not None else None

    def add(self, request: Request) -> None:
        """Adds a request."""
        self._add(request.spec, request.job_id, request.arrival_number, 1)

    def add_run(self, spec: RequestSpec, job_id: str, number: int, count: int) -> None:
        """Adds `count` equal requests, with consecutive arrival numbers from `number` on.

        Args:
            spec: what each of them requests.
            job_id: their job.
            number: arrival number of the first one.
            count: number of requests.
        """
        self._add(spec, job_id, number, count)

    def add_resize(self, slot: Slot) -> None:
        """Adds the pending resize of a slot.

        Raises:
            InvariantBroken: the slot has none.
        """
        if slot.wanted is None:
            raise InvariantBroken(f"slot {slot.allocation_id} waits with no change of its size")
        self.non_batchables.add(
            NonBatchable(
                slot.wanted.arrival_number,
                Kind.RESIZE,
                slot.allocation_id,
                slot.job_id,
                slot.generation,
                slot.executor_id,
            )
        )

    def remove(self, request: Request) -> None:
        """Removes a request, if it is pending."""
        self.remove_run(request.spec, request.job_id, request.arrival_number, 1)

    def remove_run(self, spec: RequestSpec, job_id: str, number: int, count: int) -> None:
        """Removes equal requests of a job. Those that are not pending are ignored.

        Args:
            spec: what each of them requests.
            job_id: their job.
            number: arrival number of the first one.
            count: number of consecutive arrival numbers.
        """
        job_queue = self.queue_of(spec, job_id)
        if job_queue is not None:
            self._leave(job_queue, number, number + count)

    def remove_job(self, job_id: str, most: int) -> int:
        """Removes all requests of up to `most` job queues of a job.

        Returns:
            How many queues it removed.
        """
        job_queues = list(islice(self.by_job.get(job_id, ()), most))
        for job_queue in job_queues:
            self.taken(job_queue, len(job_queue.numbers))
        return len(job_queues)

    def served(self, scheduling_class: SchedulingClass, requests: Iterable[Request]) -> None:
        """Removes requests of one class that were placed."""
        for request in requests:
            job_queue = scheduling_class.job_queues.get(request.job_id)
            if job_queue is not None:
                # Before the requests leave: if none is left, the clock stops.
                self.starvation.served((scheduling_class, request.job_id))
                self._leave(job_queue, request.arrival_number, request.arrival_number + 1)

    def taken(self, job_queue: JobQueue, count: int) -> None:
        """Removes the first `count` requests of a job queue, which were placed."""
        # Before the requests leave: if none is left, the clock stops.
        self.starvation.served((job_queue.scheduling_class, job_queue.job_id))
        job_queue.numbers.take(count)
        self._left(job_queue, count)

    # Passes.

    @property
    def unblocked(self) -> bool:
        """True if anything can be tried, in this pass or the next one."""
        return (
            bool(self.current_pass or self.fitting or self.for_next_pass)
            or self.non_batchables.unblocked
        )

    @property
    def in_pass(self) -> bool:
        """True if the current pass is not over."""
        return bool(self.current_pass or self.fitting or self.non_batchables.in_pass)

    def begin_pass(self) -> bool:
        """Begins the next pass if the current one is over and there is anything to try.

        Returns:
            True if it began one.
        """
        if self.in_pass or not self.unblocked:
            return False
        self.passes += 1
        self.current_pass.begin(self.for_next_pass)
        self.for_next_pass.clear()
        if self.non_batchables.unblocked:
            self.non_batchables.begin_pass()
        return True

    def next_class(self) -> SchedulingClass | None:
        """Removes and returns the next class to try in this pass; None: all were tried.

        The caller searches for a host with room, and reports the result with `has_room`, `block`
        or `continue_with`.
        """
        scheduling_class = self.current_pass.take()
        if scheduling_class is not None:
            scheduling_class.tried = True
        return scheduling_class

    def has_room(self, scheduling_class: SchedulingClass, most: int) -> int:
        """Notes that a host has room for a class, and activates up to `most` of its inactive job
        queues.

        Returns:
            How many it activated. If inactive queues are left, the class stays in the pass and is
            tried again.
        """
        job_queues = (
            list(scheduling_class.inactive)[:most]
            if len(scheduling_class.inactive) > most
            else list(scheduling_class.inactive)
        )
        for job_queue in job_queues:
            del scheduling_class.inactive[job_queue]
            self.order.activate(job_queue)
        if scheduling_class.inactive:
            self._put_into_pass(scheduling_class)
        else:
            self.fitting[scheduling_class] = None
        return len(job_queues)

    def block_fitting(self) -> None:
        """Blocks the classes that hosts have room for, because quotas block all their job queues.
        They stay blocked until a quota or one of their job queues changes.
        """
        for scheduling_class in list(self.fitting):
            self.block(scheduling_class)
            self._fitting_blocked[scheduling_class] = None

    def deactivate(self, job_queue: JobQueue) -> None:
        """Makes a job queue inactive until its class has room."""
        job_queue.scheduling_class.inactive[job_queue] = None
        self.order.deactivate(job_queue)

    def block_by_quota(self, job_queue: JobQueue, group_id: str) -> None:
        """Makes a job queue inactive until the quota of a group admits it."""
        self.quota_blocked.put(job_queue, group_id)
        self.order.deactivate(job_queue)

    def unblock_by_quota(
        self, group_id: str, admits: Callable[[SchedulingClass], bool], most: int
    ) -> int:
        """Activates job queues that the quota of a group blocked, and unblocks all such gangs and
        resizes.

        Args:
            group_id: the group whose usage fell, or whose maximum rose.
            admits: returns True if the group admits one more slot of a class now.
            most: upper limit of the job queues that are activated.

        Returns:
            How many job queues it activated.
        """
        self.non_batchables.unblock_by_quota(group_id)
        for scheduling_class in [each for each in self._fitting_blocked if admits(each)]:
            self._reconsider(scheduling_class)
        job_queues = self.quota_blocked.of(group_id, admits, most)
        for job_queue in job_queues:
            self.quota_blocked.take(job_queue)
            self.order.activate(job_queue)
            self._reconsider(job_queue.scheduling_class)
        return len(job_queues)

    def reconsider_fitting(self) -> None:
        """Moves the classes that `block_fitting` blocked into the next pass."""
        for scheduling_class in list(self._fitting_blocked):
            self._reconsider(scheduling_class)

    def block(self, scheduling_class: SchedulingClass) -> None:
        """Notes that no host has room for a class."""
        self.fitting.pop(scheduling_class, None)
        self.blocked.setdefault(scheduling_class.labels, {})[scheduling_class] = None

    def continue_with(self, scheduling_class: SchedulingClass) -> None:
        """Puts a class back into the current pass, because the search for room was not finished."""
        # If it was unblocked during the search, the next pass tries it anyway.
        if scheduling_class not in self.for_next_pass:
            self._put_into_pass(scheduling_class)

    def unblock(self, labels: Labels) -> None:
        """Unblocks all classes that require these labels: a host that has them has more room."""
        if scheduling_classes := self.blocked.pop(labels, None):
            self.for_next_pass.update(scheduling_classes)
            for scheduling_class in scheduling_classes if self._fitting_blocked else ():
                self._fitting_blocked.pop(scheduling_class, None)

    def set_aside(self, job_queue: JobQueue, number: int) -> None:
        """Removes a request until `take_back`, so that the next requests of its queue are tried.
        The fairness tree still counts the request as pending.
        """
        self._leave(job_queue, number, number + 1, counted=False)

    def take_back(self, request: Request) -> None:
        """Adds a request again that `set_aside` removed. Its class is tried in the next pass,
        unless the class is blocked or in this pass already.
        """
        self._add(request.spec, request.job_id, request.arrival_number, 1, counted=False)
        scheduling_class = self._known.waited_with[scheduling_key(request.spec)]
        # If no other request was pending, `_add` has marked the class as not tried yet.
        scheduling_class.tried = True
        if (
            scheduling_class not in self.current_pass
            and scheduling_class not in self.fitting
            and not self.is_blocked(scheduling_class)
        ):
            self.for_next_pass[scheduling_class] = None

    def is_blocked(self, scheduling_class: SchedulingClass) -> bool:
        """Returns True if the class is blocked: no host had room for it when it was last tried, or
        `block_fitting` blocked it.
        """
        return scheduling_class in self.blocked.get(scheduling_class.labels, ())

    # Helpers.

    def _add(
        self, spec: RequestSpec, job_id: str, number: int, count: int, *, counted: bool = True
    ) -> None:
        self.moves += 1
        key = scheduling_key(spec)
        scheduling_class = self._known.waited_with.get(key) or self._begin(key)
        job_queue = scheduling_class.job_queues.get(job_id) or self._begin_job_queue(
            scheduling_class, job_id
        )
        job_queue.may_reject |= not spec.allow_pending
        # Those that are pending already are not counted twice.
        added = job_queue.numbers.add_run(number, number + count)
        scheduling_class.waiting += added
        self._waiting += added
        if counted and self._flows is not None:
            self._flows.wait(job_id, number, added)
        # The rest is only needed if the first added request is now the oldest of its queue. Then
        # the queue and its class may move forward.
        if job_queue.numbers.first != number:
            return
        scheduling_class.activate(job_queue, number)
        # The next pass sorts its classes when it begins, so only the current pass is updated.
        if scheduling_class not in self.for_next_pass:
            self.current_pass.advance(scheduling_class, number)
        if job_queue.position != INACTIVE:
            job_queue.active_queues.advance(job_queue, number)
        elif job_queue not in scheduling_class.inactive and not job_queue.blocked_by:
            # Hosts have room for the class. It was blocked only because quotas blocked all queues.
            if scheduling_class in self._fitting_blocked:
                self._reconsider(scheduling_class)
            # Active even if no host has room: the cycle deactivates it when it comes first.
            self.order.activate(job_queue)

    def _begin(self, key: SchedulingKey) -> SchedulingClass:
        """Adds a class that had no pending request, and puts it into the next pass."""
        scheduling_class = self._known.begin(key)
        self.for_next_pass[scheduling_class] = None
        scheduling_class.tried = False
        return scheduling_class

    def _begin_job_queue(self, scheduling_class: SchedulingClass, job_id: str) -> JobQueue:
        """Makes the queue of a job in a class."""
        job_queue = scheduling_class.job_queues[job_id] = JobQueue(
            scheduling_class, job_id, self.order.active_queues_of(job_id)
        )
        self.starvation.start((scheduling_class, job_id))
        self.by_job.setdefault(job_id, {})[job_queue] = None
        return job_queue

    def _leave(self, job_queue: JobQueue, start: int, end: int, *, counted: bool = True) -> None:
        """Removes those of the arrival numbers `start` to `end` (exclusive) that are pending."""
        left = job_queue.numbers.remove_run(start, end)
        if left:
            self._left(job_queue, left, counted=counted)

    def _left(self, job_queue: JobQueue, left: int, *, counted: bool = True) -> None:
        """Updates the counts after `left` requests of a job queue were removed."""
        scheduling_class = job_queue.scheduling_class
        self.moves += 1
        self._waiting -= left
        scheduling_class.waiting -= left
        if not job_queue.numbers:
            self._close_job_queue(job_queue)
            if counted:  # a request that is set aside comes back, so its clock goes on
                self.starvation.stop((scheduling_class, job_queue.job_id))
            if not scheduling_class.job_queues:
                self._close(scheduling_class)
        if counted and self._flows is not None:
            self._flows.remove_waiting(job_queue.job_id, left)

    def _close_job_queue(self, job_queue: JobQueue) -> None:
        """Drops a job queue that is empty."""
        scheduling_class, job_id = job_queue.scheduling_class, job_queue.job_id
        del scheduling_class.job_queues[job_id]
        # A queue is active, or blocked by a quota, or inactive because its class has no room.
        if job_queue.position != INACTIVE:
            self.order.deactivate(job_queue)
        elif job_queue.blocked_by:
            self.quota_blocked.take(job_queue)
        else:
            del scheduling_class.inactive[job_queue]
        del self.by_job[job_id][job_queue]
        if not self.by_job[job_id]:
            del self.by_job[job_id]
            self.order.forget(job_id)

    def _close(self, scheduling_class: SchedulingClass) -> None:
        """Drops a class without pending requests."""
        self._known.end(scheduling_class)
        self.current_pass.discard(scheduling_class)
        self.fitting.pop(scheduling_class, None)
        self.for_next_pass.pop(scheduling_class, None)
        self.blocked.get(scheduling_class.labels, {}).pop(scheduling_class, None)
        self._fitting_blocked.pop(scheduling_class, None)

    def _reconsider(self, scheduling_class: SchedulingClass) -> None:
        """Moves a blocked class into the next pass."""
        scheduling_classes = self.blocked.get(scheduling_class.labels, {})
        if scheduling_class in scheduling_classes:
            del scheduling_classes[scheduling_class]
            self._fitting_blocked.pop(scheduling_class, None)
            self.for_next_pass[scheduling_class] = None

    def _put_into_pass(self, scheduling_class: SchedulingClass) -> None:
        if (head := scheduling_class.head()) is not None:
            self.current_pass.put(scheduling_class, head)
