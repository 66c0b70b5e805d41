"""The wrapper around every call: access, sizes, statuses, ends of streams."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from finegrain import errors
from finegrain.certificates.reading import read_certificate
from finegrain.errors import Reason
from finegrain.identity import Identity
from finegrain.options import ListenOptions
from finegrain.rpc.access import (
    CLUSTER_ACCESS,
    IDENTITY_ACCESS,
    RESOURCE_MANAGER_ACCESS,
    TASK_EXECUTOR_ACCESS,
    current_caller,
)
from finegrain.rpc.channels import open_channel
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.status import error_from_rpc
from finegrain.rpc.trust import Trust
from finegrain.v1 import cluster_pb2, identity_pb2, resource_manager_pb2_grpc, task_executor_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1.resource_manager_pb2_grpc import (
    ResourceManagerServiceStub,
    add_ResourceManagerServiceServicer_to_server,
)
from tests.support.identities import CLUSTER, caller, credentials, identity, own, trust

if TYPE_CHECKING:  # the typed base is abstract; calls that are not defined here are "unimplemented"
    Base = object
else:
    Base = resource_manager_pb2_grpc.ResourceManagerServiceServicer

USER, OPERATOR, EXECUTOR = "user/alice", "operator/ann", "executor/web-1"
RM = identity("rm")
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
        return rm_pb2.RegisterJobResponse()

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
    """The generated type has only blocking calls."""
    return ResourceManagerServiceStub(channel)


def calling(address: str, who: str = USER) -> Any:
    """A channel of an identity to a resource manager."""
    return open_channel(address, own(who), RM)


@asynccontextmanager
async def served(
    servicer: Any, trusted: Trust | None = None, **options: Any
) -> AsyncIterator[tuple[GuardedServer, str]]:
    server = GuardedServer(
        ListenOptions(address="127.0.0.1:0", **options),
        RESOURCE_MANAGER_ACCESS,
        own("rm"),
        trusted or trust(),
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


async def test_a_handler_learns_who_calls() -> None:
    servicer = Servicer()
    async with served(servicer) as (_, address):
        for who in (USER, OPERATOR):
            async with calling(address, who) as channel:
                await rm_stub(channel).RegisterJob(rm_pb2.RegisterJobRequest())
    user, operator = servicer.callers
    assert (user.name, user.is_operator, operator.is_operator) == (USER, False, True)
    assert user.owns(USER)
    assert not user.owns(OPERATOR)
    assert not user.owns("")
    assert current_caller().name == ""


@pytest.mark.parametrize(
    ("who", "method", "needs"),
    [
        pytest.param("viewer/v", "RegisterJob", "operator or user", id="a viewer starts a job"),
        pytest.param("metrics", "RegisterJob", "operator or user", id="a scraper starts a job"),
        pytest.param(USER, "ReportSlots", "executor", id="a user reports as an executor"),
        pytest.param(OPERATOR, "ReportSlots", "executor", id="an operator reports, too"),
    ],
)
async def test_a_caller_without_the_needed_role_reaches_no_handler(
    who: str, method: str, needs: str
) -> None:
    servicer = Servicer()
    request = {"RegisterJob": rm_pb2.RegisterJobRequest, "ReportSlots": rm_pb2.ReportSlotsRequest}
    async with served(servicer) as (_, address), calling(address, who) as channel:
        stub = rm_stub(channel)
        error = await refusal(getattr(stub, method)(request[method]()))
    assert error.reason is Reason.ROLE_MISSING
    assert f"{who} may not call {method}" in error.message
    assert error.message.endswith(f"needs the role {needs}")
    assert servicer.calls == 0


async def test_a_caller_of_another_authority_gets_no_connection() -> None:
    servicer = Servicer()
    stranger = OwnCertificate(credentials(USER, cluster="other"))
    async with (
        served(servicer) as (_, address),
        open_channel(address, stranger, RM) as channel,
    ):
        error = await refusal(rm_stub(channel).RegisterJob(rm_pb2.RegisterJobRequest()))
    assert isinstance(error, errors.Unavailable)
    assert servicer.calls == 0


@pytest.mark.parametrize("shown", [None, b"junk"])
def test_a_certificate_that_says_nothing_is_refused(shown: bytes | None) -> None:
    with pytest.raises(errors.Unauthenticated):
        trust().identify({"x509_pem_cert": [shown]} if shown else {}, "peer")


def test_a_certificate_of_another_cluster_with_the_same_authority_is_refused() -> None:
    shown = caller(USER).certificate
    with pytest.raises(errors.Unauthenticated, match="of cluster test") as caught:
        Trust("other").identify({"x509_pem_cert": [shown]}, "peer")
    assert caught.value.reason is Reason.CERTIFICATE_WRONG


async def test_dates_and_denials_count_on_open_connections() -> None:
    servicer, now_s, denied = Servicer(), [time.time()], set[str]()

    def is_denied(who: Identity, serial: str) -> bool:
        return str(who) in denied or serial in denied

    trusted = Trust(CLUSTER, is_denied=is_denied, now=lambda: now_s[0])
    async with served(servicer, trusted) as (_, address), calling(address) as channel:
        stub = rm_stub(channel)
        await stub.RegisterJob(rm_pb2.RegisterJobRequest())
        now_s[0] += 100 * 24 * 3600
        error = await refusal(stub.RegisterJob(rm_pb2.RegisterJobRequest()))
        assert error.reason is Reason.CERTIFICATE_EXPIRED
        assert "the clock of this server says" in error.message
        now_s[0] -= 200 * 24 * 3600
        error = await refusal(stub.RegisterJob(rm_pb2.RegisterJobRequest()))
        assert error.reason is Reason.CERTIFICATE_EXPIRED
        now_s[0] = time.time()
        for subject in (USER, read_certificate(caller(USER).certificate).serial):
            denied.add(subject)
            error = await refusal(stub.RegisterJob(rm_pb2.RegisterJobRequest()))
            assert error.reason is Reason.CERTIFICATE_DENIED
            denied.clear()
        await stub.RegisterJob(rm_pb2.RegisterJobRequest())
    assert servicer.calls == 2


async def test_streams_of_a_denied_caller_end_and_those_of_others_go_on() -> None:
    denied = set[str]()
    trusted = Trust(CLUSTER, is_denied=lambda who, _serial: str(who) in denied)
    async with (
        served(Servicer(), trusted) as (server, address),
        calling(address) as channel,
        calling(address, OPERATOR) as other,
    ):
        mine = rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest())
        theirs = rm_stub(other).WatchJob(rm_pb2.WatchJobRequest())
        await mine.read()
        await theirs.read()
        denied.add(USER)
        server.end_denied_streams()
        error = await refusal(mine.read())
        assert error.reason is Reason.CERTIFICATE_DENIED
        assert server.live_streams == 1
        theirs.cancel()


async def test_a_server_shows_a_renewed_certificate_to_new_connections() -> None:
    shown = OwnCertificate(credentials("rm"))
    server = GuardedServer(ListenOptions("127.0.0.1:0"), RESOURCE_MANAGER_ACCESS, shown, trust())
    server.add(add_ResourceManagerServiceServicer_to_server, Servicer())
    host, _, port = (await server.start()).rpartition(":")
    try:
        for life_s in (3_600.0, 7_200.0):
            shown.replace(credentials("rm", life_s=life_s))
            seen = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
            assert seen.strip() == shown.credentials.certificate.strip()
    finally:
        await server.stop(0)


async def test_the_error_class_and_its_details_come_through() -> None:
    servicer = Servicer()
    async with served(servicer) as (_, address), calling(address) as channel:
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
    async with served(servicer) as (_, address), calling(address) as channel:
        error = await refusal(rm_stub(channel).RegisterJob(rm_pb2.RegisterJobRequest()))
    assert error.reason is Reason.INTERNAL
    assert "1234" not in error.message


async def test_requests_above_the_limit_of_their_method_are_refused_with_the_limit() -> None:
    servicer = Servicer()
    large = "x" * 100_000
    async with served(servicer) as (_, address), calling(address) as channel:
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
    async with served(Servicer()) as (_, address), calling(address) as channel:
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
    async with served(servicer) as (_, address), calling(address) as channel:
        stream = rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest())
        error = await refusal(stream.read())
    assert isinstance(error, errors.OutOfRange)


async def test_cancelled_streams_leave_no_handler() -> None:
    async with (
        served(Servicer()) as (server, address),
        calling(address) as channel,
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
        calling(address) as user,
        calling(address, EXECUTOR) as executor,
    ):
        streams = [rm_stub(user).WatchJob(rm_pb2.WatchJobRequest()) for _ in range(1_500)]
        reporting = rm_stub(executor)
        calls = [reporting.ReportSlots(rm_pb2.ReportSlotsRequest()) for _ in range(3_000)]
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
    """Only this server sends this reason. Calls that the end of the grace period cancels get no
    reason.
    """
    return isinstance(error, errors.Unavailable) and "stopping; try again" in error.message


async def test_stopping_ends_streams_at_once_and_says_that_one_may_retry() -> None:
    servicer = Servicer()
    async with served(servicer) as (server, address), calling(address) as channel:
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
    """A server that stops while it sends a large message. False: the message was sent before the
    stop, because gRPC may enlarge its windows.
    """
    servicer = Servicer()
    servicer.first.events.add(reason="x" * 3_000_000)  # more than is sent at once, most often
    async with served(servicer) as (server, address), calling(address) as channel:
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
    async with served(servicer) as (server, address), calling(address) as channel:
        server._lifecycle.stopping = (
            True  # a call that came before the connection was closed to calls
        )
        error = await refusal(rm_stub(channel).WatchJob(rm_pb2.WatchJobRequest()).read())
    assert says_that_it_stops(error)
    assert not servicer.sending.is_set()


async def test_the_same_port_twice_names_address_and_way_out() -> None:
    async with served(Servicer()) as (_, address):
        second = GuardedServer(ListenOptions(address=address), {}, own("rm"), trust())
        with pytest.raises(errors.ConfigurationError, match=address) as caught:
            await second.start()
    assert caught.value.reason is Reason.ADDRESS_IN_USE


async def test_a_method_without_a_line_in_the_access_table_is_not_served() -> None:
    server = GuardedServer(ListenOptions(address="127.0.0.1:0"), {}, own("rm"), trust())
    with pytest.raises(errors.ConfigurationError, match="access table"):
        server.add(add_ResourceManagerServiceServicer_to_server, Servicer())


def test_every_method_of_every_guarded_service_has_its_line() -> None:
    tables = {
        rm_pb2: RESOURCE_MANAGER_ACCESS,
        cluster_pb2: CLUSTER_ACCESS,
        task_executor_pb2: TASK_EXECUTOR_ACCESS,
        identity_pb2: IDENTITY_ACCESS,
    }
    for module, table in tables.items():
        for service in module.DESCRIPTOR.services_by_name.values():
            if service.name == "JoinService":  # on a port of its own, without certificates
                continue
            methods = {f"/{service.full_name}/{each.name}" for each in service.methods}
            assert methods == set(table)
            assert all(table.values())


async def test_health_is_for_every_role_and_follows_the_server() -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with served(Servicer()) as (server, address), calling(address, "metrics") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        await server.set_serving(False)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 2


def reflection_stub(channel: Any) -> Any:
    from grpc_reflection.v1alpha import reflection_pb2_grpc

    return reflection_pb2_grpc.ServerReflectionStub(channel)


async def test_reflection_lists_the_services_to_operators() -> None:
    from grpc_reflection.v1alpha import reflection_pb2

    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    async with served(Servicer(), reflection=True) as (_, address):
        async with calling(address, OPERATOR) as channel:
            stub = reflection_stub(channel)
            async for answer in stub.ServerReflectionInfo(iter([ask])):
                names = {each.name for each in answer.list_services_response.service}
        async with calling(address) as channel:
            stub = reflection_stub(channel)
            error = await refusal(stub.ServerReflectionInfo(iter([ask])).read())
    assert "finegrain.v1.ResourceManagerService" in names
    assert error.reason is Reason.ROLE_MISSING
