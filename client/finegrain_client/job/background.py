"""Runs the background tasks of a job, and notifies waiting code of changes.

All asyncio tasks of a job belong to one `Background`. When the client leaves the job, `Background`
cancels these tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from finegrain.errors import FinegrainError

T = TypeVar("T")
log = logging.getLogger("finegrain_client")

CLEANING_UP = "cancelling"
"""Prefix of the names of asyncio tasks that cancel unwanted work and soon end by themselves."""


class Background:
    """A set of running asyncio tasks.

    If a task fails, its error is logged. The traceback is logged, too, unless the error is a
    FinegrainError.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Starts `work` as a task. The task runs until it ends or `stop` is called."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        # Keep a reference to the task, because the event loop keeps only weak references.
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def settle(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` for the tasks whose names start with `CLEANING_UP`."""
        some = {task for task in self._tasks if task.get_name().startswith(CLEANING_UP)}
        if some:
            await asyncio.wait(some, timeout=timeout_s)

    async def stop(self) -> None:
        """Cancels all tasks and waits until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, FinegrainError):
            log.warning("%s: %s", task.get_name(), error.message)
        elif error is not None:
            log.error("%s failed", task.get_name(), exc_info=error)


class Changes:
    """Notifies waiting coroutines and registered listeners of a change."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()
        self.listeners: set[Callable[[], None]] = set()

    async def next(self) -> None:
        """Returns at the next change."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def notify(self) -> None:
        """Wakes all waiters and calls all listeners."""
        for waiter in self._waiters:
            if not waiter.done():
                # A waiter stays in the set until its coroutine runs. A second change can come
                # before that, so skip waiters that are already done.
                waiter.set_result(None)
        # Iterate over a copy, because a listener can remove itself.
        for listener in list(self.listeners):
            listener()


async def unless(event: asyncio.Event, work: Awaitable[T], error: Callable[[], Exception]) -> T:
    """Returns the result of `work`, or raises `error()` if `event` is set first.

    When this function returns, `work` has ended in every case: if `event` is set first, `work` is
    cancelled and awaited.

    Args:
        event: the event that makes the result useless.
        work: the work to wait for. It is not started if `event` is already set.
        error: a function that creates the exception to raise.

    Raises:
        Exception: the exception that `error` created, or that `work` raised.
    """
    working = asyncio.ensure_future(work)
    if event.is_set():  # do not even start the work
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        raise error()
    alarm = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, alarm}, return_when=asyncio.FIRST_COMPLETED)
        # Check the work first. If both are done at the same time, the result of the work counts.
        if working.done():
            return working.result()
        raise error()
    finally:
        for task in (working, alarm):
            task.cancel()
        await asyncio.gather(working, alarm, return_exceptions=True)
