"""The one wrapper around every call: access, sizes, statuses, streams that end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from finegrain import errors
from finegrain.errors import Reason
from finegrain.options import ListenOptions
from finegrain.rpc.access import (
    CLUSTER_ACCESS,
    RESOURCE_MANAGER_ACCESS,
    TASK_EXECUTOR_ACCESS,
    Access,
    TokenHashes,
    current_caller,
)
from finegrain.rpc.channels import open_blocking_channel, open_channel
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.status import error_from_rpc
from finegrain.rpc.tokens import sha256_hex
from finegrain.v1 import cluster_pb2, resource_manager_pb2_grpc, task_executor_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1.resource_manager_pb2_grpc import (
    ResourceManagerServiceStub,
    add_ResourceManagerServiceServicer_to_server,
)

if TYPE_CHECKING:  # the typed base is abstract; calls that are not defined here are "unimplemented"
    Base = object
else:
    Base = resource_manager_pb2_grpc.ResourceManagerServiceServicer

CLUSTER, USER = "c" * 32, "u" * 32
TRIES = 20
GRACE_S = 30.0  # longer than any of these streams may take to end


class Servicer(Base):
    """Answers as each test wants."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.calls = 0
        self.callers: list[Any] = []
        self.first = rm_pb2.WatchJobResponse()  # of every stream
        self.sending = asyncio.Event()  # the first message of a stream is handed to gRPC
        self.sent = asyncio.Event()  # gRPC has sent it, and the handler waits

    async def RegisterJob(self, request: Any, context: Any) -> rm_pb2.RegisterJobResponse:
        self.calls += 1
        self.callers.append(current_caller())
        if self.failure is not None:
            raise self.failure
        return rm_pb2.RegisterJobResponse(job_secret="s")

    async def ReportSlots(self, request: Any, context: Any) -> rm_pb2.ReportSlotsResponse:
        self.calls += 1
        return rm_pb2.ReportSlotsResponse(rm_epoch=7)

    async def RequestResource(self, request: Any, context: Any) -> rm_pb2.RequestResourceResponse:
        return rm_pb2.RequestResourceResponse()

    async def WatchJob(self, request: Any, context: Any) -> AsyncIterator[rm_pb2.WatchJobResponse]:
        if self.failure is not None:
            raise self.failure
        self.sending.set()
        yield self.first
        self.sent.set()
        await asyncio.Event().wait()


def rm_stub(channel: Any) -> Any:
    """The generated type speaks of blocking calls only."""
    return ResourceManagerServiceStub(channel)


@asynccontextmanager
async def served(servicer: Any, **options: Any) -> AsyncIterator[tuple[GuardedServer, str]]:
    server = GuardedServer(
        ListenOptions(address="127.0.0.1:0", **options),
        RESOURCE_MANAGER_ACCESS,
        TokenHashes(sha256_hex(CLUSTER), sha256_hex(USER)),
    )
    server.add(add_ResourceManagerServiceServicer_to_server, servicer)
    address = await server.start()
    try:
        yield server, address
    finally:
        await server.stop(0)


async def refusal(call: Any) -> errors.FinegrainError:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return error_from_rpc(caught.value)


async def test_both_kinds_of_channel_carry_token_and_secret() -> None:
    servicer = Servicer()
    async with served(servicer) as (_, address):
        async with open_channel(address, token=USER) as channel:
            stub = rm_stub(channel)
            await stub.RegisterJob(
                rm_pb2.RegisterJobRequest(), metadata=(("finegrain-job-secret", "x"),)
            )

        def blocking() -> None:
            with open_blocking_channel(address, token=CLUSTER) as blocked:
                rm_stub(blocked).RegisterJob(rm_pb2.RegisterJobRequest())

        await asyncio.to_thread(blocking)
    user, cluster = servicer.callers
    assert (user.token_kind, user.job_secret) == ("user", "x")
    assert user.owns(sha256_hex("x"))
    assert (cluster.token_kind, cluster.job_secret) == ("cluster", None)
    assert not cluster.owns(sha256_hex("x"))


@pytest.mark.parametrize(
    ("token", "method", "reason"),
    [
        pytest.param(None, "RegisterJob", Reason.TOKEN_MISSING, id="no token"),
        pytest.param("w" * 32, "RegisterJob", Reason.TOKEN_WRONG, id="wrong token"),
        pytest.param(
            USER, "ReportSlots", Reason.CLUSTER_TOKEN_NEEDED, id="user token at a cluster call"
        ),
    ],
)
async def test_a_caller_without_the_needed_token_reaches_no_handler(
    token: str | None, method: str, reason: Reason
) -> None:
    servicer = Servicer()
    request = {"RegisterJob": rm_pb2.RegisterJobRequest, "ReportSlots": rm_pb2.ReportSlotsRequest}
    async with served(servicer) as (_, address), open_channel(address, token=token) as channel:
        stub = rm_stub(channel)
        error = await refusal(getattr(stub, method)(request[method]()))
    assert error.reason is reason
    assert servicer.calls == 0


