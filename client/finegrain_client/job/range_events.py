"""The ranges of one job, and what events and snapshots mean for them.

Finds the range that an event or an entry of a snapshot is about, and the members that a snapshot
should have shown. The stream itself is read in `watch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from finegrain.errors import FinegrainError, Reason
from finegrain.intervals import IntervalSet
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import slots_pb2
from finegrain.values.states import RequestState
from finegrain_client.job.context import JobContext
from finegrain_client.job.ranges import RequestRange, members_of
from finegrain_client.job.request import Request
from finegrain_client.types.status import JobEvent, RequestStatus


class WatchedRanges:
    """All ranges that a job master holds, by id."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._unseen: dict[str, IntervalSet] = {}  # members that a snapshot has yet to show
        self.by_id: dict[str, RequestRange] = {}

    def range_of(self, event: JobEvent, requests: dict[str, Request]) -> RequestRange | None:
        """The range that an event is about. Its member is a request from now on, unless it has
        ended without ever having had a slot.
        """
        found = members_of(event)
        owner = self.by_id.get(found[0]) if found is not None else None
        if owner is None or found is None:
            return None
        _, first, count = found
        if event.state.has_ended:
            owner.end_waiting(first, first + count, event.state)
        elif (request := owner.promote(first)) is not None:
            requests[event.allocation_id] = request
        return owner

    def member_changed(self, owner: RequestRange, event: JobEvent) -> None:
        """Updates a range after the request of a member has taken in `event`."""
        index = owner.index_of(event.allocation_id)
        if index is not None and index in owner.requests:
            owner.member_changed(index)
        self.drop_if_ended(owner)

    def drop_if_ended(self, owner: RequestRange) -> None:
        """Nothing more is heard of a range whose members have all ended."""
        if owner.has_ended and (owner.acknowledged or not len(owner)):
            self.by_id.pop(owner.range_id, None)

    def close(self, error: FinegrainError) -> None:
        """Nothing more will be heard of any."""
        for each in self.by_id.values():
            each.fail(error)
        self.by_id.clear()

    def begin_snapshot(self) -> None:
        """A snapshot is asked for, and can only show who was acknowledged before."""
        self._unseen = {
            name: IntervalSet(each.waiting_members())
            for name, each in self.by_id.items()
            if each.acknowledged
        }

    def mark_shown(self, status: RequestStatus) -> RequestRange | None:
        """A snapshot shows some requests: the range that they are of, if it is known."""
        range_id, _, digits = status.allocation_id.rpartition(".")
        owner = self.by_id.get(range_id)
        if owner is None or owner.index_of(status.allocation_id) is None:
            return None
        if range_id in self._unseen:
            self._unseen[range_id].remove_run(int(digits), int(digits) + status.count)
        return owner

    def incomplete(self) -> list[str]:
        """Ranges of which a snapshot has not shown all who waited: some have ended meanwhile."""
        return [name for name, unseen in self._unseen.items() if unseen and name in self.by_id]

    def end_unseen(
        self, found: Iterable[RequestStatus], dispatch: Callable[[JobEvent], None]
    ) -> None:
        """What became of those: the RM has said so of some; the others it does not know any more.

        `dispatch` gets one event for each run of members.
        """
        statuses: Sequence[RequestStatus] = list(found)
        for name in self.incomplete():
            unseen = self._unseen.pop(name)
            owner = self.by_id[name]
            for status in statuses:
                index = owner.index_of(status.allocation_id)
                if index is not None and status.state.has_ended:
                    for run in list(unseen.runs_within(index, index + status.count)):
                        self._end(owner, run, status.state, status.reason, dispatch)
                        unseen.remove_run(*run)
            for run in list(unseen.runs()):
                self._end(owner, run, RequestState.CANCELLED, Reason.ALLOCATION_UNKNOWN, dispatch)
        self._unseen.clear()

    def adopt(self, message: rm.RequestStatus) -> bool:
        """A job that was begun elsewhere has members of a range, which is known from now on. False:
        it is no member that merely waits, but a `Request` (see `adopt_request`).
        """
        if not message.range_id:
            return False
        owner = self.by_id.get(message.range_id)
        if owner is None:
            template = slots_pb2.SlotRequest()
            template.CopyFrom(message.request)
            template.allocation_id = message.range_id
            owner = self.by_id[message.range_id] = RequestRange(self._context, template)
            owner.acknowledged = True
        index = owner.index_of(message.allocation_id)
        waits = message.state == slots_pb2.REQUEST_STATE_PENDING and not message.generation
        if index is None or not waits:
            return False
        owner.add(index, index + max(1, message.count))
        return True

    def adopt_request(self, range_id: str, request: Request) -> None:
        """A request was begun elsewhere: of which range it is a member; empty: of none."""
        owner = self.by_id.get(range_id)
        index = owner.index_of(request.allocation_id) if owner is not None else None
        if owner is not None and index is not None:
            owner.attach(index, request)

    def _end(
        self,
        owner: RequestRange,
        run: tuple[int, int],
        state: RequestState,
        reason: str,
        dispatch: Callable[[JobEvent], None],
    ) -> None:
        for start, end in owner.waiting_within(*run):
            dispatch(
                JobEvent(
                    sequence=0,
                    event_time=None,
                    allocation_id=f"{owner.range_id}.{start}",
                    state=state,
                    reason=reason,
                    message="",
                    slot=None,
                    from_snapshot=True,
                    count=end - start,
                )
            )
