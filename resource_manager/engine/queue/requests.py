"""All requests, by id and by arrival, with members of ranges where they are asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from finegrain.errors import InvariantBroken
from finegrain.values.states import RequestState
from resource_manager.engine.model.entities import Job, Request, Slot
from resource_manager.engine.queue.ranges import RangeLedger


class Requests(dict[str, Request]):
    """Requests by allocation id, with members of ranges that are singled out.

    Attributes:
        by_arrival: in order of arrival; without members of ranges.
        ranges: where members of ranges stand.
        live: how many have not ended, members of ranges included.
    """

    def __init__(self, ranges: RangeLedger) -> None:
        super().__init__()
        self.by_arrival: dict[int, Request] = {}
        self.ranges = ranges
        self.live = 0

    def of_job(self, job: Job, after: int = 0) -> Iterator[Request]:
        """All requests of a job that are kept, in order of arrival, from behind `after` on; without
        members of ranges.
        """
        arrivals = job.arrivals
        for at in range(bisect_right(arrivals, after), len(arrivals)):
            yield self.by_arrival[arrivals[at]]

    def at(self, arrival_number: int) -> Request:
        """The request with this place in line. One that is made for the occasion (see
        `queue/ranges.py`) becomes one of the books when it is placed.

        Raises:
            InvariantBroken: no request has it.
        """
        request = self.by_arrival.get(arrival_number) or self.ranges.request_at(arrival_number)
        if request is None:
            raise InvariantBroken(f"no request has the arrival number {arrival_number}")
        return request

    def named(self, allocation_id: str) -> Request | None:
        """The request of this id, be it a member of a range (made for the occasion, if it was never
        placed or has ended); None: there is none.
        """
        return self.get(allocation_id) or self.ranges.request_named(allocation_id)

    def is_taken(self, allocation_id: str) -> bool:
        """True if a request, a member of a range, or a range is called this."""
        return self.named(allocation_id) is not None or allocation_id in self.ranges

    def served_by(self, slot: Slot) -> Request | None:
        """The living request that this slot serves; None if it was given up or replaced."""
        request = self.get(slot.allocation_id)
        if (
            request is not None
            and request.generation == slot.generation
            and request.state in (RequestState.ALLOCATING, RequestState.GRANTED)
        ):
            return request
        return None
