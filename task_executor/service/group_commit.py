"""Makes changes durable in groups: one sync on disk serves all callers that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class GroupCommit:
    """Runs one commit at a time, in a thread. Changes that are made during a commit wait for the
    next commit.

    Args:
        prepare: a function that runs in the event loop at the beginning of each commit. It returns
            another function. This other function runs in a thread, and makes all changes up to now
            durable.
    """

    def __init__(self, prepare: Callable[[], Callable[[], None]]) -> None:
        self._prepare = prepare
        self._next: asyncio.Future[None] | None = None  # the commit that has not begun yet
        self._running: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Future[None]:
        """Requests a commit of everything up to now, and returns at once.

        Returns:
            A future for the end of the commit. All callers of this commit share the future. If the
            commit fails, the error of the future is an OSError.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            # Read the exception of a commit that no caller waits for, so that asyncio does not log
            # it.
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return self._next

    async def commit(self) -> None:
        """Returns when everything up to now is durable.

        Raises:
            OSError: a file could not be written (for example, the disk is full).
        """
        # Shield the commit: if one of several callers is cancelled, the other callers still get the
        # result.
        await asyncio.shield(self.begin())

    async def _run(self) -> None:
        try:
            while (done := self._next) is not None:
                # Forget the future before `prepare`, because a later caller needs the next commit.
                self._next = None
                try:
                    await asyncio.to_thread(self._prepare())
                except BaseException as error:
                    done.set_exception(
                        error if isinstance(error, Exception) else OSError(str(error))
                    )
                    if not isinstance(error, Exception):
                        raise
                else:
                    done.set_result(None)
        finally:
            self._running = None
