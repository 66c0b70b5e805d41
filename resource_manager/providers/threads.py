"""Runs blocking work of providers in threads, so that callers can cancel it.

A cancelled call returns only after its work has ended. So two calls about one executor never
overlap.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


class Cancellation:
    """Asks work in a thread to end.

    The pipe is created when `fileno` is first called. Many calls may wait for a thread at a time,
    and they must not use descriptors.
    """

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None
        self._lock = Lock()
        self.is_set = False

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable once the cancellation is set."""
        with self._lock:
            if self._pipe is None:
                self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                # It may have been set before the pipe existed.
                self._tell()
            return self._pipe[0]

    def set(self) -> None:
        """Sets the cancellation."""
        with self._lock:
            self.is_set = True
            self._tell()

    def close(self) -> None:
        """Closes the descriptors; called when the work has ended."""
        # Under the lock: `set` must not write to a descriptor that was closed and reused.
        with self._lock:
            for descriptor in self._pipe or ():
                os.close(descriptor)
            self._pipe = None

    def _tell(self) -> None:
        if self.is_set and self._pipe is not None:
            with suppress(OSError):
                os.write(self._pipe[1], b"x")


async def in_thread(threads: ThreadPoolExecutor, work: Callable[[Cancellation], T]) -> T:
    """Runs `work` in one of the threads; waits for a thread if all are busy.

    If the caller is cancelled, this sets the work's cancellation and raises CancelledError only
    after the work has ended.
    """
    cancellation = Cancellation()
    began = threads.submit(work, cancellation)
    # Wrapped, so that waiting for it does not block the event loop.
    future = asyncio.wrap_future(began)
    cancelled: asyncio.CancelledError | None = None
    try:
        # A caller that is cancelled goes on waiting; it may be cancelled several times.
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
                began.cancel()  # has an effect only while it waits for a thread
                cancellation.set()
        if cancelled is not None:
            if not future.cancelled():
                future.exception()  # marks the exception as retrieved, or asyncio logs it
            # Only now that the work has ended: the next call about this executor may begin.
            raise cancelled
        return future.result()
    finally:
        cancellation.close()
