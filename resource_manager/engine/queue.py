"""Who waits, and which of them are to be tried. Knows shapes, lines and arrival numbers; whether
anything fits is not its business, and who is to be served first, the tree of flows says.

Shapes are tried in *rounds*. A round may take several decisions; what wakes or comes meanwhile is
tried in the next one. So everybody has a turn, however many shapes wait and however often they
wake. In a round each shape is first looked at, in order of who waits longest with it: if there is
no room for it, it sleeps until a host of its labels grows, else it may be served. Whose turn it is
then among those who may, the tree of flows decides: the job that is to be served first, and its
request that has waited longest. If that is of a shape that sleeps, or stopped by a limit, its line
is parked (`lines.py`), and the job goes on with its next one, or has no turn while it has none. A
shape that has room again gets its parked lines back.

What waits one by one (`singles.py`) belongs to jobs as well, and takes part in the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from resource_manager.engine.entities import Request, RequestSpec
from resource_manager.engine.fair.choice import RUN_PART, first_job, run_length, turn_of
from resource_manager.engine.fair.flows import GROUP, FlowTree
from resource_manager.engine.lines import PARKED, JobLines, Line
from resource_manager.engine.rounds import Round
from resource_manager.engine.shapes import (
    DEFAULT_SLOTS,
    SLOTS,
    Shape,
    ShapeKey,
    in_grains,
    make_shape,
)
from resource_manager.engine.singles import Labels, Rank, Single, Singles, Turn
from resource_manager.engine.stopped import Stopped

__all__ = ["DEFAULT_SLOTS", "SLOTS", "Line", "Shape", "ShapeKey", "WaitingQueue", "in_grains"]

IDLE_SHAPES_MAX = 1_024
"""Shapes remembered although nobody waits with them."""

TOGETHER_MAX = 1_024
"""Requests that are placed together at most: what is looked up for them may be in vain."""

_EVERYBODY = ""
"""Instead of a job's id, where arrival alone decides."""


