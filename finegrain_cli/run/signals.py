"""Where signals to `finegrain run` go: to whoever waits for a slot, later to the command.

Signals that ask for an end (SIGINT, SIGTERM, SIGHUP) go to the command first; what is still there
after the grace period is killed. Other signals are only passed on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import finegrain_client as fg

T = TypeVar("T")

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OTHER_SIGNALS = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class EndedEarlyError(Exception):
    """A signal asked for the end before there was a command to pass it to."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Takes the process's signals over, inside a running event loop.

    Args:
        grace_s: between a signal that asks for the end, and SIGKILL.
    """

    def __init__(self, grace_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._grace_s = grace_s
        self._ending: asyncio.Future[int] = self._loop.create_future()
        self._tasks: list[fg.Task] = []
        self._background: set[asyncio.Task[None]] = set()
        for number in ENDING_SIGNALS:
            self._loop.add_signal_handler(number, self._take, number)

    @property
    def ask_for_the_end(self) -> bool:
        """Whether one came that asks for the end."""
        return self._ending.done()

    async def unless_ended(self, waiting: Coroutine[Any, Any, T]) -> T:
        """What is waited for, or EndedEarlyError as soon as a signal asks for the end."""
        work = asyncio.ensure_future(waiting)
        either: set[asyncio.Future[Any]] = {work, self._ending}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._ending.done():
            return await work
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        raise EndedEarlyError(self._ending.result())

    def forward_to(self, task: fg.Task) -> None:
        """From now on signals go to this task, too; one that asked for the end before, as well."""
        if not self._tasks:
            for number in OTHER_SIGNALS:
                self._loop.add_signal_handler(number, self._take, number)
        self._tasks.append(task)
        if self._ending.done():
            self._forward(task, self._ending.result())

    def _take(self, number: int) -> None:
        if number in ENDING_SIGNALS and not self._ending.done():
            self._ending.set_result(number)
        for task in self._tasks:
            self._forward(task, number)

    def _forward(self, task: fg.Task, number: int) -> None:
        if task.state.has_ended:
            return
        work = self._end(task, number) if number in ENDING_SIGNALS else task.signal(number)
        running = asyncio.ensure_future(work)
        self._background.add(running)
        running.add_done_callback(self._background.discard)

    async def _end(self, task: fg.Task, number: int) -> None:
        await task.signal(number)
        await asyncio.sleep(self._grace_s)
        await task.cancel(grace_s=0.0)
