"""Leadership over time: renewed from a thread of its own, and relied on only while it surely holds.

Decides when to renew and when the lease has to be asked about before anything goes out. A process
that was stopped or starved for longer than its lease finds out here, before it answers a caller or
commands an executor. Refuses to know how a lease is kept; that is the store's.
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
        store: leads already when `start` is called.
        interval_s: between two renewals.
        on_lost: told on the event loop, once, that another leads.
        unsure_max_s: in doubt for longer, callers are better sent away.
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
        # Not a task: a busy event loop must not cost the leadership.
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rm-lease")
        self._renewal: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Begins to renew; again after `pause`."""
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(self._over, asyncio.get_running_loop()),
            name="rm-renew",
            daemon=True,
        )
        self._thread.start()

    def pause(self) -> None:
        """Stops renewing; what is under way ends by itself."""
        self._over.set()

    def stop(self) -> None:
        """The same for good."""
        self.pause()
        self._executor.shutdown(wait=False)

    def check(self) -> None:
        """Notes whether the lease holds; to be called regularly."""
        if self._store.holds_lease():
            self._unsure_since_s = None
        elif self._unsure_since_s is None:
            self._unsure_since_s = time.monotonic()

    @property
    def outage(self) -> Unavailable | None:
        """What callers are told while the database does not say for long who leads."""
        since_s = self._unsure_since_s
        if since_s is None or time.monotonic() - since_s < self._unsure_max_s:
            return None
        return Unavailable(
            "the database does not say whether this resource manager still leads; try again",
            reason=Reason.NOT_LEADER,
        )

    async def confirm(self) -> None:
        """Returns when nobody can have taken over; asks the database only where that is in doubt.

        Raises:
            NotLeader: another leads.
            StoreError: the database does not say.
        """
        # Again where the answer took so long that the lease may have run out since.
        while not self._store.holds_lease():
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.ensure_future(self.renew())
                self._renewal.add_done_callback(_retrieve_error)
            await asyncio.shield(self._renewal)  # all who are in doubt wait for one answer

    async def renew(self) -> None:
        """Renews now.

        Raises:
            NotLeader, StoreError: see `confirm`.
        """
        await asyncio.get_running_loop().run_in_executor(self._executor, self._store.renew)

    def _run(self, over: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        failing = False
        while not over.wait(self._interval_s):
            try:
                self._store.renew()
            except NotLeader as error:
                with suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(self._on_lost, error)
                return
            except Exception as error:  # nothing but a successor ends this for good
                if not (failing or over.is_set()):  # once per outage; a commit says more
                    _log.warning("renewal_failed", error=str(error))
                failing = True
            else:
                failing = False


def _retrieve_error(renewal: asyncio.Future[None]) -> None:
    """Whoever asked may have gone; an error is then nobody's."""
    if not renewal.cancelled():
        renewal.exception()
