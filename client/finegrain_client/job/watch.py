"""Applies each event of a job's watch stream exactly once, and renews the job's lease.

A broken stream continues after the last applied sequence number. If a request is missing in a
snapshot, the client reads the request's state from the resource manager. The job has ended when the
resource manager reports its end, or no longer knows the job.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from finegrain.errors import FinegrainError, OutOfRange, Reason, ResourceExhausted, Unavailable
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.values.states import RequestState
from finegrain_client.call_limits import id_batches
from finegrain_client.decoding import read
from finegrain_client.errors import JobEnded
from finegrain_client.job.context import END_REPORT_S, JobContext, as_job_ended
from finegrain_client.job.events import JobEvents
from finegrain_client.job.range_events import WatchedRanges
from finegrain_client.job.request import Request
from finegrain_client.retry import Backoff, StreamCall, follow, resumed
from finegrain_client.types.status import Gang, JobEvent, RequestStatus

log = logging.getLogger("finegrain_client")

LISTED_MAX = 500
"""Maximum number of requests to look up in one call."""

_ALL_STATES = tuple(number for number in slots_pb2.RequestState.values() if number)


class JobWatch:
    """Keeps a job's requests and ranges in the state that the resource manager reports, and passes
    every event to the listeners.

    Attributes:
        requests: requests that have not ended, by allocation id. A member of a range is included
            only after it has got a slot.
        ranges: ranges with members that have not ended.
        sequence: sequence number of the last applied event.
        error: the reason why the stream has ended; None while the stream runs.
        end_expected: True while this client ends the job. Listeners then end without an error.
    """

    def __init__(self, context: JobContext, *, from_snapshot: bool = False) -> None:
        self._context = context
        self._want_snapshot = from_snapshot
        self._attached = from_snapshot
        # requests that the received parts of the current snapshot have not shown
        self._not_shown: list[Request] = []
        self._parts_received = 0  # number of parts of the current snapshot
        self._listeners: set[JobEvents] = set()
        self._watched = context.connection.manager_address
        self._first_snapshot = asyncio.Event()
        self.requests: dict[str, Request] = {}
        self.ranges = WatchedRanges(context)
        self.sequence = 0
        self.error: FinegrainError | None = None
        self.end_expected = False

    def listen(self) -> JobEvents:
        """Returns an iterator over the events from now on."""
        events = JobEvents(self._listeners.discard)
        if self.error is not None:
            events.end(self.error)
        else:
            self._listeners.add(events)
        return events

    def close(self, error: FinegrainError, *, expected: bool = False) -> None:
        """Ends the watch, with all requests, slots and listeners.

        Args:
            error: the reason why the watch ends. Callers that wait for requests and slots get this
                error.
            expected: if true, listeners end without an error.
        """
        if self.error is not None:
            return
        self.error = error
        for request in list(self.requests.values()):
            # End the requests first, so that a listener that ends finds the final states of the
            # requests.
            request.fail(error)
        self.requests.clear()
        self.ranges.close(error)
        for listener in list(self._listeners):
            listener.end(None if expected or self.end_expected else error)
        # Wake the callers of `first_snapshot`, which then raise the error.
        self._first_snapshot.set()

    async def first_snapshot(self) -> None:
        """Waits until the first snapshot is applied.

        Raises:
            FinegrainError: the watch ended before the first snapshot.
        """
        await self._first_snapshot.wait()
        if self.error is not None:
            raise self.error

    async def run(self) -> None:
        """Reads the watch stream until the job ends."""
        backoff = Backoff(self._context.connection.policy)
        while self.error is None:
            try:
                stream = resumed(
                    self._open,
                    where=lambda: self._context.connection.manager_address,
                    policy=self._context.connection.policy,
                    redirect=lambda error: self._context.connection.leave_manager(
                        self._watched, error
                    ),
                )
                await follow(stream, self._handle)
            except OutOfRange as error:
                # The resource manager no longer has the next events, so start again with a
                # snapshot. If the client was already waiting for a snapshot, the watch cannot
                # continue.
                if self._want_snapshot and not self._parts_received:
                    self.close(error)
                self._want_snapshot = True
            # A call that was needed to apply a snapshot has raised this error.
            except Unavailable as error:
                log.warning("watching job %s: %s", self._context.job_id, error.message)
                await asyncio.sleep(backoff.next_s())
            except ResourceExhausted as error:  # the client tries again if the server names a delay
                if error.retry_after_s is None:
                    self.close(error)
                log.warning("watching job %s: %s", self._context.job_id, error.message)
                await asyncio.sleep(max(backoff.next_s(), error.retry_after_s or 0.0))
            except FinegrainError as error:
                self.close(as_job_ended(self._context.job_id, error))
            # such an error is a bug, but callers that wait must still get an error
            except Exception as error:
                log.exception("watching job %s failed", self._context.job_id)
                self.close(FinegrainError(f"watching job {self._context.job_id} failed: {error!r}"))

    async def keep_alive(self, interval_s: float) -> None:
        """Renews the lease and acknowledges applied events, every `interval_s` seconds."""
        while self.error is None:
            await asyncio.sleep(interval_s)
            message = rm.KeepAliveRequest(
                job_id=self._context.job_id, acknowledged_sequence=self.sequence
            )
            try:
                await self._context.call_manager(
                    lambda manager, timeout_s, message=message: manager.KeepAlive(  # type: ignore[misc]
                        message, timeout=timeout_s
                    )
                )
            except JobEnded as error:
                # The watch stream reports the last events of the job before it reports the end. If
                # it is broken, the watch must still end.
                await asyncio.sleep(END_REPORT_S)
                self.close(error)
            except FinegrainError as error:
                log.warning("job %s could not be kept alive: %s", self._context.job_id, error)

    def _open(self) -> StreamCall[rm.WatchJobResponse]:
        self._watched = self._context.connection.manager_address
        # The snapshot must show every request that was acknowledged before this call. A request
        # that is still being submitted can be missing, because the resource manager has possibly
        # not received it yet.
        self._parts_received = 0
        self._not_shown = [each for each in self.requests.values() if each.acknowledged]
        self.ranges.begin_snapshot()
        message = rm.WatchJobRequest(
            job_id=self._context.job_id,
            from_sequence=0 if self._want_snapshot else self.sequence + 1,
        )
        return self._context.connection.manager.WatchJob(message)

    async def _handle(self, response: rm.WatchJobResponse) -> bool:
        self._context.connection.manager_answered(self._watched)
        if response.HasField("snapshot"):
            await self._handle_snapshot(response.snapshot)
        for message in response.events:
            self._context.take_token(message)
            # A resumed stream can repeat events.
            if message.sequence <= self.sequence:
                continue
            if message.sequence > self.sequence + 1:
                raise OutOfRange(
                    f"event {message.sequence} of job {self._context.job_id} arrived after event "
                    f"{self.sequence}, so events are missing"
                )
            self.sequence = message.sequence
            self._dispatch(read(JobEvent, message))
        self._context.tokens.clear()
        return self.error is not None

    async def _handle_snapshot(self, snapshot: rm.JobSnapshot) -> None:
        statuses = read.each(RequestStatus, snapshot.requests)
        for message in snapshot.requests:
            self._context.take_token(message)
        shown = {each.allocation_id for each in statuses}
        for status in statuses:
            self.ranges.mark_shown(status)
        # Only an attached job has requests without handles: another process has submitted these
        # requests.
        if self._attached:
            for message in snapshot.requests:
                known = message.allocation_id in self.requests
                if not known and not self.ranges.adopt(message):
                    self._adopt(message)
        # A large snapshot comes in parts, and the client knows the missing requests only after the
        # last part. A request that ended between two parts is not missing.
        self._not_shown = [
            each
            for each in self._not_shown
            if each.allocation_id not in shown and each.allocation_id in self.requests
        ]
        if not snapshot.more:
            statuses += await self._look_up_missing(self._not_shown, snapshot.sequence)
            self._not_shown = []
        for status in statuses:
            self._dispatch_difference(snapshot.sequence, status)
        if not snapshot.more:
            await self._end_unseen(snapshot.sequence)
        # Set the number last: `keep_alive` must not acknowledge a snapshot before it is applied.
        self.sequence = snapshot.sequence
        self._parts_received += 1
        if not snapshot.more:
            self._want_snapshot = False
            self._first_snapshot.set()

    async def _end_unseen(self, sequence: int) -> None:
        """Ends the waiting members that are missing in the snapshot. The members get the state that
        the resource manager returns.

        These members have ended in the meantime.
        """
        ranges = self.ranges.incomplete()
        found = await self._listed([f"{each}." for each in ranges]) if ranges else []
        self.ranges.end_unseen(
            found, lambda event: self._dispatch(replace(event, sequence=sequence))
        )

    def _adopt(self, message: rm.RequestStatus) -> None:
        submitted = slots_pb2.SlotRequest()
        submitted.CopyFrom(message.request)
        submitted.allocation_id = message.allocation_id
        gang = read(Gang, message.gang) if message.HasField("gang") else None
        request = Request(self._context, submitted, gang)
        request.acknowledged = True
        self.requests[message.allocation_id] = request
        self.ranges.adopt_request(message.range_id, request)

    def _dispatch_difference(self, sequence: int, status: RequestStatus) -> None:
        request = self.requests.get(status.allocation_id)
        if request is None:
            request = self._member(status)
        if request is None:
            return
        generation = status.slot.generation if status.slot else request.generation
        reason = status.reason
        if (request.state, request.generation) == (status.state, generation):
            # If the state has not changed, listeners get an event only if the slot was resized in
            # the meantime.
            if request.slot is None or status.slot is None or request.slot.size.equals(status.slot):
                request.update_status(status)
                return
            reason = Reason.RESIZED
        self._dispatch(
            JobEvent(
                sequence=sequence,
                event_time=None,
                allocation_id=status.allocation_id,
                state=status.state,
                reason=reason,
                message="",
                slot=status.slot,
                from_snapshot=True,
            )
        )
        # Apply `status` even if it is older than the known state: the resource manager may have
        # been restored from an older state.
        request.update_status(status)

    def _member(self, status: RequestStatus) -> Request | None:
        """Converts a member of a range to a `Request`, unless the member waits and has never had a
        slot.
        """
        if status.state is RequestState.PENDING and status.generation == 0:
            return None
        owner = self.ranges.mark_shown(status)
        index = owner.index_of(status.allocation_id) if owner is not None else None
        request = owner.promote(index) if owner is not None and index is not None else None
        if request is not None:
            self.requests[status.allocation_id] = request
        return request

    def _dispatch(self, event: JobEvent) -> None:
        owner = self.ranges.range_of(event, self.requests)
        request = self.requests.get(event.allocation_id)
        if request is not None:
            request.update_state(event.state, event.reason, event.message, event.slot)
            if request.has_ended:
                del self.requests[event.allocation_id]
        if owner is not None:
            # The request has already applied the event, and the range reads the request's state.
            self.ranges.member_changed(owner, event)
        for listener in list(self._listeners):
            listener.put(event)

    async def _look_up_missing(self, missing: list[Request], sequence: int) -> list[RequestStatus]:
        statuses = await self._listed([each.allocation_id for each in missing])
        found = {each.allocation_id: each for each in statuses}
        for request in missing:
            if request.allocation_id not in found:
                # For example, the resource manager was restored from older state. Send an event,
                # because listeners possibly wait for the slot.
                self._dispatch(
                    JobEvent(
                        sequence=sequence,
                        event_time=None,
                        allocation_id=request.allocation_id,
                        state=RequestState.CANCELLED,
                        reason=Reason.ALLOCATION_UNKNOWN,
                        message="the resource manager no longer knows it",
                        slot=None,
                        from_snapshot=True,
                    )
                )
        return list(found.values())

    async def _listed(self, allocation_ids: list[str]) -> list[RequestStatus]:
        """Returns the status of requests with these ids or prefixes, including ended requests."""
        found: list[RequestStatus] = []
        for ids in id_batches(allocation_ids, items_max=LISTED_MAX):
            message = cluster_pb2.ListRequestsRequest(
                job_id=self._context.job_id, states=_ALL_STATES, allocation_ids=ids
            )
            while True:
                answer = await self._context.connection.call_cluster(
                    lambda cluster, timeout_s, message=message: cluster.ListRequests(  # type: ignore[misc]
                        message, timeout=timeout_s
                    )
                )
                found += read.each(RequestStatus, answer.requests)
                message.page_token = answer.next_page_token
                if not message.page_token:
                    break
        return found
