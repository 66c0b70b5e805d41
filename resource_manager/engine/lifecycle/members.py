"""Decides which rows are written when a request or a member of a range changes its state.

A range member that was never placed has no row and no `Request` object. The member only exists as
an index in an interval (`queue/ranges.py`). When a member is placed for the first time, it is
materialized: it gets a `Request` object. A request outside of ranges always has its own row.

Example: range "r" has the members r.0 to r.9, and its part has one row.

  event                     waiting     materialized  stored  ended      rows
  submitted                 0-9         -             -       -          part
  r.0, r.1 placed           2-9         0-1           -       -          part, 2 slots
      a restart reads the state and generation of r.0 and r.1 from their slots
  slot of r.1 lost          2-9         0-1           1       -          part, 1 slot, request r.1
      r.1 is queued again; its row has the generation, so that the next slot gets a higher one
  r.0 released              2-9         1             1       0          part, request r.1
  r.2 to r.9 cancelled      -           1             1       0, 2-9     part, request r.1
      one job event with count 8, one write of the part's row
  r.1 cancelled             -           -             -       0-9        part
"""

from __future__ import annotations

from dataclasses import dataclass

from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Ended, Job, Request
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.requests import Requests

KINDS_OF_ENDS_MAX = 64
"""The row of one part stores at most this many different ends (state, reason, message), so that the
row stays small. After that, other ends are stored without their message.
"""


@dataclass(slots=True, eq=False)
class MemberRows:
    """Writes the rows of requests and of range members."""

    changes: ChangeTracker
    jobs: dict[str, Job]
    ranges: RangeLedger
    requests: Requests

    def materialize(self, request: Request) -> None:
        """Adds the `Request` object of a range member that is placed for the first time."""
        part = self.ranges.at(request.arrival_number)
        # A member that lost its slot and is placed again still has its object.
        if part is not None and request.arrival_number not in self.ranges.members:
            self.ranges.materialize(part, request)
            self.requests[request.spec.allocation_id] = request

    def keep_move(self, request: Request) -> None:
        """Stores a live request that has changed its state.

        If the request is a range member, it has its own row from now on. The row stores the
        member's generation, so that the next placement gets a higher generation even after a
        restart.
        """
        part = self.ranges.at(request.arrival_number)
        if part is None:
            self.changes.request_moved(request)
            return
        part.stored.add(part.index_of(request.arrival_number))
        self.changes.request(request)

    def keep_end(self, request: Request) -> None:
        """Stores that a request has ended. For a range member, only its index in the row of the
        part is stored.
        """
        self.jobs[request.job_id].live_requests -= 1
        self.requests.live -= 1
        part = self.ranges.at(request.arrival_number)
        if part is None:
            self.changes.request_moved(request)
            return
        index = part.index_of(request.arrival_number)
        # From now on the row of the part shows that the member has ended, so the member's own row
        # is deleted.
        if index in part.stored:
            self.changes.delete_request(request)
        part.end_run(index, index + 1, _how(part, request))
        # Drop the object of an ended member. Otherwise long jobs would fill the memory.
        self.ranges.members.pop(request.arrival_number, None)
        self.requests.discard(request.spec.allocation_id)
        self.changes.request_range(part.row)

    def keep_end_of_many(self, part: Part, first: Request, count: int) -> None:
        """Stores the end of consecutive members that were never placed.

        Args:
            part: the part of the range to which the members belong.
            first: the first of these members, in its ended state.
            count: number of members.
        """
        self.jobs[first.job_id].live_requests -= count
        self.requests.live -= count
        index = part.index_of(first.arrival_number)
        part.end_run(index, index + count, _how(part, first))
        self.changes.request_range(part.row)


def _how(part: Part, request: Request) -> Ended:
    how = (request.state, str(request.reason), request.message)
    # Members that ended in the same way share one entry.
    if how in part.row.ended or len(part.row.ended) < KINDS_OF_ENDS_MAX:
        return how
    return (request.state, str(request.reason), "")
