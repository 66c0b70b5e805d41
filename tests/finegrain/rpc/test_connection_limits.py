"""One caller cannot take all connections and calls of a server, nor keep a connection forever."""

from __future__ import annotations

import asyncio
import resource
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from finegrain.errors import ResourceExhausted, Unavailable
from finegrain.rpc import server as server_module
from finegrain.rpc.channels import CONNECTIONS_MAX, SERVER_OPTIONS, connections_max
from finegrain.rpc.open_calls import HEALTH_WATCHES_MAX, OpenCalls
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.status import error_from_rpc
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.finegrain.rpc.test_server import (
    EXECUTOR,
    RM,
    USER,
    Servicer,
    calling,
    refusal,
    rm_stub,
    served,
)
from tests.fuzz.raw import END_HEADERS, HEADERS, call_head, frame, opened, send, tls_context
from tests.support.identities import credentials
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import eventually


def with_options(monkeypatch: pytest.MonkeyPatch, **changed: int) -> None:
    """Lets servers of this test have other limits."""
    options = {
        **dict(SERVER_OPTIONS),
        **{f"grpc.{name}": value for name, value in changed.items()},
    }
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", tuple(options.items()))


async def test_an_old_connection_is_replaced_and_only_its_streams_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_options(monkeypatch, max_connection_age_ms=200, max_connection_age_grace_ms=100)
    async with served(Servicer()) as (_, address), calling(address) as channel:
        stream: Any = rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest())
        await stream.read()
        ended = asyncio.ensure_future(stream.read())
        calls = 0
        # Not one call fails while connections come and go.
        async with asyncio.timeout(PATIENCE_S):
            while not ended.done() or calls < 100:
                await rm_stub(channel).RegisterJob(rm_pb2.RegisterJobRequest())
                calls += 1
                await asyncio.sleep(0.005)
        with pytest.raises(grpc.RpcError) as caught:
            await ended
        # Clients resume a stream that ends so; see the tests of the client library.
        assert isinstance(error_from_rpc(caught.value), Unavailable)
        again: Any = rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest())
        await again.read()


async def test_one_identity_has_a_limit_on_open_calls() -> None:
    async with (
        served(Servicer()) as (server, address),
        calling(address) as first,
        calling(address) as second,
        calling(address, EXECUTOR) as other,
    ):
        server._lifecycle.calls = OpenCalls(calls_max=2)
        streams: list[Any] = [
            rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest()) for channel in (first, second)
        ]
        for stream in streams:
            await stream.read()
        # A further connection does not help.
        async with calling(address) as third:
            refused = await refusal(rm_stub(third).RegisterJob(rm_pb2.RegisterJobRequest()))
        assert isinstance(refused, ResourceExhausted)
        assert "user/alice has 2 open calls" in refused.message
        assert refused.retry_after_s
        await rm_stub(other).ReportSlots(rm_pb2.ReportSlotsRequest())
        streams[0].cancel()
        await eventually(lambda: server.live_streams == 1)
        await rm_stub(first).RegisterJob(rm_pb2.RegisterJobRequest())


async def test_watching_the_health_is_limited_and_checking_it_goes_on() -> None:
    async with AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(served(Servicer()))
        channel = await stack.enter_async_context(calling(address, "metrics"))
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        watches = [stub.Watch(request) for _ in range(HEALTH_WATCHES_MAX)]
        for watch in watches:
            await watch.read()
        one_more: Any = stub.Watch(request)
        assert isinstance(await refusal(one_more.read()), ResourceExhausted)
        assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"], ids=["nothing", "a part of a greeting"])
async def test_a_connection_without_a_handshake_is_closed(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    with_options(monkeypatch, server_handshake_timeout_ms=100)
    async with served(Servicer()) as (_, address):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()


async def test_more_connections_than_the_limit_are_closed_and_earlier_ones_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "connections_max", lambda: 3)
    async with served(Servicer()) as (_, address), calling(address) as channel:
        await rm_stub(channel).RegisterJob(rm_pb2.RegisterJobRequest())
        host, _, port = address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(10)]
        closed = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
        await eventually(lambda: sum(each.done() for each in closed) >= 8)
        await rm_stub(channel).RegisterJob(rm_pb2.RegisterJobRequest())
        for each, (_, writer) in zip(closed, silent, strict=True):
            each.cancel()
            writer.close()


def test_connections_leave_files_for_everything_else() -> None:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < connections_max() <= CONNECTIONS_MAX
    assert files < 0 or connections_max() < files


async def test_a_path_that_is_not_utf8_does_not_end_the_server() -> None:
    """The servers of gRPC 1.84 and 1.85 stop listening and never listen again, so they are
    replaced.
    """
    shown = credentials(USER)
    head = frame(HEADERS, END_HEADERS, 1, call_head("/a.B/\udc8a"))
    context = tls_context(shown, shown.authorities)
    async with served(Servicer()) as (_, address), calling(address) as channel:
        stream: Any = rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest())
        await stream.read()
        for _ in range(3):
            await send(address, RM, opened(head), context, reading_s=0.3)

            async def answers() -> bool:
                async with calling(address) as another:
                    call = rm_stub(another).RegisterJob(rm_pb2.RegisterJobRequest())
                    try:
                        await call
                    except grpc.RpcError as error:
                        if isinstance(error_from_rpc(error), Unavailable):
                            return False
                        raise
                return True

            await eventually(answers)


async def test_a_method_that_is_declared_and_not_served_is_unimplemented() -> None:
    class Unfinished(Servicer):
        async def EndJob(self, request: Any, context: Any) -> Any:
            raise NotImplementedError

    async with served(Unfinished()) as (_, address), calling(address) as channel:
        call: Any = rm_stub(channel).EndJob(rm_pb2.EndJobRequest(job_id="job"))
        with pytest.raises(grpc.RpcError):
            await call
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_server_gets_each_certificate_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC frees the object that it gets. If it got the same object twice, the process would crash
    after some connections.
    """
    fetchers: list[Any] = []
    first: list[Any] = []

    def server_credentials(initial: Any, fetcher: Any, **_more: Any) -> None:
        first.append(initial)
        fetchers.append(fetcher)

    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", server_credentials)
    shown = OwnCertificate(credentials("rm"))
    shown.server_credentials()
    shown.joining_credentials()
    assert first[0] is not first[1]
    assert [fetch() for fetch in fetchers] == [None, None]
    shown.replace(credentials("rm", life_s=7_200))
    renewed = [fetch() for fetch in fetchers]
    assert None not in renewed
    assert renewed[0] is not renewed[1]
    assert [fetch() for fetch in fetchers] == [None, None]
