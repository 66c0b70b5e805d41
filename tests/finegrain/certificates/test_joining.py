"""How a new member gets its certificate. It shows its token to the resource manager only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from finegrain.certificates.joining import join, renew_expired
from finegrain.errors import FinegrainError, Reason, Unauthenticated, Unavailable
from finegrain.join_token import JoinToken
from tests.support.identities import credentials
from tests.support.join_server import JoinServer

WEB = "executor/web-1"


@pytest.fixture
async def server() -> AsyncIterator[JoinServer]:
    async with JoinServer(managers=("10.0.0.1:7170",)).listening() as listening:
        yield listening


async def refusal(token: JoinToken) -> FinegrainError:
    with pytest.raises((Unauthenticated, Unavailable)) as caught:
        await asyncio.to_thread(join, token)
    return caught.value


async def test_a_token_becomes_credentials(server: JoinServer) -> None:
    made = await asyncio.to_thread(join, server.token(WEB))
    assert str(made.who) == WEB
    assert made.addresses == ("10.0.0.1:7170",)
    assert made.problem_at(made.not_before + 1) == ""
    assert made.authorities.encode() == server.authority.certificate_pem


async def test_a_token_works_once(server: JoinServer) -> None:
    token = server.token(WEB)
    await asyncio.to_thread(join, token)
    assert (await refusal(token)).reason is Reason.TOKEN_WRONG


async def test_the_next_address_is_tried_if_one_cannot_be_reached(server: JoinServer) -> None:
    token = server.token(WEB, "127.0.0.1:1", server.address)
    assert str((await asyncio.to_thread(join, token)).who) == WEB
    unreachable = replace(token, addresses=("127.0.0.1:1",))
    assert (await refusal(unreachable)).reason is Reason.UNREACHABLE


@pytest.mark.parametrize(
    "impostor",
    [
        pytest.param(JoinServer(shown="executor/web-2"), id="an executor"),
        pytest.param(JoinServer(shown="user/alice"), id="a user"),
        pytest.param(JoinServer(cluster="other"), id="the manager of another cluster"),
    ],
)
async def test_a_server_that_is_not_the_manager_does_not_receive_the_token(
    server: JoinServer, impostor: JoinServer
) -> None:
    async with impostor.listening():
        error = await refusal(server.token(WEB, impostor.address))
    assert error.reason is Reason.CERTIFICATE_WRONG
    assert "no other program listens there" in error.message
    assert impostor.calls == []


@asynccontextmanager
async def silent_port() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A plain TCP server that keeps what it receives."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1 << 16))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", heard


async def test_a_server_without_tls_receives_no_secret(server: JoinServer) -> None:
    async with silent_port() as (address, heard):
        token = server.token(WEB, address)
        assert (await refusal(token)).reason is Reason.UNREACHABLE
    assert heard
    assert token.secret.encode() not in b"".join(heard)


async def test_an_expired_certificate_is_renewed_for_the_same_key(server: JoinServer) -> None:
    expired = credentials(WEB, life_s=60, starts_s=-24 * 3600)
    fresh = await asyncio.to_thread(renew_expired, expired, [server.address])
    assert fresh.who == expired.who
    assert fresh.key == expired.key
    assert fresh.not_after > expired.not_after
    assert server.calls == ["RenewExpired", "RenewExpired"]


async def test_an_expired_certificate_is_shown_to_no_impostor() -> None:
    expired = credentials(WEB, life_s=60, starts_s=-24 * 3600)
    async with JoinServer(shown="executor/web-2").listening() as impostor:
        with pytest.raises(Unauthenticated):
            await asyncio.to_thread(renew_expired, expired, [impostor.address])
    assert impostor.calls == []


async def test_without_an_address_nothing_can_be_renewed() -> None:
    expired = credentials(WEB, life_s=60, starts_s=-24 * 3600)
    with pytest.raises(Unavailable, match="no address at which to join"):
        await asyncio.to_thread(renew_expired, expired, [])