class WaitingQueue:
    """All requests that wait, by shape and job.

    A shape is to be looked at in the present `round`, or `roomy` (it was, and there was room), or
    *open* (to be looked at in the next round); else it *sleeps* until a host of its labels grows.
    The one that is being looked at is nowhere.

    Attributes:
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
        self._tree = flows if fair else None
        self.singles = Singles(flows, self._turn_of if fair and flows is not None else None)
        self.round = Round()
        self.roomy: dict[Shape, None] = {}
        self.open: dict[Shape, None] = {}
        self.sleeping: dict[Labels, dict[Shape, None]] = {}
        self.stopped = Stopped()
        self.stopped_at_version = -1
        self.job_shapes: dict[str, int] = {}
        self.moves = 0
        self._shapes: dict[ShapeKey, Shape] = {}
        self._resting: dict[Shape, None] = {}  # asleep, with room: nobody may be served
        self._idle: dict[ShapeKey, Shape] = {}  # nobody waits with them; longest unused first
        self._asked_for: dict[Labels, int] = {}  # shapes that somebody waits with
        self._by_job: dict[str, JobLines] = {}
        self._waiting = 0
        self._halted: list[str] = []
        self._made = 0

    def __len__(self) -> int:
        return self._waiting

    def __contains__(self, request: Request) -> bool:
        line = self._line_of(request.spec, request.job_id)
        return line is not None and request.arrival_number in line.numbers

    # Who waits.

    def is_asked_for(self, labels: Labels) -> bool:
        """True if somebody waits for a host with these labels."""
        return labels in self._asked_for or self.singles.is_asked_for(labels)

    def shapes(self) -> list[Shape]:
        """Shapes that somebody waits with."""
        return list(self._shapes.values())

    def lines(self) -> list[Line]:
        """All lines, by shape."""
        return [line for shape in self._shapes.values() for line in shape.lines.values()]

    def job_lines(self) -> dict[str, JobLines]:
        """Where each job's lines stand; where arrival alone decides, all of them under no name."""
        return dict(self._by_job)

    def shape_of(self, spec: RequestSpec) -> Shape:
        """The shape of a request, whether or not anybody waits with it."""
        key = (spec.profile, spec.required_labels)
        shape = self._shapes.get(key) or self._idle.get(key)
        if shape is None:
            shape = self._make(spec)
            self._retire(key, shape)
        return shape

    def new_shapes(self, job_id: str, specs: Iterable[RequestSpec]) -> int:
        """How many shapes more a job would wait with, if it asked for all of these."""
        keys = {(spec.profile, spec.required_labels) for spec in specs}
        shapes = (self._shapes.get(key) for key in keys)
        return sum(shape is None or job_id not in shape.lines for shape in shapes)

    def add(self, request: Request) -> None:
        """Lets a request wait."""
        self._add(request.spec, request.job_id, request.arrival_number, 1)

    def add_run(self, spec: RequestSpec, job_id: str, number: int, count: int) -> None:
        """Lets equal requests wait, with arrival numbers one after the other from `number` on."""
        self._add(spec, job_id, number, count)

    def remove(self, request: Request) -> None:
        """Ends a request's waiting."""
        self.remove_run(request.spec, request.job_id, request.arrival_number, 1)

    def remove_run(self, spec: RequestSpec, job_id: str, number: int, count: int) -> None:
        """Ends the waiting of those of a job's equal requests whose numbers these are."""
        line = self._line_of(spec, job_id)
        if line is not None:
            self._leave(line, number, number + count)

    def served(self, shape: Shape, requests: Iterable[Request]) -> None:
        """Ends the waiting of requests of one shape."""
        for request in requests:
            line = shape.lines.get(request.job_id)
            if line is not None:
                self._leave(line, request.arrival_number, request.arrival_number + 1)

    def taken(self, line: Line, count: int) -> None:
        """Ends the waiting of the first so many of a line."""
        line.numbers.take(count)
        self._left(line, count)

    # Whose turn it is.

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

    def look(self) -> Shape | None:
        """The next shape of the round that there may be room for; None: all were looked at.

        Whoever takes it says `has_room` or `sleep` of it afterwards.
        """
        shape = self.round.take()
        if shape is not None:
            shape.tried = True
        return shape

    def has_room(self, shape: Shape, most: int) -> int:
        """There is room for a shape: its parked lines, up to so many of them, stand among those of
        their jobs again. Answers with how many; with more left, it is to be looked at once more.
        """
        lines = list(shape.parked)[:most] if len(shape.parked) > most else list(shape.parked)
        for line in lines:
            del shape.parked[line]
            self._stand(line)
        if shape.parked:
            self._put_into_round(shape)
        else:
            self.roomy[shape] = None
        return len(lines)

    def next_line(self) -> Line | None:
        """The line whose turn it is among those that are not parked; None: nobody has one."""
        if self._tree is None:
            lines = self._by_job.get(_EVERYBODY)
        else:
            job = first_job(self._tree)
            lines = self._by_job[job.name] if job is not None else None
        return lines.first() if lines is not None else None

    def next_single(self, line: Line | None) -> Single | None:
        """What waits one by one and has its turn before a line (None: before nobody), taken out of
        the round. Whoever takes it lets it sleep or removes it.
        """
        if not self.singles.in_round:
            return None
        rank: Rank | None = None
        if line is not None:
            rank = ((), line.stands)
            if self._tree is not None:
                rank = (self._turn_of(line.job_id), line.stands)
        return self.singles.next_before(rank)

    def _until(self, line: Line) -> int | None:
        """Arrival number of the next that a line's job waits with that is of another shape."""
        number = line.among.until(line)
        single = self.singles.until(line.job_id if self._tree is not None else "")
        return single if number is None or (single is not None and single < number) else number

    def is_alone(self, line: Line) -> bool:
        """True if no other job has a turn."""
        if self._tree is None:
            return True
        job = self._tree.jobs[line.job_id]
        return not self.singles.in_round and all(flow.active == 1 for flow in job.ancestors())

    def run_length(self, line: Line, cost: float) -> float:
        """How many slots of this cost a line whose turn it is gets before it is another job's."""
        if self._tree is None:
            return inf
        job = self._tree.jobs[line.job_id]
        length = run_length(self._tree, job, cost)
        if self.singles.in_round and self.singles.until(line.job_id) is None:
            length = min(length, max(1, job.running // RUN_PART))  # others may come first soon
        return length

    def next_of(self, line: Line, most: float) -> list[int]:
        """Arrival numbers of the next of a line whose turn it is: so many, of those who came before
        anything else that its job waits with.
        """
        count = TOGETHER_MAX if most > TOGETHER_MAX else int(most)
        until = self._until(line)
        found: list[int] = []
        for start, end in line.numbers.peek(count):
            if until is not None and end > until:
                found.extend(range(start, until))
                break
            found.extend(range(start, end))
        return found

    def rest(self) -> None:
        """Nobody has a turn who may be served: shapes that there is room for sleep as well, until
        one of those who wait with them may.
        """
        for shape in list(self.roomy):
            self.sleep(shape)
            self._resting[shape] = None

    def park(self, line: Line) -> None:
        """A line is not to have a turn while its shape sleeps."""
        line.shape.parked[line] = None
        self._unstand(line)

    def stop(self, line: Line, group_id: str) -> None:
        """A line is not to have a turn while the maximum of a group stops it."""
        self.stopped.put(line, group_id)
        self._unstand(line)

    def halt(self, group_id: str) -> bool:
        """Nothing that there is room for may be placed in a group: nobody in it has a turn for the
        rest of this decision. False: where arrival alone decides, no group has turns.
        """
        if self._tree is None:
            return False
        self._tree.halt(self._tree.groups[group_id.removeprefix(GROUP)])
        self._halted.append(group_id)
        return True

    def end_halts(self) -> None:
        """All groups may have turns again."""
        while self._halted and self._tree is not None:
            self._tree.go_ahead(self._tree.groups[self._halted.pop().removeprefix(GROUP)])

    def ease(self, group_id: str, admits: Callable[[Shape], bool], most: int) -> int:
        """Whoever was stopped by the maximum of a group is to be tried again: of lines, so many at
        most, with shapes that it admits now. Answers with how many.
        """
        self.singles.ease(group_id)
        for shape in [each for each in self._resting if admits(each)]:
            self._rouse(shape)
        lines = self.stopped.of(group_id, admits, most)
        for line in lines:
            self.stopped.take(line)
            self._stand(line)
            self._rouse(line.shape)
        return len(lines)

    def end_rest(self) -> None:
        """Shapes that rest are to be looked at again."""
        for shape in list(self._resting):
            self._rouse(shape)

    def sleep(self, shape: Shape) -> None:
        """Nothing fits this shape now."""
        self.roomy.pop(shape, None)
        self.sleeping.setdefault(shape.labels, {})[shape] = None

    def wake(self, labels: Labels) -> None:
        """A host that carries these labels grew."""
        if shapes := self.sleeping.pop(labels, None):
            self.open.update(shapes)
            for shape in shapes if self._resting else ():
                self._resting.pop(shape, None)

    def set_aside(self, line: Line, number: int) -> None:
        """Lets somebody not stand in the way of others of his line, until he is taken back."""
        self._leave(line, number, number + 1, counted=False)

    def take_back(self, request: Request) -> None:
        """Lets a request that was set aside wait again. If its shape is still awake, it is tried
        in the next round.
        """
        self._add(request.spec, request.job_id, request.arrival_number, 1, counted=False)
        shape = self._shapes[request.spec.profile, request.spec.required_labels]
        shape.tried = True
        if shape not in self.round and shape not in self.roomy and not self.sleeps(shape):
            self.open[shape] = None

    def sleeps(self, shape: Shape) -> bool:
        """True if a shape sleeps."""
        return shape in self.sleeping.get(shape.labels, ())

    # How it is done.

    def _turn_of(self, job_id: str) -> Turn:
        if self._tree is None or job_id not in self._tree.jobs:
            return ()
        return turn_of(self._tree, self._tree.jobs[job_id])

    def _line_of(self, spec: RequestSpec, job_id: str) -> Line | None:
        shape = self._shapes.get((spec.profile, spec.required_labels))
        return shape.lines.get(job_id) if shape is not None else None

    def _add(
        self, spec: RequestSpec, job_id: str, number: int, count: int, *, counted: bool = True
    ) -> None:
        self.moves += 1
        shape = self._shapes.get((spec.profile, spec.required_labels)) or self._begin(spec)
        line = shape.lines.get(job_id) or self._begin_line(shape, job_id)
        added = line.numbers.add_run(number, number + count)
        shape.waiting += added
        self._waiting += added
        if counted and self._flows is not None:
            self._flows.wait(job_id, number, added)
        if line.numbers.first != number:
            return
        shape.stand(line, number)
        self.round.advance(shape, number)
        if line.stands != PARKED:
            line.among.advance(line, number)
        elif line not in shape.parked and not line.stopped_by:
            self._stand(line)

    def _begin(self, spec: RequestSpec) -> Shape:
        """Somebody begins to wait with a shape."""
        key = (spec.profile, spec.required_labels)
        shape = self._idle.pop(key, None) or self._make(spec)
        self._shapes[key] = shape
        self._asked_for[shape.labels] = self._asked_for.get(shape.labels, 0) + 1
        self.open[shape] = None
        shape.tried = False
        return shape

    def _begin_line(self, shape: Shape, job_id: str) -> Line:
        """A job begins to wait with a shape."""
        whose = job_id if self._tree is not None else _EVERYBODY
        among = self._by_job.get(whose)
        if among is None:
            among = self._by_job[whose] = JobLines(whose)
        line = shape.lines[job_id] = Line(shape, job_id, among)
        self.job_shapes[job_id] = self.job_shapes.get(job_id, 0) + 1
        return line

    def _leave(self, line: Line, start: int, end: int, *, counted: bool = True) -> None:
        left = line.numbers.remove_run(start, end)
        if left:
            self._left(line, left, counted=counted)

    def _left(self, line: Line, left: int, *, counted: bool = True) -> None:
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

    def _close_line(self, line: Line) -> None:
        """The last one of a line has left."""
        shape, job_id = line.shape, line.job_id
        del shape.lines[job_id]
        if line.stands != PARKED:
            self._unstand(line)
        elif line.stopped_by:
            self.stopped.take(line)
        else:
            del shape.parked[line]
        if self.job_shapes[job_id] > 1:
            self.job_shapes[job_id] -= 1
            return
        del self.job_shapes[job_id]
        if self._tree is not None:
            del self._by_job[job_id]

    def _close(self, shape: Shape) -> None:
        """The last one who waited with a shape has left."""
        key = (shape.profile, shape.labels)
        del self._shapes[key]
        self._asked_for[shape.labels] -= 1
        if not self._asked_for[shape.labels]:
            del self._asked_for[shape.labels]
        self.round.discard(shape)
        self.roomy.pop(shape, None)
        self.open.pop(shape, None)
        self.sleeping.get(shape.labels, {}).pop(shape, None)
        self._resting.pop(shape, None)
        shape.heads.clear()
        self._retire(key, shape)

    def _stand(self, line: Line) -> None:
        if line.shape in self._resting:
            self._rouse(line.shape)
        if line.among.stand(line) and self._tree is not None:
            self._tree.activate(line.job_id)

    def _unstand(self, line: Line) -> None:
        if line.among.park(line) and self._tree is not None:
            self._tree.deactivate(line.job_id)

    def _rouse(self, shape: Shape) -> None:
        """Has a shape looked at in the next round, if it sleeps."""
        shapes = self.sleeping.get(shape.labels, {})
        if shape in shapes:
            del shapes[shape]
            self._resting.pop(shape, None)
            self.open[shape] = None

    def _put_into_round(self, shape: Shape) -> None:
        if (head := shape.head()) is not None:
            self.round.put(shape, head)

    def _retire(self, key: ShapeKey, shape: Shape) -> None:
        """Keeps what was learnt about a shape, for the next one who asks for the same."""
        self._idle[key] = shape
        if len(self._idle) > IDLE_SHAPES_MAX:
            del self._idle[next(iter(self._idle))]

    def _make(self, spec: RequestSpec) -> Shape:
        self._made += 1
        return make_shape(self._made, spec.profile, spec.required_labels)
