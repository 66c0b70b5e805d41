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
        line = self._line_of(request.spec, request.job_id)
        return line is not None and request.arrival_number in line.numbers

    # Who waits.

    def is_asked_for(self, labels: Labels) -> bool:
        """True if somebody waits for a host with these labels."""
        return self._known.is_asked_for(labels) or self.singles.is_asked_for(labels)

    def shapes(self) -> list[SchedulingClass]:
        """Shapes that somebody waits with."""
        return list(self._known.waited_with.values())

    def lines(self) -> list[JobQueue]:
        """All lines, by shape."""
        return [line for shape in self._known.waited_with.values() for line in shape.lines.values()]

    def shape_of(self, spec: RequestSpec) -> SchedulingClass:
        """The shape of a request, whether or not anybody waits with it."""
        return self._known.of(scheduling_key(spec))

    def shape_at(self, key: SchedulingKey) -> SchedulingClass:
        """The shape of requests that ask for this, likewise."""
        return self._known.of(key)

    def new_shapes(self, job_id: str, specs: Iterable[RequestSpec]) -> int:
        """How many shapes more a job would wait with, if it asked for all of these."""
        keys = {scheduling_key(spec) for spec in specs}
        shapes = (self._known.waited_with.get(key) for key in keys)
        return sum(shape is None or job_id not in shape.lines for shape in shapes)

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
        line = self._line_of(spec, job_id)
        if line is not None:
            self._leave(line, number, number + count)

    def served(self, shape: SchedulingClass, requests: Iterable[Request]) -> None:
        """Ends the waiting of requests of one shape."""
        for request in requests:
            line = shape.lines.get(request.job_id)
            if line is not None:
                self._leave(line, request.arrival_number, request.arrival_number + 1)

    def taken(self, line: JobQueue, count: int) -> None:
        """Ends the waiting of the first so many of a line."""
        line.numbers.take(count)
        self._left(line, count)

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
        shape = self.round.take()
        if shape is not None:
            shape.tried = True
        return shape

    def has_room(self, shape: SchedulingClass, most: int) -> int:
        """There is room for a shape: its parked lines, up to so many of them, stand among those of
        their jobs again. Answers with how many; with more left, it is to be looked at once more.
        """
        lines = list(shape.parked)[:most] if len(shape.parked) > most else list(shape.parked)
        for line in lines:
            del shape.parked[line]
            self.turns.stand(line)
        if shape.parked:
            self._put_into_round(shape)
        else:
            self.roomy[shape] = None
        return len(lines)

    def rest(self) -> None:
        """Nobody has a turn who may be served: shapes that there is room for sleep as well, until
        one of those who wait with them may.
        """
        for shape in list(self.roomy):
            self.sleep(shape)
            self._resting[shape] = None

    def park(self, line: JobQueue) -> None:
        """A line is not to have a turn while its shape sleeps."""
        line.shape.parked[line] = None
        self.turns.unstand(line)

    def stop(self, line: JobQueue, group_id: str) -> None:
        """A line is not to have a turn while the maximum of a group stops it."""
        self.stopped.put(line, group_id)
        self.turns.unstand(line)

    def ease(self, group_id: str, admits: Callable[[SchedulingClass], bool], most: int) -> int:
        """Whoever was stopped by the maximum of a group is to be tried again: of lines, so many at
        most, with shapes that it admits now. Answers with how many.
        """
        self.singles.ease(group_id)
        for shape in [each for each in self._resting if admits(each)]:
            self._rouse(shape)
        lines = self.stopped.of(group_id, admits, most)
        for line in lines:
            self.stopped.take(line)
            self.turns.stand(line)
            self._rouse(line.shape)
        return len(lines)

    def end_rest(self) -> None:
        """Shapes that rest are to be looked at again."""
        for shape in list(self._resting):
            self._rouse(shape)

    def sleep(self, shape: SchedulingClass) -> None:
        """Nothing fits this shape now."""
        self.roomy.pop(shape, None)
        self.sleeping.setdefault(shape.labels, {})[shape] = None

    def look_on(self, shape: SchedulingClass) -> None:
        """Nobody knows yet whether there is room for a shape, which is nowhere: the round goes on
        with it.
        """
        if shape not in self.open:
            self._put_into_round(shape)

    def wake(self, labels: Labels) -> None:
        """A host that carries these labels grew."""
        if shapes := self.sleeping.pop(labels, None):
            self.open.update(shapes)
            for shape in shapes if self._resting else ():
                self._resting.pop(shape, None)

    def set_aside(self, line: JobQueue, number: int) -> None:
        """Lets somebody not stand in the way of others of his line, until he is taken back."""
        self._leave(line, number, number + 1, counted=False)

    def take_back(self, request: Request) -> None:
        """Lets a request that was set aside wait again. If its shape is still awake, it is tried
        in the next round.
        """
        self._add(request.spec, request.job_id, request.arrival_number, 1, counted=False)
        shape = self._known.waited_with[scheduling_key(request.spec)]
        shape.tried = True
        if shape not in self.round and shape not in self.roomy and not self.sleeps(shape):
            self.open[shape] = None

    def sleeps(self, shape: SchedulingClass) -> bool:
        """True if a shape sleeps."""
        return shape in self.sleeping.get(shape.labels, ())

    # How it is done.

    def _line_of(self, spec: RequestSpec, job_id: str) -> JobQueue | None:
        shape = self._known.waited_with.get(scheduling_key(spec))
        return shape.lines.get(job_id) if shape is not None else None

    def _add(
        self, spec: RequestSpec, job_id: str, number: int, count: int, *, counted: bool = True
    ) -> None:
        self.moves += 1
        key = scheduling_key(spec)
        shape = self._known.waited_with.get(key) or self._begin(key)
        line = shape.lines.get(job_id) or self._begin_line(shape, job_id)
        line.may_reject |= not spec.allow_pending
        added = line.numbers.add_run(number, number + count)
        shape.waiting += added
        self._waiting += added
        if counted and self._flows is not None:
            self._flows.wait(job_id, number, added)
        if line.numbers.first != number:
            return
        shape.stand(line, number)
        self.round.advance(shape, number)
        if line.stands != INACTIVE:
            line.among.advance(line, number)
        elif line not in shape.parked and not line.stopped_by:
            if shape in self._resting:
                self._rouse(shape)
            self.turns.stand(line)

    def _begin(self, key: SchedulingKey) -> SchedulingClass:
        """Somebody begins to wait with a shape."""
        shape = self._known.begin(key)
        self.open[shape] = None
        shape.tried = False
        return shape

    def _begin_line(self, shape: SchedulingClass, job_id: str) -> JobQueue:
        """A job begins to wait with a shape."""
        line = shape.lines[job_id] = JobQueue(shape, job_id, self.turns.lines_of(job_id))
        self.job_shapes[job_id] = self.job_shapes.get(job_id, 0) + 1
        return line

    def _leave(self, line: JobQueue, start: int, end: int, *, counted: bool = True) -> None:
        left = line.numbers.remove_run(start, end)
        if left:
            self._left(line, left, counted=counted)

    def _left(self, line: JobQueue, left: int, *, counted: bool = True) -> None:
        """So many of a line have left."""
        shape = line.shape
        self.moves += 1
        self._waiting -= left
        shape.waiting -= left
        if not line.numbers:
            self._close_line(line)
            if not shape.lines:
                self._close(shape)
        if counted and self._flows is not None:
            self._flows.wait_no_more(line.job_id, left)

    def _close_line(self, line: JobQueue) -> None:
        """The last one of a line has left."""
        shape, job_id = line.shape, line.job_id
        del shape.lines[job_id]
        if line.stands != INACTIVE:
            self.turns.unstand(line)
        elif line.stopped_by:
            self.stopped.take(line)
        else:
            del shape.parked[line]
        if self.job_shapes[job_id] > 1:
            self.job_shapes[job_id] -= 1
            return
        del self.job_shapes[job_id]
        self.turns.forget(job_id)

    def _close(self, shape: SchedulingClass) -> None:
        """The last one who waited with a shape has left."""
        self._known.end(shape)
        self.round.discard(shape)
        self.roomy.pop(shape, None)
        self.open.pop(shape, None)
        self.sleeping.get(shape.labels, {}).pop(shape, None)
        self._resting.pop(shape, None)

    def _rouse(self, shape: SchedulingClass) -> None:
        """Has a shape looked at in the next round, if it sleeps."""
        shapes = self.sleeping.get(shape.labels, {})
        if shape in shapes:
            del shapes[shape]
            self._resting.pop(shape, None)
            self.open[shape] = None

    def _put_into_round(self, shape: SchedulingClass) -> None:
        if (head := shape.head()) is not None:
            self.round.put(shape, head)
