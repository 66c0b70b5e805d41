"""Who waits, in which order. Knows shapes and arrival numbers; whether anything fits is not its
business.

Requests that ask for the same (profile and labels) form a *shape*: where one of them does not fit,
none does, so a failed search is remembered once per shape. Order is the RM's arrival number,
within a shape and between shapes; a request that comes back after a failed placement stands at its
old place again.

Shapes are tried in *rounds*. A round may take several decisions; what wakes or comes meanwhile is
tried in the next one. So everybody has a turn, however many shapes wait and however often they
wake. What waits one by one (`singles.py`) stands in the same line and takes part in its rounds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from finegrain.resources import (
    MEMORY_BYTES,
    MEMORY_GRAIN_BYTES,
    MEMORY_PARTS,
    Amounts,
    ResourceProfile,
    booking,
)
from resource_manager.engine.entities import Request, RequestSpec
from resource_manager.engine.rounds import Round
from resource_manager.engine.singles import Labels, Single, Singles

SLOTS = "slots"
"""Index column: slots that a host may still take."""

DEFAULT_SLOTS = "default_slots"
"""Index column: default slots that a host may still take."""

IDLE_SHAPES_MAX = 1_024
"""Shapes remembered although nobody waits with them."""

_MEMORY = frozenset({MEMORY_BYTES, *MEMORY_PARTS})

_LEFT_BEHIND_MAX = 1_024
"""Numbers of those who left that a line may keep, however few wait, before it is cut."""

ShapeKey = tuple[ResourceProfile | None, Labels]


@dataclass(slots=True, eq=False)
class Cursor:
    """How far a shape's search has come in its index: no host before `frontier` fits, as of
    `log_length`.
    """

    version: int = -1
    log_length: int = 0
    frontier: int = 0


@dataclass(slots=True, eq=False)
class Shape:
    """Equal requests that wait."""

    number: int  # order of making; for ties
    profile: ResourceProfile | None
    labels: Labels
    pooled_need: dict[str, int]  # columns and amounts on a host with one memory pool
    separate_need: dict[str, int]  # the same on a host with a pool per memory part
    members: dict[int, Request] = field(default_factory=dict)  # by arrival number
    jobs: dict[str, int] = field(default_factory=dict)  # how many of them are of which job
    tried: bool = True  # since somebody began to wait with it
    line: list[int] = field(default_factory=list)  # arrival numbers in order; some may have left
    first: int = 0  # where in the line the head may be; nobody before it waits
    cursor: Cursor = field(default_factory=Cursor)
    verdict: tuple[int, str] | None = None  # (version of the cluster, feasibility) as last judged
    waiting: tuple[int, str] | None = None  # (state of the books, reason) as last asked

    def add(self, request: Request) -> None:
        """Puts a request at the place of its arrival number."""
        number = request.arrival_number
        self.members[number] = request
        line = self.line
        if len(line) > _LEFT_BEHIND_MAX + 2 * len(self.members):
            # The head may wait for ever while others come and are taken back.
            line[:] = sorted(self.members)
            self.first = 0
            return
        if not line or number > line[-1]:
            line.append(number)
            return
        at = bisect_left(line, number)
        if line[at] != number:
            line.insert(at, number)
        self.first = min(self.first, at)

    def head(self) -> Request | None:
        """The request that waits longest."""
        line, at = self.line, self.first
        while at < len(line):
            request = self.members.get(line[at])
            if request is not None:
                self.first = at
                return request
            at += 1
        self.clear_line()
        return None

    def before(self, number: int | None, most: int) -> list[Request]:
        """The first so many requests that wait, all or those with a lower arrival number."""
        if self.first > _LEFT_BEHIND_MAX and 2 * self.first > len(self.line):
            del self.line[: self.first]
            self.first = 0
        end = len(self.line) if number is None else bisect_left(self.line, number, self.first)
        found = []
        for at in range(self.first, end):
            request = self.members.get(self.line[at])
            if request is not None:
                found.append(request)
                if len(found) == most:
                    break
        return found

    def in_line(self) -> Iterator[int]:
        """Arrival numbers of those who wait, in order, as far as anybody asks."""
        for at in range(self.first, len(self.line)):
            if (number := self.line[at]) in self.members:
                yield number

    def clear_line(self) -> None:
        """Forgets the numbers of those who left, when nobody waits any more."""
        self.line.clear()
        self.first = 0


class WaitingQueue:
    """All requests that wait, by shape.

    A shape is in the present `round`, or *open*: to be tried in the next one; else it *sleeps*
    until a host of its labels grows. The one that is being tried is in neither.

    Attributes:
        singles: what waits in the same line one by one.
        job_shapes: how many shapes a job waits with; jobs that wait with none are not in it.
        moves: rises whenever a request comes or leaves.
    """

    def __init__(self) -> None:
        self.singles = Singles()
        self.round = Round()
        self.open: dict[Shape, None] = {}
        self.sleeping: dict[Labels, dict[Shape, None]] = {}
        self._shapes: dict[ShapeKey, Shape] = {}
        self._idle: dict[ShapeKey, Shape] = {}  # nobody waits with them; longest unused first
        self._asked_for: dict[Labels, int] = {}  # shapes that somebody waits with
        self.job_shapes: dict[str, int] = {}
        self.moves = 0  # rises whenever somebody comes or leaves
        self._made = 0

    def __len__(self) -> int:
        return sum(len(shape.members) for shape in self._shapes.values())

    def is_asked_for(self, labels: Labels) -> bool:
        """True if somebody waits for a host with these labels."""
        return labels in self._asked_for or self.singles.is_asked_for(labels)

    def shapes(self) -> list[Shape]:
        """Shapes that somebody waits with."""
        return list(self._shapes.values())

    def shape_of(self, spec: RequestSpec) -> Shape:
        """The shape of a request, whether or not anybody waits with it."""
        key = (spec.profile, spec.required_labels)
        shape = self._shapes.get(key) or self._idle.get(key)
        if shape is None:
            shape = self._make(spec)
            self._retire(key, shape)
        return shape

    def add(self, request: Request) -> None:
        """Lets a request wait."""
        self.moves += 1
        key = (request.spec.profile, request.spec.required_labels)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._idle.pop(key, None) or self._make(request.spec)
            self._shapes[key] = shape
            self._asked_for[shape.labels] = self._asked_for.get(shape.labels, 0) + 1
            self.open[shape] = None
            shape.tried = False
        else:
            self.round.advance(shape, request.arrival_number)
        shape.add(request)
        job_id, jobs = request.job_id, shape.jobs
        if job_id in jobs:
            jobs[job_id] += 1
        else:
            jobs[job_id] = 1
            self.job_shapes[job_id] = self.job_shapes.get(job_id, 0) + 1

    def remove(self, request: Request) -> None:
        """Ends a request's waiting."""
        key = (request.spec.profile, request.spec.required_labels)
        shape = self._shapes.get(key)
        if shape is None:
            return
        self._leave(shape, request)
        if not shape.members:
            self._close(key, shape)

    def new_shapes(self, job_id: str, specs: Iterable[RequestSpec]) -> int:
        """How many shapes more a job would wait with, if it asked for all of these."""
        keys = {(spec.profile, spec.required_labels) for spec in specs}
        shapes = (self._shapes.get(key) for key in keys)
        return sum(shape is None or job_id not in shape.jobs for shape in shapes)

    def served(self, shape: Shape, requests: Iterable[Request]) -> None:
        """Ends the waiting of requests of one shape."""
        for request in requests:
            self._leave(shape, request)
        if not shape.members:
            self._close((shape.profile, shape.labels), shape)

    @property
    def awake(self) -> bool:
        """True if anything is to be tried."""
        return bool(self.round or self.open) or self.singles.awake

    @property
    def in_round(self) -> bool:
        """True if the present round is not over."""
        return bool(self.round) or self.singles.in_round

    def begin_round(self) -> None:
        """Begins the next round if the present one is over and there is anything to try."""
        if self.round or self.singles.in_round or not self.awake:
            return
        self.round.begin(self.open)
        self.open.clear()
        self.singles.begin_round()

    def next_turn(self) -> Shape | Single | None:
        """Whose turn it is; None: nothing is left to be tried.

        Whoever takes a shape lets it `stay` or `sleep` afterwards; likewise see `Singles`.
        """
        self.begin_round()
        if self.singles.in_round:
            single = self.singles.next_before(self.round.first())
            if single is not None:
                return single
        shape = self.round.take()
        if shape is not None:
            shape.tried = True
        return shape

    def until(self) -> int | None:
        """Arrival number at which somebody has a turn next."""
        number = self.round.until()
        single = self.singles.until() if self.singles.in_round else None
        return single if number is None or (single is not None and single < number) else number

    def stay(self, shape: Shape) -> None:
        """Leaves a shape in the round, at the place of who waits longest with it now."""
        if (head := shape.head()) is not None:
            self.round.put(shape, head.arrival_number)

    def set_aside(self, shape: Shape, request: Request) -> None:
        """Lets a request not stand in the way of others of its shape, until it is taken back."""
        self._leave(shape, request)

    def take_back(self, request: Request) -> None:
        """Lets a request that was set aside wait again. If its shape is still awake, it is tried
        in the next round.
        """
        self.add(request)
        shape = self._shapes[request.spec.profile, request.spec.required_labels]
        shape.tried = True
        if shape not in self.round and shape not in self.sleeping.get(shape.labels, {}):
            self.open[shape] = None

    def sleep(self, shape: Shape) -> None:
        """Nothing fits this shape now."""
        self.sleeping.setdefault(shape.labels, {})[shape] = None

    def wake(self, labels: Labels) -> None:
        """A host that carries these labels grew."""
        if shapes := self.sleeping.pop(labels, None):
            self.open.update(shapes)

    def __contains__(self, request: Request) -> bool:
        shape = self._shapes.get((request.spec.profile, request.spec.required_labels))
        return shape is not None and shape.members.get(request.arrival_number) is request

    def _leave(self, shape: Shape, request: Request) -> None:
        if shape.members.pop(request.arrival_number, None) is None:
            return
        self.moves += 1
        job_id, jobs = request.job_id, shape.jobs
        if jobs[job_id] > 1:
            jobs[job_id] -= 1
            return
        del jobs[job_id]
        if self.job_shapes[job_id] > 1:
            self.job_shapes[job_id] -= 1
        else:
            del self.job_shapes[job_id]

    def _close(self, key: ShapeKey, shape: Shape) -> None:
        """The last one who waited with a shape has left."""
        del self._shapes[key]
        self._asked_for[shape.labels] -= 1
        if not self._asked_for[shape.labels]:
            del self._asked_for[shape.labels]
        self.round.discard(shape)
        self.open.pop(shape, None)
        self.sleeping.get(shape.labels, {}).pop(shape, None)
        shape.clear_line()
        self._retire(key, shape)

    def _retire(self, key: ShapeKey, shape: Shape) -> None:
        """Keeps what was learnt about a shape, for the next one who asks for the same."""
        self._idle[key] = shape
        if len(self._idle) > IDLE_SHAPES_MAX:
            del self._idle[next(iter(self._idle))]

    def _make(self, spec: RequestSpec) -> Shape:
        self._made += 1
        return Shape(
            number=self._made,
            profile=spec.profile,
            labels=spec.required_labels,
            pooled_need=_need(spec.profile, separate_pools=False),
            separate_need=_need(spec.profile, separate_pools=True),
        )


def _need(profile: ResourceProfile | None, *, separate_pools: bool) -> dict[str, int]:
    if profile is None:
        return {DEFAULT_SLOTS: 1}
    return {**in_grains(booking(profile, separate_pools=separate_pools)), SLOTS: 1}


def in_grains(amounts: Amounts) -> dict[str, int]:
    """Amounts as the index counts them: memory in whole `MEMORY_GRAIN_BYTES`.

    Small numbers are quicker to reckon with. Nothing is lost by it: bookings are multiples of the
    grain.
    """
    return {
        name: amount // MEMORY_GRAIN_BYTES if name in _MEMORY else amount
        for name, amount in amounts.items()
    }
