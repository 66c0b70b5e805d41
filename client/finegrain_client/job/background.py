"""The tasks of asyncio that live behind a job, so that none is ever left behind.

Decides that every one of them has an owner who ends it. Refuses to know what they do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from finegrain.errors import FinegrainError

T = TypeVar("T")
log = logging.getLogger("finegrain_client")

CLEANING_UP = "taking back"
"""How the names of tasks begin that undo something and then end by themselves."""


class Background:
    """A set of running tasks; an error in one is logged, an unexpected one with its traceback."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs it until it ends or `stop` is called."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def settle(self, timeout_s: float) -> None:
        """Waits for those that end by themselves, at most so long."""
        some = {task for task in self._tasks if task.get_name().startswith(CLEANING_UP)}
        if some:
            await asyncio.wait(some, timeout=timeout_s)

    async def stop(self) -> None:
        """Cancels all of them and waits until they are gone."""
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
    """Wakes whoever waits for a change; a waiter that is cancelled leaves nothing behind."""

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
        """Something changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        for listener in list(self.listeners):
            listener()


async def unless(event: asyncio.Event, work: Awaitable[T], error: Callable[[], Exception]) -> T:
    """The result of `work`, or `error()` raised as soon as `event` is set before that.

    `work` is cancelled and awaited when it is not needed any more, for whatever reason.
    """
    working = asyncio.ensure_future(work)
    if event.is_set():  # then it is not even begun
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        raise error()
    alarm = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise error()
    finally:
        for task in (working, alarm):
            task.cancel()
        await asyncio.gather(working, alarm, return_exceptions=True)
