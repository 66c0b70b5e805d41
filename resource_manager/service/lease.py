"""Renews the leadership lease from a dedicated thread, and confirms it before anything goes out.

A process that was suspended or starved for longer than its lease finds out here, before it answers
a caller or commands an executor. The store decides how a lease is kept.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from finegrain.errors import Reason, Unavailable
from finegrain.logs import get_logger
from resource_manager.storage.store import NotLeader, Store

_log = get_logger("finegrain.rm.lease")


class LeaseKeeper:
    """Keeps the leadership of one store.

    Args:
        store: already leads when `start` is called.
        interval_s: seconds between two renewals.
        on_lost: called once, on the event loop, when another process leads.
        unsure_max_s: callers are refused when the lease has been in doubt for longer.
    """

    def __init__(
        self,
        store: Store,
        interval_s: float,
        on_lost: Callable[[NotLeader], None],
        *,
        unsure_max_s: float,
    ) -> None:
        self._store = store
        self._interval_s = interval_s
        self._on_lost = on_lost
        self._unsure_max_s = unsure_max_s
        self._unsure_since_s: float | None = None
        # A thread, not a task: a busy event loop must not cost the leadership.
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rm-lease")
        self._renewal: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Begins to renew. May be called again after `pause`."""
        # A new event for each thread: one that was paused and has not noticed yet still ends.
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(self._over, asyncio.get_running_loop()),
            name="rm-renew",
            # A renewal that hangs must not keep the process from ending.
            daemon=True,
        )
        self._thread.start()

    def pause(self) -> None:
        """Stops renewing. A renewal in progress completes by itself."""
        self._over.set()

    def stop(self) -> None:
        """Stops renewing for good; `start` must not follow."""
        self.pause()
        self._executor.shutdown(wait=False)

    def check(self) -> None:
        """Notes whether the lease holds. Call it regularly (the writer's tick does)."""
        if self._store.holds_lease():
            self._unsure_since_s = None
        elif self._unsure_since_s is None:
            self._unsure_since_s = time.monotonic()

    @property
    def outage(self) -> Unavailable | None:
        """The refusal for callers after the lease was in doubt for `unsure_max_s`, or None."""
        since_s = self._unsure_since_s
        if since_s is None or time.monotonic() - since_s < self._unsure_max_s:
            return None
        return Unavailable(
            "the database does not confirm that this resource manager still leads; try again",
            reason=Reason.NOT_LEADER,
        )

    async def confirm(self) -> None:
        """Returns once it is certain that no other process can have taken over.

        Asks the database only where the lease may have run out.

        Raises:
            NotLeader: another process leads.
            StoreError: the database does not say who leads.
        """
        # A loop, because the lease may have run out again by the time a slow answer arrives.
        while not self._store.holds_lease():
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.ensure_future(self.renew())
                self._renewal.add_done_callback(_retrieve_error)
            # Shielded and shared: all callers in doubt wait for one renewal, and one of them that
            # is cancelled does not cancel it for the others.
            await asyncio.shield(self._renewal)

    async def renew(self) -> None:
        """Renews now.

        Raises:
            NotLeader: another process leads.
            StoreError: the database does not say who leads.
        """
        await asyncio.get_running_loop().run_in_executor(self._executor, self._store.renew)

    def _run(self, over: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        failing = False
        while not over.wait(self._interval_s):
            try:
                self._store.renew()
            except NotLeader as error:
                with suppress(RuntimeError):  # the event loop has been closed
                    loop.call_soon_threadsafe(self._on_lost, error)
                return
            except Exception as error:  # only a successor ends the renewals for good
                # Logged once per outage; the commits that fail in it log the details.
                if not (failing or over.is_set()):
                    _log.warning("renewal_failed", error=str(error))
                failing = True
            else:
                failing = False


def _retrieve_error(renewal: asyncio.Future[None]) -> None:
    """Retrieves the error, so that asyncio does not warn when no caller waits any more."""
    if not renewal.cancelled():
        renewal.exception()
