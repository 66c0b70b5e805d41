"""Members of ranges taken back, given back, and ended with their job: many at once where they only
wait, one by one where they have slots.

Decides in which order, and how much of it is done in one step. What a member's end means for its
slot, `moves.py` knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from finegrain.errors import Reason
from finegrain.intervals import Run
from finegrain.values.states import RequestState
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.members import MemberRows
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.events import Members, MembersOutcome
from resource_manager.engine.model.state_tables import RequestInput
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import INDEX_END, Part, RangeLedger, dequeue_members

ENTRIES_AT_ONCE = 1_000
"""Entries of a job's log that one step of taking members back may write."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why members end, for their job master."""

    reason: str
    message: str
    grace_ms: int | None = None


@dataclass(slots=True, eq=False)
class RangeMoves:
    """Ends members of ranges, many at once where they only wait."""

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
        most: int = ENTRIES_AT_ONCE,
    ) -> MembersOutcome:
        """Ends those of these members who live: first who waits, then who has a slot.

        The outcome is `unfinished` where that is too much for one step; the same again goes on.
        `job_id` None: whosever they are.
        """
        range_id, first, count = members
        parts = self.ranges.overlapping(range_id, first, first + count)
        if range_id not in self.ranges or not self._is_of(range_id, job_id):
            owner = "" if job_id is None else f" in job {job_id}"
            return MembersOutcome(
                range_id, Reason.ALLOCATION_UNKNOWN, f"range {range_id} is not known{owner}"
            )
        left = most - self.end_members(parts, why, most, (first, first + count))
        return MembersOutcome(
            range_id, unfinished=left <= 0 and _any_live(parts, first, first + count)
        )

    def end_members(
        self, parts: Sequence[Part], why: Why, most: int, indexes: Run = (0, INDEX_END)
    ) -> int:
        """Ends members of these parts that have such indexes, so many entries of the log at most;
        answers with how many that were.
        """
        first, end = indexes
        left = most
        for part in parts:
            until = min(end, part.end)
            while (
                left > 0 and (run := next(part.waiting.runs_within(first, until), None)) is not None
            ):
                self._end_waiting(part, *run, why)
                left -= 1
        for part in parts:
            until = min(end, part.end)
            while (
                left > 0
                and (index := part.materialized.next_from(first)) is not None
                and index < until
            ):
                request = self.ranges.members[part.arrival_of(index)]
                self.moves.give_up(
                    request, reason=why.reason, message=why.message, grace_ms=why.grace_ms
                )
                left -= 1
        return most - left

    def end_parts(self, parts: Sequence[Part], ending: Ending, why: Why, most: int) -> int:
        """Ends members of an ended job's ranges, part by part, since there may be very many parts.

        Args:
            parts: all of the job.
            ending: how far this has got; it is moved on.
            why: the members end.
            most: entries of the job's log that may be written.

        Returns:
            How many were written.
        """
        left = most
        while ending.parts_ended < len(parts):
            part = parts[ending.parts_ended]
            left -= self.end_members((part,), why, left)
            if part.live:
                break
            ending.parts_ended += 1
        return most - left

    def dequeue_part(self, part: Part) -> None:
        """Lets no member of a part wait any more: its job has ended, and they are about to."""
        for start, end in part.waiting.runs():
            dequeue_members(self.queue, part, start, end)
        for index in part.materialized:
            request = self.ranges.members[part.arrival_of(index)]
            if request.state is RequestState.PENDING:
                self.queue.remove(request)

    def reject_waiting(self, part: Part, start: int, end: int, why: Why) -> None:
        """Rejects members who follow one another and were never placed: one entry in either log."""
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
        """Ends members who follow one another and were never placed: one entry in either log."""
        count = end - start
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


def _any_live(parts: Iterable[Part], first: int, end: int) -> bool:
    return any(
        next(indexes.runs_within(first, end), None) is not None
        for part in parts
        for indexes in (part.waiting, part.materialized)
    )
