"""Requests in order of arrival, those of ranges among them, without making one of each: members who
stand alike, one behind the other, come as one *stretch*. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Job, Request
from resource_manager.engine.model.numbers import Numbers
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State

_DENSE = 4
"""Arrival numbers looked at for each request that there is, before all requests are looked at."""


@dataclass(frozen=True, slots=True)
class RequestInterval:
    """A request, or (`count` above 1) the first of so many members of a range that stand alike."""

    request: Request
    count: int = 1

    @property
    def last_arrival(self) -> int:
        """Arrival number of the last of them."""
        return self.request.arrival_number + self.count - 1

    @property
    def ended(self) -> bool:
        """True if they have ended."""
        return self.request.state in ENDED_REQUEST_STATES


def intervals_of(state: State, job: Job, after: int = 0) -> Iterator[RequestInterval]:
    """All requests of a job that are kept, from behind an arrival number on."""
    parts = state.ranges.parts_of(job.job_id, after)
    return _merged(state.requests, state.requests.of_job(job, after), parts, after)


def intervals(
    requests: Requests, ranges: RangeLedger, numbers: Numbers, after: int = 0
) -> Iterator[RequestInterval]:
    """Likewise of all jobs."""
    return _merged(
        requests,
        _others(requests, ranges, numbers, after),
        ranges.parts(after),
        after,
    )


def members_of(requests: Requests, interval: RequestInterval) -> Iterator[RequestInterval]:
    """A stretch, one by one."""
    if interval.count == 1:
        yield interval
        return
    first = interval.request.arrival_number
    for number in range(first, first + interval.count):
        yield RequestInterval(requests.at(number))


def _merged(
    requests: Requests, others: Iterator[Request], parts: Iterable[Part], after: int
) -> Iterator[RequestInterval]:
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
    """Requests that are no members of ranges."""
    spans = list(_spans_between(ranges, numbers, after))
    if sum(map(len, spans)) <= _DENSE * len(requests.by_arrival):
        for span in spans:  # numbers are dense: go to the place directly
            for number in span:
                if (request := requests.by_arrival.get(number)) is not None:
                    yield request
        return
    for number, request in requests.by_arrival.items():
        if number > after:
            yield request


def _spans_between(ranges: RangeLedger, numbers: Numbers, after: int) -> Iterator[range]:
    """Arrival numbers that belong to no range."""
    first = after + 1
    for part in ranges.parts(after):
        if part.row.arrival_number > first:
            yield range(first, part.row.arrival_number)
        first = part.last_arrival + 1
    yield range(first, numbers.arrival + 1)
