"""Who waits, and which of them are to be tried. Knows shapes, lines and arrival numbers; whether
anything fits is not its business, and who is to be served first, the tree of flows says.

Shapes are tried in *rounds*. A round may take several decisions; what wakes or comes meanwhile is
tried in the next one. So everybody has a turn, however many shapes wait and however often they
wake. In a round each shape is first looked at, in order of who waits longest with it: if there is
no room for it, it sleeps until a host of its labels grows, else it may be served. Whose turn it is
then among those who may, `order.py` says: the job that is to be served first, and its request that
has waited longest. If that is of a shape that sleeps, or stopped by a limit, its line is parked
(`scheduling_classes.py`), and the job goes on with its next one, or has no turn while it has none.
A shape that has room again gets its parked lines back.

What waits one by one (`non_batchable.py`) belongs to jobs as well, and takes part in the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from finegrain.errors import InvariantBroken
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.model.entities import Request, RequestSpec, Slot
from resource_manager.engine.model.scheduling_key import (
    Labels,
    SchedulingKey,
    scheduling_key,
)
from resource_manager.engine.queue.blocked import QuotaBlocked
from resource_manager.engine.queue.candidates import Round
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.order import ServiceOrder
from resource_manager.engine.queue.scheduling_classes import (
    INACTIVE,
    JobQueue,
    KnownClasses,
    SchedulingClass,
)


class WaitingQueue:
    """All requests that wait, by shape and job.

    A shape is to be looked at in the present `round`, or `roomy` (it was, and there was room), or
    *open* (to be looked at in the next round); else it *sleeps* until a host of its labels grows.
    The one that is being looked at is nowhere.

    Attributes:
        turns: whose turn it is.
        singles: what waits in the same line one by one.
        job_shapes: how many shapes a job waits with; jobs that wait with none are not in it.
        moves: rises whenever a request comes or leaves.
        stopped: lines parked for the maximum of a group.
        stopped_at_version: of the cluster, when they were looked at last.
    """

    def __init__(self, flows: FlowTree | None = None, *, fair: bool = True) -> None:
        """`flows`: who is served first, and who is told who waits; all their jobs have to be known
        there. Without them, or with `fair` False, arrival alone decides.
        """
        self._flows = flows
        self.turns = ServiceOrder(flows, fair=fair)
        self.singles = self.turns.singles
        self.round = Round()
        self.roomy: dict[SchedulingClass, None] = {}
        self.open: dict[SchedulingClass, None] = {}
        self.sleeping: dict[Labels, dict[SchedulingClass, None]] = {}
        self.stopped = QuotaBlocked()
        self.stopped_at_version = -1
        self.job_shapes: dict[str, int] = {}
        self.moves = 0
        self._known = KnownClasses()
        self._resting: dict[SchedulingClass, None] = {}  # asleep, with room: nobody may be served
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __contains__(self, request: Request) -> bool:
        job_queue = self._line_of(request.spec, request.job_id)
        return job_queue is not None and request.arrival_number in job_queue.numbers

    # Who waits.

    def is_asked_for(self, labels: Labels) -> bool:
        """True if somebody waits for a host with these labels."""
        return self._known.is_asked_for(labels) or self.singles.is_asked_for(labels)

    def shapes(self) -> list[SchedulingClass]:
        """Shapes that somebody waits with."""
        return list(self._known.waited_with.values())

    def lines(self) -> list[JobQueue]:
        """All lines, by shape."""
        return [
            job_queue
            for scheduling_class in self._known.waited_with.values()
            for job_queue in scheduling_class.lines.values()
        ]

    def shape_of(self, spec: RequestSpec) -> SchedulingClass:
        """The shape of a request, whether or not anybody waits with it."""
        return self._known.of(scheduling_key(spec))

    def shape_at(self, key: SchedulingKey) -> SchedulingClass:
        """The shape of requests that ask for this, likewise."""
        return self._known.of(key)

    def new_shapes(self, job_id: str, specs: Iterable[RequestSpec]) -> int:
        """How many shapes more a job would wait with, if it asked for all of these."""
        keys = {scheduling_key(spec) for spec in specs}
        scheduling_classes = (self._known.waited_with.get(key) for key in keys)
        return sum(
            scheduling_class is None or job_id not in scheduling_class.lines
            for scheduling_class in scheduling_classes
        )

    def add(self, request: Request) -> None:
        """Lets a request wait."""
        self._add(request.spec, request.job_id, request.arrival_number, 1)

    def add_run(self, spec: RequestSpec, job_id: str, number: int, count: int) -> None:
        """Lets equal requests wait, with arrival numbers one after the other from `number` on."""
        self._add(spec, job_id, number, count)

    def add_resize(self, slot: Slot) -> None:
        """Lets the change that a slot waits with stand in line.

        Raises:
            InvariantBroken: it waits with none.
        """
        if slot.wanted is None:
            raise InvariantBroken(f"slot {slot.allocation_id} waits with no change of its size")
        self.singles.add(
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
        """Ends a request's waiting."""
        self.remove_run(request.spec, request.job_id, request.arrival_number, 1)

    def remove_run(self, spec: RequestSpec, job_id: str, number: int, count: int) -> None:
        """Ends the waiting of those of a job's equal requests whose numbers these are."""
        job_queue = self._line_of(spec, job_id)
        if job_queue is not None:
            self._leave(job_queue, number, number + count)

    def served(self, scheduling_class: SchedulingClass, requests: Iterable[Request]) -> None:
        """Ends the waiting of requests of one shape."""
        for request in requests:
            job_queue = scheduling_class.lines.get(request.job_id)
            if job_queue is not None:
                self._leave(job_queue, request.arrival_number, request.arrival_number + 1)

    def taken(self, job_queue: JobQueue, count: int) -> None:
        """Ends the waiting of the first so many of a line."""
        job_queue.numbers.take(count)
        self._left(job_queue, count)

    # What is to be tried.

    @property
    def awake(self) -> bool:
        """True if anything is to be tried."""
        return bool(self.round or self.roomy or self.open) or self.singles.awake

    @property
    def in_round(self) -> bool:
        """True if the present round is not over."""
        return bool(self.round or self.roomy) or self.singles.in_round

    def begin_round(self) -> bool:
        """Begins the next round if the present one is over and there is anything to try. True if
        so.
        """
        if self.in_round or not self.awake:
            return False
        self.round.begin(self.open)
        self.open.clear()
        self.singles.begin_round()
        return True

    def look(self) -> SchedulingClass | None:
        """The next shape of the round that there may be room for; None: all were looked at.

        Whoever takes it says `has_room` or `sleep` of it afterwards.
        """
        scheduling_class = self.round.take()
        if scheduling_class is not None:
            scheduling_class.tried = True
        return scheduling_class

    def has_room(self, scheduling_class: SchedulingClass, most: int) -> int:
        """There is room for a shape: its parked lines, up to so many of them, stand among those of
        their jobs again. Answers with how many; with more left, it is to be looked at once more.
        """
        job_queues = (
            list(scheduling_class.parked)[:most]
            if len(scheduling_class.parked) > most
            else list(scheduling_class.parked)
        )
        for job_queue in job_queues:
            del scheduling_class.parked[job_queue]
            self.turns.stand(job_queue)
        if scheduling_class.parked:
            self._put_into_round(scheduling_class)
        else:
            self.roomy[scheduling_class] = None
        return len(job_queues)

    def rest(self) -> None:
        """Nobody has a turn who may be served: shapes that there is room for sleep as well, until
        one of those who wait with them may.
        """
        for scheduling_class in list(self.roomy):
            self.sleep(scheduling_class)
            self._resting[scheduling_class] = None

    def park(self, job_queue: JobQueue) -> None:
        """A line is not to have a turn while its shape sleeps."""
        job_queue.shape.parked[job_queue] = None
        self.turns.unstand(job_queue)

    def stop(self, job_queue: JobQueue, group_id: str) -> None:
        """A line is not to have a turn while the maximum of a group stops it."""
        self.stopped.put(job_queue, group_id)
        self.turns.unstand(job_queue)

    def ease(self, group_id: str, admits: Callable[[SchedulingClass], bool], most: int) -> int:
        """Whoever was stopped by the maximum of a group is to be tried again: of lines, so many at
        most, with shapes that it admits now. Answers with how many.
        """
        self.singles.ease(group_id)
        for scheduling_class in [each for each in self._resting if admits(each)]:
            self._rouse(scheduling_class)
        job_queues = self.stopped.of(group_id, admits, most)
        for job_queue in job_queues:
            self.stopped.take(job_queue)
            self.turns.stand(job_queue)
            self._rouse(job_queue.shape)
        return len(job_queues)

    def end_rest(self) -> None:
        """Shapes that rest are to be looked at again."""
        for scheduling_class in list(self._resting):
            self._rouse(scheduling_class)

    def sleep(self, scheduling_class: SchedulingClass) -> None:
        """Nothing fits this shape now."""
        self.roomy.pop(scheduling_class, None)
        self.sleeping.setdefault(scheduling_class.labels, {})[scheduling_class] = None

    def look_on(self, scheduling_class: SchedulingClass) -> None:
        """Nobody knows yet whether there is room for a shape, which is nowhere: the round goes on
        with it.
        """
        if scheduling_class not in self.open:
            self._put_into_round(scheduling_class)

    def wake(self, labels: Labels) -> None:
        """A host that carries these labels grew."""
        if scheduling_classes := self.sleeping.pop(labels, None):
            self.open.update(scheduling_classes)
            for scheduling_class in scheduling_classes if self._resting else ():
                self._resting.pop(scheduling_class, None)

    def set_aside(self, job_queue: JobQueue, number: int) -> None:
        """Lets somebody not stand in the way of others of his line, until he is taken back."""
        self._leave(job_queue, number, number + 1, counted=False)

    def take_back(self, request: Request) -> None:
        """Lets a request that was set aside wait again. If its shape is still awake, it is tried
        in the next round.
        """
        self._add(request.spec, request.job_id, request.arrival_number, 1, counted=False)
        scheduling_class = self._known.waited_with[scheduling_key(request.spec)]
        scheduling_class.tried = True
        if (
            scheduling_class not in self.round
            and scheduling_class not in self.roomy
            and not self.sleeps(scheduling_class)
        ):
            self.open[scheduling_class] = None

    def sleeps(self, scheduling_class: SchedulingClass) -> bool:
        """True if a shape sleeps."""
        return scheduling_class in self.sleeping.get(scheduling_class.labels, ())

    # How it is done.

    def _line_of(self, spec: RequestSpec, job_id: str) -> JobQueue | None:
        scheduling_class = self._known.waited_with.get(scheduling_key(spec))
        return scheduling_class.lines.get(job_id) if scheduling_class is not None else None

    def _add(
        self, spec: RequestSpec, job_id: str, number: int, count: int, *, counted: bool = True
    ) -> None:
        self.moves += 1
        key = scheduling_key(spec)
        scheduling_class = self._known.waited_with.get(key) or self._begin(key)
        job_queue = scheduling_class.lines.get(job_id) or self._begin_line(scheduling_class, job_id)
        job_queue.may_reject |= not spec.allow_pending
        added = job_queue.numbers.add_run(number, number + count)
        scheduling_class.waiting += added
        self._waiting += added
        if counted and self._flows is not None:
            self._flows.wait(job_id, number, added)
        if job_queue.numbers.first != number:
            return
        scheduling_class.stand(job_queue, number)
        self.round.advance(scheduling_class, number)
        if job_queue.stands != INACTIVE:
            job_queue.among.advance(job_queue, number)
        elif job_queue not in scheduling_class.parked and not job_queue.stopped_by:
            if scheduling_class in self._resting:
                self._rouse(scheduling_class)
            self.turns.stand(job_queue)

    def _begin(self, key: SchedulingKey) -> SchedulingClass:
        """Somebody begins to wait with a shape."""
        scheduling_class = self._known.begin(key)
        self.open[scheduling_class] = None
        scheduling_class.tried = False
        return scheduling_class

    def _begin_line(self, scheduling_class: SchedulingClass, job_id: str) -> JobQueue:
        """A job begins to wait with a shape."""
        job_queue = scheduling_class.lines[job_id] = JobQueue(
            scheduling_class, job_id, self.turns.lines_of(job_id)
        )
        self.job_shapes[job_id] = self.job_shapes.get(job_id, 0) + 1
        return job_queue

    def _leave(self, job_queue: JobQueue, start: int, end: int, *, counted: bool = True) -> None:
        left = job_queue.numbers.remove_run(start, end)
        if left:
            self._left(job_queue, left, counted=counted)

    def _left(self, job_queue: JobQueue, left: int, *, counted: bool = True) -> None:
        """So many of a line have left."""
        scheduling_class = job_queue.shape
        self.moves += 1
        self._waiting -= left
        scheduling_class.waiting -= left
        if not job_queue.numbers:
            self._close_line(job_queue)
            if not scheduling_class.lines:
                self._close(scheduling_class)
        if counted and self._flows is not None:
            self._flows.wait_no_more(job_queue.job_id, left)

    def _close_line(self, job_queue: JobQueue) -> None:
        """The last one of a line has left."""
        scheduling_class, job_id = job_queue.shape, job_queue.job_id
        del scheduling_class.lines[job_id]
        if job_queue.stands != INACTIVE:
            self.turns.unstand(job_queue)
        elif job_queue.stopped_by:
            self.stopped.take(job_queue)
        else:
            del scheduling_class.parked[job_queue]
        if self.job_shapes[job_id] > 1:
            self.job_shapes[job_id] -= 1
            return
        del self.job_shapes[job_id]
        self.turns.forget(job_id)

    def _close(self, scheduling_class: SchedulingClass) -> None:
        """The last one who waited with a shape has left."""
        self._known.end(scheduling_class)
        self.round.discard(scheduling_class)
        self.roomy.pop(scheduling_class, None)
        self.open.pop(scheduling_class, None)
        self.sleeping.get(scheduling_class.labels, {}).pop(scheduling_class, None)
        self._resting.pop(scheduling_class, None)

    def _rouse(self, scheduling_class: SchedulingClass) -> None:
        """Has a shape looked at in the next round, if it sleeps."""
        scheduling_classes = self.sleeping.get(scheduling_class.labels, {})
        if scheduling_class in scheduling_classes:
            del scheduling_classes[scheduling_class]
            self._resting.pop(scheduling_class, None)
            self.open[scheduling_class] = None

    def _put_into_round(self, scheduling_class: SchedulingClass) -> None:
        if (head := scheduling_class.head()) is not None:
            self.round.put(scheduling_class, head)
