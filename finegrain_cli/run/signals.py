"""Handles signals to `finegrain run`. Before the command runs, a termination signal ends the wait
for a slot. While the command runs, signals are forwarded to the command.

Termination signals are SIGINT, SIGTERM and SIGHUP. If the command still runs when the grace period
after such a signal ends, the command is killed. A second termination signal kills the command at
once. All other signals are only forwarded.
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
    """A termination signal arrived before the command ran, so the signal could not be forwarded."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Handles the signals of this process. An instance must be created inside a running event loop.

    Args:
        grace_s: time from a termination signal until SIGKILL.
    """

    def __init__(self, grace_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._grace_s = grace_s
        self._ending: asyncio.Future[int] = self._loop.create_future()
        self._tasks: list[fg.Task] = []
        self._background: set[asyncio.Task[object]] = set()
        for number in ENDING_SIGNALS:
            self._loop.add_signal_handler(number, self._take, number)

    @property
    def ask_for_the_end(self) -> bool:
        """True if a termination signal has arrived."""
        return self._ending.done()

    async def unless_ended(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `waiting`.

        Raises:
            EndedEarlyError: a termination signal arrived first, and `waiting` was cancelled.
        """
        work = asyncio.ensure_future(waiting)
        either: set[asyncio.Future[Any]] = {work, self._ending}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._ending.done():
            return await work
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        raise EndedEarlyError(self._ending.result())

    def forward_to(self, task: fg.Task) -> None:
        """Also forwards signals to this task, including a termination signal that has already
        arrived.
        """
        if not self._tasks:
            for number in OTHER_SIGNALS:
                # Set the handlers only now. Before a command runs, these signals must have their
                # usual effect.
                self._loop.add_signal_handler(number, self._take, number)
        self._tasks.append(task)
        # Forward a termination signal that arrived while the task was being started.
        if self._ending.done():
            self._forward(task, self._ending.result())

    def _take(self, number: int) -> None:
        again = number in ENDING_SIGNALS and self._ending.done()
        if number in ENDING_SIGNALS and not again:
            self._ending.set_result(number)
        for task in self._tasks:
            if again:
                self._start(task, task.cancel(grace_s=0.0))
            else:
                self._forward(task, number)

    def _forward(self, task: fg.Task, number: int) -> None:
        self._start(
            task, self._end(task, number) if number in ENDING_SIGNALS else task.signal(number)
        )

    def _start(self, task: fg.Task, work: Coroutine[Any, Any, object]) -> None:
        if task.state.has_ended:
            work.close()
            return
        running = asyncio.ensure_future(work)
        self._background.add(running)
        running.add_done_callback(self._background.discard)

    async def _end(self, task: fg.Task, number: int) -> None:
        await task.signal(number)
        await asyncio.sleep(self._grace_s)
        # The grace period has just passed, so send SIGKILL at once.
        await task.cancel(grace_s=0.0)
