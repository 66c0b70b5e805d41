"""Tests the messages for each way in which dialling an executor fails."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from finegrain.errors import AlreadyExists, FinegrainError, Reason
from finegrain.options import ListenOptions, TlsOptions
from finegrain.rpc.access import TASK_EXECUTOR_ACCESS, TokenHashes
from finegrain.rpc.channels import open_channel
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.status import error_from_rpc
from finegrain.rpc.tokens import sha256_hex
from finegrain.v1 import task_executor_pb2
from finegrain.v1.task_executor_pb2_grpc import (
    TaskExecutorServiceServicer,
    TaskExecutorServiceStub,
    add_TaskExecutorServiceServicer_to_server,
)
from resource_manager.service.dialling import Obstacle, cause_of, obstacle_of, was_reached
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:  # the typed base is abstract; what it lacks must return "unimplemented"
    _Servicer = object
else:
    _Servicer = TaskExecutorServiceServicer

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with authorities `ca` and `other`, and certificates of `ca`."""
    made = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=made)

    for ca in ("ca", "other"):
        named = ("-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")
        openssl("req", "-x509", *KEY, *named)
    for name, address in (("here", "127.0.0.1"), ("elsewhere", "192.0.2.1")):
        (made / "names").write_text(f"subjectAltName=IP:{address}")
        openssl(*("req", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=x"))
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")
    return made


def tls(folder: Path, ca: str, certificate: str = "") -> TlsOptions:
    return TlsOptions(
        folder / f"{ca}.pem" if ca else None,
        folder / f"{certificate}.pem" if certificate else None,
        folder / f"{certificate}.key" if certificate else None,
    )


@asynccontextmanager
async def server(options: TlsOptions | None, *, executor: bool = True) -> AsyncIterator[str]:
    listen = ListenOptions(address="127.0.0.1:0", tls=options)
    made = GuardedServer(
        listen, TASK_EXECUTOR_ACCESS, TokenHashes(sha256_hex("token"), sha256_hex("user token"))
    )
    if executor:
        made.add(add_TaskExecutorServiceServicer_to_server, _Servicer())
    yield await made.start()
    await made.stop(0)


async def failure(address: str, options: TlsOptions | None, token: str = "token") -> FinegrainError:
    async with open_channel(address, tls=options, token=token) as channel:
        stub: Any = TaskExecutorServiceStub(channel)
        try:
            await stub.ListTasks(task_executor_pb2.ListTasksRequest(), timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return error_from_rpc(error, address)
    raise AssertionError("it was reached")


async def test_nobody_listens() -> None:
    async with server(None) as address:
        pass
    error = await failure(address, None)
    assert obstacle_of(error) is Obstacle.REFUSED
    told = cause_of(error, address)
    assert told.startswith("cannot be reached (")
    assert "Connection refused); nothing listens there: " in told
    assert not was_reached(error)


@pytest.mark.needs("openssl")
@pytest.mark.parametrize(
    ("served", "dialled", "obstacle"),
    [
        pytest.param(None, ("ca",), Obstacle.PLAIN_EXECUTOR, id="only the RM speaks TLS"),
        pytest.param(("", "here"), None, Obstacle.CLOSED, id="only the executor speaks TLS"),
        pytest.param(("", "here"), ("other",), Obstacle.OTHER_AUTHORITY, id="another authority"),
        pytest.param(("", "elsewhere"), ("ca",), Obstacle.OTHER_NAME, id="another host's name"),
        pytest.param(("ca", "here"), ("ca",), Obstacle.CLOSED, id="no client certificate"),
    ],
)
async def test_tls_does_not_match(
    folder: Path,
    served: tuple[str, ...] | None,
    dialled: tuple[str, ...] | None,
    obstacle: Obstacle,
) -> None:
    async with server(tls(folder, *served) if served else None) as address:
        error = await failure(address, tls(folder, *dialled) if dialled else None)
    assert obstacle_of(error) is obstacle, error.message


async def test_somebody_listens_who_does_not_speak() -> None:
    silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    error = await failure(f"127.0.0.1:{port}", None)
    assert obstacle_of(error) is Obstacle.NO_ANSWER, error.message
    silent.close()


async def test_something_else_listens() -> None:
    async with server(None, executor=False) as address:
        assert obstacle_of(await failure(address, None)) is Obstacle.NO_EXECUTOR


def test_another_executor_listens() -> None:
    error = AlreadyExists("meant for host-a", reason=Reason.INSTANCE_CONFLICT)
    assert obstacle_of(error) is Obstacle.ANOTHER_EXECUTOR
    assert not was_reached(error)


async def test_the_token_is_another_clusters() -> None:
    async with server(None) as address:
        error = await failure(address, None, token="another")
    assert obstacle_of(error) is Obstacle.TOKEN
    assert not was_reached(error)
