"""Watch streams: each job's events, numbered, without gaps or repetitions.

A client can continue a stream at any number. A stream is only a position in the job's event log.
While a job has watchers, its feed keeps the recent events in memory (the tail). Streams read from
the tail. If the position of a stream is before the tail, the stream reads from the store. So a slow
reader needs no memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from finegrain.errors import FailedPrecondition, FinegrainError, NotFound, OutOfRange, Reason
from finegrain.rpc.allocation_tokens import TokenSigner
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import slots_pb2
from finegrain.v1.identity_pb2 import AllocationClaims
from finegrain.values.states import RequestState
from resource_manager.engine.explain.intervals import RequestInterval, intervals_of
from resource_manager.engine.explain.lists import request_view
from resource_manager.engine.model.entities import ClusterEvent, Job, JobEvent
from resource_manager.engine.model.events import JobKeptAlive
from resource_manager.engine.state import State
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Runner
from resource_manager.service.wire.encoding import write

TAIL_EVENTS_MAX = 2_000  # events in memory for each watched job
MESSAGE_EVENTS_MAX = 500  # events in one message
SNAPSHOT_REQUESTS_MAX = 1_000  # requests in one message; a larger snapshot has several parts
SNAPSHOT_SCANNED_MAX = 20_000  # intervals read for one message, including ended requests
SNAPSHOT_ITEMS = 500  # reading one part counts as this many items in the fair queues
JOB_ENDED = "job_ended"  # the kind of cluster event that ends a job's streams
KEEPALIVE_MS_MAX = 10_000
"""An open stream sends a message at least this often. The message can be empty."""


@dataclass(slots=True, eq=False)
class _Feed:
    """The newest events of one job that has watchers."""

    tail: deque[JobEvent] = field(default_factory=lambda: deque(maxlen=TAIL_EVENTS_MAX))
    last_sequence: int = 0  # highest sequence number of an event that is known to be on disk
    watchers: int = 0
    # by stream: sequence number of the last event that was sent
    positions: dict[object, int] = field(default_factory=dict)
    # How often the state was reloaded; after a reload, `last_sequence` is possibly too low.
    resyncs: int = 0
    synced: int = 0  # value of `resyncs` when `last_sequence` was last read from the state
    ended: bool = False  # True: the job has ended, so its streams end after the last event
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, event: JobEvent) -> None:
        if event.sequence > self.last_sequence + 1:  # the events in between are only in the store
            self.tail.clear()
        if event.sequence > self.last_sequence:
            self.tail.append(event)
            self.last_sequence = event.sequence

    def after(self, sequence: int) -> list[JobEvent] | None:
        """Returns the events after `sequence` from the tail; None: the tail no longer contains all
        of them.
        """
        if not self.tail or self.tail[0].sequence > sequence + 1:
            return None
        skipped = sequence + 1 - self.tail[0].sequence
        return [
            self.tail[i] for i in range(skipped, min(len(self.tail), skipped + MESSAGE_EVENTS_MAX))
        ]

    def reached(self, stream: object, position: int) -> None:
        """Records that a stream has sent all events up to `position`.

        Events that all streams have sent are removed from the tail.
        """
        self.positions[stream] = position
        # Events that the slowest stream still needs are kept, up to the `maxlen` of the tail.
        sent_by_all = min(self.positions.values())
        while self.tail and self.tail[0].sequence <= sent_by_all:
            self.tail.popleft()

    def wake(self) -> None:
        """Wakes all streams that wait for events."""
        # Waiting streams have the old asyncio event. Later streams wait for the new asyncio event.
        self.news.set()
        self.news = asyncio.Event()


@dataclass(frozen=True, slots=True)
class _Present:
    """State of a job when a stream begins."""

    owner: str  # identity that owns the job
    last_sequence: int
    trimmed_sequence: int  # all events up to this number were deleted
    pause_s: float  # pause between two keep-alives of the stream


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a snapshot, at one moment."""

    snapshot: rm_pb2.JobSnapshot
    last_arrival: int  # last arrival number in this part; the next part begins after this number


