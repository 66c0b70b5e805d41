"""Waiting for one's turn: what a resource manager says and does while another one leads.

Decides what callers are told, when leadership is tried for, and which troubles a standby sits out.
Refuses to know how leadership is kept (the store) and what a leader does (the runner).
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

POLL_S = 0.1
AWAY_PAUSE_S = 0.5

_log = get_logger("finegrain.rm.standby")


class Leadership:
    """Whether this resource manager leads, and who does where it does not."""

    def __init__(self, runner: Runner, metrics: ResourceManagerMetrics) -> None:
        self._runner = runner
        self._metrics = metrics
        self.address = ""  # our own, once the port is bound
        self.leading = False
        self.standing_by = False
        self.leader = ""
        self.leader_address = ""

    def refusal(self) -> Unavailable | None:
        """What callers are told; None: they are served."""
        if self.leading:
            return None
        if self._runner.fatal.done():
            return Unavailable(
                "this resource manager leads no longer and is about to end",
                reason=Reason.NOT_LEADER,
            )
        if not self.standing_by:
            return Unavailable("the resource manager is starting; try again")
        if self._runner.rm_epoch:
            return Unavailable(
                "this resource manager is taking over; try again",
                reason=Reason.NOT_LEADER,
                details={LEADER_ADDRESS: self.address},
            )
        where = f" at {self.leader_address}" if self.leader_address else ""
        return Unavailable(
            f"this resource manager stands by; {self.leader or 'another one'} leads{where}",
            reason=Reason.NOT_LEADER,
            details={LEADER_ADDRESS: self.leader_address} if self.leader_address else None,
        )

    @property
    def healthy(self) -> bool:
        """True while requests are accepted and granted here."""
        return self.leading and self._runner.healthy

    @property
    def unready(self) -> str:
        """Why not, in a word."""
        return "standby" if self.standing_by and not self.leading else "not ready"

    async def take(self, listener: Listener) -> None:
        """Leads from now on.

        Raises:
            StoreError: another one leads (STORE_IN_USE), or the database cannot be used.
            FinegrainError: as `Runner.start`.
        """
        await self._runner.start(listener)

    async def wait_and_take(self, listener: Listener, waiting: Callable[[], None]) -> None:
        """Leads as soon as nobody else does.

        Args:
            listener: see `Runner.start`.
            waiting: told once, if there is a wait.

        Raises:
            StoreError: the database cannot be used; one that goes away later is waited for.
            FinegrainError: as `Runner.start`.
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
        """Callers are served from now on."""
        self.leading = True
        self._metrics.leader.set(1)

    def end(self) -> None:
        """Callers are sent away from now on."""
        self.leading = False
        self._metrics.leader.set(0)

    @staticmethod
    def _others_lead(error: FinegrainError) -> bool:
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
