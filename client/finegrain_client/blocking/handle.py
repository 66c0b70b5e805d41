"""Defines the base classes of the blocking client's handles. A handle has an asyncio object and its
loop.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from finegrain_client.blocking.loop import PrivateLoop

InnerT = TypeVar("InnerT")
ContextT = TypeVar("ContextT", bound=AbstractAsyncContextManager[Any])


class Handle(Generic[InnerT]):
    """Wraps an object of the asyncio client for callers without an event loop.

    Attributes:
        loop: the loop that `inner` runs on.
        inner: the object of the asyncio client. Only code on `loop` may use it.
    """

    def __init__(self, loop: PrivateLoop, inner: InnerT) -> None:
        self.loop = loop
        self.inner = inner

    def __repr__(self) -> str:
        return repr(self.inner)


class ContextHandle(Handle[ContextT]):
    """A handle of an async context manager."""

    def __enter__(self) -> Self:
        entered = False

        async def enter() -> None:
            # Record the entry. An interruption can reach the caller's thread after the loop has
            # entered the context.
            nonlocal entered
            await self.inner.__aenter__()
            entered = True

        try:
            self.loop.run(enter())
        except BaseException as error:
            if entered:  # the entry was complete before the interruption: leave the context
                self.loop.run(self.inner.__aexit__(type(error), error, None))
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.loop.run(self.inner.__aexit__(kind, error, trace))


class Closable(AbstractAsyncContextManager[Any], Protocol):
    """The interface that the inner object of a `LoopOwner` must have."""

    async def close(self) -> None:
        """Closes its open connections."""


ClosableT = TypeVar("ClosableT", bound=Closable)


class LoopOwner(ContextHandle[ClosableT]):
    """The first handle of a loop. It creates all other handles. Closing this handle ends the loop's
    thread.
    """

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections, cancels calls in flight, and ends the thread."""
        if not self.loop.is_closed:
            self.loop.run(self.inner.close())
            self.loop.close()


class Lost(Handle[asyncio.Event]):
    """An event that is set when a slot is lost. Callers use it like a `threading.Event`."""

    def is_set(self) -> bool:
        """Returns True if the slot is known to be lost."""
        return self.inner.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the loss. Returns False if the slot is not lost within `timeout_s`."""

        async def wait() -> bool:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self.inner.wait()
            except TimeoutError:
                return False

        return self.loop.run(wait())
