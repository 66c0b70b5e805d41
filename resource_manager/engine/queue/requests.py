"""Keeps all requests, by id and by arrival number. The `Request` of a member of a range is created
only when it is needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

from finegrain.errors import InvariantBroken
from finegrain.values.states import RequestState
from resource_manager.engine.model.entities import Job, Request, Slot
from resource_manager.engine.queue.ranges import RangeLedger
from resource_manager.engine.queue.split_maps import ByArrival, ByName

_ARRIVAL = attrgetter("arrival_number")


class Requests(ByName):
    """All requests by allocation id, including materialized members of ranges (see `ranges.py`). An
    iteration yields them in order of arrival.

    Attributes:
        by_arrival: the requests by arrival number, in order, without members of ranges.
        ranges: all ranges, with the states of their members.
        live: the number of requests that have not ended, including members of ranges.
    """

    def __init__(self, ranges: RangeLedger) -> None:
        super().__init__()
        self.by_arrival = ByArrival()
        self.ranges = ranges
        self.live = 0

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items())

    def values(self) -> Iterator[Request]:
        """Yields all requests, in order of arrival."""
        return merge(
            self.by_arrival, sorted(self.ranges.members.values(), key=_ARRIVAL), key=_ARRIVAL
        )

    def items(self) -> Iterator[tuple[str, Request]]:
        """Yields all requests with their ids, in order of arrival."""
        return ((request.allocation_id, request) for request in self.values())

    def of_job(self, job: Job, after: int = 0) -> Iterator[Request]:
        """Yields the job's requests with arrival numbers above `after`, in order, without members
        of ranges.
        """
        arrivals = job.arrivals
        for at in range(bisect_right(arrivals, after), len(arrivals)):
            yield self.by_arrival[arrivals[at]]

    def known_at(self, arrival_number: int) -> Request | None:
        """Returns the request with this arrival number. Returns None if there is no such request,
        or if it is a range member that is not materialized.
        """
        return self.by_arrival.get(arrival_number) or self.ranges.members.get(arrival_number)

    def at(self, arrival_number: int) -> Request:
        """Returns the request with this arrival number. If the request is a member of a range that
        is not materialized, returns a temporary object. Changes to a temporary object are not
        stored.

        Raises:
            InvariantBroken: no request has this number.
        """
        request = self.by_arrival.get(arrival_number) or self.ranges.request_at(arrival_number)
        if request is None:
            raise InvariantBroken(f"no request has the arrival number {arrival_number}")
        return request

    def named(self, allocation_id: str) -> Request | None:
        """Returns the request with this id, or None if there is no such request. If the request is
        a member of a range that is not materialized, returns a temporary object.
        """
        found = self.get(allocation_id)
        # Without ranges, the id cannot be the id of a member, so do not split it.
        if found is None and self.ranges.by_job:
            found = self.ranges.request_named(allocation_id)
        return found

    def is_taken(self, allocation_id: str) -> bool:
        """Returns whether this is the id of a request, of a member of a range, or of a range."""
        return self.named(allocation_id) is not None or allocation_id in self.ranges

    def served_by(self, slot: Slot) -> Request | None:
        """Returns the request that this slot serves. Returns None if the request has ended, or if
        another slot serves the request.
        """
        request = self.get(slot.allocation_id)
        if (
            request is not None
            and request.generation == slot.generation
            and request.state in (RequestState.ALLOCATING, RequestState.GRANTED)
        ):
            return request
        return None
