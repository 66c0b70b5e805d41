"""A connection of uvicorn. It tells the application which certificate its client has shown."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_TIME_MAX_S = 20.0
"""Time in which the first request of a connection must arrive."""

_CERTIFICATE = "certificate"


class CertificateProtocol(H11Protocol):
    """One connection. A connection without a request within `REQUEST_TIME_MAX_S` is closed."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Reads the certificate of the handshake. uvicorn does not pass it on."""
        super().connection_made(transport)
        shown = transport.get_extra_info("ssl_object")
        der = shown.getpeercert(binary_form=True) if shown is not None else None
        pem = ssl.DER_cert_to_PEM_cert(der).encode() if der else b""
        self.app_state = {**self.app_state, _CERTIFICATE: pem}
        self._deadline = self.loop.call_later(REQUEST_TIME_MAX_S, transport.close)

    def data_received(self, data: bytes) -> None:
        """Passes data on, and ends the wait for the first request when it is complete."""
        super().data_received(data)
        if self.scope is not None and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the wait for the first request."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)


def certificate_of(request: Request) -> bytes:
    """Returns the certificate of a request's connection as PEM text; empty: there is none."""
    shown: Any = getattr(request.state, _CERTIFICATE, b"")
    return bytes(shown)
