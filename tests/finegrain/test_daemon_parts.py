"""Tests of the read-only port, and of the messages to systemd."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from finegrain.errors import ConfigurationError, Reason
from finegrain.metrics_http import CONNECTIONS_MAX, MetricsServer
from finegrain.systemd import notify, watchdog_interval_s


async def ask(address: str, request: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    writer.write_eof()
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer


async def test_metrics_are_refreshed_and_health_follows() -> None:
    registry, health = CollectorRegistry(), [True]
    gauge = Gauge("finegrain_things", "Things.", registry=registry)

    async def refresh() -> None:
        gauge.inc()

    server = MetricsServer("127.0.0.1:0", registry, lambda: health[0], refresh=refresh)
    address = await server.start()
    try:
        for expected in (b"finegrain_things 1.0", b"finegrain_things 2.0"):
            assert expected in await ask(address, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b" 200 OK" in await ask(address, b"GET /readyz HTTP/1.1\r\n\r\n")
        health[0] = False
        assert b" 503 " in await ask(address, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert b" 200 OK" in await ask(address, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (await ask(address, b"HEAD /healthz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(b"POST /metrics HTTP/1.1\r\n\r\n", b" 405 ", id="a write"),
        pytest.param(b"GET /admin HTTP/1.1\r\n\r\n", b" 404 ", id="another path"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, b" 431 ", id="too large"),
        pytest.param(b"\x00\xff\r\n\r\n", b" 405 ", id="noise"),
        pytest.param(b"", b"", id="nothing"),
    ],
)
async def test_whatever_else_is_asked_is_refused(request_bytes: bytes, status: bytes) -> None:
    server = MetricsServer("127.0.0.1:0", CollectorRegistry(), lambda: True)
    address = await server.start()
    try:
        assert status in await ask(address, request_bytes)
    finally:
        await server.stop()


async def test_idle_connections_do_not_close_the_port_to_health_checks() -> None:
    server = MetricsServer("127.0.0.1:0", CollectorRegistry(), lambda: True)
    address = await server.start()
    host, _, port = address.rpartition(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX + 1)]
    try:
        assert b" 200 OK" in await ask(address, b"GET /readyz HTTP/1.1\r\n\r\n")
        # The oldest connections were closed.
        async with asyncio.timeout(10):
            assert await idle[0][0].read() == b""
    finally:
        for _, writer in idle:
            writer.close()
        await server.stop()


async def test_a_port_in_use_and_a_port_for_everybody_are_refused() -> None:
    first = MetricsServer("127.0.0.1:0", CollectorRegistry(), lambda: True)
    address = await first.start()
    try:
        with pytest.raises(ConfigurationError, match=address) as caught:
            await MetricsServer(address, CollectorRegistry(), lambda: True).start()
        assert caught.value.reason is Reason.ADDRESS_IN_USE
    finally:
        await first.stop()
    with pytest.raises(ConfigurationError, match="loopback"):
        MetricsServer("0.0.0.0:0", CollectorRegistry(), lambda: True)


def test_systemd_is_told_if_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        assert notify("READY=1", "STATUS=serving")
        assert listener.recv(100) == b"READY=1\nSTATUS=serving"
    assert not notify("READY=1")  # systemd no longer listens; nothing breaks


def test_the_watchdog_is_fed_twice_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    assert watchdog_interval_s() is None
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog_interval_s() == 15
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_interval_s() is None
