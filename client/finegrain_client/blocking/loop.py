"""Runs an event loop in a dedicated thread, for callers without an event loop.

After an interruption (Ctrl-C), the loop cancels the pending call and waits until the call has
cleaned up. After that, KeyboardInterrupt is raised as usual.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from finegrain.errors import ConfigurationError

T = TypeVar("T")

WAKE_INTERVAL_S = 1.0
LEAVING_S = 30.0
"""Longest time in seconds for which the thread waits until an interrupted call has cleaned up."""


class PrivateLoop:
    """An event loop in a dedicated thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="finegrain-client", daemon=True
        )
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and returns its result.

        If this call is interrupted, it cancels the coroutine, waits until the coroutine has cleaned
        up, and then raises the interruption.

        Raises:
            ConfigurationError: the loop is closed, or the caller is on the loop's own thread.
        """
        if self._loop.is_closed() or threading.get_ident() == self._thread.ident:
            # Close the coroutine. Otherwise Python would warn that it was never awaited.
            work.close()
            raise ConfigurationError(
                "the blocking client is closed"
                if self._loop.is_closed()
                else "the blocking client cannot be called from its own thread (an output function)"
            )
        # Do not use `run_coroutine_threadsafe`, which returns before a cancelled call has cleaned
        # up.
        outcome: Future[T] = Future()
        started: list[asyncio.Task[T]] = []

        def begin() -> None:
            started.append(self._loop.create_task(work))
            started[0].add_done_callback(lambda task: _deliver(task, outcome))

        def stop() -> None:  # the loop runs this after `begin`
            started[0].cancel()

        self._loop.call_soon_threadsafe(begin)
        try:
            return _wait_for(outcome)
        except BaseException:
            if not outcome.done():  # the error is an interruption of this thread
                self._loop.call_soon_threadsafe(stop)
                with suppress(CancelledError, TimeoutError):
                    outcome.exception(LEAVING_S)
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Calls a plain function on the loop's thread and returns its result."""

        async def work() -> T:
            return function()

        return self.run(work())

    def iterate(self, items: AsyncIterator[T]) -> Generator[T, None, None]:
        """Yields the items of an async iterator, and closes the iterator at the end."""

        # Return an item in a tuple: None marks the end, and an item can also be None.
        async def step() -> tuple[T] | None:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return None

        try:
            while (found := self.run(step())) is not None:
                yield found[0]
        finally:
            if not self.is_closed and hasattr(items, "aclose"):
                self.run(_close(items))

    def close(self) -> None:
        """Ends the thread. Does nothing if the thread has already ended."""
        if self._loop.is_closed():
            return
        # Close generators first, because their cleanup can use the loop's thread pool.
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _wait_for(outcome: Future[T]) -> T:
    """Waits for the outcome, and returns it.

    A signal that arrives just before the thread blocks would not wake the thread. So the thread
    also wakes every `WAKE_INTERVAL_S` seconds.
    """
    while True:
        try:
            return outcome.result(WAKE_INTERVAL_S)
        except TimeoutError:
            if outcome.done():  # the work itself raised TimeoutError, or has ended in the meantime
                return outcome.result()


async def _close(items: Any) -> None:
    await items.aclose()


def _deliver(task: asyncio.Task[T], outcome: Future[T]) -> None:
    if task.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