async def test_the_error_class_and_its_details_come_through() -> None:
    servicer = Servicer()
    async with served(servicer) as (_, address), open_channel(address, token=USER) as channel:
        stub = rm_stub(channel)
        servicer.failure = errors.InvalidArgument("requests[3].profile.cpu_milli", -5, "0 or more")
        error = await refusal(stub.RegisterJob(rm_pb2.RegisterJobRequest()))
    assert isinstance(error, errors.InvalidArgument)
    assert error.field == "requests[3].profile.cpu_milli"
    assert error.message == servicer.failure.message
    assert error.details == servicer.failure.details


async def test_an_unexpected_failure_tells_the_caller_nothing_of_the_inside() -> None:
    servicer = Servicer()
    servicer.failure = RuntimeError("password is 1234")
    async with served(servicer) as (_, address), open_channel(address, token=USER) as channel:
        error = await refusal(rm_stub(channel).RegisterJob(rm_pb2.RegisterJobRequest()))
    assert error.reason is Reason.INTERNAL
    assert "1234" not in error.message


async def test_requests_above_the_limit_of_their_method_are_refused_with_the_limit() -> None:
    servicer = Servicer()
    large = "x" * 100_000
    async with served(servicer) as (_, address), open_channel(address, token=USER) as channel:
        stub = rm_stub(channel)
        error = await refusal(stub.RegisterJob(rm_pb2.RegisterJobRequest(name=large)))
        await stub.RequestResource(rm_pb2.RequestResourceRequest(job_id=large))
        too_large = await refusal(
            stub.RequestResource(rm_pb2.RequestResourceRequest(job_id=large * 50))
        )
    assert (error.reason, error.details["limit_bytes"]) == (Reason.MESSAGE_TOO_LARGE, "65536")
    assert too_large.reason is Reason.MESSAGE_TOO_LARGE
    assert servicer.calls == 0


async def test_bytes_that_are_no_message_are_bad_input() -> None:
    async with served(Servicer()) as (_, address), open_channel(address, token=USER) as channel:
        raw = channel.unary_unary(
            "/finegrain.v1.ResourceManagerService/RegisterJob",
            request_serializer=lambda data: data,
            response_deserializer=lambda data: data,
        )
        error = await refusal(raw(b"\xff\xff\xff"))
    assert isinstance(error, errors.InvalidArgument)


async def test_a_stream_may_fail_with_a_clear_error() -> None:
    servicer = Servicer()
    servicer.failure = errors.OutOfRange("event 4 is no longer kept; watch from 0")
    async with served(servicer) as (_, address), open_channel(address, token=USER) as channel:
        stream = rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest())
        error = await refusal(stream.read())
    assert isinstance(error, errors.OutOfRange)


async def test_cancelled_streams_leave_no_handler() -> None:
    async with (
        served(Servicer()) as (server, address),
        open_channel(address, token=USER) as channel,
    ):
        stub = rm_stub(channel)
        streams = [stub.WatchJob(rm_pb2.WatchJobRequest()) for _ in range(20)]
        for stream in streams:
            await stream.read()
        assert server.live_streams == 20
        for stream in streams:
            stream.cancel()
        await no_stream_is_open(server)


@pytest.mark.full
async def test_thousands_of_callers_at_once_are_all_served() -> None:
    async with (
        served(Servicer()) as (server, address),
        open_channel(address, token=CLUSTER) as channel,
    ):
        stub = rm_stub(channel)
        streams = [stub.WatchJob(rm_pb2.WatchJobRequest()) for _ in range(1_500)]
        calls = [stub.ReportSlots(rm_pb2.ReportSlotsRequest()) for _ in range(3_000)]
        answers = await asyncio.gather(*calls)
        for stream in streams:
            await stream.read()
        assert server.live_streams == 1_500
        for stream in streams:
            stream.cancel()
    assert {answer.rm_epoch for answer in answers} == {7}


async def no_stream_is_open(server: GuardedServer) -> None:
    """Waits for the handlers: gRPC may report the end of a call just before its handler ends."""
    async with asyncio.timeout(10):
        while server.live_streams:  # noqa: ASYNC110  the server has no event for tests
            await asyncio.sleep(0.01)


