"""The metrics port beyond loopback: it uses HTTPS, and serves metrics only to callers that may read
them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from finegrain import metrics_http
from finegrain.credentials import Credentials
from finegrain.metrics_http import MetricsServer
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.trust import Trust
from tests.support.identities import CLUSTER, authority, credentials, identity

SERVER = "executor/web-1"


@dataclass
class Port:
    """A metrics port that behaves as one that other hosts can reach."""

    address: str
    own: OwnCertificate
    folder: Path
    denied: set[str]

    async def get(self, path: str, shown: Credentials | None, name: str = SERVER) -> str:
        """Asks for a path with a certificate, and returns the whole answer."""
        reader, writer = await self._connect(shown, name)
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        return answer.decode()

    async def serial(self) -> str:
        """Returns the serial number of the certificate that the port shows to a new connection."""
        _, writer = await self._connect(None, SERVER)
        found = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
        writer.close()
        return str(found)

    async def _connect(
        self, shown: Credentials | None, name: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cadata=authority().certificate_pem.decode())
        if shown is not None:
            file = self.folder / "client.pem"
            file.write_text(shown.key + shown.certificate)
            context.load_cert_chain(file)
        host, _, port = self.address.rpartition(":")
        expected = identity(name).dns_name
        return await asyncio.open_connection(host, int(port), ssl=context, server_hostname=expected)


@pytest.fixture
async def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Port]:
    monkeypatch.setattr(metrics_http, "is_loopback", lambda _address: False)
    registry = CollectorRegistry()
    Gauge("finegrain_things", "Things.", registry=registry)
    own, denied = OwnCertificate(credentials(SERVER)), set[str]()
    trust = Trust(CLUSTER, is_denied=lambda who, _serial: str(who) in denied)
    server = MetricsServer("127.0.0.1:0", registry, lambda: True, own=own, trust=trust)
    yield Port(await server.start(), own, tmp_path, denied)
    await server.stop()


@pytest.mark.parametrize("who", ["metrics", "operator/ann", "viewer/vi"])
async def test_those_who_may_read_metrics_read_them(port: Port, who: str) -> None:
    answer = await port.get("/metrics", credentials(who))
    assert " 200 OK" in answer
    assert "finegrain_things 0.0" in answer


@pytest.mark.parametrize("who", ["user/alice", "executor/web-1", "rm"])
async def test_other_roles_are_named_in_the_refusal(port: Port, who: str) -> None:
    answer = await port.get("/metrics", credentials(who))
    assert " 403 Forbidden" in answer
    assert f"{who} may not call metrics" in answer
    assert "metrics or operator or viewer" in answer
    assert "finegrain_things" not in answer


async def test_health_needs_no_certificate_and_metrics_do(port: Port) -> None:
    assert " 200 OK" in await port.get("/healthz", None)
    assert " 200 OK" in await port.get("/readyz", None)
    answer = await port.get("/metrics", None)
    assert " 401 Unauthorized" in answer
    assert "no certificate" in answer


async def test_a_denied_reader_is_refused(port: Port) -> None:
    port.denied.add("operator/ann")
    assert " 401 Unauthorized" in await port.get("/metrics", credentials("operator/ann"))
    assert " 200 OK" in await port.get("/metrics", credentials("viewer/vi"))


async def answer_or_nothing(port: Port, shown: Credentials) -> str:
    """A server refuses a certificate after the client's part of the handshake has succeeded."""
    try:
        return await port.get("/metrics", shown)
    except OSError:  # also that of TLS
        return ""


async def test_certificates_of_another_authority_get_no_connection(port: Port) -> None:
    assert await answer_or_nothing(port, credentials("metrics", cluster="other")) == ""


async def test_an_expired_certificate_gets_no_connection(port: Port) -> None:
    expired = credentials("metrics", life_s=60, starts_s=-24 * 3600)
    assert await answer_or_nothing(port, expired) == ""


async def test_plain_http_gets_nothing(port: Port) -> None:
    host, _, number = port.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(10):
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
    writer.close()
    assert b"HTTP" not in answer


async def test_the_server_proves_who_it_is(port: Port) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await port.get("/healthz", None, name="rm")


async def test_new_connections_see_a_renewed_certificate(port: Port) -> None:
    before = await port.serial()
    port.own.replace(credentials(SERVER, life_s=7_200))
    assert await port.serial() != before
    host, _, number = port.address.rpartition(":")
    # This client names no server.
    seen = await asyncio.to_thread(ssl.get_server_certificate, (host, int(number)))
    assert seen.strip() == port.own.credentials.certificate.strip()
    assert " 200 OK" in await port.get("/metrics", credentials("metrics"))
