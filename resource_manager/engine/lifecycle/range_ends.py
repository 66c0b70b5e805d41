"""Ends members of ranges, because they are cancelled, released or rejected, or because their job
ends.

Consecutive members that were never placed end together, with one entry in the job's log and one
entry in the cluster's history. Members that were placed end one at a time. A method stops when the
step is full (`Journal.is_full`). The result of the method says whether some members have not ended
yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from finegrain.errors import Reason
from finegrain.intervals import Run
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.members import MemberRows
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.model.events import Members
from resource_manager.engine.model.state_tables import RequestInput
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import INDEX_END, Part, RangeLedger, dequeue_members


@dataclass(frozen=True, slots=True)
class Why:
    """The reason why members end, for the events to their job master."""

    reason: str
    message: str
    grace_ms: int | None = None


@dataclass(slots=True, eq=False)
class RangeMoves:
    """Ends members of ranges."""

    journal: Journal
    queue: WaitingQueue
    ranges: RangeLedger
    transitions: Transitions
    members: MemberRows
    moves: RequestMoves

    def give_up_members(
        self,
        members: Members,
        why: Why,
        *,
        job_id: str | None,
    ) -> ItemOutcome | None:
        """Ends all given members that are live. Members that were never placed come first, then
        members that were placed.

        Args:
            members: range id, first index and count.
            why: the reason for the events.
            job_id: the job that must own the range. None means that any job can own the range,
                because the call comes from an administrator of the cluster.

        Returns:
            The outcome. None means that the step is full and members are left, so the caller must
            call again.
        """
        range_id, first, count = members
        # The list is empty if the range is not known.
        parts = self.ranges.overlapping(range_id, first, first + count)
        if range_id not in self.ranges or not self._is_of(range_id, job_id):
            owner = "" if job_id is None else f" in job {job_id}"
            return ItemOutcome(
                range_id, Reason.ALLOCATION_UNKNOWN, f"range {range_id} is not known{owner}"
            )
        if not self.end_members(parts, why, (first, first + count)):
            return None
        return ItemOutcome(range_id)

    def end_members(self, parts: Sequence[Part], why: Why, indexes: Run = (0, INDEX_END)) -> bool:
        """Ends members of these parts.

        Args:
            parts: the parts of one range.
            why: the reason for the events.
            indexes: the first index and the end (exclusive) of the members to end. By default, all
                members end.

        Returns:
            False if the step is full and members are left.
        """
        first, end = indexes
        # Members that were never placed end first. If the step becomes full, a scheduling cycle can
        # run before the next step. This cycle must not place waiting members on the capacity of
        # members that have just ended.
        for part in parts:
            until = min(end, part.end)
            # The intervals are looked up again each time, because ending members changes the
            # intervals.
            while (run := next(part.waiting.runs_within(first, until), None)) is not None:
                if self.journal.is_full:
                    return False
                self._end_waiting(part, *run, why)
        for part in parts:
            until = min(end, part.end)
            # Ended members are removed from `materialized`, so the search always starts at `first`.
            while (index := part.materialized.next_from(first)) is not None and index < until:
                if self.journal.is_full:
                    return False
                request = self.ranges.members[part.arrival_of(index)]
                self.moves.give_up(
                    request, reason=why.reason, message=why.message, grace_ms=why.grace_ms
                )
        return True

    def reject_waiting(self, part: Part, start: int, end: int, why: Why) -> None:
        """Rejects consecutive members that were never placed, with one entry in each log.

        Args:
            part: the part of the range that the members belong to.
            start: index of the first member.
            end: index after the last member.
            why: the reason for the events.
        """
        self._end_waiting(part, start, end, why, how=RequestInput.REJECT)

    def _end_waiting(
        self,
        part: Part,
        start: int,
        end: int,
        why: Why,
        *,
        how: RequestInput = RequestInput.CANCEL,
    ) -> None:
        """Ends consecutive members that were never placed, with one entry in each log."""
        count = end - start
        # Only the first member is moved through the state table, because all members have the same
        # state.
        first = part.member(start)
        dequeue_members(self.queue, part, start, end)
        self.transitions.move_request(first, how)
        first.reason, first.message = why.reason, why.message
        self.members.keep_end_of_many(part, first, count)
        self.journal.job_event(first, reason=why.reason, message=why.message, count=count)
        more = f"{count} members of range {part.spec.range_id}" if count > 1 else ""
        self.journal.cluster_event(
            "request_cancelled" if how is RequestInput.CANCEL else "request_rejected",
            job_id=first.job_id,
            allocation_id=first.allocation_id,
            reason=why.reason,
            message=": ".join(filter(None, (more, why.message))),
        )

    def _is_of(self, range_id: str, job_id: str | None) -> bool:
        return job_id is None or self.ranges.named_parts(range_id)[0].row.job_id == job_id
