"""What a client says if it cannot connect, in sentences for people."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import finegrain_client as fg
from finegrain.credentials import Credentials
from tests.client.scripted import Scripted
from tests.support.answering import answering
from tests.support.identities import credentials

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.mark.parametrize(
    ("shown", "message", "reason"),
    [
        (credentials("executor/web-1"), "another member of the cluster", "CERTIFICATE_WRONG"),
        (credentials("user/mallory"), "another member of the cluster", "CERTIFICATE_WRONG"),
        (credentials("rm", cluster="other"), "belongs to another cluster", "CERTIFICATE_WRONG"),
        (credentials("rm", life_s=-60), "has expired; the clock of this", "CERTIFICATE_EXPIRED"),
        (None, "does not use TLS", "CERTIFICATE_WRONG"),
    ],
)
async def test_a_wrong_server_is_named(
    shown: Credentials | None, message: str, reason: str
) -> None:
    async with answering(shown) as address, fg.connect(address, budget_s=2) as cluster:
        with pytest.raises(fg.Unavailable, match=message) as raised:
            await cluster.info()
    assert raised.value.reason == reason
    assert address in raised.value.message
    assert not any(word in raised.value.message for word in ("SSL", "Socket", "handshake"))


async def test_a_server_that_closes_the_connection() -> None:
    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, fg.connect(f"127.0.0.1:{port}", budget_s=2) as cluster:
        with pytest.raises(fg.Unavailable, match="does it accept your certificate"):
            await cluster.info()


async def test_an_expired_certificate_is_not_even_shown(servant: Scripted) -> None:
    expired = credentials("user/alice", life_s=-60)
    async with fg.connect(servant.address, credentials=expired) as cluster:
        with pytest.raises(fg.Unauthenticated, match=r"user/alice expired at .* finegrain login"):
            await cluster.info()


async def test_a_certificate_that_is_not_valid_yet(servant: Scripted) -> None:
    early = credentials("user/alice", starts_s=3 * 3_600)
    async with fg.connect(servant.address, credentials=early) as cluster:
        with pytest.raises(fg.Unauthenticated, match="the clock of this host says"):
            await cluster.info()
