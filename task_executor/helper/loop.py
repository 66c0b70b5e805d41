"""Runs an event loop in one thread, for descriptors, timers, ended child processes, and jobs.

A job is a generator. To wait, it yields a number of seconds, or a pair (descriptor, seconds). In
the second form, the wait also ends when the descriptor becomes readable. The pair can have a
`Waker` instead of a descriptor. So a slow operation can be written as a plain loop, and does not
block other operations.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import signal
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from task_executor.helper.protocol import Fault

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
_EVENTS = 64  # maximum number of ready descriptors that one call of the kernel returns


class Waker:
    """A job that waits for this object continues at the end of the iteration of the event loop in
    which `wake` was called.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None


Job = Generator["float | tuple[int | Waker, float]", None, Any]
Done = Callable[[Any, Exception | None], None]
# A timer is a list: the time when it fires (monotonic seconds), its number, and the callback or
# None.
Timer = list[Any]


def _report(_value: Any, error: Exception | None) -> None:
    if error:
        # Import the module only now: most helpers never need it, and each fork copies everything
        # that is loaded.
        import traceback

        try:
            traceback.print_exception(error)
        except OSError:
            return  # the log's disk is full


def within(seconds: float, job: Job, too_late: Callable[[], Fault]) -> Job:
    """Runs a job with a time limit.

    Args:
        seconds: the time limit.
        job: the job.
        too_late: a function that returns the Fault to raise when the job takes longer.
    """
    end = time.monotonic() + seconds
    for step in job:
        if time.monotonic() > end:
            job.close()
            raise too_late()
        yield step


class Loop:
    """The event loop. A process has only one.

    Args:
        on_child: a function that is called when child processes have possibly ended.
    """

    def __init__(self, on_child: Callable[[], None]) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._soon: list[Callable[[], None]] = []
        self._timers: list[Timer] = []
        self._cancelled = 0
        self._order = itertools.count()
        self.running = True
        wake_reader, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        # Python writes to the wakeup fd only if the signal has a handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)

        def woken(_events: int) -> None:
            os.read(wake_reader, 4096)
            on_child()

        self.watch(wake_reader, woken)

    def watch(self, fd: int, callback: Callable[[int], None], events: int = READ) -> None:
        if (known := self._watched.get(fd)) is None:
            self._epoll.register(fd, events)
        elif known[0] != events:
            self._epoll.modify(fd, events)
        self._watched[fd] = (events, callback)

    def unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            with suppress(OSError):  # the descriptor is closed already
                self._epoll.unregister(fd)

    def soon(self, callback: Callable[[], None]) -> None:
        """Calls `callback` at the end of this iteration, before the loop waits again."""
        self._soon.append(callback)

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        # The counter orders timers of the same moment, because callbacks cannot be compared.
        timer: Timer = [time.monotonic() + seconds, next(self._order), callback]
        heapq.heappush(self._timers, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Cancels a timer. For a timer that has already fired, this does nothing."""
        if timer[2] is not None:
            timer[2] = None
            self._cancelled += 1
        # Cancelled timers stay in the heap until their time. Remove them, because many long timers
        # would fill the heap.
        if self._cancelled > 100 + len(self._timers) // 2:
            self._timers = [each for each in self._timers if each[2] is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def run(self, job: Job, done: Done = _report) -> None:
        """Runs a job. `done(value, error)` is called once, when the job ends."""
        try:
            step = next(job)
        except StopIteration as end:
            return done(end.value, None)
        except Exception as error:
            return done(None, error)
        on, seconds = step if isinstance(step, tuple) else (-1, step)

        # Both the descriptor and the timer resume the job, but only the first of the two counts.
        def resume(_events: int = 0) -> None:
            if isinstance(on, Waker):
                on.wake = lambda: None
            elif on >= 0:
                self.unwatch(on)
            self.cancel(timer)
            self.run(job, done)

        def wake() -> None:
            if timer[2] is not None:  # the job has not been resumed yet
                self.cancel(timer)
                self.soon(resume)

        if isinstance(on, Waker):
            on.wake = wake
        elif on >= 0:
            self.watch(on, resume)
        timer = self.later(seconds, resume)
        return None

    def serve(self) -> None:
        """Runs until `running` is cleared. An error in a callback is logged and not raised."""
        while self.running:
            wait = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            ready = self._epoll.poll(0 if self._soon else wait, _EVENTS)
            for fd, watched, found in [(fd, self._watched.get(fd), e) for fd, e in ready]:
                # An earlier callback can close the descriptor, and a new descriptor can get the
                # same number. Ignore the event in these cases.
                if watched is not None and self._watched.get(fd) is watched:
                    # An error or the end of a stream counts as readable and writable.
                    events = READ * bool(found & ~WRITE) | WRITE * bool(found & ~READ)
                    self._guard(watched[1], events & watched[0])
            # timers that become due later wait until the loop has served descriptors again
            due = time.monotonic()
            while self._timers and self._timers[0][0] <= due:
                timer = heapq.heappop(self._timers)
                callback, timer[2] = timer[2], None
                if callback is None:
                    self._cancelled -= 1
                else:
                    self._guard(callback)
            while self._soon:
                callbacks, self._soon = self._soon, []
                for callback in callbacks:
                    self._guard(callback)

    @staticmethod
    def _guard(callback: Callable[..., None], *args: int) -> None:
        try:
            callback(*args)
        except Exception as error:
            _report(None, error)
