"""Extends uvicorn's connections, so that the application gets the certificate that the client has
shown.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

from starlette.requests import Request
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

CONNECTIONS_MAX = 512
REQUEST_TIME_MAX_S = 20.0
"""Time in seconds within which the first request of a connection must arrive."""

_CERTIFICATE = "certificate"


class Connections:
    """Keeps the connections of one port, and passes their requests to an application.

    Args:
        application: the ASGI application.
    """

    def __init__(self, application: Any) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config = Config(
            application,
            http=CertificateProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,  # the server loop of uvicorn, which does not run, would set the date
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=32 * 1024,
        )
        self._config.load()
        self._state = ServerState()

    def accept(self) -> asyncio.Protocol:
        """Returns the protocol for a new connection."""
        return CertificateProtocol(self._config, self._state, {})

    async def stop(self) -> None:
        """Closes all connections, and cancels the requests in progress."""
        for connection in list(self._state.connections):
            connection.shutdown()
        # uvicorn would log each canceled stream as a failure of the application.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        for task in list(self._state.tasks):
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)


class CertificateProtocol(H11Protocol):
    """One connection. A connection without a request within `REQUEST_TIME_MAX_S` is closed."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Reads the certificate of the handshake, because uvicorn does not pass it to the
        application.
        """
        super().connection_made(transport)
        shown = transport.get_extra_info("ssl_object")
        der = shown.getpeercert(binary_form=True) if shown is not None else None
        pem = ssl.DER_cert_to_PEM_cert(der).encode() if der else b""
        self.app_state = {**self.app_state, _CERTIFICATE: pem}
        self._deadline = self.loop.call_later(REQUEST_TIME_MAX_S, transport.close)

    def data_received(self, data: bytes) -> None:
        """Passes data on. Cancels the timeout after the headers of the first request."""
        super().data_received(data)
        if self.scope is not None and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the timeout for the first request."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)


def certificate_of(request: Request) -> bytes:
    """Returns the certificate of a request's connection as PEM text, or an empty text if the
    connection has no certificate.
    """
    shown: Any = getattr(request.state, _CERTIFICATE, b"")
    return bytes(shown)
