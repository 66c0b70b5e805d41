"""Rejects requests that have waited for longer than their timeout.

The time counts from the arrival of a request. If a granted slot is lost and its request is queued
again, the time starts again at the moment of the loss. Gangs have a separate timeout, see
`gangs.py`.

Deadlines are monotonic times, so a change of the wall clock does not move them. Deadlines are not
stored. After a restart, a request that was never placed gets the deadline that follows from its
arrival time. For any other request, the time starts again at the restart.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.errors import Reason
from finegrain.values.states import RequestState
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.lifecycle.range_ends import RangeMoves, Why
from resource_manager.engine.model.entities import Request
from resource_manager.engine.model.timers import Timer, Timers
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.requests import Requests


@dataclass(slots=True, eq=False)
class RequestTimeouts:
    """Arms the timers of waiting requests, and handles them."""

    journal: Journal
    moves: RequestMoves
    range_moves: RangeMoves
    ranges: RangeLedger
    requests: Requests
    timers: Timers

    def start(self, request: Request) -> None:
        """Arms the timer of a request that is new or restored."""
        timeout_ms = request.spec.wait_timeout_ms
        if timeout_ms is None:
            return
        # The time when the wait began is stored only for a request that was never placed.
        since_time_ms = self.journal.at.time_ms if request.generation else request.create_time_ms
        request.waiting_until_ms = self.journal.deadline_ms(timeout_ms, since_time_ms)
        self.timers.arm(Timer.REQUEST, request.allocation_id, request.waiting_until_ms)

    def start_part(self, part: Part) -> None:
        """Arms the timer of a part of a range that is new or restored."""
        timeout_ms = part.spec.request.wait_timeout_ms
        if timeout_ms is not None:
            part.waiting_until_ms = self.journal.deadline_ms(timeout_ms, part.row.create_time_ms)
            self.timers.arm(Timer.RANGE, part.id_of(part.first), part.waiting_until_ms)

    def request_timer_fired(self, allocation_id: str) -> None:
        """Rejects a request whose timeout has expired."""
        request = self.requests.get(allocation_id)
        if request is None or request.state is not RequestState.PENDING:
            return  # if the request is queued again, another timer is armed
        if request.waiting_until_ms is None:
            return
        if self.journal.now_ms < request.waiting_until_ms:
            self.timers.arm(Timer.REQUEST, allocation_id, request.waiting_until_ms)
            return
        message = _message(request.spec.wait_timeout_ms)
        self.moves.reject(request, Reason.TIMED_OUT, message)

    def range_timer_fired(self, allocation_id: str) -> None:
        """Rejects the members of a part of a range that were never placed and whose timeout has
        expired.
        """
        found = self.ranges.named(allocation_id)
        if found is None:
            return
        part, _ = found
        if part.waiting_until_ms is None:
            return
        if self.journal.now_ms < part.waiting_until_ms:
            self.timers.arm(Timer.RANGE, allocation_id, part.waiting_until_ms)
            return
        why = Why(Reason.TIMED_OUT, _message(part.spec.request.wait_timeout_ms))
        for start, end in list(part.waiting.runs()):
            self.range_moves.reject_waiting(part, start, end, why)


def _message(timeout_ms: int | None) -> str:
    return f"no slot was available within the timeout of {(timeout_ms or 0) / 1_000:g} s"
