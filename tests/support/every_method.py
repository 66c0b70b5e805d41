"""Calls every method that a gRPC service declares. So tests need no list of the methods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from finegrain.rpc.access import AccessTable, Roles


@dataclass(frozen=True)
class Method:
    """One method of a service, with the roles that a table allows for it."""

    path: str
    roles: Roles
    client_streams: bool
    server_streams: bool


def methods_of(module: Any, table: AccessTable) -> Iterator[Method]:
    """Yields all methods of all services of a generated module.

    Raises:
        KeyError: a method has no entry in `table`.
    """
    for service in module.DESCRIPTOR.services_by_name.values():
        for each in service.methods:
            path = f"/{service.full_name}/{each.name}"
            yield Method(path, table[path], each.client_streaming, each.server_streaming)


async def status_of_call(
    channel: grpc.aio.Channel, method: Method, data: bytes = b"", metadata: Any = None
) -> tuple[grpc.StatusCode, str]:
    """Calls a method with one raw message; returns the status code and details.

    A stream that stays open counts as OK.
    """
    kinds: dict[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    make = kinds[method.client_streams, method.server_streams](method.path)
    request = iter([data]) if method.client_streams else data
    call = make(request, timeout=20, metadata=metadata)
    try:
        async with asyncio.timeout(10):
            if method.server_streams:
                async for _ in call:
                    break
            else:
                await call
    except grpc.RpcError as error:
        refused: Any = error
        return refused.code(), str(refused.details())
    finally:
        call.cancel()
    return grpc.StatusCode.OK, ""
