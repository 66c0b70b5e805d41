"""Keeps all pending requests, gangs and resizes, and decides which of them is tried next.

Equal requests form a *scheduling class*. The requests of one job in a class form a *job queue*.
Requests with different priorities are in different classes. The scheduler tries classes in
*passes*. A pass searches once for each class for a host with room, and can last for several
scheduling cycles. If no host has room for a class, the class is blocked until a host with the
required labels has more room. If several classes have room, `order.py` chooses the job queue that
is served next. A job queue is inactive while its class is blocked or a quota blocks the queue.
Other queues of the same job are still served. A pass also tries gangs and resizes
(`non_batchable.py`).

Example: one host has 3 free cpus, and two jobs with equal weight have run nothing yet.

    class    job queues (arrival numbers)    result of the search
    1 cpu    job A: 1 to 2; job B: 4 to 8    has room: `fitting`
    8 cpus   job A: 3                        no room: `blocked`

For each free cpu, the fairness tree chooses a job: first A, then B, then A again. (Of equal jobs,
the job that has waited longest comes first.) So requests 1, 4 and 2 are placed. Now the host has no
more room for the class of 1 cpu, so this class is blocked, too. When a slot ends, the host has more
room. Both classes are unblocked (`for_next_pass`), and the next pass tries each class once. Request
5 is placed, and the class of 8 cpus is blocked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from finegrain.errors import InvariantBroken
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.model.entities import Request, RequestSpec, Slot
from resource_manager.engine.model.scheduling_key import (
    DEFAULT_LANE,
    Labels,
    SchedulingKey,
    WaitingKey,
    waiting_key,
)
from resource_manager.engine.queue.blocked import QuotaBlocked
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.order import ClassPass, ServiceOrder
from resource_manager.engine.queue.scheduling_classes import (
    ALL_JOBS,
    INACTIVE,
    JobQueue,
    KnownClasses,
    SchedulingClass,
)
from resource_manager.engine.queue.starvation import Waiter


class WaitingQueue:
    """All pending requests, by scheduling class and job.

    A class is in exactly one of `current_pass`, `fitting`, `for_next_pass` and `blocked`. The only
    exception is a class that `next_class` has returned: until the caller reports the result of the
    search, this class is in none of the four collections.

    Attributes:
        order: the object that chooses the job queue that is served next.
        non_batchables: the pending gangs and resizes.
        current_pass: the classes that this pass has not tried yet.
        fitting: the classes that this pass has tried, and for which a host has room.
        for_next_pass: the classes for the next pass. Each of them is new, or was unblocked during
            this pass.
        blocked: the classes for which no host has room, by labels.
        quota_blocked: the job queues that the quota of a group blocks.
        quota_version: the version of the hosts when quotas were last checked.
        by_job: the job queues of each job. Jobs without queues are left out.
        passes: the number of passes that have started.
        moves: a counter that is increased whenever a request is added or removed.
    """

    def __init__(self, flows: FlowTree | None = None, *, fair: bool = True) -> None:
        """Creates an empty queue.

        Args:
            flows: the fairness tree, which must contain the job of each request that is added. If
                it is None, requests are served in order of arrival.
            fair: whether the fairness tree orders the jobs. If it is False, requests are served in
                order of arrival, but the tree still counts them.
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
        ] = {}  # classes in `blocked` for which hosts have room, but quotas block all their queues
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __contains__(self, request: Request) -> bool:
        job_queue = self.queue_of(request.spec, request.job_id)
        return job_queue is not None and request.arrival_number in job_queue.numbers

    # Pending requests.

    def is_required(self, labels: Labels) -> bool:
        """Returns whether a pending request requires hosts with these labels."""
        return self._known.is_required(labels) or self.non_batchables.is_required(labels)

    def classes(self) -> list[SchedulingClass]:
        """Returns the classes that have pending requests."""
        return list(self._known.waited_with.values())

    def is_pending(self, scheduling_class: SchedulingClass) -> bool:
        """Returns whether the class has pending requests."""
        return self._known.waited_with.get(scheduling_class.waiting_key) is scheduling_class

    def job_queues(self) -> list[JobQueue]:
        """Returns all job queues, class by class."""
        return [
            job_queue
            for scheduling_class in self._known.waited_with.values()
            for job_queue in scheduling_class.job_queues.values()
        ]

    def class_of(self, spec: RequestSpec) -> SchedulingClass:
        """Returns the class of a request. The class possibly has no pending requests."""
        return self._known.of(waiting_key(spec))

    def class_for(self, key: SchedulingKey) -> SchedulingClass:
        """Returns the class with this key in the default lane. The class possibly has no pending
        requests.
        """
        return self._known.of((key, DEFAULT_LANE))

    def new_classes(self, job_id: str, specs: Iterable[RequestSpec]) -> int:
        """Returns the number of classes of these specs, without the classes in which the job
        already has a pending request.
        """
        keys = {waiting_key(spec) for spec in specs}
        scheduling_classes = (self._known.waited_with.get(key) for key in keys)
        return sum(
            scheduling_class is None or job_id not in scheduling_class.job_queues
            for scheduling_class in scheduling_classes
        )

    def queue_of(self, spec: RequestSpec, job_id: str) -> JobQueue | None:
        """Returns the queue of a job for requests equal to `spec`, or None if no such request of
        the job is pending.
        """
        scheduling_class = self._known.waited_with.get(waiting_key(spec))
        return scheduling_class.job_queues.get(job_id) if scheduling_class is not None else None

    def add(self, request: Request) -> None:
        """Adds a request."""
        self._add(request.spec, request.job_id, request.arrival_number, 1)

    def add_run(self, spec: RequestSpec, job_id: str, number: int, count: int) -> None:
        """Adds `count` equal requests with consecutive arrival numbers.

        Args:
            spec: the spec of each request.
            job_id: the id of the requests' job.
            number: the arrival number of the first request.
            count: the number of requests.
        """
        self._add(spec, job_id, number, count)

    def add_resize(self, slot: Slot) -> None:
        """Adds the pending resize of a slot.

        Raises:
            InvariantBroken: the slot has no pending resize.
        """
        if slot.wanted is None:
            raise InvariantBroken(f"slot {slot.allocation_id} has no waiting resize")
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
        """Removes a request. If the request is not pending, nothing changes."""
        self.remove_run(request.spec, request.job_id, request.arrival_number, 1)

    def remove_run(self, spec: RequestSpec, job_id: str, number: int, count: int) -> None:
        """Removes equal requests of a job. Requests that are not pending are ignored.

        Args:
            spec: the spec of each request.
            job_id: the id of the requests' job.
            number: the arrival number of the first request.
            count: the number of consecutive arrival numbers.
        """
        job_queue = self.queue_of(spec, job_id)
        if job_queue is not None:
            self._leave(job_queue, number, number + count)

    def remove_job(self, job_id: str, most: int) -> int:
        """Removes all requests in up to `most` job queues of a job.

        Returns:
            The number of job queues that were removed.
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
                # Call `served` before the removal, because the clock stops when no request is left.
                self.starvation.served((scheduling_class, request.job_id))
                self._leave(job_queue, request.arrival_number, request.arrival_number + 1)

    def taken(self, job_queue: JobQueue, count: int) -> None:
        """Removes the first `count` requests of a job queue after they were placed."""
        # Call `served` before the removal, because the clock stops when no request is left.
        self.starvation.served((job_queue.scheduling_class, job_queue.job_id))
        job_queue.numbers.take(count)
        self._left(job_queue, count)

    # Passes.

    @property
    def unblocked(self) -> bool:
        """True if the current pass or the next pass can try a class, a gang or a resize."""
        return (
            bool(self.current_pass or self.fitting or self.for_next_pass)
            or self.non_batchables.unblocked
        )

    @property
    def in_pass(self) -> bool:
        """True if the current pass has not ended."""
        return bool(self.current_pass or self.fitting or self.non_batchables.in_pass)

    def begin_pass(self) -> bool:
        """Starts the next pass, if the current pass has ended and a class, a gang or a resize can
        be tried.

        Returns:
            True if a pass has started.
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
        """Removes and returns the next class of this pass. Returns None if all classes were tried.

        The caller must search for a host with room for the class, and must report the result with
        `has_room`, `block` or `continue_with`.
        """
        scheduling_class = self.current_pass.take()
        if scheduling_class is not None:
            scheduling_class.tried = True
        return scheduling_class

    def has_room(self, scheduling_class: SchedulingClass, most: int) -> int:
        """Records that a host has room for a class, and activates up to `most` inactive job queues
        of the class.

        Returns:
            The number of activated queues. If inactive queues are left, the class stays in the pass
            and is tried again.
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
        """Blocks classes for which hosts have room, but whose job queues are all blocked by quotas.
        Such a class stays blocked until a quota or one of its job queues changes.
        """
        for scheduling_class in list(self.fitting):
            self.block(scheduling_class)
            self._fitting_blocked[scheduling_class] = None

    def deactivate(self, job_queue: JobQueue) -> None:
        """Makes a job queue inactive until a host has room for its class."""
        job_queue.scheduling_class.inactive[job_queue] = None
        self.order.deactivate(job_queue)

    def block_by_quota(self, job_queue: JobQueue, group_id: str) -> None:
        """Makes a job queue inactive until the quota of a group admits the queue."""
        self.quota_blocked.put(job_queue, group_id)
        self.order.deactivate(job_queue)

    def unblock_by_quota(
        self, group_id: str, admits: Callable[[SchedulingClass], bool], most: int
    ) -> int:
        """Activates job queues that the quota of a group blocked, and unblocks all gangs and
        resizes that this quota blocked.

        Args:
            group_id: the id of a group with less usage or a higher maximum than before.
            admits: a function that returns whether the group admits one more slot of a class now.
            most: the largest number of job queues to activate.

        Returns:
            The number of job queues that were activated.
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

    def restart_clocks(self, job_id: str) -> None:
        """Starts the starvation clocks of a job again, because the job could not get slots until
        now.
        """
        waiters: list[Waiter] = [
            (job_queue.scheduling_class, job_id) for job_queue in self.by_job.get(job_id, ())
        ]
        waiters += [item.arrival_number for item in self.non_batchables.of_job(job_id)]
        for waiter in waiters:
            self.starvation.stop(waiter)
            self.starvation.start(waiter)

    def reconsider_fitting(self) -> None:
        """Moves the classes that `block_fitting` blocked into the next pass."""
        for scheduling_class in list(self._fitting_blocked):
            self._reconsider(scheduling_class)

    def block(self, scheduling_class: SchedulingClass) -> None:
        """Blocks a class, because no host has room for it."""
        self.fitting.pop(scheduling_class, None)
        self.blocked.setdefault(scheduling_class.labels, {})[scheduling_class] = None

    def continue_with(self, scheduling_class: SchedulingClass) -> None:
        """Puts a class back into the current pass, because the search for a host was not
        finished.
        """
        # A class that was unblocked during the search is already in the next pass.
        if scheduling_class not in self.for_next_pass:
            self._put_into_pass(scheduling_class)

    def unblock(self, labels: Labels) -> None:
        """Unblocks all classes that require these labels. The caller calls this method when a host
        with these labels has more room.
        """
        if scheduling_classes := self.blocked.pop(labels, None):
            self.for_next_pass.update(scheduling_classes)
            for scheduling_class in scheduling_classes if self._fitting_blocked else ():
                self._fitting_blocked.pop(scheduling_class, None)

    def unblock_job(self, job_id: str) -> None:
        """Unblocks the gangs and resizes of a job, and those of its classes that have rules about
        neighbors. The caller calls this method when these rules are possibly met.
        """
        for job_queue in self.by_job.get(job_id, ()):
            scheduling_class = job_queue.scheduling_class
            blocked = self.blocked.get(scheduling_class.labels, {})
            if scheduling_class.policy.neighbor_job and scheduling_class in blocked:
                del blocked[scheduling_class]
                if not blocked:
                    del self.blocked[scheduling_class.labels]
                self.for_next_pass[scheduling_class] = None
                self._fitting_blocked.pop(scheduling_class, None)
        for item in self.non_batchables.of_job(job_id):
            self.non_batchables.unblock(item.arrival_number)

    def set_aside(self, job_queue: JobQueue, number: int) -> None:
        """Removes a request until `take_back` is called, so that later requests of its queue can be
        tried. The fairness tree still counts the request as pending.
        """
        self._leave(job_queue, number, number + 1, counted=False)

    def take_back(self, request: Request) -> None:
        """Adds a request again that `set_aside` removed. Puts its class into the next pass, unless
        the class is blocked or in the current pass.
        """
        self._add(request.spec, request.job_id, request.arrival_number, 1, counted=False)
        scheduling_class = self._known.waited_with[waiting_key(request.spec)]
        # If no other request of the class was pending, `_add` has marked the class as never tried.
        scheduling_class.tried = True
        if (
            scheduling_class not in self.current_pass
            and scheduling_class not in self.fitting
            and not self.is_blocked(scheduling_class)
        ):
            self.for_next_pass[scheduling_class] = None

    def is_blocked(self, scheduling_class: SchedulingClass) -> bool:
        """Returns whether the class is blocked. A class is blocked if no host had room for it at
        the last try, or if `block_fitting` blocked it.
        """
        return scheduling_class in self.blocked.get(scheduling_class.labels, ())

    # Helpers.

    def _add(
        self, spec: RequestSpec, job_id: str, number: int, count: int, *, counted: bool = True
    ) -> None:
        self.moves += 1
        key = waiting_key(spec)
        scheduling_class = self._known.waited_with.get(key) or self._begin(key)
        job_queue = scheduling_class.job_queues.get(job_id) or self._begin_job_queue(
            scheduling_class, job_id
        )
        job_queue.may_reject |= not spec.allow_pending
        # A request that is already pending is not counted again.
        added = job_queue.numbers.add_run(number, number + count)
        scheduling_class.waiting += added
        self._waiting += added
        if counted and self._flows is not None:
            self._flows.wait(job_id, number, added)
        # If the first added request is now the oldest request of its queue, the queue and its class
        # possibly move forward in the order. Otherwise, nothing else must be updated.
        if job_queue.numbers.first != number:
            return
        scheduling_class.activate(job_queue, number)
        # The classes of the next pass are sorted when that pass starts. So only the current pass
        # must be updated.
        if scheduling_class not in self.for_next_pass:
            self.current_pass.advance(scheduling_class, number)
        if job_queue.position != INACTIVE:
            job_queue.active_queues.advance(job_queue)
        elif job_queue not in scheduling_class.inactive and not job_queue.blocked_by:
            # If the class is blocked only because of quotas, it is tried again, because the quota
            # of this job possibly admits the request.
            if scheduling_class in self._fitting_blocked:
                self._reconsider(scheduling_class)
            # The queue becomes active even if no host has room. The scheduling cycle deactivates
            # the queue when the queue comes first.
            self.order.activate(job_queue)

    def _begin(self, key: WaitingKey) -> SchedulingClass:
        """Adds a class that had no pending request until now, and puts it into the next pass."""
        scheduling_class = self._known.begin(key)
        self.for_next_pass[scheduling_class] = None
        scheduling_class.tried = False
        return scheduling_class

    def _begin_job_queue(self, scheduling_class: SchedulingClass, job_id: str) -> JobQueue:
        """Creates the queue of a job in a class."""
        among = self.order.active_queues_of(job_id)
        # If requests are served in order of arrival, all jobs share one collection, and priorities
        # have no effect.
        priority = 0 if among.job_id == ALL_JOBS else scheduling_class.lane.priority
        job_queue = scheduling_class.job_queues[job_id] = JobQueue(
            scheduling_class, job_id, among, priority=priority
        )
        self.starvation.start((scheduling_class, job_id))
        self.by_job.setdefault(job_id, {})[job_queue] = None
        return job_queue

    def _leave(self, job_queue: JobQueue, start: int, end: int, *, counted: bool = True) -> None:
        """Removes the pending requests with arrival numbers from `start` up to `end`, which is not
        included.
        """
        left = job_queue.numbers.remove_run(start, end)
        if left:
            self._left(job_queue, left, counted=counted)

    def _left(self, job_queue: JobQueue, left: int, *, counted: bool = True) -> None:
        """Updates the counts after `left` requests have been removed from a job queue."""
        scheduling_class = job_queue.scheduling_class
        self.moves += 1
        self._waiting -= left
        scheduling_class.waiting -= left
        if not job_queue.numbers:
            self._close_job_queue(job_queue)
            # a request that is set aside (`counted` is False) is added again later, so its clock
            # continues
            if counted:
                self.starvation.stop((scheduling_class, job_queue.job_id))
            if not scheduling_class.job_queues:
                self._close(scheduling_class)
        if counted and self._flows is not None:
            self._flows.remove_waiting(job_queue.job_id, left)

    def _close_job_queue(self, job_queue: JobQueue) -> None:
        """Deletes an empty job queue."""
        scheduling_class, job_id = job_queue.scheduling_class, job_queue.job_id
        del scheduling_class.job_queues[job_id]
        # A queue is either active, or blocked by a quota, or inactive because its class has no
        # room.
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
        """Removes a class that has no pending requests from all collections."""
        self._known.end(scheduling_class)
        self.current_pass.discard(scheduling_class)
        self.fitting.pop(scheduling_class, None)
        self.for_next_pass.pop(scheduling_class, None)
        self.blocked.get(scheduling_class.labels, {}).pop(scheduling_class, None)
        self._fitting_blocked.pop(scheduling_class, None)

    def _reconsider(self, scheduling_class: SchedulingClass) -> None:
        """Puts a blocked class into the next pass."""
        scheduling_classes = self.blocked.get(scheduling_class.labels, {})
        if scheduling_class in scheduling_classes:
            del scheduling_classes[scheduling_class]
            self._fitting_blocked.pop(scheduling_class, None)
            self.for_next_pass[scheduling_class] = None

    def _put_into_pass(self, scheduling_class: SchedulingClass) -> None:
        if (head := scheduling_class.head()) is not None:
            self.current_pass.put(scheduling_class, head)
