"""Calls the servicers of a resource manager over gRPC, for the page that `finegrain web` serves."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from finegrain.errors import Unauthenticated
from finegrain_cli.web.routes import CLUSTER, IDENTITY, MANAGER
from finegrain_client.connection import Connection

LONG_WAIT_S = 30.0
"""Deadline in seconds of a call that can wait for events."""


class RemoteCalls:
    """Makes calls with the identity of one user.

    Args:
        connection: the connection of the user. The connection finds the leader, and repeats failed
            calls.
        token: the token that the page shows instead of a certificate.
    """

    def __init__(self, connection: Connection, token: bytes) -> None:
        self._connection = connection
        self._token = token

    def check(self, method: str, certificate: bytes, peer: str) -> None:  # noqa: ARG002 - of `Calls`
        """Checks that the page has shown its token. The resource manager checks the role."""
        if certificate != self._token:
            raise Unauthenticated(
                "this page has no session; open the address that finegrain web prints again"
            )

    async def unary(self, method: str, request: Message, certificate: bytes, peer: str) -> Any:
        """Calls a method; see `Calls`."""
        self.check(method, certificate, peer)
        service, _, name = method.strip("/").partition("/")
        calls: dict[str, Any] = {
            CLUSTER: self._connection.call_cluster,
            MANAGER: self._connection.call_manager,
            IDENTITY: self._connection.call_identities,
        }

        def once(stub: Any, timeout_s: float) -> Any:
            return getattr(stub, name)(request, timeout=max(timeout_s, LONG_WAIT_S))

        return await calls[service](once)
