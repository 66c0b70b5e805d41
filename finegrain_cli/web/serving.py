"""Serves the application over HTTPS, in the process and on the event loop of the resource manager.

The port is open from the start. When the first connection arrives, this module imports the web
libraries and makes the application. So an unused HTTP interface costs nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from finegrain.errors import ConfigurationError
from finegrain.rpc.addresses import format_address, parse_address
from finegrain.rpc.server import bind_error
from finegrain.rpc.tls_context import presenting_context
from resource_manager.web_site import WebSite

if TYPE_CHECKING:
    from finegrain_cli.web.connection import Connections

HANDSHAKE_TIME_MAX_S = 10.0


@asynccontextmanager
async def serve_web(site: WebSite) -> AsyncIterator[str]:
    """Serves until the end of the `with` block, and yields the address with the actual port.

    Raises:
        ConfigurationError: the address cannot be bound, or the certificate cannot be read.
    """
    host, port = parse_address(site.address, "rm.web_listen")
    listener = _Listener(site)
    try:
        server = await asyncio.get_running_loop().create_server(
            listener.accept,
            host,
            port,
            ssl=_tls(site),
            ssl_handshake_timeout=HANDSHAKE_TIME_MAX_S,
        )
    except OSError as error:
        raise bind_error(site.address, error.errno or 0) from None
    try:
        yield format_address(host, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await listener.stop()


def _tls(site: WebSite) -> ssl.SSLContext:
    """Returns the TLS settings, with a certificate of the administrator or of the cluster."""
    if not site.certificate_file:
        return presenting_context(site.own)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(site.certificate_file, site.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"rm.web_certificate {site.certificate_file} and rm.web_key {site.key_file} cannot be"
            f" used: {error}"
        ) from None
    # A browser usually shows no certificate. A program can show a certificate of the cluster.
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=site.own.credentials.authorities)
    return context


class _Listener:
    """Makes the protocol object of each connection."""

    def __init__(self, site: WebSite) -> None:
        self._site = site

    def accept(self) -> asyncio.BaseProtocol:
        """Returns the protocol for a new connection."""
        return self._connections.accept()

    async def stop(self) -> None:
        """Closes all connections, and cancels the requests in progress."""
        if "_connections" in self.__dict__:
            await self._connections.stop()

    @cached_property
    def _connections(self) -> Connections:
        """The connections of the port. The first access imports the web libraries."""
        from finegrain_cli.web.connection import Connections
        from finegrain_cli.web.manager_page import ManagerPage

        return Connections(ManagerPage(self._site))
