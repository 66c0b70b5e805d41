"""Which ranges of requests there are, and where their members stand. Knows names, numbers and
indexes; what is accepted (`requests/range_intake.py`), and what becomes of a member, is not its
business.

A range is kept in *parts* of at most `PART_MEMBERS_MAX` members, one row each. A member is in one
of three places: it *waits* and was never placed (an index in an interval, nothing else); it is
*singled out*, since it was placed once (a `Request` like any other, and from the first time that
it goes back into line a row of its own, which tells its generation to whoever comes after a crash);
or it has *ended* (an index in an interval again, which is stored). So what was not placed yet and
what is over cost nothing, and a restart knows each place from the rows: waiting is whatever is
neither ended nor has a slot or a row.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from finegrain.errors import InvariantBroken
from finegrain.intervals import IntervalSet, Run
from finegrain.mapping.copies import copier
from finegrain.values.states import RequestState
from resource_manager.engine.model.entities import (
    Ended,
    RangeSpec,
    Request,
    RequestRange,
    RequestSpec,
)

if TYPE_CHECKING:
    from resource_manager.engine.queue.queue import WaitingQueue

PART_MEMBERS_MAX = 10_000
"""Members of one part. Its row is written whenever one of them ends: with half of them ended, in
the worst of orders, it holds some 50 KiB."""

INDEX_END = 1_000_000_000_000
"""No member has an index as large as this."""

_INDEX_DIGITS_MAX = len(str(INDEX_END))


_member_spec = copier(RequestSpec, RequestSpec, "allocation_id target_address gang_id")


@dataclass(slots=True, eq=False)
class Part:
    """A part of a range, as its row has it, and where its members stand who have not ended.

    Attributes:
        row: what is durable.
        waiting: indexes of those who wait and were never placed.
        materialized: indexes of those who have a `Request`.
        stored: indexes of those of them who have a row of their own.
    """

    row: RequestRange
    waiting: IntervalSet
    materialized: IntervalSet = field(default_factory=IntervalSet)
    stored: IntervalSet = field(default_factory=IntervalSet)

    @classmethod
    def of(cls, row: RequestRange) -> Part:
        """A part none of whose members is singled out."""
        first, end = row.spec.first_index, row.spec.first_index + row.spec.count
        waiting = IntervalSet([(first, end)])
        for indexes in row.ended.values():
            for run in indexes.runs():
                waiting.remove_run(*run)
        return cls(row, waiting)

    @property
    def spec(self) -> RangeSpec:
        """What was asked for."""
        return self.row.spec

    @property
    def first(self) -> int:
        """Index of the first member."""
        return self.row.spec.first_index

    @property
    def end(self) -> int:
        """Index behind the last member."""
        return self.row.spec.first_index + self.row.spec.count

    @property
    def last_arrival(self) -> int:
        """Arrival number of the last member."""
        return self.row.arrival_number + self.row.spec.count - 1

    @property
    def live(self) -> int:
        """How many have not ended."""
        return len(self.waiting) + len(self.materialized)

    def arrival_of(self, index: int) -> int:
        """The arrival number of a member."""
        return self.row.arrival_number + index - self.row.spec.first_index

    def index_of(self, arrival_number: int) -> int:
        """The index of the member with this arrival number."""
        return arrival_number - self.row.arrival_number + self.row.spec.first_index

    def id_of(self, index: int) -> str:
        """The allocation id of a member."""
        return f"{self.row.spec.request.allocation_id}.{index}"

    def how_ended(self, index: int) -> tuple[Ended, int] | None:
        """How a member ended, and the index behind those who follow it and ended likewise; None: it
        lives.
        """
        for how, indexes in self.row.ended.items():
            if index in indexes:
                return how, next(indexes.runs_within(index, self.end))[1]
        return None

    def member(self, index: int) -> Request:
        """A member as a request by itself, made for the occasion: changing it changes nothing."""
        request = Request(
            spec=_member_spec(
                self.row.spec.request,
                allocation_id=self.id_of(index),
                target_address="",
                gang_id="",
            ),
            job_id=self.row.job_id,
            arrival_number=self.arrival_of(index),
            create_time_ms=self.row.create_time_ms,
        )
        if index not in self.waiting and (ended := self.how_ended(index)) is not None:
            request.state, request.reason, request.message = ended[0]
        return request

    def end_run(self, start: int, end: int, how: Ended) -> None:
        """These members have ended, wherever they stood."""
        if how not in self.row.ended:
            self.row.ended[how] = IntervalSet()
        self.row.ended[how].add_run(start, end)
        for indexes in (self.waiting, self.materialized, self.stored):
            indexes.remove_run(start, end)

    def intervals(self, after_arrival: int = 0) -> Iterator[tuple[RequestState | None, Run]]:
        """All members in order from behind an arrival number on, as runs of indexes that stand
        alike: PENDING for those who wait and were never placed, None for one who is singled out,
        else how they ended.
        """
        index = max(self.first, self.index_of(after_arrival + 1))
        while index < self.end:
            if index in self.materialized:
                state, until = None, index + 1
            elif index in self.waiting:
                state, until = (
                    RequestState.PENDING,
                    next(self.waiting.runs_within(index, self.end))[1],
                )
            else:
                ended = self.how_ended(index)
                if ended is None:
                    raise InvariantBroken(f"member {self.id_of(index)} stands nowhere")
                state, until = ended[0][0], ended[1]
            yield state, (index, until)
            index = until


class RangeLedger:
    """All parts of all ranges.

    Attributes:
        members: those who are singled out, by arrival number.
        by_job: parts of each job, in order of arrival; jobs without any are not in it.
    """

    def __init__(self) -> None:
        self.members: dict[int, Request] = {}
        self.by_job: dict[str, list[Part]] = {}
        self._parts: list[Part] = []  # in order of arrival
        self._starts: list[int] = []  # first arrival number of each
        self._by_range: dict[str, list[Part]] = {}  # in order of index
        self._others: dict[str, IntervalSet] = {}  # by X: the k of other things that are called X.k

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __contains__(self, range_id: object) -> bool:
        return range_id in self._by_range

    def parts(self, after_arrival: int = 0) -> Iterator[Part]:
        """Parts with members behind an arrival number, in order of arrival."""
        at = max(0, bisect_right(self._starts, after_arrival) - 1)
        for part in self._parts[at:]:
            if part.last_arrival > after_arrival:
                yield part

    def parts_of(self, job_id: str, after_arrival: int = 0) -> Iterator[Part]:
        """Likewise of one job."""
        parts = self.by_job.get(job_id, [])
        at = bisect_right(parts, after_arrival, key=_last_arrival)
        yield from parts[at:]

    def add(self, part: Part) -> None:
        """Takes a part in."""
        range_id = part.spec.range_id
        if range_id not in self._by_range:
            self._by_range[range_id] = []
            self.reserve(range_id)
        insort(self._by_range[range_id], part, key=_first_index)
        if self._starts and part.row.arrival_number < self._starts[-1]:
            raise InvariantBroken(f"part {part.id_of(part.first)} came out of order")
        self._parts.append(part)
        self._starts.append(part.row.arrival_number)
        self.by_job.setdefault(part.row.job_id, []).append(part)

    def forget(self, part: Part) -> None:
        """Strikes the last part of a job."""
        job_parts = self.by_job[part.row.job_id]
        if job_parts.pop() is not part:
            raise InvariantBroken(f"part {part.id_of(part.first)} is not the last of its job")
        if not job_parts:
            del self.by_job[part.row.job_id]
        at = bisect_right(self._starts, part.row.arrival_number) - 1
        del self._parts[at], self._starts[at]
        range_id = part.spec.range_id
        parts = self._by_range[range_id]
        del parts[bisect_right(parts, part.first, key=_first_index) - 1]
        if not parts:
            del self._by_range[range_id]
            self.give_back(range_id)

    def reserve(self, name: str) -> None:
        """Something that is no member, but might be called like one, is called this."""
        if (found := split(name)) is not None:
            self._others.setdefault(found[0], IntervalSet()).add(found[1])

    def give_back(self, name: str) -> None:
        """It is forgotten."""
        if (found := split(name)) is not None and found[0] in self._others:
            self._others[found[0]].discard(found[1])
            if not self._others[found[0]]:
                del self._others[found[0]]

    def is_free(self, range_id: str, first: int, end: int) -> bool:
        """True if nothing else is called like one of these members."""
        others = self._others.get(range_id)
        return others is None or next(others.runs_within(first, end), None) is None

    def named_parts(self, range_id: str) -> list[Part]:
        """All parts of a range, in order of index; none: there is no such range."""
        return self._by_range.get(range_id, [])

    def overlapping(self, range_id: str, first: int, end: int) -> list[Part]:
        """Parts that have some of these members, in order."""
        parts = self._by_range.get(range_id, [])
        at = max(0, bisect_right(parts, first, key=_first_index) - 1)
        found = []
        for part in parts[at:]:
            if part.first >= end:
                break
            if part.end > first:
                found.append(part)
        return found

    def at(self, arrival_number: int) -> Part | None:
        """The part that has the member with this arrival number."""
        at = bisect_right(self._starts, arrival_number) - 1
        if at < 0 or arrival_number > self._parts[at].last_arrival:
            return None
        return self._parts[at]

    def named(self, allocation_id: str) -> tuple[Part, int] | None:
        """The member of this name: its part and its index."""
        if not self._parts or (found := split(allocation_id)) is None:
            return None
        parts = self.overlapping(found[0], found[1], found[1] + 1)
        return (parts[0], found[1]) if parts else None

    def request_at(self, arrival_number: int) -> Request | None:
        """The member with this arrival number: the one that is singled out, else one made for the
        occasion.
        """
        request = self.members.get(arrival_number)
        if request is not None:
            return request
        part = self.at(arrival_number)
        return part.member(part.index_of(arrival_number)) if part is not None else None

    def request_named(self, allocation_id: str) -> Request | None:
        """Likewise by its name."""
        found = self.named(allocation_id)
        if found is None:
            return None
        part, index = found
        return self.members.get(part.arrival_of(index)) or part.member(index)

    def materialize(self, part: Part, request: Request) -> None:
        """A member that waited is a request like any other from now on."""
        index = part.index_of(request.arrival_number)
        part.waiting.remove(index)
        part.materialized.add(index)
        self.members[request.arrival_number] = request


def enqueue_members(queue: WaitingQueue, part: Part, start: int, end: int) -> None:
    """Lets members wait who were never placed."""
    first = part.arrival_of(start)
    queue.add_run(part.spec.request, part.row.job_id, first, end - start)


def dequeue_members(queue: WaitingQueue, part: Part, start: int, end: int) -> None:
    """Lets members wait no more who were never placed."""
    first = part.arrival_of(start)
    queue.remove_run(part.spec.request, part.row.job_id, first, end - start)


def split(allocation_id: str) -> tuple[str, int] | None:
    """The range and the index that an allocation id would be a member's of."""
    range_id, dot, digits = allocation_id.rpartition(".")
    if not dot or not range_id or not digits.isdecimal() or not digits.isascii():
        return None
    if len(digits) > _INDEX_DIGITS_MAX or (digits[0] == "0" and digits != "0"):
        return None
    index = int(digits)
    return (range_id, index) if index < INDEX_END else None


def parts_of(spec: RangeSpec) -> Iterator[RangeSpec]:
    """Cuts a range into parts."""
    end = spec.first_index + spec.count
    for first in range(spec.first_index, end, PART_MEMBERS_MAX):
        yield RangeSpec(spec.request, first, min(PART_MEMBERS_MAX, end - first))


def _first_index(part: Part) -> int:
    return part.row.spec.first_index


def _last_arrival(part: Part) -> int:
    return part.last_arrival


def live(parts: Iterable[Part]) -> int:
    """How many members of these parts have not ended."""
    return sum(part.live for part in parts)
