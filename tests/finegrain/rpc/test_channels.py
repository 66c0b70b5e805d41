"""Addresses, certificates on channels, and peers that freeze or come back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from finegrain.errors import InvalidArgument, Reason, Unauthenticated, Unavailable
from finegrain.rpc.addresses import check_dialable, check_page_address, format_address
from finegrain.rpc.channels import (
    CHANNEL_OPTIONS,
    SERVICE_CONFIG,
    is_loopback,
    open_channel,
    parse_address,
)
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.status import error_from_rpc
from finegrain.v1 import cluster_pb2, identity_pb2, job_master_pb2, task_executor_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub
from tests.support.identities import credentials, credentials_file, identity, own

SERVER = """
import asyncio, sys
from pathlib import Path
from finegrain.options import ListenOptions
from finegrain.credentials import read_credentials
from finegrain.rpc.access import RESOURCE_MANAGER_ACCESS
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.trust import Trust
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import resource_manager_pb2_grpc as rm_grpc

class Servicer(rm_grpc.ResourceManagerServiceServicer):
    async def KeepAlive(self, request, context):
        return rm_pb2.KeepAliveResponse()
    async def WatchJob(self, request, context):
        yield rm_pb2.WatchJobResponse()
        await asyncio.Event().wait()

async def main():
    own, trust = OwnCertificate(read_credentials(Path(sys.argv[2]))), Trust("test")
    server = GuardedServer(ListenOptions(sys.argv[1]), RESOURCE_MANAGER_ACCESS, own, trust)
    server.add(rm_grpc.add_ResourceManagerServiceServicer_to_server, Servicer())
    print(await server.start(), flush=True)
    await server.wait()

asyncio.run(main())
"""


class Peer:
    """A server in a separate process, which can be frozen, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.address = "127.0.0.1:0"
        self.file = credentials_file(folder, "rm")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, self.address, str(self.file)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    started = Peer(tmp_path)
    yield started
    started.end()


def calling(address: str) -> Any:
    """A channel of a user to a resource manager."""
    return open_channel(address, own("user/alice"), identity("rm"))


def keep_alive(channel: Any, **more: Any) -> Any:
    return ResourceManagerServiceStub(channel).KeepAlive(rm_pb2.KeepAliveRequest(), **more)


@pytest.mark.full
async def test_a_frozen_peer_is_noticed_long_before_the_deadline(peer: Peer) -> None:
    async with calling(peer.address) as channel:
        await keep_alive(channel)
        peer.signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            await keep_alive(channel, timeout=60)
        assert time.monotonic() - began < 30
    error = error_from_rpc(caught.value, peer.address)
    assert isinstance(error, Unavailable)
    assert peer.address in error.message


@pytest.mark.full
async def test_a_stream_from_a_frozen_peer_ends_too(peer: Peer) -> None:
    async with calling(peer.address) as channel:
        stub: Any = ResourceManagerServiceStub(channel)
        stream = stub.WatchJob(rm_pb2.WatchJobRequest())
        await stream.read()
        peer.signal(signal.SIGSTOP)
        async with asyncio.timeout(30):
            with pytest.raises(grpc.RpcError):
                await stream.read()


