"""Applies events and snapshots of a job's watch stream to its ranges.

An event or an entry of a snapshot can belong to a range. This module finds this range, and the
members of ranges that are missing in a snapshot. `watch.py` reads the stream itself.
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
    """All ranges of a job for which the client has handles, by id."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        # acknowledged members that the snapshot has not shown yet
        self._unseen: dict[str, IntervalSet] = {}
        self.by_id: dict[str, RequestRange] = {}

    def range_of(self, event: JobEvent, requests: dict[str, Request]) -> RequestRange | None:
        """Returns the range to which an event belongs, or None if the event belongs to no known
        range.

        If a waiting member ends without ever having a slot, the range only increases its count of
        ended members. For any other event, the waiting member becomes a `Request` and is added to
        `requests`.
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
        """Updates a range after a member's request has applied `event`."""
        index = owner.index_of(event.allocation_id)
        if index is not None and index in owner.requests:
            owner.member_changed(index)
        self.drop_if_ended(owner)

    def drop_if_ended(self, owner: RequestRange) -> None:
        """Removes the range `owner` if all its members have ended.

        A range without members is dropped. Any other range stays at least until its submission is
        acknowledged.
        """
        if owner.has_ended and (owner.acknowledged or not len(owner)):
            self.by_id.pop(owner.range_id, None)

    def close(self, error: FinegrainError) -> None:
        """Fails all ranges with `error`, and removes them."""
        for each in self.by_id.values():
            each.fail(error)
        self.by_id.clear()

    def begin_snapshot(self) -> None:
        """Records which waiting members the next snapshot must show.

        Only the members of acknowledged ranges are recorded, because the resource manager possibly
        does not know other ranges yet.
        """
        self._unseen = {
            name: IntervalSet(each.waiting_members())
            for name, each in self.by_id.items()
            if each.acknowledged
        }

    def mark_shown(self, status: RequestStatus) -> RequestRange | None:
        """Records that a snapshot shows the requests of an entry.

        Returns the range of the entry, or None if the range is unknown.
        """
        range_id, _, digits = status.allocation_id.rpartition(".")
        owner = self.by_id.get(range_id)
        if owner is None or owner.index_of(status.allocation_id) is None:
            return None
        # If a range is not acknowledged yet, it is possibly missing in the snapshot.
        if range_id in self._unseen:
            self._unseen[range_id].remove_run(int(digits), int(digits) + status.count)
        return owner

    def incomplete(self) -> list[str]:
        """Returns ids of ranges with waiting members that the snapshot did not show.

        Such members have ended in the meantime.
        """
        return [name for name, unseen in self._unseen.items() if unseen and name in self.by_id]

    def end_unseen(
        self, found: Iterable[RequestStatus], dispatch: Callable[[JobEvent], None]
    ) -> None:
        """Ends the members that a snapshot did not show.

        Members that `found` reports as ended get the reported state. The resource manager does not
        know the remaining members any more, so these members end as CANCELLED with reason
        ALLOCATION_UNKNOWN.

        Args:
            found: the statuses that the resource manager returned for the incomplete ranges.
            dispatch: a function that is called with one event for each interval of consecutive
                members.
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
        """Adds waiting members of a range that another process submitted.

        Creates the range if it is unknown. Returns False if the request in `message` is not a range
        member, or has had a slot. In this case the caller creates a `Request` (`adopt_request`).
        """
        if not message.range_id:
            return False
        owner = self.by_id.get(message.range_id)
        if owner is None:
            template = slots_pb2.SlotRequest()
            template.CopyFrom(message.request)
            # A range's template has the id of the range in this field.
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
        """Attaches a request, which another process submitted, to its range.

        `range_id` is empty if the request does not belong to a range.
        """
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
