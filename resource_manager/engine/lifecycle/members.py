"""What a request's moves mean for what is stored of it, if it is a member of a range. Knows where
members stand (`queue/ranges.py`) and which rows they have; why they move, `moves.py` says.

For requests that belong to no range these do what is done for every request.
"""

from __future__ import annotations

from dataclasses import dataclass

from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Ended, Job, Request
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.requests import Requests

KINDS_OF_ENDS_MAX = 64
"""Different ways in which members of one part ended that are kept with their messages; further ones
are kept without."""


@dataclass(slots=True, eq=False)
class MemberRows:
    """Keeps the rows of requests, members of ranges among them."""

    changes: ChangeTracker
    jobs: dict[str, Job]
    ranges: RangeLedger
    requests: Requests

    def materialize(self, request: Request) -> None:
        """A request is placed: a member of a range is one like any other from now on."""
        part = self.ranges.at(request.arrival_number)
        if part is not None and request.arrival_number not in self.ranges.members:
            self.ranges.materialize(part, request)
            self.requests[request.spec.allocation_id] = request

    def keep_move(self, request: Request) -> None:
        """A request stands elsewhere than before, and lives. A member has a row of its own from now
        on, so that its generation rises over restarts, too.
        """
        part = self.ranges.at(request.arrival_number)
        if part is None:
            self.changes.request_moved(request)
            return
        part.stored.add(part.index_of(request.arrival_number))
        self.changes.request(request)

    def keep_end(self, request: Request) -> None:
        """A request has ended, and is no longer among the living. Nothing is left of a member but
        its index.
        """
        self.jobs[request.job_id].live_requests -= 1
        self.requests.live -= 1
        part = self.ranges.at(request.arrival_number)
        if part is None:
            self.changes.request_moved(request)
            return
        index = part.index_of(request.arrival_number)
        if index in part.stored:
            self.changes.delete_request(request)
        part.end_run(index, index + 1, _how(part, request))
        self.ranges.members.pop(request.arrival_number, None)
        self.requests.pop(request.spec.allocation_id, None)
        self.changes.request_range(part.row)

    def keep_end_of_many(self, part: Part, first: Request, count: int) -> None:
        """Likewise of `count` members that waited and were never placed, `first` the first."""
        self.jobs[first.job_id].live_requests -= count
        self.requests.live -= count
        index = part.index_of(first.arrival_number)
        part.end_run(index, index + count, _how(part, first))
        self.changes.request_range(part.row)


def _how(part: Part, request: Request) -> Ended:
    how = (request.state, str(request.reason), request.message)
    if how in part.row.ended or len(part.row.ended) < KINDS_OF_ENDS_MAX:
        return how
    return (request.state, str(request.reason), "")
