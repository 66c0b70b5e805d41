"""Blocking work of providers in threads, so that whoever asked can change their mind.

Decides that work which was begun is ended before its caller goes on: two calls about one executor
never overlap. Refuses to know what the work is.
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
    """Tells work in a thread to come to an end. Takes descriptors only while somebody listens:
    calls that wait for a thread may be many.
    """

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None
        self._lock = Lock()
        self.is_set = False

    def fileno(self) -> int:
        """Readable once it is set."""
        with self._lock:
            if self._pipe is None:
                self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                self._tell()
            return self._pipe[0]

    def set(self) -> None:
        """Tells it."""
        with self._lock:
            self.is_set = True
            self._tell()

    def close(self) -> None:
        """Lets go of it, when the work has ended."""
        with self._lock:
            for descriptor in self._pipe or ():
                os.close(descriptor)
            self._pipe = None

    def _tell(self) -> None:
        if self.is_set and self._pipe is not None:
            with suppress(OSError):
                os.write(self._pipe[1], b"x")


async def in_thread(threads: ThreadPoolExecutor, work: Callable[[Cancellation], T]) -> T:
    """Runs it in one of the threads; waits for one if all are busy.

    Cancelled, it tells the work, and raises only when that has ended.
    """
    cancellation = Cancellation()
    began = threads.submit(work, cancellation)
    future = asyncio.wrap_future(began)
    cancelled: asyncio.CancelledError | None = None
    try:
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
                began.cancel()  # where it has no thread yet
                cancellation.set()
        if cancelled is not None:
            if not future.cancelled():
                future.exception()  # nobody asks for it any more
            raise cancelled
        return future.result()
    finally:
        cancellation.close()
