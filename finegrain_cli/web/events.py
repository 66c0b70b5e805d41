"""Sends each event of the cluster to clients as soon as it happens (server-sent events).

The id of an event is `<epoch>.<sequence>`. A client that connects again sends the id of the last
event that it has received (`Last-Event-ID`), and gets the events after this event. The client can
connect to the same or to another resource manager.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from google.protobuf.duration_pb2 import Duration

from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.v1 import cluster_pb2
from finegrain_cli.web.routes import CLUSTER
from finegrain_client.decoding import read
from finegrain_client.types.status import ClusterEvent

PAUSE_S = 5
"""A stream without events sends a comment after this time, in seconds. So proxies keep the stream
open. If the caller was denied, the stream ends after this time at the latest.
"""

_EVENTS, _CLUSTER = f"/{CLUSTER}/ListEvents", f"/{CLUSTER}/GetCluster"

Call = Callable[..., Awaitable[Any]]


async def event_stream(
    call: Call, wanted: cluster_pb2.ListEventsRequest, last_id: str
) -> AsyncIterator[str]:
    """Returns the lines of a stream.

    Args:
        call: a function that calls a method of the resource manager with a message.
        wanted: the events to begin with, as in ListEvents.
        last_id: id of the last event that the client has received. Empty if the client has received
            no event.

    Raises:
        InvalidArgument: the id is malformed.
        FinegrainError: the error of the first call. Later errors end the stream.
    """
    if last_id:
        epoch, dot, sequence = last_id.partition(".")
        if not (dot and epoch.isdecimal() and sequence.isdecimal() and len(last_id) <= 40):
            raise InvalidArgument("Last-Event-ID", last_id, "an id such as 3.1042")
        wanted.from_sequence = int(sequence) + 1
    epoch = (await call(_CLUSTER, cluster_pb2.GetClusterRequest())).rm_epoch
    first = await call(_EVENTS, wanted)
    return _lines(call, wanted, int(epoch), first)


async def _lines(
    call: Call, wanted: cluster_pb2.ListEventsRequest, epoch: int, page: Any
) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    while True:
        for each in page.events:
            data = json.dumps(read(ClusterEvent, each).to_dict(), ensure_ascii=False)
            yield f"id: {epoch}.{each.sequence}\nevent: cluster\ndata: {data}\n\n"
        if not page.events:
            yield ": still here\n\n"
        following = cluster_pb2.ListEventsRequest(
            from_sequence=max(page.next_sequence, 1),
            subject_id=wanted.subject_id,
            wait=Duration(seconds=PAUSE_S),
        )
        try:
            page = await call(_EVENTS, following)
        except FinegrainError:
            return  # the client connects again, and gets the error as a response
