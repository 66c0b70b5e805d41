"""Watch streams: every job's events, numbered, without gap or repetition, resumable.

A stream is only a position. It reads on from the tail that the job's feed keeps in memory while
somebody watches, and from the store where the tail does not reach back: a slow reader costs no
memory, it just reads from the store. Knows nothing of gRPC beyond the messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from finegrain.errors import FailedPrecondition, FinegrainError, NotFound, OutOfRange, Reason
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.explain.intervals import RequestInterval, intervals_of
from resource_manager.engine.explain.lists import request_view
from resource_manager.engine.model.entities import ClusterEvent, Job, JobEvent
from resource_manager.engine.model.events import JobKeptAlive
from resource_manager.engine.state import State
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Runner
from resource_manager.service.wire.encoding import write

TAIL_EVENTS_MAX = 2_000  # kept in memory per watched job
MESSAGE_EVENTS_MAX = 500  # in one message
SNAPSHOT_REQUESTS_MAX = 1_000  # in one message; a larger snapshot comes in several
SNAPSHOT_SCANNED_MAX = 20_000  # for one message, requests that have ended included
SNAPSHOT_ITEMS = 500  # what a part counts in turns with others
JOB_ENDED = "job_ended"  # kind of the cluster event
KEEPALIVE_MS_MAX = 10_000
"""Longest silence of an open stream."""


@dataclass(slots=True, eq=False)
class _Feed:
    """The newest events of one job that somebody watches."""

    tail: deque[JobEvent] = field(default_factory=lambda: deque(maxlen=TAIL_EVENTS_MAX))
    last_sequence: int = 0  # highest known to be durable
    watchers: int = 0
    positions: dict[object, int] = field(default_factory=dict)  # of the streams
    resyncs: int = 0  # after each of them `last_sequence` may be too low
    synced: int = 0  # so many of them have been made good
    ended: bool = False  # the job has; its streams end once they have said everything
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, event: JobEvent) -> None:
        if event.sequence > self.last_sequence + 1:  # others are in the store only
            self.tail.clear()
        if event.sequence > self.last_sequence:
            self.tail.append(event)
            self.last_sequence = event.sequence

    def after(self, sequence: int) -> list[JobEvent] | None:
        """Events of the tail that follow; None: the tail does not reach back so far."""
        if not self.tail or self.tail[0].sequence > sequence + 1:
            return None
        skipped = sequence + 1 - self.tail[0].sequence
        return [
            self.tail[i] for i in range(skipped, min(len(self.tail), skipped + MESSAGE_EVENTS_MAX))
        ]

    def reached(self, stream: object, position: int) -> None:
        """A stream has sent events up to this one; what all have sent need not be kept."""
        self.positions[stream] = position
        sent_by_all = min(self.positions.values())
        while self.tail and self.tail[0].sequence <= sent_by_all:
            self.tail.popleft()

    def wake(self) -> None:
        """Everybody who waits looks again."""
        self.news.set()
        self.news = asyncio.Event()


@dataclass(frozen=True, slots=True)
class _Present:
    """Where a job stands when a stream begins."""

    last_sequence: int
    trimmed_sequence: int
    pause_s: float  # between signs of life


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a snapshot, as of one moment."""

    snapshot: rm_pb2.JobSnapshot
    last_arrival: int  # of the requests looked at; the next part begins behind it