async def test_a_peer_that_comes_back_is_found_again(peer: Peer) -> None:
    async with calling(peer.address) as channel:
        await keep_alive(channel)
        peer.end()
        with pytest.raises(grpc.RpcError):
            await keep_alive(channel)
        peer.start()
        async with asyncio.timeout(30):
            while True:
                try:
                    await keep_alive(channel)
                    break
                except grpc.RpcError:
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:7170", ("127.0.0.1", 7170)),
        ("host-a.example:1", ("host-a.example", 1)),
        ("[::1]:7170", ("::1", 7170)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected
    assert format_address(*expected) == text


NO_ADDRESSES = """
host|:1|host:|host:x|host:65536|host:-1|::1:7170|[::1]|[x]:1|ho st:1|http://host:1|[127.0.0.1]:1
"""


@pytest.mark.parametrize("text", ["", "host\n:1", "host:٣", *NO_ADDRESSES.strip().split("|")])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        parse_address(text)


def test_wildcards_and_port_0_cannot_be_dialled() -> None:
    for text in ("0.0.0.0:1", "[::]:1", "host:0"):
        with pytest.raises(InvalidArgument):
            check_dialable(text)
    assert check_dialable("host:1") == "host:1"


def test_what_counts_as_loopback() -> None:
    assert all(is_loopback(each) for each in ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1"))
    assert is_loopback("localhost:1")
    assert not any(is_loopback(each) for each in ("10.0.0.1:1", "[::]:1", "host-a:1", "0.0.0.0:1"))


async def test_an_expired_certificate_is_noticed_before_anything_is_dialled() -> None:
    expired = OwnCertificate(credentials("user/alice", life_s=60, starts_s=-24 * 3600))
    with pytest.raises(Unauthenticated, match=r"expired at .* the clock of this host says"):
        open_channel("127.0.0.1:7170", expired, identity("rm"))
    early = OwnCertificate(credentials("user/alice", starts_s=24 * 3600))
    with pytest.raises(Unauthenticated, match=r"is valid from .* set the clock"):
        open_channel("127.0.0.1:7170", early, identity("rm"))


async def test_a_renewed_certificate_counts_for_new_channels() -> None:
    shown = OwnCertificate(credentials("user/alice", life_s=60, starts_s=-24 * 3600))
    shown.replace(credentials("user/alice"))
    assert shown.version == 1
    await open_channel("127.0.0.1:7170", shown, identity("rm")).close()


@pytest.mark.parametrize(
    ("caller", "server", "probes"),
    [
        ("rm", "executor/web-1", False),
        ("executor/web-1", "rm", False),
        ("user/alice", "rm", True),
        ("user/alice", "executor/web-1", True),
        ("operator/root", "executor/web-1", True),
    ],
)
async def test_only_readers_of_streams_measure_the_bandwidth(
    caller: str, server: str, probes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    real = grpc.aio.secure_channel

    def secure_channel(address: str, shown: Any, *, options: Any) -> grpc.aio.Channel:
        given.update(options)
        return real(address, shown, options=options)

    monkeypatch.setattr(grpc.aio, "secure_channel", secure_channel)
    await open_channel("127.0.0.1:7170", own(caller), identity(server)).close()
    assert given.get("grpc.http2.bdp_probe", 1) == int(probes)


@pytest.mark.parametrize("expected", ["executor/web-1", "executor/rm", "user/alice"])
async def test_nothing_is_sent_to_a_server_with_another_name(peer: Peer, expected: str) -> None:
    async with open_channel(peer.address, own("user/alice"), identity(expected)) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            await keep_alive(channel)
    error = error_from_rpc(caught.value, peer.address)
    assert isinstance(error, Unavailable)
    assert error.reason is Reason.CERTIFICATE_WRONG


def test_calls_are_repeated_but_streams_are_not() -> None:
    config = {
        (name["service"], name.get("method")): "retryPolicy" in entry
        for entry in json.loads(SERVICE_CONFIG)["methodConfig"]
        for name in entry["name"]
    }
    modules = (rm_pb2, cluster_pb2, task_executor_pb2, job_master_pb2, identity_pb2)
    for module in modules:
        for service in module.DESCRIPTOR.services_by_name.values():
            if service.name == "JoinService":  # a token works once, so nothing is repeated
                continue
            assert config[service.full_name, None]
            for method in service.methods:
                streaming = method.client_streaming or method.server_streaming
                assert ((service.full_name, method.name) in config) == streaming
                assert not config.get((service.full_name, method.name))
    assert dict(CHANNEL_OPTIONS)["grpc.http2.ping_timeout_ms"] == 2_000


@pytest.mark.parametrize(
    "text", ["https://rm.example.org", "https://10.0.0.1:7172", "https://[::1]:7172"]
)
def test_addresses_of_pages(text: str) -> None:
    assert check_page_address(text) == text


@pytest.mark.parametrize(
    "text",
    ["rm.example.org", "http://rm", "https://", "https://rm/", "https://rm:0", "https://a b"],
)
def test_what_is_no_address_of_a_page(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"rm\.web_advertise"):
        check_page_address(text)
