"""Calls the methods of a server from inside its own process, with the same checks as calls from the
network.

The web gateway uses this module. The gateway has the certificate of its caller from a TLS handshake
or from a session. The server identifies the caller by this certificate.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from finegrain.rpc.guard import GuardedMethod
from finegrain.rpc.status import Metadata, error_from_rpc
from finegrain.rpc.trust import CERTIFICATE_KEY


class LocalCalls:
    """The methods of one server.

    Args:
        methods: the methods, by full name ("/finegrain.v1.ClusterService/GetCluster"). The server
            can add methods later.
    """

    def __init__(self, methods: Mapping[str, GuardedMethod]) -> None:
        self._methods = methods

    def check(self, method: str, certificate: bytes, peer: str) -> None:
        """Checks that a caller may call a method.

        Args:
            method: full name of the method.
            certificate: the caller's certificate as PEM text; empty: the caller has shown none.
            peer: network address of the caller.

        Raises:
            FinegrainError: the caller is not known, its role may not call the method, or the server
                now rejects all calls.
        """
        self._methods[method].admit(_LocalContext(None, certificate, peer))

    async def unary(self, method: str, request: Message, certificate: bytes, peer: str) -> Any:
        """Calls a method with one answer.

        Args:
            method: full name of the method.
            request: the message.
            certificate: the caller's certificate as PEM text; empty: the caller has shown none.
            peer: network address of the caller.

        Returns:
            The answer's message.

        Raises:
            FinegrainError: the error of the call, as a client gets it.
        """
        context = _LocalContext(request, certificate, peer)
        try:
            return await self._methods[method].unary_unary(context.messages(), context)
        except _Aborted as aborted:
            raise error_from_rpc(aborted) from None


class _Aborted(grpc.RpcError):
    """The status with which a method has ended a local call."""

    def __init__(self, code: grpc.StatusCode, message: str, trailing: Metadata) -> None:
        super().__init__(message)
        self._code, self._message, self._trailing = code, message, trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._message

    def trailing_metadata(self) -> Any:
        return self._trailing


class _LocalContext:
    """The parts of gRPC's context that `GuardedMethod` uses."""

    def __init__(self, request: Message | None, certificate: bytes, peer: str) -> None:
        self._request: Any = grpc.aio.EOF if request is None else request.SerializeToString()
        self._certificate = certificate
        self._peer = peer

    def auth_context(self) -> dict[str, list[bytes]]:
        return {CERTIFICATE_KEY: [self._certificate]} if self._certificate else {}

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> Metadata:
        return ()

    def cancelled(self) -> bool:
        return False

    async def read(self) -> Any:
        request, self._request = self._request, grpc.aio.EOF
        return request

    async def messages(self) -> AsyncIterator[bytes]:
        yield await self.read()

    async def abort(self, code: grpc.StatusCode, message: str, trailing: Metadata) -> None:
        raise _Aborted(code, message, trailing)
