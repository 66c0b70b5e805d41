"""Waits for events that must happen, for a time that is long enough on a busy machine."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0
"""A test that waits longer has failed. This is no measurement: a busy machine may be slow."""

PAUSE_S = 0.02


def eventually(look: Callable[[], T | None], what: str, patience_s: float = PATIENCE_S) -> T:
    """Returns the first true result of `look`.

    Raises:
        AssertionError: there is none within `patience_s`. The message names `what`.
    """
    end = time.monotonic() + patience_s
    while not (found := look()):
        assert time.monotonic() < end, f"not within {patience_s:g} s: {what}"
        time.sleep(PAUSE_S)
    return found


async def eventually_async(
    look: Callable[[], Any | Awaitable[Any]], what: str = "", patience_s: float = PATIENCE_S
) -> Any:
    """Returns the first true result of `look`, which may be a coroutine function. Other asyncio
    tasks run meanwhile.

    Raises:
        AssertionError: see `eventually`. If `what` is empty, the message has the source of `look`.
    """
    limit = asyncio.timeout(patience_s)
    try:
        async with limit:
            while True:
                found = look()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(PAUSE_S / 2)
    except TimeoutError:
        if not limit.expired():
            raise  # `look` has raised it
        raise AssertionError(f"not within {patience_s:g} s: {what or _source(look)}") from None


def _source(look: Callable[[], Any]) -> str:
    try:
        return inspect.getsource(look).strip()
    except OSError:
        return repr(look)
