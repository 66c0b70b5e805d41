"""Keeps the ranges of requests, and the state of each member of a range.

A range is stored in *parts* of at most `PART_MEMBERS_MAX` members. Each part has one database row.
A member has one of three states:

- *waiting*: the member was never placed. The member is stored only as an index, within an interval
  of indexes.
- *materialized*: the member was placed at least once. The member is a `Request` object, like a
  request outside a range. When the member is queued again for the first time, it also gets its own
  row, so that its generation survives a crash.
- *ended*: the member is again stored only as an index, within an interval in the row of its part.

So members that were never placed, or that have ended, need almost no memory. After a restart, a
member is waiting if, according to the rows, it has not ended, has no slot, and has no row of its
own.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator
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
from resource_manager.engine.queue.split_maps import IdIndex

if TYPE_CHECKING:
    from resource_manager.engine.queue.queue import WaitingQueue

PART_MEMBERS_MAX = 10_000
"""The largest number of members of one part. The row of a part is written whenever a member of the
part ends. In the worst case, when every second member has ended, the row has about 50 KiB.
"""

INDEX_END = 1_000_000_000_000
"""A number that is higher than the index of every member."""

_INDEX_DIGITS_MAX = len(str(INDEX_END))


_member_spec = copier(RequestSpec, RequestSpec, "allocation_id target_address gang_id")


@dataclass(slots=True, eq=False)
class Part:
    """A part of a range, with its row and with the indexes of its waiting and materialized members.

    Attributes:
        row: the stored row, which also contains the members that have ended.
        waiting: the indexes of pending members that were never placed.
        materialized: the indexes of members that have a `Request`.
        stored: the indexes of materialized members that have their own row.
        waiting_until_ms: the deadline (monotonic) of the members that were never placed; None if
            the range has no timeout. The deadline is not stored.
    """

    row: RequestRange
    waiting: IntervalSet
    materialized: IntervalSet = field(default_factory=IntervalSet)
    stored: IntervalSet = field(default_factory=IntervalSet)
    waiting_until_ms: int | None = None

    @classmethod
    def of(cls, row: RequestRange) -> Part:
        """Creates a part from its row. No member is materialized yet."""
        first, end = row.spec.first_index, row.spec.first_index + row.spec.count
        waiting = IntervalSet([(first, end)])
        for indexes in row.ended.values():
            for run in indexes.runs():
                waiting.remove_run(*run)
        return cls(row, waiting)

    @property
    def spec(self) -> RangeSpec:
        """The spec of this part."""
        return self.row.spec

    @property
    def first(self) -> int:
        """The index of the first member."""
        return self.row.spec.first_index

    @property
    def end(self) -> int:
        """The index after the last member."""
        return self.row.spec.first_index + self.row.spec.count

    @property
    def last_arrival(self) -> int:
        """The arrival number of the last member."""
        return self.row.arrival_number + self.row.spec.count - 1

    @property
    def live(self) -> int:
        """The number of members that have not ended."""
        return len(self.waiting) + len(self.materialized)

    def arrival_of(self, index: int) -> int:
        """Returns the arrival number of a member."""
        return self.row.arrival_number + index - self.row.spec.first_index

    def index_of(self, arrival_number: int) -> int:
        """Returns the index of the member with this arrival number."""
        return arrival_number - self.row.arrival_number + self.row.spec.first_index

    def id_of(self, index: int) -> str:
        """Returns the allocation id of a member."""
        return f"{self.row.spec.request.allocation_id}.{index}"

    def how_ended(self, index: int) -> tuple[Ended, int] | None:
        """Returns how a member ended, and the first index after it whose member did not end in the
        same way. Returns None if the member has not ended.
        """
        for how, indexes in self.row.ended.items():
            if index in indexes:
                return how, next(indexes.runs_within(index, self.end))[1]
        return None

    def member(self, index: int) -> Request:
        """Returns a member as a temporary `Request`. Changes to this object are not stored."""
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
        # A waiting member has not ended, so the call of `how_ended` is not needed.
        if index not in self.waiting and (ended := self.how_ended(index)) is not None:
            request.state, request.reason, request.message = ended[0]
        return request

    def end_run(self, start: int, end: int, how: Ended) -> None:
        """Records that members have ended.

        Args:
            start: the index of the first member.
            end: the index after the last member.
            how: the reason and message with which the members ended.
        """
        if how not in self.row.ended:
            self.row.ended[how] = IntervalSet()
        self.row.ended[how].add_run(start, end)
        # A member can be in any of these sets.
        for indexes in (self.waiting, self.materialized, self.stored):
            indexes.remove_run(start, end)

    def intervals(self, after_arrival: int = 0) -> Iterator[tuple[RequestState | None, Run]]:
        """Yields the members after an arrival number, in order, as runs of indexes, each with the
        state that all members of the run have. The state is PENDING for members that were never
        placed, and the final state for members that have ended. For a materialized member, the
        state is None.

        Raises:
            InvariantBroken: a member has no valid state: it is not waiting, not materialized, and
                has not ended.
        """
        index = max(self.first, self.index_of(after_arrival + 1))
        while index < self.end:
            if index in self.materialized:
                # The state of a materialized member is in its `Request`, so each materialized
                # member is a separate run.
                state, until = None, index + 1
            elif index in self.waiting:
                state, until = (
                    RequestState.PENDING,
                    next(self.waiting.runs_within(index, self.end))[1],
                )
            else:
                ended = self.how_ended(index)
                if ended is None:
                    raise InvariantBroken(
                        f"member {self.id_of(index)} is neither waiting, materialized nor ended"
                    )
                state, until = ended[0][0], ended[1]
            yield state, (index, until)
            index = until


class RangeLedger:
    """All parts of all ranges.

    Attributes:
        members: the materialized members, by arrival number.
        by_job: the parts of each job, in order of arrival. Jobs without parts are left out.
        ids: the ids of all requests and ranges, but not of members of ranges. Searches by a part of
            an id use them.
    """

    def __init__(self) -> None:
        self.members: dict[int, Request] = {}
        self.by_job: dict[str, list[Part]] = {}
        self.ids = IdIndex()
        self._parts: list[Part] = []  # the parts, in order of arrival
        self._starts: list[int] = []  # the first arrival number of each part
        self._by_range: dict[str, list[Part]] = {}  # the parts of each range, in order of index
        # Ids of requests and ranges that look like the id of a member. The id X.k is stored as the
        # number k under X.
        self._others: dict[str, IntervalSet] = {}

    def __contains__(self, range_id: object) -> bool:
        return range_id in self._by_range

    def parts(self, after_arrival: int = 0) -> Iterator[Part]:
        """Yields the parts that have members after an arrival number, in order of arrival."""
        # Of the parts that begin at or before this number, only the last part can have members
        # after this number.
        at = max(0, bisect_right(self._starts, after_arrival) - 1)
        for part in self._parts[at:]:
            if part.last_arrival > after_arrival:
                yield part

    def parts_of(self, job_id: str, after_arrival: int = 0) -> Iterator[Part]:
        """Yields the parts of one job that have members after an arrival number, in order of
        arrival.
        """
        parts = self.by_job.get(job_id, [])
        at = bisect_right(parts, after_arrival, key=_last_arrival)
        yield from parts[at:]

    def add(self, part: Part) -> None:
        """Adds a part of a range.

        Raises:
            InvariantBroken: the arrival number of the part is lower than the arrival number of the
                part that was added last.
        """
        range_id = part.spec.range_id
        if range_id not in self._by_range:
            self._by_range[range_id] = []
            # The id of the range possibly looks like the id of a member, such as "X.3".
            self.reserve(range_id)
        # The order in which parts arrive can differ from the order of their indexes.
        insort(self._by_range[range_id], part, key=_first_index)
        if self._starts and part.row.arrival_number < self._starts[-1]:
            raise InvariantBroken(f"part {part.id_of(part.first)} was added out of order")
        self._parts.append(part)
        self._starts.append(part.row.arrival_number)
        self.by_job.setdefault(part.row.job_id, []).append(part)

    def forget(self, part: Part) -> None:
        """Deletes the last part of a job.

        Raises:
            InvariantBroken: the part is not the last part of its job.
        """
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
        """Records the id of a request or range, so that a search by a part of the id finds the id.
        If the id looks like the id of a member, no member can get the same id.
        """
        self.ids.add(name)
        if "." in name and (found := split(name)) is not None:
            self._others.setdefault(found[0], IntervalSet()).add(found[1])

    def reserve_all(self, names: Collection[str]) -> None:
        """Records many ids; see `reserve`."""
        self.ids.sort(names)
        for name in names:
            self.reserve(name)

    def give_back(self, name: str) -> None:
        """Releases an id that `reserve` recorded."""
        self.ids.discard(name)
        if (found := split(name)) is not None and found[0] in self._others:
            self._others[found[0]].discard(found[1])
            if not self._others[found[0]]:
                del self._others[found[0]]

    def is_free(self, range_id: str, first: int, end: int) -> bool:
        """Returns whether these members can have their ids: no other request or range has the id of
        one of them.

        Args:
            range_id: the id of the range.
            first: the index of the first member.
            end: the index after the last member.
        """
        others = self._others.get(range_id)
        return others is None or next(others.runs_within(first, end), None) is None

    def named_parts(self, range_id: str) -> list[Part]:
        """Returns all parts of a range, in order of index. The list is empty if the range does not
        exist.
        """
        return self._by_range.get(range_id, [])

    def overlapping(self, range_id: str, first: int, end: int) -> list[Part]:
        """Returns, in order of index, the parts that contain some of these members.

        Args:
            range_id: the id of the range.
            first: the index of the first member.
            end: the index after the last member.
        """
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
        """Returns the part that contains the member with this arrival number, or None if no member
        has this number.
        """
        at = bisect_right(self._starts, arrival_number) - 1
        if at < 0 or arrival_number > self._parts[at].last_arrival:
            return None
        return self._parts[at]

    def named(self, allocation_id: str) -> tuple[Part, int] | None:
        """Returns the part and the index of the member with this allocation id, or None if no
        member has this id.
        """
        if not self._parts or (found := split(allocation_id)) is None:
            return None
        parts = self.overlapping(found[0], found[1], found[1] + 1)
        return (parts[0], found[1]) if parts else None

    def request_at(self, arrival_number: int) -> Request | None:
        """Returns the `Request` of the member with this arrival number: the stored object if the
        member is materialized, otherwise a temporary object.
        """
        request = self.members.get(arrival_number)
        if request is not None:
            return request
        part = self.at(arrival_number)
        return part.member(part.index_of(arrival_number)) if part is not None else None

    def request_named(self, allocation_id: str) -> Request | None:
        """Returns the `Request` of the member with this allocation id: the stored object if the
        member is materialized, otherwise a temporary object.
        """
        found = self.named(allocation_id)
        if found is None:
            return None
        part, index = found
        return self.members.get(part.arrival_of(index)) or part.member(index)

    def materialize(self, part: Part, request: Request) -> None:
        """Records that a waiting member has a `Request` now."""
        index = part.index_of(request.arrival_number)
        part.waiting.remove(index)
        part.materialized.add(index)
        self.members[request.arrival_number] = request


def enqueue_members(queue: WaitingQueue, part: Part, start: int, end: int) -> None:
    """Adds members that were never placed to the queue.

    Args:
        queue: the queue of pending requests.
        part: the part that contains the members.
        start: the index of the first member.
        end: the index after the last member.
    """
    first = part.arrival_of(start)
    queue.add_run(part.spec.request, part.row.job_id, first, end - start)


def dequeue_members(queue: WaitingQueue, part: Part, start: int, end: int) -> None:
    """Removes members that were never placed from the queue.

    Args:
        queue: the queue of pending requests.
        part: the part that contains the members.
        start: the index of the first member.
        end: the index after the last member.
    """
    first = part.arrival_of(start)
    queue.remove_run(part.spec.request, part.row.job_id, first, end - start)


def split(allocation_id: str) -> tuple[str, int] | None:
    """Splits an id that is possibly the allocation id of a range member. Returns the range id and
    the index, or None if the id cannot be the id of a member.
    """
    range_id, dot, digits = allocation_id.rpartition(".")
    # `isdecimal` also accepts digits of other scripts, which are not allowed in an index.
    if not dot or not range_id or not digits.isdecimal() or not digits.isascii():
        return None
    # An index has no leading zeros, so that each member has only one id. The check of the length
    # avoids the conversion of very long texts.
    if len(digits) > _INDEX_DIGITS_MAX or (digits[0] == "0" and digits != "0"):
        return None
    index = int(digits)
    return (range_id, index) if index < INDEX_END else None


def parts_of(spec: RangeSpec) -> Iterator[RangeSpec]:
    """Yields the spec of each part of a range."""
    end = spec.first_index + spec.count
    for first in range(spec.first_index, end, PART_MEMBERS_MAX):
        yield RangeSpec(spec.request, first, min(PART_MEMBERS_MAX, end - first))


def _first_index(part: Part) -> int:
    return part.row.spec.first_index


def _last_arrival(part: Part) -> int:
    return part.last_arrival


def live(parts: Iterable[Part]) -> int:
    """Returns the number of members of these parts that have not ended."""
    return sum(part.live for part in parts)
