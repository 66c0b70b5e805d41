"""Who leads, and what a standby does and answers.

A standby tries to take leadership every `POLL_S` seconds (`AWAY_PAUSE_S` while the database is
away). It waits while another process leads and, once it has seen a leader, also while the database
is away. Every other error ends the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from finegrain.errors import FinegrainError, Reason, StoreError, Unavailable
from finegrain.logs import get_logger
from finegrain.rpc.status import LEADER_ADDRESS
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Listener, Runner
from resource_manager.storage.store import StoreAway

POLL_S = 0.1  # between two attempts while another process leads
AWAY_PAUSE_S = 0.5  # between two attempts while the database is away

_log = get_logger("finegrain.rm.standby")


class Leadership:
    """Knows whether this resource manager leads, and if not, which one does."""

    def __init__(self, runner: Runner, metrics: ResourceManagerMetrics) -> None:
        self._runner = runner
        self._metrics = metrics
        self.address = ""  # of this resource manager; set when the port is bound
        self.leading = False
        self.standing_by = False
        self.leader = ""
        self.leader_address = ""

    def refusal(self) -> Unavailable | None:
        """Returns the error for callers while this one does not lead; None: calls are served."""
        if self.leading:
            return None
        # Checked first: a leader that was replaced must not name itself as the leader.
        if self._runner.fatal.done():
            return Unavailable(
                "this resource manager no longer leads and is stopping",
                reason=Reason.NOT_LEADER,
            )
        if not self.standing_by:
            return Unavailable("the resource manager is starting; try again")
        # An epoch means that leadership was taken, and the state is being read.
        if self._runner.rm_epoch:
            return Unavailable(
                "this resource manager is taking over; try again",
                reason=Reason.NOT_LEADER,
                details={LEADER_ADDRESS: self.address},
            )
        where = f" at {self.leader_address}" if self.leader_address else ""
        return Unavailable(
            f"this resource manager is a standby; {self.leader or 'another one'} leads{where}",
            reason=Reason.NOT_LEADER,
            details={LEADER_ADDRESS: self.leader_address} if self.leader_address else None,
        )

    @property
    def healthy(self) -> bool:
        """True while requests are accepted and granted here."""
        return self.leading and self._runner.healthy

    @property
    def unready(self) -> str:
        """Why this resource manager is not healthy, in one or two words."""
        return "standby" if self.standing_by and not self.leading else "not ready"

    async def take(self, listener: Listener) -> None:
        """Takes leadership now.

        Raises:
            StoreError: another process leads (STORE_IN_USE), or the database cannot be used.
            FinegrainError: see `Runner.start`.
        """
        await self._runner.start(listener)

    async def wait_and_take(self, listener: Listener, waiting: Callable[[], None]) -> None:
        """Waits until no other process leads, then takes leadership.

        Args:
            listener: see `Runner.start`.
            waiting: called once if another process leads.

        Raises:
            StoreError: the database cannot be used. Once this one stands by, a database that goes
                away is waited for instead.
            FinegrainError: see `Runner.start`.
        """
        away = False
        while True:
            try:
                await self._runner.start(listener)
            except StoreError as error:
                if not self._others_lead(error) and not (
                    self.standing_by and isinstance(error, StoreAway)
                ):
                    raise
                # A database that another process leads on is there, so its outage is over.
                if self._others_lead(error):
                    away = False
                    self._saw(error, waiting)
                elif not away:
                    away = True
                    _log.error("database_away", reason=error.reason.value, error=error.message)
                await asyncio.sleep(AWAY_PAUSE_S if away else POLL_S)
            else:
                if self.standing_by:
                    _log.warning("taken_over", rm_epoch=self._runner.rm_epoch, before=self.leader)
                return

    def begin(self) -> None:
        """From now on callers are served."""
        self.leading = True
        self._metrics.leader.set(1)

    def end(self) -> None:
        """From now on callers are refused."""
        self.leading = False
        self._metrics.leader.set(0)

    @staticmethod
    def _others_lead(error: FinegrainError) -> bool:
        # A database locked by another program has the same reason, but no holder.
        return error.reason is Reason.STORE_IN_USE and "holder" in error.details

    def _saw(self, error: FinegrainError, waiting: Callable[[], None]) -> None:
        leader = error.details["holder"]
        address = error.details.get(LEADER_ADDRESS, "")
        if (leader, address) != (self.leader, self.leader_address) or not self.standing_by:
            self.leader, self.leader_address = leader, address
            _log.info("standing_by", leader=leader, leader_address=address)
        if not self.standing_by:
            self.standing_by = True
            waiting()
