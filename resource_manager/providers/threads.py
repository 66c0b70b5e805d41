"""Runs blocking work of providers in threads, so that callers can cancel the work.

A cancelled call ends only after its work has ended, so two calls for one executor never overlap.
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
    """A request to end the work in a thread.

    The pipe is created when `fileno` is first called. So the calls that still wait for a thread,
    which can be many, need no descriptors.
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
                # The cancellation was possibly set before the pipe existed.
                self._tell()
            return self._pipe[0]

    def set(self) -> None:
        """Sets the cancellation."""
        with self._lock:
            self.is_set = True
            self._tell()

    def close(self) -> None:
        """Closes the descriptors. The caller of the work must call this method when the work has
        ended.
        """
        # The lock keeps `set` from writing to a descriptor that was closed and reused.
        with self._lock:
            for descriptor in self._pipe or ():
                os.close(descriptor)
            self._pipe = None

    def _tell(self) -> None:
        if self.is_set and self._pipe is not None:
            with suppress(OSError):
                os.write(self._pipe[1], b"x")


async def in_thread(threads: ThreadPoolExecutor, work: Callable[[Cancellation], T]) -> T:
    """Runs `work` in one of the threads. Waits for a free thread if all threads are busy.

    If the caller is cancelled, the function sets the work's cancellation, and raises CancelledError
    only after the work has ended.
    """
    cancellation = Cancellation()
    began = threads.submit(work, cancellation)
    # Wrap the future, so that the wait does not block the event loop.
    future = asyncio.wrap_future(began)
    cancelled: asyncio.CancelledError | None = None
    try:
        # A cancelled caller must also wait until the work has ended. The loop is needed, because
        # the caller can be cancelled several times.
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
                began.cancel()  # `cancel` has an effect only if the work has not begun
                cancellation.set()
        if cancelled is not None:
            if not future.cancelled():
                future.exception()  # marks the exception as retrieved, or asyncio logs it
            # The work has ended, so the next call for this executor can begin.
            raise cancelled
        return future.result()
    finally:
        cancellation.close()
