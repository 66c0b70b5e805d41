"""Implements the live stream of the page. A stream begins with a snapshot of the cluster and its
executors. The changes follow.

All streams share one background task that reads the cluster. The task runs only while a stream is
open. The id of a message is `<epoch>.<n>`: each change gets the next number `n`. A client that
connects again sends the last id that it has received, and gets the changes after this id. If these
changes are not known, for example after a restart of the resource manager, the client gets a new
snapshot. A slow client gets several changes as one message.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration

from finegrain.errors import (
    FinegrainError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Reason,
    ResourceExhausted,
    Unauthenticated,
)
from finegrain.v1 import cluster_pb2
from finegrain_cli.web.calls import Calls
from finegrain_cli.web.routes import CLUSTER, Json
from finegrain_client.decoding import read
from finegrain_client.types.status import ClusterInfo, ExecutorStatus

STEP_S = 0.2
"""Shortest time in seconds between two messages with changes in a stream."""
REFRESH_S = 5.0
"""All executors are read again after this time in seconds, because no event reports changes of the
measured use.
"""
REST = 20
"""After a read of all executors, the time until the next such read is at least this number times
the duration of the read.
"""
REST_SOME = 9
"""After a read of changed executors, the pause is at least this number times the CPU time of the
read.
"""
REST_SUMS = 9
"""After a read of the sums of the cluster, the time until the next such read is at least this
number times the duration of the read, because the read takes time in proportion to the number of
executors. Changes of executors do not wait for it.
"""
QUIET_S = 1.0
"""A stream without changes sends a comment after this time, in seconds. If no comment arrives, the
page soon knows that its data is not up to date. The comments also make proxies keep the stream
open.
"""
STALE_S = 2.0
"""If a call has no answer after this time in seconds, the stream sends no comments until the call
has an answer.
"""
STREAMS_MAX = 100
ALONE_MAX = 20
"""If more executors than this number have changed at once, all executors are read soon."""
PAGE = 250
"""Maximum number of executors in one message of a snapshot, and in one call."""
CHANGING = ("report_number", "report_time")
"""Fields of an executor that change with every report. The stream does not contain these fields."""

_CLUSTER, _EVENTS = f"/{CLUSTER}/GetCluster", f"/{CLUSTER}/ListEvents"
_LIST, _ONE = f"/{CLUSTER}/ListExecutors", f"/{CLUSTER}/GetExecutor"


@dataclass(slots=True)
class _Kept:
    """The JSON of one executor: `facts`, and the measured use. The numbers `facts_at` and `used_at`
    say which change was the last change of each. For a deleted executor, `facts` is empty.
    """

    facts: str = ""
    facts_at: int = 0
    used: str = ""
    used_at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    """The client of one stream."""

    certificate: bytes
    peer: str


class Live:
    """Serves the live streams of one application.

    Args:
        calls: the object that calls the servicers.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._readers: dict[_Reader, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._news = asyncio.Event()
        self._error: FinegrainError | None = None
        self._epoch = 0
        self._number = 0
        self._next_event = 0
        self._called_s: float | None = None  # time when the call in progress began
        self._late: list[str] = []  # changed executors that are not read yet
        self._sums_late = False  # True if executors have changed since the sums were read
        self._sums_s = 0.0  # the sums are not read again before this time
        self._cluster = ""
        self._cluster_at = 0
        self._executors: dict[str, _Kept] = {}
        self._shared: tuple[int, int, str] = (0, 0, "")

    async def open(self, certificate: bytes, peer: str, last_id: str) -> AsyncIterator[str]:
        """Returns the lines of a stream.

        Args:
            certificate: the certificate of the client.
            peer: the network address of the client.
            last_id: id of the last message that the client has received. Empty if the client has
                received no message.

        Raises:
            InvalidArgument: the id is malformed.
            FinegrainError: the client is not allowed to read the cluster, there are too many
                streams, or the resource manager does not answer. Later errors end the stream.
        """
        since = _position(last_id)
        reader = _Reader(certificate, peer)
        self._check(reader)
        if len(self._readers) >= STREAMS_MAX:
            raise ResourceExhausted(
                f"{len(self._readers)} pages are open; close one", reason=Reason.OVER_LIMIT
            )
        self._readers[reader] = None
        try:
            if self._task is None or self._task.done():
                self._ready.clear()
                self._error = None
                self._task = asyncio.create_task(self._follow())
            await self._ready.wait()
            if self._error is not None:
                raise self._error
        except BaseException:
            self._leave(reader)
            raise
        return self._lines(reader, since)

    async def _lines(self, reader: _Reader, since: tuple[int, int] | None) -> AsyncIterator[str]:
        try:
            yield "retry: 1000\n\n"
            if since is not None and since[0] == self._epoch and since[1] <= self._number:
                at = since[1]
            else:
                at = self._number
                for part in self._snapshot():
                    yield part
            while self._error is None:
                self._check(reader)
                if at < self._number:
                    text, at = self._delta(at), self._number
                    yield text
                    await asyncio.sleep(STEP_S)
                    continue
                try:
                    async with asyncio.timeout(QUIET_S):
                        await self._news.wait()
                except TimeoutError:
                    if not self._is_stale:
                        yield ": still here\n\n"
        except FinegrainError:
            return  # the client connects again, and gets the error as a response
        finally:
            self._leave(reader)

    def _check(self, reader: _Reader) -> None:
        for method in (_LIST, _CLUSTER):
            self._calls.check(method, reader.certificate, reader.peer)

    def _leave(self, reader: _Reader) -> None:
        self._readers.pop(reader, None)
        if not self._readers and self._task is not None:
            self._task.cancel()
            self._task = None

    # -- texts -----------------------------------------------------------------------------------

    def _snapshot(self) -> list[str]:
        """Returns the messages of a snapshot. Only the last message has an id."""
        present = [each for each in self._executors.values() if each.facts]
        parts = [present[at : at + PAGE] for at in range(0, len(present), PAGE)] or [[]]
        texts = []
        for number, part in enumerate(parts):
            executors = ",".join(_whole(each) for each in part)
            is_last = number == len(parts) - 1
            head = f'"cluster":{self._cluster},"more":{json.dumps(not is_last)}'
            identity = f"id: {self._epoch}.{self._number}\n" if is_last else ""
            data = f'{{{head},"first":{json.dumps(not number)},"executors":[{executors}]}}'
            texts.append(f"{identity}event: snapshot\ndata: {data}\n\n")
        return texts

    def _delta(self, since: int) -> str:
        """Returns a message with the changes after the number `since`. The last message is stored,
        because most streams need the same message.
        """
        if self._shared[:2] == (since, self._number):
            return self._shared[2]
        facts, used, gone = [], [], []
        for name, each in self._executors.items():
            if each.facts_at > since:
                if each.facts:
                    facts.append(_whole(each))
                else:
                    gone.append(name)
            elif each.used_at > since:
                used.append(f"{json.dumps(name)}:{each.used}")
        cluster = self._cluster if self._cluster_at > since else "null"
        data = (
            f'{{"cluster":{cluster},"executors":[{",".join(facts)}],'
            f'"used":{{{",".join(used)}}},"gone":{json.dumps(gone)}}}'
        )
        text = f"id: {self._epoch}.{self._number}\nevent: delta\ndata: {data}\n\n"
        self._shared = (since, self._number, text)
        return text

    # -- reading ---------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Reads the cluster until no stream is left."""
        loop = asyncio.get_running_loop()
        try:
            refresh_s = 0.0
            while True:
                began_s = loop.time()
                if began_s >= refresh_s:
                    await self._read_all()
                    took_s = loop.time() - began_s
                    refresh_s = loop.time() + max(REFRESH_S, REST * took_s)
                    self._ready.set()
                    self._publish()
                    await asyncio.sleep(STEP_S)
                    continue
                most_s = refresh_s - began_s
                if self._sums_late:
                    most_s = min(most_s, self._sums_s - began_s)
                names = await self._changed(most_s)
                if names is None and not (self._sums_late and loop.time() >= self._sums_s):
                    continue
                # A busy host makes reads longer, but not more expensive. So count the CPU time.
                began_cpu_s = time.thread_time()
                if names is not None:
                    if len(names) > ALONE_MAX:
                        refresh_s = min(refresh_s, loop.time() + STEP_S * REST)
                    await self._read_some(names)
                if loop.time() >= self._sums_s:
                    await self._read_sums()
                self._publish()
                spent_s = time.thread_time() - began_cpu_s
                await asyncio.sleep(max(STEP_S, REST_SOME * spent_s))
        except FinegrainError as error:
            self._error = error
        finally:
            self._ready.set()
            self._publish()

    def _publish(self) -> None:
        """Wakes all streams."""
        self._news.set()
        self._news = asyncio.Event()

    async def _call(self, method: str, request: Any) -> Any:
        """Makes a call with the identity of one client that reads a stream. If this client was
        denied, its stream ends, and the call is repeated with the identity of the next client.
        """
        while True:
            reader = next(iter(self._readers))
            self._called_s = asyncio.get_running_loop().time()
            try:
                return await self._calls.unary(method, request, reader.certificate, reader.peer)
            except (PermissionDenied, Unauthenticated):
                self._readers.pop(reader, None)
                if not self._readers:
                    raise
            finally:
                self._called_s = None

    @property
    def _is_stale(self) -> bool:
        """True if the resource manager has not answered a call for some time."""
        called_s = self._called_s
        return called_s is not None and asyncio.get_running_loop().time() - called_s > STALE_S

    async def _changed(self, most_s: float) -> list[str] | None:
        """Waits for events, at most `QUIET_S`. Returns the changed executors, including executors
        that changed earlier and were not read yet. Returns None if nothing has changed.
        """
        wait = Duration()
        wait.FromMilliseconds(1 if self._late else max(1, round(min(most_s, QUIET_S) * 1000)))
        wanted = cluster_pb2.ListEventsRequest(from_sequence=self._next_event, wait=wait)
        try:
            page = await self._call(_EVENTS, wanted)
        except OutOfRange:  # the resource manager has already deleted these events
            page = await self._call(_EVENTS, cluster_pb2.ListEventsRequest(page_size=1))
        self._next_event = max(page.next_sequence, 1)
        if not page.events and not self._late:
            return None
        names = {each.executor_id for each in page.events if each.executor_id}
        return [*self._late, *sorted(names.difference(self._late))]

    async def _read_all(self) -> None:
        if not self._next_event:
            newest = await self._call(_EVENTS, cluster_pb2.ListEventsRequest(page_size=1))
            self._next_event = max(newest.next_sequence, 1)
        await self._read_sums()
        self._late = []
        found: set[str] = set()
        token = ""
        while True:
            wanted = cluster_pb2.ListExecutorsRequest(page_size=PAGE, page_token=token)
            page = await self._call(_LIST, wanted)
            self._begin_change()
            for each in page.executors:
                self._keep(each.executor_id, each)
                found.add(each.executor_id)
            token = page.next_page_token
            if not token:
                break
            # The read of all executors can take long. So send changes before its end.
            if (names := await self._changed(0)) is not None:
                await self._read_some(names)
                found.update(names)
            self._publish()
        self._begin_change()
        for name in self._executors.keys() - found:
            self._drop(name)

    async def _read_sums(self) -> None:
        """Reads the sums of the cluster."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._sums_late = False
        cluster = await self._call(_CLUSTER, cluster_pb2.GetClusterRequest())
        self._sums_s = loop.time() + REST_SUMS * (loop.time() - began_s)
        if cluster.rm_epoch != self._epoch:
            # The numbers of the former epoch are no longer valid, so clients that connect again get
            # a snapshot.
            self._epoch = cluster.rm_epoch
        self._begin_change()
        self._keep_cluster(cluster)

    async def _read_some(self, names: list[str]) -> None:
        """Reads the first `ALONE_MAX` of the executors."""
        names, self._late = names[:ALONE_MAX], names[ALONE_MAX:]
        found: dict[str, Any] = {}
        for name in names:
            wanted = cluster_pb2.GetExecutorRequest(executor_id=name)
            try:
                found[name] = (await self._call(_ONE, wanted)).executor
            except NotFound:
                found[name] = None
        # There is no `await` between the new number and the last change with this number.
        # Otherwise, a stream could send the number before all its changes are stored, and would
        # miss the later changes.
        self._begin_change()
        self._sums_late = True
        for name, executor in found.items():
            if executor is None:
                self._drop(name)
            else:
                self._keep(name, executor)

    def _begin_change(self) -> None:
        self._number += 1

    def _keep_cluster(self, message: Any) -> None:
        text = _text(read(ClusterInfo, message).to_dict())
        if text != self._cluster:
            self._cluster, self._cluster_at = text, self._number

    def _keep(self, name: str, message: Any) -> None:
        data = read(ExecutorStatus, message, slot_list=()).to_dict()
        used = _text(data.pop("used"))
        for left_out in (*CHANGING, "topology", "slot_list"):
            data.pop(left_out, None)
        facts = _text(data)
        kept = self._executors.setdefault(name, _Kept())
        if facts != kept.facts:
            kept.facts, kept.facts_at = facts, self._number
        if used != kept.used:
            kept.used, kept.used_at = used, self._number

    def _drop(self, name: str) -> None:
        kept = self._executors.get(name)
        if kept is not None and kept.facts:
            kept.facts, kept.facts_at = "", self._number


def _position(last_id: str) -> tuple[int, int] | None:
    if not last_id:
        return None
    epoch, dot, number = last_id.partition(".")
    if not (dot and epoch.isdecimal() and number.isdecimal() and len(last_id) <= 40):
        raise InvalidArgument("Last-Event-ID", last_id, "an id such as 3.1042")
    return int(epoch), int(number)


def _text(data: Json) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _whole(kept: _Kept) -> str:
    """Returns the JSON of an executor with its measured use."""
    return f'{kept.facts[:-1]},"used":{kept.used}}}'
