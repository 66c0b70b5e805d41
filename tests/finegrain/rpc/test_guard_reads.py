"""A server identifies the caller, then measures the request, and only then parses it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from finegrain.errors import InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from finegrain.rpc import guard
from finegrain.rpc.access import ANYBODY
from finegrain.rpc.guard import GuardedMethod, ServerLifecycle
from finegrain.rpc.refusal_log import LINES_MAX, WINDOW_S, RefusalLog
from finegrain.rpc.trust import CERTIFICATE_KEY
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.finegrain.rpc.test_server import (
    EXECUTOR,
    Servicer,
    calling,
    refusal,
    rm_stub,
    served,
)
from tests.support.identities import credentials, trust

REQUEST_RESOURCE = "/finegrain.v1.ResourceManagerService/RequestResource"
KIB = 1024


class Counter:
    """Forwards connections to a server, and counts the bytes that clients send to it."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self.sent_bytes = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._forward, "127.0.0.1", 0) as server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(self._host, self._port)

        async def answers() -> None:
            while data := await upstream_reader.read(64 * KIB):
                writer.write(data)

        task = asyncio.create_task(answers())
        while data := await reader.read(64 * KIB):
            self.sent_bytes += len(data)
            upstream_writer.write(data)
        task.cancel()
        upstream_writer.close()
        writer.close()


async def test_the_message_of_a_caller_without_the_role_stays_with_the_caller() -> None:
    servicer, calls = Servicer(), 10
    # A message that would become two million objects if it was parsed.
    large = rm_pb2.ReportSlotsRequest.FromString(b"\x1a\x00" * 1_900_000)
    async with served(servicer) as (_, address):
        counter = Counter(address)
        async with (
            counter.listening() as counted,
            calling(counted, "metrics") as channel,
        ):
            for _ in range(calls):
                error = await refusal(rm_stub(channel).ReportSlots(large))
                assert isinstance(error, PermissionDenied)
    assert servicer.calls == 0
    assert large.ByteSize() > 3_000 * KIB
    assert counter.sent_bytes / calls < 100 * KIB


async def test_a_request_without_a_message_is_bad_input() -> None:
    async with served(Servicer()) as (_, address), calling(address) as channel:
        call: Any = channel.stream_unary(REQUEST_RESOURCE)()
        await call.done_writing()
        error = await refusal(call)
    assert isinstance(error, InvalidArgument)
    assert "no message" in error.message


async def test_users_that_stall_while_they_send_large_requests_delay_no_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "LARGE_READS_MAX", 2)
    async with (
        served(Servicer()) as (_, address),
        calling(address) as user,
        calling(address, EXECUTOR) as cluster,
    ):
        stalling: list[Any] = [user.stream_unary(REQUEST_RESOURCE)() for _ in range(2)]
        await asyncio.gather(*(each.wait_for_connection() for each in stalling))
        # Calls of users wait until one of the two is read.
        waiting = asyncio.ensure_future(
            rm_stub(user).RequestResource(rm_pb2.RequestResourceRequest())
        )
        await rm_stub(cluster).ReportSlots(rm_pb2.ReportSlotsRequest())
        for call in stalling:
            call.cancel()
        await waiting


async def test_a_message_that_does_not_arrive_in_time_ends_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "READ_TIME_MAX_S", 0.05)
    async with served(Servicer()) as (_, address), calling(address) as channel:
        error = await refusal(channel.stream_unary(REQUEST_RESOURCE)())
    assert isinstance(error, Unavailable)
    assert "did not arrive within 0.05 s" in error.message


def test_a_flood_of_refusals_writes_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    log = RefusalLog(logging.getLogger("finegrain.rpc"), lambda: now_s)
    with caplog.at_level(logging.INFO, "finegrain.rpc"):
        for _ in range(1_000):
            log.add("/a.B/C", Unauthenticated("no certificate"), "ipv4:1")
        log.add("/a.B/D", Unauthenticated("no certificate"), "ipv4:1")
        now_s = WINDOW_S
        log.add("/a.B/C", Unauthenticated("no certificate"), "ipv4:1")
    assert len(caplog.records) == LINES_MAX + 2
    assert vars(caplog.records[-1])["left_out"] == 1_000 - LINES_MAX


class GoneCaller:
    """The context of a call whose caller has gone."""

    def auth_context(self) -> dict[str, list[bytes]]:
        return {CERTIFICATE_KEY: [credentials("user/alice").certificate.encode()]}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> bytes:
        return b""

    async def abort(self, *_status: object) -> None:
        raise grpc.aio.InternalError("execute_batch failed")


async def test_a_caller_that_has_gone_is_no_failure_of_the_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For an unknown service, the handler of health checks itself sends the status."""
    ended: list[str] = []

    async def check(_request: object, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")

    lifecycle = ServerLifecycle(trust(), lambda _method, status, _seconds: ended.append(status))
    handler: Any = grpc.unary_unary_rpc_method_handler(check, bytes)
    method = GuardedMethod(lifecycle, "/grpc.health.v1.Health/Check", ANYBODY, handler)
    with pytest.raises(grpc.aio.InternalError):
        await method.unary_unary(None, GoneCaller())  # type: ignore[arg-type]
    assert ended == ["CANCELLED"]
    assert "call_failed" not in caplog.text