def says_that_it_stops(error: errors.FinegrainError) -> bool:
    """Only the server says this; what the end of the grace period cancels gets no reason."""
    return isinstance(error, errors.Unavailable) and "stopping; try again" in error.message


async def test_stopping_ends_streams_at_once_and_says_that_one_may_retry() -> None:
    servicer = Servicer()
    async with served(servicer) as (server, address), open_channel(address, token=USER) as channel:
        stream = rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest())
        await stream.read()
        await servicer.sent.wait()
        stopping = asyncio.create_task(server.stop(GRACE_S))
        assert says_that_it_stops(await refusal(stream.read()))
        await stopping
    await no_stream_is_open(server)


async def test_stopping_ends_a_stream_whose_message_is_being_sent() -> None:
    """A cancellation that arrives while gRPC sends would leave the call open without a status."""
    for _ in range(TRIES):
        if await stopped_while_sending():
            return
    pytest.fail("each message had been sent before the server stopped")


async def stopped_while_sending() -> bool:
    """One server that stops with a large message under way. False: the message was through before,
    since gRPC enlarges its windows as it likes.
    """
    servicer = Servicer()
    servicer.first.events.add(reason="x" * 3_000_000)  # more than is sent at once, most often
    async with served(servicer) as (server, address), open_channel(address, token=USER) as channel:
        stream = rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest())
        await servicer.sending.wait()
        stopping = asyncio.create_task(server.stop(GRACE_S))
        while not server._lifecycle.stopping:  # noqa: ASYNC110  the server has no event for tests
            await asyncio.sleep(0)
        was_sending = not servicer.sent.is_set()
        assert await stream.read() == servicer.first
        assert says_that_it_stops(await refusal(stream.read()))
        await stopping
    await no_stream_is_open(server)
    return was_sending


async def test_a_stream_that_comes_while_the_server_stops_is_refused() -> None:
    servicer = Servicer()
    async with served(servicer) as (server, address), open_channel(address, token=USER) as channel:
        server._lifecycle.stopping = (
            True  # a call that came before the connection was closed to calls
        )
        error = await refusal(rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest()).read())
    assert says_that_it_stops(error)
    assert not servicer.sending.is_set()


async def test_the_same_port_twice_names_address_and_way_out() -> None:
    async with served(Servicer()) as (_, address):
        second = GuardedServer(ListenOptions(address=address), {}, TokenHashes(""))
        with pytest.raises(errors.ConfigurationError, match=address) as caught:
            await second.start()
    assert caught.value.reason is Reason.ADDRESS_IN_USE


async def test_a_method_without_a_line_in_the_access_table_is_not_served() -> None:
    server = GuardedServer(ListenOptions(address="127.0.0.1:0"), {}, TokenHashes(""))
    with pytest.raises(errors.ConfigurationError, match="access table"):
        server.add(add_ResourceManagerServiceServicer_to_server, Servicer())


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:7170", "host-a:7170"])
async def test_listening_beyond_loopback_in_clear_needs_a_word(address: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="insecure"):
        GuardedServer(ListenOptions(address=address), {}, TokenHashes(""))
    GuardedServer(ListenOptions(address=address, insecure=True), {}, TokenHashes(""))


def test_every_method_of_every_guarded_service_has_its_line() -> None:
    tables = {
        rm_pb2: RESOURCE_MANAGER_ACCESS,
        cluster_pb2: CLUSTER_ACCESS,
        task_executor_pb2: TASK_EXECUTOR_ACCESS,
    }
    for module, table in tables.items():
        for service in module.DESCRIPTOR.services_by_name.values():
            methods = {f"/{service.full_name}/{each.name}" for each in service.methods}
            assert methods == set(table)
            assert Access.NONE not in table.values()


async def test_health_is_open_and_follows_the_server() -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with served(Servicer()) as (server, address), open_channel(address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        await server.set_serving(False)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 2


def reflection_stub(channel: Any) -> Any:
    from grpc_reflection.v1alpha import reflection_pb2_grpc

    return reflection_pb2_grpc.ServerReflectionStub(channel)


async def test_reflection_lists_the_services_to_whoever_shows_a_token() -> None:
    from grpc_reflection.v1alpha import reflection_pb2

    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    async with served(Servicer(), reflection=True) as (_, address):
        async with open_channel(address, token=USER) as channel:
            stub = reflection_stub(channel)
            async for answer in stub.ServerReflectionInfo(iter([ask])):
                names = {each.name for each in answer.list_services_response.service}
        async with open_channel(address) as channel:
            stub = reflection_stub(channel)
            error = await refusal(stub.ServerReflectionInfo(iter([ask])).read())
    assert "finegrain.v1.ResourceManagerService" in names
    assert error.reason is Reason.TOKEN_MISSING
