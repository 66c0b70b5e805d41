"""Iterates over requests in order of arrival, without creating an object for each member of a
range.

Consecutive members of a range that are in the same state form one `RequestInterval`. Example: range
"r" has 10,000 members. Member r.0 has ended, member r.1 has a slot, and the other 9,998 members
wait. So the range has three intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from resource_manager.engine.model.changes import Numbers
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Job, Request
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State

_DENSE = 4
"""Deleted requests leave gaps between the arrival numbers of the stored requests. If a range of
arrival numbers is at most this many times as long as the number of stored requests, the code looks
up each arrival number. If the range is longer, the code scans all requests, because most lookups
would find no request.
"""


@dataclass(frozen=True, slots=True)
class RequestInterval:
    """An interval is either one request, or `count` consecutive members of a range in the same
    state. `request` is the first of these members.
    """

    request: Request
    count: int = 1

    @property
    def last_arrival(self) -> int:
        """The arrival number of the last request of the interval."""
        return self.request.arrival_number + self.count - 1

    @property
    def ended(self) -> bool:
        """True if the requests of the interval have ended."""
        return self.request.state in ENDED_REQUEST_STATES


def intervals_of(state: State, job: Job, after: int = 0) -> Iterator[RequestInterval]:
    """Yields the stored requests of a job. Only requests with an arrival number above `after` are
    included.
    """
    parts = state.ranges.parts_of(job.job_id, after)
    return _merged(state.requests, state.requests.of_job(job, after), parts, after)


def intervals(
    requests: Requests, ranges: RangeLedger, numbers: Numbers, after: int = 0
) -> Iterator[RequestInterval]:
    """Yields the stored requests of all jobs. Only requests with an arrival number above `after`
    are included.
    """
    return _merged(
        requests,
        _others(requests, ranges, numbers, after),
        ranges.parts(after),
        after,
    )


def members_of(requests: Requests, interval: RequestInterval) -> Iterator[RequestInterval]:
    """Yields the members of an interval one by one."""
    if interval.count == 1:
        yield interval
        return
    first = interval.request.arrival_number
    for number in range(first, first + interval.count):
        yield RequestInterval(requests.at(number))


def _merged(
    requests: Requests, others: Iterator[Request], parts: Iterable[Part], after: int
) -> Iterator[RequestInterval]:
    # This code merges two sequences that are sorted by arrival number.
    other = next(others, None)
    for part in parts:
        while other is not None and other.arrival_number < part.row.arrival_number:
            yield RequestInterval(other)
            other = next(others, None)
        for _, (start, end) in part.intervals(after):
            yield RequestInterval(requests.at(part.arrival_of(start)), end - start)
    while other is not None:
        yield RequestInterval(other)
        other = next(others, None)


def _others(
    requests: Requests, ranges: RangeLedger, numbers: Numbers, after: int
) -> Iterator[Request]:
    """Yields the requests that are not members of ranges."""
    spans = list(_spans_between(ranges, numbers, after))
    # Deleted requests leave gaps in the arrival numbers. If there are few gaps, it is cheaper to
    # look up each number. If there are many gaps, it is cheaper to scan all requests.
    if sum(map(len, spans)) <= _DENSE * len(requests.by_arrival):
        for span in spans:
            for number in span:
                if (request := requests.by_arrival.get(number)) is not None:
                    yield request
        return
    for request in requests.by_arrival:
        if request.arrival_number > after:
            yield request


def _spans_between(ranges: RangeLedger, numbers: Numbers, after: int) -> Iterator[range]:
    """Yields the spans of arrival numbers before, between and after ranges."""
    first = after + 1
    for part in ranges.parts(after):
        if part.row.arrival_number > first:
            yield range(first, part.row.arrival_number)
        first = part.last_arrival + 1
    yield range(first, numbers.arrival + 1)
