"""Converts a blocking iterable to the standard input of a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from finegrain_client.slot.task import StdinSource


def async_input(stdin: bytes | Iterable[bytes] | Literal["pipe"] | None) -> StdinSource:
    """Converts `stdin` for the asyncio client: an iterable becomes an async iterator."""
    if stdin is None or isinstance(stdin, bytes | str):
        return cast("StdinSource", stdin)
    return _taken_in_threads(stdin)


async def _taken_in_threads(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yields the chunks. Reading a chunk can block, so a separate thread reads it."""
    iterator = iter(chunks)
    while (chunk := await asyncio.to_thread(next, iterator, None)) is not None:
        yield chunk