class WatchHub:
    """The feeds of all jobs with watchers.

    `publish`, `flush` and `resync` run on the event loop, in the order of commits.
    """

    def __init__(
        self, runner: Runner, metrics: ResourceManagerMetrics, tokens: TokenSigner
    ) -> None:
        self._tokens = tokens
        self._runner = runner
        self._metrics = metrics
        self._feeds: dict[str, _Feed] = {}
        self._cluster_news = asyncio.Event()
        self._fed: set[_Feed] = set()  # feeds with new events since the last flush

    def publish(self, event: JobEvent) -> None:
        """Adds a durable job event to its feed. The next `flush` wakes the watchers."""
        feed = self._feeds.get(event.job_id)
        if feed is not None:
            feed.publish(event)
            self._fed.add(feed)

    def flush(self, *, cluster_news: bool) -> None:
        """Wakes watchers once, after all events of a batch were published."""
        for feed in self._fed:
            feed.wake()
        self._fed.clear()
        if cluster_news:
            self._cluster_news.set()
            self._cluster_news = asyncio.Event()

    def publish_cluster(self, event: ClusterEvent) -> None:
        """Records a durable cluster event. If the event ends a job, the next `flush` wakes the
        job's streams. The streams then end.
        """
        feed = self._feeds.get(event.job_id)
        if feed is not None and event.kind == JOB_ENDED:
            feed.ended = True
            self._fed.add(feed)

    def resync(self) -> None:
        """Handles a reload of the state. The store can contain events that were never published."""
        for feed in self._feeds.values():
            feed.tail.clear()
            feed.resyncs += 1
            feed.wake()
        self.flush(cluster_news=True)

    @property
    def cluster_news(self) -> asyncio.Event:
        """An asyncio event that is set at the next cluster event.

        To miss no event, get the asyncio event before you read the present cluster events.
        """
        return self._cluster_news

    async def watch(
        self, job_id: str, from_sequence: int
    ) -> AsyncGenerator[rm_pb2.WatchJobResponse, None]:
        """Streams the events of one job. An open stream renews the job's lease.

        Args:
            job_id: the job.
            from_sequence: the number of the first event to send; 0: begin with a snapshot of the
                live requests.

        Raises:
            OutOfRange: the event is not stored any more, or the number was never reached.
            NotFound: the job does not exist.
            FailedPrecondition: JOB_ENDED, after all events were sent.
        """
        loop = asyncio.get_running_loop()
        stream = object()
        with self._followed(job_id, stream) as feed:
            # Stage 1: read the present state of the job, and check the requested position.
            present = await self._runner.read(lambda state: _present(state, job_id))
            # Another stream of the job possibly knows a later event already.
            feed.last_sequence = max(feed.last_sequence, present.last_sequence)
            position, shown_upto = from_sequence - 1, None
            if from_sequence:
                _check_position(position, present)
                feed.reached(stream, position)
                yield rm_pb2.WatchJobResponse()  # shows the client at once that the stream is open
            else:
                part = await self._part(job_id, 0)
                position, shown_upto = part.snapshot.sequence, _upto(part)
                feed.reached(stream, position)
                yield self._snapshot(present, part)
            # Stage 2: send events as they come, with further parts of the snapshot in between.
            over: FinegrainError | None = None
            # The first keep-alive is due at once, because opening a stream renews the lease too.
            alive_due = 0.0
            while True:
                feed.reached(stream, position)
                # Read `news` first. So an event that is published later wakes this stream.
                news = feed.news
                if over is None and (loop.time() >= alive_due or feed.ended):
                    over = await self._keep_alive(job_id)
                    alive_due = loop.time() + present.pause_s
                if shown_upto is not None and over is None:
                    # Each part shows the state at a later sequence number than the part before.
                    # Send the events in between first. The client then receives all changes in
                    # order.
                    part = await self._part(job_id, shown_upto)
                    while events := await self._next(
                        job_id, feed, position, upto=part.snapshot.sequence
                    ):
                        position = events[-1].sequence
                        yield self._events(present, events)
                    shown_upto = _upto(part)
                    yield self._snapshot(present, part)
                elif events := await self._next(job_id, feed, position):
                    position = events[-1].sequence
                    yield self._events(present, events)
                # The end of the job is reported only after all events were sent.
                elif over is not None:
                    raise over
                elif not await happens(news, alive_due - loop.time()):
                    yield rm_pb2.WatchJobResponse()

    def _events(self, job: _Present, events: list[JobEvent]) -> rm_pb2.WatchJobResponse:
        items = write.items(rm_pb2.JobEvent, events)
        offers = [
            (item, event.slot)
            for item, event in zip(items, events, strict=True)
            if event.state is RequestState.GRANTED and event.slot is not None
        ]
        tokens = self._tokens.tokens([_claims(job.owner, slot) for _, slot in offers])
        for (item, _), token in zip(offers, tokens, strict=True):
            item["token"] = token
        return rm_pb2.WatchJobResponse(events=items)

    def _snapshot(self, job: _Present, part: _Part) -> rm_pb2.WatchJobResponse:
        requests = part.snapshot.requests
        granted = [each for each in requests if each.state == slots_pb2.REQUEST_STATE_GRANTED]
        slots = [{name: getattr(each.slot, name) for name in _CLAIMED} for each in granted]
        tokens = self._tokens.tokens([_claims(job.owner, slot) for slot in slots])
        for each, token in zip(granted, tokens, strict=True):
            each.token = token
        return rm_pb2.WatchJobResponse(snapshot=part.snapshot)

    @contextmanager
    def _followed(self, job_id: str, stream: object) -> Iterator[_Feed]:
        feed = self._feeds.setdefault(job_id, _Feed())
        feed.watchers += 1
        self._metrics.watch_streams.inc()
        try:
            yield feed
        finally:
            self._metrics.watch_streams.dec()
            feed.watchers -= 1
            feed.positions.pop(stream, None)
            # The events of a job without watchers are not kept in memory.
            if not feed.watchers:
                del self._feeds[job_id]

    async def _keep_alive(self, job_id: str) -> FinegrainError | None:
        """Renews the job's lease. Returns the error if the job has ended or is unknown."""
        try:
            await self._runner.submit(
                lambda at: JobKeptAlive(at, job_id),
                render=lambda _job: None,
                urgent=True,
                light=True,
            )
        except (FailedPrecondition, NotFound) as error:
            return error
        return None

    async def _part(self, job_id: str, after: int) -> _Part:
        return await self._runner.read(
            lambda state: _snapshot(state, job_id, after), owner=job_id, items=SNAPSHOT_ITEMS
        )

    async def _next(
        self, job_id: str, feed: _Feed, position: int, *, upto: int | None = None
    ) -> list[JobEvent]:
        """Returns the next events after `position`, at most `MESSAGE_EVENTS_MAX`. Returns an empty
        list if there is no new event.
        """
        if upto is not None and position >= upto:
            return []
        # After a reload, every stream tries to read the last sequence number until one stream
        # succeeds. One stream alone could end before its read has ended.
        if feed.synced < feed.resyncs:
            # The number of reloads is copied before the read, because a reload during the read
            # requires another read.
            resyncs = feed.resyncs
            last = await self._runner.read(lambda state: _last_sequence(state, job_id))
            feed.last_sequence = max(feed.last_sequence, last)
            feed.synced = max(feed.synced, resyncs)
        if position >= feed.last_sequence:
            return []
        events = feed.after(position)
        if events is None:
            events = await self._runner.in_store(
                lambda store: store.read_job_events(job_id, position, MESSAGE_EVENTS_MAX)
            )
            # Events were deleted during the read, so sending the other events would leave a gap.
            if not events or events[0].sequence != position + 1:
                raise _out_of_range(position + 1, "is no longer kept")
        return events if upto is None else [each for each in events if each.sequence <= upto]


