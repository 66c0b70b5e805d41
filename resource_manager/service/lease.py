"""Renews the leadership lease in a separate thread, and checks whether the lease has ended.

A process can be suspended for longer than its lease lasts. `LeaseKeeper.confirm` detects this, and
is called before the process answers a caller or sends a command to an executor. Each store
implements the lease in its own way.
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
        store: the store. When `start` is called, this process must lead with this store.
        interval_s: the time between two renewals, in seconds.
        on_lost: called once, on the event loop, when another process leads.
        unsure_max_s: time in seconds. Callers are rejected when the lease has been unconfirmed for
            longer than this time.
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
        # The renewals run in a thread and not in a task. So they continue while the event loop is
        # busy.
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rm-lease")
        self._renewal: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Starts the renewals. This method can be called again after `pause`."""
        # Each thread has its own event. So a thread that `pause` has stopped ends even if a new
        # thread has already started.
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(self._over, asyncio.get_running_loop()),
            name="rm-renew",
            # The process must be able to end even if a renewal hangs.
            daemon=True,
        )
        self._thread.start()

    def pause(self) -> None:
        """Stops the renewals. A renewal in progress still completes."""
        self._over.set()

    def stop(self) -> None:
        """Stops the renewals permanently. `start` must not be called afterwards."""
        self.pause()
        self._executor.shutdown(wait=False)

    def check(self) -> None:
        """Records whether the lease is valid. The writer calls this method at regular intervals."""
        if self._store.holds_lease():
            self._unsure_since_s = None
        elif self._unsure_since_s is None:
            self._unsure_since_s = time.monotonic()

    @property
    def outage(self) -> Unavailable | None:
        """Returns the error for callers if the lease was unconfirmed for `unsure_max_s`; None:
        there is no such error.
        """
        since_s = self._unsure_since_s
        if since_s is None or time.monotonic() - since_s < self._unsure_max_s:
            return None
        return Unavailable(
            "the database does not confirm that this resource manager still leads; try again",
            reason=Reason.NOT_LEADER,
        )

    async def confirm(self) -> None:
        """Returns when it is certain that no other process leads.

        The database is called only if the lease has possibly ended.

        Raises:
            NotLeader: another process leads.
            StoreError: the database does not report the leader.
        """
        # This is a loop, because the database can be so slow that the lease has ended again when
        # the answer arrives.
        while not self._store.holds_lease():
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.ensure_future(self.renew())
                self._renewal.add_done_callback(_retrieve_error)
            # All callers wait for one shared renewal. Because of the shield, a cancelled caller
            # does not cancel the renewal of the other callers.
            await asyncio.shield(self._renewal)

    async def renew(self) -> None:
        """Renews the lease now.

        Raises:
            NotLeader: another process leads.
            StoreError: the database does not report the leader.
        """
        await asyncio.get_running_loop().run_in_executor(self._executor, self._store.renew)

    def _run(self, over: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        failing = False
        while not over.wait(self._interval_s):
            try:
                self._store.renew()
            except NotLeader as error:
                with suppress(RuntimeError):  # the event loop is closed already
                    loop.call_soon_threadsafe(self._on_lost, error)
                return
            except Exception as error:  # only another leader ends the renewals permanently
                # The warning is logged once per outage. The failing commits log the details.
                if not (failing or over.is_set()):
                    _log.warning("renewal_failed", error=str(error))
                failing = True
            else:
                failing = False


def _retrieve_error(renewal: asyncio.Future[None]) -> None:
    """Retrieves the error. Otherwise asyncio would log a warning if no caller waits any more."""
    if not renewal.cancelled():
        renewal.exception()
