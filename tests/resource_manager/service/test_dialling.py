"""Tests the messages for each way in which dialing an executor fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from finegrain.errors import AlreadyExists, FinegrainError, Reason
from finegrain.options import ListenOptions
from finegrain.rpc import channels
from finegrain.rpc.access import TASK_EXECUTOR_ACCESS
from finegrain.rpc.channels import open_channel
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.status import error_from_rpc
from finegrain.v1 import task_executor_pb2
from finegrain.v1.task_executor_pb2_grpc import (
    TaskExecutorServiceServicer,
    TaskExecutorServiceStub,
    add_TaskExecutorServiceServicer_to_server,
)
from resource_manager.service.dialling import Obstacle, cause_of, obstacle_of, was_reached
from tests.support.identities import credentials, identity, own, trust
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:  # the typed base is abstract; what it lacks must return "unimplemented"
    _Servicer = object
else:
    _Servicer = TaskExecutorServiceServicer


@asynccontextmanager
async def server(who: str = "executor/host-a", *, executor: bool = True) -> AsyncIterator[str]:
    made = GuardedServer(ListenOptions("127.0.0.1:0"), TASK_EXECUTOR_ACCESS, own(who), trust())
    if executor:
        made.add(add_TaskExecutorServiceServicer_to_server, _Servicer())
    yield await made.start()
    await made.stop(0)


async def failure(address: str, who: OwnCertificate | None = None) -> FinegrainError:
    """Returns the error with which a call to the executor host-a fails."""
    server = identity("executor/host-a")
    async with open_channel(address, who or own("rm"), server) as channel:
        stub: Any = TaskExecutorServiceStub(channel)
        try:
            await stub.FreeSlots(task_executor_pb2.FreeSlotsRequest(), timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return error_from_rpc(error, address)
    raise AssertionError("it was reached")


async def test_nobody_listens() -> None:
    async with server() as address:
        pass
    error = await failure(address)
    assert obstacle_of(error) is Obstacle.REFUSED
    told = cause_of(error, address)
    assert told.startswith("cannot be reached (")
    assert "connection refused); nothing listens there: " in told
    assert not was_reached(error)


async def test_another_program_listens_without_tls() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    plain = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = plain.sockets[0].getsockname()[1]
    error = await failure(f"127.0.0.1:{port}")
    assert obstacle_of(error) is Obstacle.PLAIN_EXECUTOR, error.message
    plain.close()


async def test_the_certificate_is_of_another_executor() -> None:
    async with server("executor/host-b") as address:
        error = await failure(address)
    assert obstacle_of(error) is Obstacle.OTHER_NAME, error.message


async def test_the_certificate_is_of_another_cluster() -> None:
    stranger = OwnCertificate(credentials("rm", cluster="other"))
    async with server() as address:
        error = await failure(address, stranger)
    assert obstacle_of(error) is Obstacle.OTHER_AUTHORITY, error.message


async def test_somebody_listens_who_does_not_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = (*channels.CHANNEL_OPTIONS, ("grpc.min_reconnect_backoff_ms", 500))
    monkeypatch.setattr(channels, "CHANNEL_OPTIONS", quick)
    silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    error = await failure(f"127.0.0.1:{port}")
    assert obstacle_of(error) is Obstacle.NO_ANSWER, error.message
    silent.close()


async def test_something_else_listens() -> None:
    async with server(executor=False) as address:
        assert obstacle_of(await failure(address)) is Obstacle.NO_EXECUTOR


def test_another_executor_listens() -> None:
    error = AlreadyExists("meant for host-a", reason=Reason.INSTANCE_CONFLICT)
    assert obstacle_of(error) is Obstacle.ANOTHER_EXECUTOR
    assert not was_reached(error)
