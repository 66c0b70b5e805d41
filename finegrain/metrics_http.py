"""Serves metrics and health over HTTP, on a separate read-only port.

The server answers GET and HEAD of three paths: /metrics (Prometheus text), /healthz (the process
runs) and /readyz (the process can do its work). On loopback, the server uses plain HTTP. On other
addresses, it uses HTTPS, and a caller of /metrics must show a certificate of the cluster with the
role metrics, viewer or operator. The server is small, runs on the event loop, and needs no
framework.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from finegrain.errors import ConfigurationError, FinegrainError
from finegrain.identity import Role
from finegrain.rpc.access import check_role
from finegrain.rpc.addresses import format_address, is_loopback, parse_address
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.server import bind_error
from finegrain.rpc.tls_context import presenting_context
from finegrain.rpc.trust import CERTIFICATE_KEY, Trust

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_TIME_MAX_S = 10.0
CONNECTIONS_MAX = 64
METRICS_READERS = frozenset((Role.METRICS, Role.VIEWER, Role.OPERATOR))


class MetricsServer:
    """Serves metrics and health.

    Args:
        address: the address as "host:port". With port 0, the kernel chooses the port.
        registry: the metrics.
        health: a function that returns True if /readyz should report success.
        unready: a function that returns the text of /readyz when it does not report success.
        refresh: a function that is called before every answer to /metrics.
        own: the certificate that the server shows beyond loopback.
        trust: how the server identifies its callers; None: the server uses the certificates of its
            own cluster.

    Raises:
        InvalidArgument: the address is malformed.
        ConfigurationError: the address is not loopback, and there is no certificate.
    """

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        health: Callable[[], bool],
        *,
        unready: Callable[[], str] = lambda: "not ready",
        refresh: Callable[[], Awaitable[None]] | None = None,
        own: OwnCertificate | None = None,
        trust: Trust | None = None,
    ) -> None:
        self._host, self._port = parse_address(address, "listen.metrics_address")
        self._tls: ssl.SSLContext | None = None
        self._trust: Trust | None = None
        if not is_loopback(address):
            if own is None:
                raise ConfigurationError(
                    f"metrics at {address} could be read from other hosts, and this process has no"
                    " certificate; use a loopback address",
                    details={"address": address},
                )
            self._tls = presenting_context(own)
            self._trust = trust or Trust(own.credentials.who.cluster)
        self._address = address
        self._registry = registry
        self._health = health
        self._unready = unready
        self._refresh = refresh
        self._server: asyncio.Server | None = None
        self._scraping = asyncio.Lock()
        self._connections: dict[asyncio.Task[None], None] = {}  # the oldest connection comes first

    async def start(self) -> str:
        """Binds the address and starts to serve. Returns the address with the actual port.

        Raises:
            ConfigurationError: the address cannot be bound.
        """
        try:
            self._server = await asyncio.start_server(
                self._accept,
                self._host,
                self._port,
                limit=REQUEST_BYTES_MAX,
                ssl=self._tls,
                ssl_handshake_timeout=REQUEST_TIME_MAX_S if self._tls else None,
            )
        except OSError as error:
            raise bind_error(self._address, error.errno or 0) from None
        bound: int = self._server.sockets[0].getsockname()[1]
        return format_address(self._host, bound)

    async def stop(self) -> None:
        """Stops listening and closes open connections."""
        if self._server is not None:
            self._server.close()
        # Closing the server only ends listening, so cancel the tasks of open connections too.
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            writer.close()
            return
        # Any program can connect, so limit the number of connections. At the limit, close the
        # oldest connection. It is probably idle, because a real caller sends its request at once.
        # So idle connections cannot block health checks.
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        self._connections[task] = None
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                # The timeout includes reading and writing, so that a caller that stalls is
                # disconnected.
                async with asyncio.timeout(REQUEST_TIME_MAX_S):
                    await self._serve(reader, writer)
        finally:
            self._connections.pop(task, None)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            writer.write(_answer(431, "text/plain", b"request too large\n"))
            return
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        accept = next((line[7:].strip() for line in lines if line[:7].lower() == "accept:"), "")
        refused = self._refusal(writer) if path == "/metrics" else None
        answer = refused or await self._answer(method, path, accept)
        if method == "HEAD":
            # Send only the head, with the length of the body, as HTTP requires for HEAD.
            answer = answer[: answer.index(b"\r\n\r\n") + 4]
        writer.write(answer)
        await writer.drain()

    def _refusal(self, writer: asyncio.StreamWriter) -> bytes | None:
        """Returns the answer that rejects the caller; None: the caller is allowed to read
        metrics.
        """
        if self._trust is None:
            return None
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        auth = {CERTIFICATE_KEY: [ssl.DER_cert_to_PEM_cert(shown).encode()]} if shown else {}
        peer = str(writer.get_extra_info("peername"))
        try:
            caller = self._trust.identify(auth, peer)
        except FinegrainError as error:
            return _answer(401, "text/plain", f"{error.message}\n".encode())
        try:
            check_role(caller, "/metrics", METRICS_READERS)
        except FinegrainError as error:
            return _answer(403, "text/plain", f"{error.message}\n".encode())
        return None

    async def _answer(self, method: str, path: str, accept: str) -> bytes:
        if method not in ("GET", "HEAD"):
            return _answer(405, "text/plain", b"read only\n")
        if path == "/metrics":
            encode, content_type = choose_encoder(accept)
            async with self._scraping:  # only one scrape at a time may fill and read the gauges
                if self._refresh is not None:
                    await self._refresh()
                # Encode in a thread, because with thousands of executors the text has megabytes.
                text = await asyncio.to_thread(encode, self._registry)
            return _answer(200, content_type, text)
        if path == "/healthz":
            return _answer(200, "text/plain", b"ok\n")
        if path == "/readyz":
            if self._health():
                return _answer(200, "text/plain", b"ok\n")
            return _answer(503, "text/plain", f"{self._unready()}\n".encode())
        return _answer(404, "text/plain", b"there is /metrics, /healthz and /readyz\n")


_PHRASES = {
    200: "OK",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def _answer(status: int, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