class WatchHub:
    """All feeds. `publish`, `flush` and `resync` run on the event loop, in order of commits."""

    def __init__(self, runner: Runner, metrics: ResourceManagerMetrics) -> None:
        self._runner = runner
        self._metrics = metrics
        self._feeds: dict[str, _Feed] = {}
        self._cluster_news = asyncio.Event()
        self._fed: set[_Feed] = set()  # since the last flush

    def publish(self, event: JobEvent) -> None:
        """A job event is durable; its watchers hear of it with the next `flush`."""
        feed = self._feeds.get(event.job_id)
        if feed is not None:
            feed.publish(event)
            self._fed.add(feed)

    def flush(self, *, cluster_news: bool) -> None:
        """Everything of a batch was published: whoever waits looks once."""
        for feed in self._fed:
            feed.wake()
        self._fed.clear()
        if cluster_news:
            self._cluster_news.set()
            self._cluster_news = asyncio.Event()

    def publish_cluster(self, event: ClusterEvent) -> None:
        """A cluster event is durable; likewise. The end of a job ends its streams."""
        feed = self._feeds.get(event.job_id)
        if feed is not None and event.kind == JOB_ENDED:
            feed.ended = True
            self._fed.add(feed)

    def resync(self) -> None:
        """The books were read anew; the store may hold events that were never published."""
        for feed in self._feeds.values():
            feed.tail.clear()
            feed.resyncs += 1
            feed.wake()
        self.flush(cluster_news=True)

    @property
    def cluster_news(self) -> asyncio.Event:
        """Set at the next cluster event; to be taken before one looks what there is."""
        return self._cluster_news

    async def watch(
        self, job_id: str, from_sequence: int
    ) -> AsyncGenerator[rm_pb2.WatchJobResponse, None]:
        """The stream of one job; an open one keeps the job's lease.

        Raises:
            OutOfRange: the position is no longer kept, or was never reached.
            NotFound: no such job.
            FailedPrecondition: JOB_ENDED, after everything that happened was said.
        """
        loop = asyncio.get_running_loop()
        stream = object()
        with self._followed(job_id, stream) as feed:
            present = await self._runner.read(lambda state: _present(state, job_id))
            feed.last_sequence = max(feed.last_sequence, present.last_sequence)
            position, shown_upto = from_sequence - 1, None
            if from_sequence:
                _check_position(position, present)
                feed.reached(stream, position)
                yield rm_pb2.WatchJobResponse()  # says at once that a resumed stream stands
            else:
                part = await self._part(job_id, 0)
                position, shown_upto = part.snapshot.sequence, _upto(part)
                feed.reached(stream, position)
                yield rm_pb2.WatchJobResponse(snapshot=part.snapshot)
            over: FinegrainError | None = None
            alive_due = 0.0
            while True:
                feed.reached(stream, position)
                news = feed.news
                if over is None and (loop.time() >= alive_due or feed.ended):
                    over = await self._keep_alive(job_id)
                    alive_due = loop.time() + present.pause_s
                if shown_upto is not None and over is None:
                    part = await self._part(job_id, shown_upto)
                    while events := await self._next(
                        job_id, feed, position, upto=part.snapshot.sequence
                    ):
                        position = events[-1].sequence
                        yield rm_pb2.WatchJobResponse(events=write.each(rm_pb2.JobEvent, events))
                    shown_upto = _upto(part)
                    yield rm_pb2.WatchJobResponse(snapshot=part.snapshot)
                elif events := await self._next(job_id, feed, position):
                    position = events[-1].sequence
                    yield rm_pb2.WatchJobResponse(events=write.each(rm_pb2.JobEvent, events))
                elif over is not None:
                    raise over
                elif not await happens(news, alive_due - loop.time()):
                    yield rm_pb2.WatchJobResponse()

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
            if not feed.watchers:
                del self._feeds[job_id]

    async def _keep_alive(self, job_id: str) -> FinegrainError | None:
        """Renews the lease; answers with the error if the job is over."""
        try:
            await self._runner.submit(
                lambda at: JobKeptAlive(at, job_id), render=lambda _job: None, urgent=True
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
        """Events that follow a position, a message full at most; none if there are none yet."""
        if upto is not None and position >= upto:
            return []
        if feed.synced < feed.resyncs:  # every stream asks until one has: any may break off
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
            if not events or events[0].sequence != position + 1:
                raise _out_of_range(position + 1, "is no longer kept")
        return events if upto is None else [each for each in events if each.sequence <= upto]


def _known(state: State, job_id: str) -> Job:
    job = state.jobs.get(job_id)
    if job is None:
        raise NotFound(f"job {job_id} is unknown", reason=Reason.JOB_UNKNOWN)
    return job


def _present(state: State, job_id: str) -> _Present:
    job = _known(state, job_id)
    pause_ms = KEEPALIVE_MS_MAX
    if job.lease_ms is not None:
        pause_ms = min(pause_ms, job.lease_ms // 3)
    return _Present(
        last_sequence=job.last_sequence,
        trimmed_sequence=job.trimmed_sequence,
        pause_s=pause_ms / 1000,
    )


def _snapshot(state: State, job_id: str, after: int) -> _Part:
    """The part of the snapshot with requests that arrived after this one."""
    job = _known(state, job_id)
    living: list[RequestInterval] = []
    last, more = after, False
    for scanned, interval in enumerate(intervals_of(state, job, after)):
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
    """Where the next part begins; None: that was all."""
    return part.last_arrival if part.snapshot.more else None


def _last_sequence(state: State, job_id: str) -> int:
    job = state.jobs.get(job_id)
    return job.last_sequence if job is not None else 0


def _check_position(position: int, present: _Present) -> None:
    if position < present.trimmed_sequence:
        raise _out_of_range(position + 1, "is no longer kept")
    if position > present.last_sequence:
        raise _out_of_range(position + 1, f"was never reached (last: {present.last_sequence})")


def _out_of_range(sequence: int, why: str) -> OutOfRange:
    return OutOfRange(
        f"from_sequence is {sequence}, which {why}; watch from 0, which begins with a snapshot",
        details={"from_sequence": sequence},
    )


async def happens(news: asyncio.Event, timeout_s: float) -> bool:
    """True if it happened within the time."""
    try:
        async with asyncio.timeout(max(0.0, timeout_s)):
            await news.wait()
    except TimeoutError:
        return False
    return True
