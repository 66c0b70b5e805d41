"""Servers that a client must not accept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from finegrain.credentials import Credentials
from finegrain.rpc.own_certificate import OwnCertificate


@asynccontextmanager
async def answering(shown: Credentials | None) -> AsyncIterator[str]:
    """Serves nothing at the yielded address, with this certificate or without TLS."""
    server = grpc.aio.server()
    if shown is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        own = OwnCertificate(shown).server_credentials()
        port = server.add_secure_port("127.0.0.1:0", own)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
