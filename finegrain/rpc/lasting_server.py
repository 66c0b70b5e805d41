"""Provides a gRPC server that listens again if it has stopped by itself.

In gRPC 1.84 and 1.85, a server stops listening when a caller sends a path that is not UTF-8. The
process and its open connections stay, but a new connection is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import grpc
import grpc.aio

CHECK_INTERVAL_S = 0.1

_log = logging.getLogger("finegrain.rpc")


class LastingServer:
    """Starts a server. If the server ends by itself, starts a new server at the same address.

    Args:
        make: makes a server with all its handlers, which does not listen yet.
        credentials: returns the TLS credentials of the port.
    """

    def __init__(
        self,
        make: Callable[[], grpc.aio.Server],
        credentials: Callable[[], grpc.ServerCredentials],
    ) -> None:
        self._make = make
        self._credentials = credentials
        self._server: grpc.aio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    def bind(self, address: str) -> int:
        """Makes the server and binds an address. Returns the port; 0: the address cannot be
        bound.
        """
        self._server = self._make()
        try:
            return int(self._server.add_secure_port(address, self._credentials()))
        except RuntimeError:
            return 0

    async def start(self, address: str) -> None:
        """Starts to serve.

        Args:
            address: the address that was bound, with the actual port.
        """
        assert self._server is not None  # noqa: S101 - `bind` was called
        await self._server.start()
        self._watch = asyncio.create_task(self._listen_again(address))

    async def stop(self, grace_s: float | None) -> None:
        """Stops the server; open calls end after `grace_s` seconds."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace_s)
        self._stopped.set()

    async def wait(self) -> None:
        """Returns when the server was stopped."""
        await self._stopped.wait()

    async def _listen_again(self, address: str) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if _is_running(self._server):
                continue
            _log.error("server_ended_by_itself", extra={"address": address})
            if self._server is not None:
                # The old server has failed and has closed its port. So `stop` can fail, too.
                with contextlib.suppress(Exception):
                    await self._server.stop(0)
            if self.bind(address) and self._server is not None:
                await self._server.start()


def _is_running(server: grpc.aio.Server | None) -> bool:
    # gRPC has no public method that reports this. Servers of versions without this private method
    # do not end by themselves.
    inner = getattr(server, "_server", None)
    return bool(getattr(inner, "is_running", lambda: True)())
