"""Defines the interface by which the gateway reaches the servicers: within the resource manager's
process, or over gRPC.
"""

from __future__ import annotations

from typing import Any, Protocol

from google.protobuf.message import Message


class Calls(Protocol):
    """Calls methods for callers that are identified by certificates.

    `finegrain.rpc.local_calls.LocalCalls` is one implementation. All methods raise the
    `FinegrainError` that a client of the protocol would get.
    """

    def check(self, method: str, certificate: bytes, peer: str) -> None:
        """Checks that a caller is allowed to call a method. The gateway checks this before it reads
        the body of a request.
        """

    async def unary(self, method: str, request: Message, certificate: bytes, peer: str) -> Any:
        """Calls a method with one answer, and returns the answer."""
