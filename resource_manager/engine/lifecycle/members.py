"""What a request's moves mean for what is stored of it, if it is a member of a range. Knows where
members stand (`queue/ranges.py`) and which rows they have; why they move, `moves.py` says.

For requests that belong to no range these do what is done for every request.
"""

from __future__ import annotations

from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Ended, Request
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.state import State

KINDS_OF_ENDS_MAX = 64
"""Different ways in which members of one part ended that are kept with their messages; further ones
are kept without."""


def single_out(state: State, request: Request) -> None:
    """A request is placed: a member of a range is one like any other from now on."""
    part = state.ranges.at(request.arrival_number)
    if part is not None and request.arrival_number not in state.ranges.members:
        state.ranges.single_out(part, request)
        state.requests[request.spec.allocation_id] = request


def keep_move(ranges: RangeLedger, changes: ChangeTracker, request: Request) -> None:
    """A request stands elsewhere than before, and lives. A member has a row of its own from now on,
    so that its generation rises over restarts, too.
    """
    part = ranges.at(request.arrival_number)
    if part is None:
        changes.request_moved(request)
        return
    part.stored.add(part.index_of(request.arrival_number))
    changes.request(request)


def keep_end(state: State, request: Request) -> None:
    """A request has ended, and is no longer among the living. Nothing is left of a member but its
    index.
    """
    state.jobs[request.job_id].live_requests -= 1
    state.live_requests -= 1
    part = state.ranges.at(request.arrival_number)
    if part is None:
        state.changes.request_moved(request)
        return
    index = part.index_of(request.arrival_number)
    if index in part.stored:
        state.changes.delete_request(request)
    part.end_run(index, index + 1, _how(part, request))
    state.ranges.members.pop(request.arrival_number, None)
    state.requests.pop(request.spec.allocation_id, None)
    state.changes.request_range(part.row)


def keep_end_of_many(state: State, part: Part, first: Request, count: int) -> None:
    """Likewise of so many members who waited and were never placed, the first of whom is this."""
    state.jobs[first.job_id].live_requests -= count
    state.live_requests -= count
    index = part.index_of(first.arrival_number)
    part.end_run(index, index + count, _how(part, first))
    state.changes.request_range(part.row)


def _how(part: Part, request: Request) -> Ended:
    how = (request.state, str(request.reason), request.message)
    if how in part.row.ended or len(part.row.ended) < KINDS_OF_ENDS_MAX:
        return how
    return (request.state, str(request.reason), "")