_CLAIMED = ("executor_id", "job_id", "allocation_id", "generation")


def _claims(owner: str, slot: Mapping[str, Any]) -> AllocationClaims:
    """Returns what the allocation token of a slot states; see `slot_to_dict`."""
    return AllocationClaims(owner=owner, **{name: slot[name] for name in _CLAIMED})


def _known(state: State, job_id: str) -> Job:
    job = state.jobs.get(job_id)
    if job is None:
        raise NotFound(f"job {job_id} is unknown", reason=Reason.JOB_UNKNOWN)
    return job


def _present(state: State, job_id: str) -> _Present:
    job = _known(state, job_id)
    pause_ms = KEEPALIVE_MS_MAX
    if job.lease_ms is not None:
        # The pause is a third of the lease, so that two keep-alives can be lost.
        pause_ms = min(pause_ms, job.lease_ms // 3)
    return _Present(
        owner=job.owner,
        last_sequence=job.last_sequence,
        trimmed_sequence=job.trimmed_sequence,
        pause_s=pause_ms / 1000,
    )


def _snapshot(state: State, job_id: str, after: int) -> _Part:
    """Builds the next part of a snapshot: the live requests with arrival numbers above `after`."""
    job = _known(state, job_id)
    living: list[RequestInterval] = []
    last, more = after, False
    for scanned, interval in enumerate(intervals_of(state, job, after)):
        # Ended requests are not sent, but reading them costs time. So the numbers of sent and of
        # read requests are limited.
        if scanned == SNAPSHOT_SCANNED_MAX or len(living) == SNAPSHOT_REQUESTS_MAX:
            more = True
            break
        last = interval.last_arrival
        if not interval.ended:
            living.append(interval)
    requests = [
        write(rm_pb2.RequestStatus, request_view(state, each.request, each.count))
        for each in living
    ]
    snapshot = rm_pb2.JobSnapshot(sequence=job.last_sequence, requests=requests, more=more)
    return _Part(snapshot, last)


def _upto(part: _Part) -> int | None:
    """Returns the arrival number after which the next part begins; None: this is the last part."""
    return part.last_arrival if part.snapshot.more else None


def _last_sequence(state: State, job_id: str) -> int:
    job = state.jobs.get(job_id)
    return job.last_sequence if job is not None else 0


def _check_position(position: int, present: _Present) -> None:
    if position < present.trimmed_sequence:
        raise _out_of_range(position + 1, "is no longer kept")
    if position > present.last_sequence:
        raise _out_of_range(position + 1, f"has not been reached (last: {present.last_sequence})")


def _out_of_range(sequence: int, why: str) -> OutOfRange:
    return OutOfRange(
        f"from_sequence is {sequence}, which {why}; watch from 0, which begins with a snapshot",
        details={"from_sequence": sequence},
    )


async def happens(news: asyncio.Event, timeout_s: float) -> bool:
    """Returns True if `news` is set within `timeout_s` seconds."""
    try:
        async with asyncio.timeout(max(0.0, timeout_s)):
            await news.wait()
    except TimeoutError:
        return False
    return True
