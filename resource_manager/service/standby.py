"""The leadership of a resource manager. In a standby, `Leadership` waits for the leadership, and
rejects callers until then.

A standby tries to become the leader every `POLL_S` seconds. While the database cannot be reached,
it tries every `OUTAGE_PAUSE_S` seconds. A resource manager that has not yet seen another leader
does not wait for a database that cannot be reached: it fails at once. Every other error ends the
wait too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

from finegrain.errors import FinegrainError, Reason, StoreError, Unavailable
from finegrain.logs import get_logger
from finegrain.rpc.addresses import format_address, is_loopback
from finegrain.rpc.status import LEADER_ADDRESS
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Listener, Runner
from resource_manager.storage.store import StoreAway

POLL_S = 0.1  # pause between two attempts while another process leads
OUTAGE_PAUSE_S = 0.5  # pause between two attempts while the database cannot be reached

_log = get_logger("finegrain.rm.standby")


class Leadership:
    """Knows whether this resource manager leads, and otherwise which resource manager leads."""

    def __init__(self, runner: Runner, metrics: ResourceManagerMetrics) -> None:
        self._runner = runner
        self._metrics = metrics
        self.address = ""  # address of this resource manager; set when the port is bound
        self.leading = False
        self.standing_by = False
        self.leader = ""
        self.leader_address = ""
        self.leader_page = ""

    def refusal(self) -> Unavailable | None:
        """Returns the error for callers if this process does not lead. None: this process leads."""
        if self.leading:
            return None
        # Check this first: a leader that was replaced must not name itself as the leader.
        if self._runner.fatal.done():
            return Unavailable(
                "this resource manager no longer leads and is stopping",
                reason=Reason.NOT_LEADER,
            )
        if not self.standing_by:
            return Unavailable("the resource manager is starting; try again")
        # The runner has an epoch as soon as it leads, even while it still reads the state.
        if self._runner.rm_epoch:
            return Unavailable(
                "this resource manager is taking over; try again",
                reason=Reason.NOT_LEADER,
                details={LEADER_ADDRESS: self.address},
            )
        where = f" at {self.leader_address}" if self.leader_address else ""
        leader = self.leader or "another resource manager"
        return Unavailable(
            f"this resource manager is a standby; {leader} leads{where}",
            reason=Reason.NOT_LEADER,
            details={LEADER_ADDRESS: self.leader_address} if self.leader_address else None,
        )

    @property
    def leading_page(self) -> str:
        """The address of the web page of the resource manager that leads. Empty: this process
        leads or takes over, or other hosts cannot reach the page.
        """
        if self._runner.rm_epoch or not self.leader_page:
            return ""
        # Only browsers of the leader's host can open a page on loopback. In a cluster of several
        # hosts, a browser would connect to its own host instead.
        host, port = urlsplit(self.leader_page).hostname or "", 443
        is_local = is_loopback(format_address(host, port))
        if is_local and not (self.leader_address and is_loopback(self.leader_address)):
            return ""
        return self.leader_page

    @property
    def healthy(self) -> bool:
        """True while this resource manager accepts and grants requests."""
        return self.leading and self._runner.healthy

    @property
    def unready(self) -> str:
        """The reason why this resource manager is not healthy, in one or two words."""
        return "standby" if self.standing_by and not self.leading else "not ready"

    async def take(self, listener: Listener) -> None:
        """Becomes the leader at once, or fails.

        Raises:
            StoreError: another process leads (STORE_IN_USE), or the database cannot be used.
            FinegrainError: see `Runner.start`.
        """
        await self._runner.start(listener)

    async def wait_and_take(self, listener: Listener, waiting: Callable[[], None]) -> None:
        """Waits until no other process leads, then becomes the leader.

        Args:
            listener: see `Runner.start`.
            waiting: called once, when the first attempt shows that another process leads.

        Raises:
            StoreError: the database cannot be used. If the database cannot be reached, a standby
                raises no error, but tries again.
            FinegrainError: see `Runner.start`.
        """
        outage = False
        while True:
            try:
                await self._runner.start(listener)
            except StoreError as error:
                if not self._others_lead(error) and not (
                    self.standing_by and isinstance(error, StoreAway)
                ):
                    raise
                # The database reported another leader, so the database can be reached again.
                if self._others_lead(error):
                    outage = False
                    self._note_leader(error, waiting)
                elif not outage:
                    outage = True
                    _log.error("database_away", reason=error.reason.value, error=error.message)
                await asyncio.sleep(OUTAGE_PAUSE_S if outage else POLL_S)
            else:
                if self.standing_by:
                    _log.warning(
                        "leadership_taken_over",
                        rm_epoch=self._runner.rm_epoch,
                        previous_leader=self.leader,
                    )
                return

    def begin(self) -> None:
        """Starts serving callers."""
        self.leading = True
        self._metrics.leader.set(1)

    def end(self) -> None:
        """Stops serving callers, which then receive the error of `refusal`."""
        self.leading = False
        self._metrics.leader.set(0)

    @staticmethod
    def _others_lead(error: FinegrainError) -> bool:
        # If another program has locked the database, the error has the same reason, but its details
        # name no holder.
        return error.reason is Reason.STORE_IN_USE and "holder" in error.details

    def _note_leader(self, error: FinegrainError, waiting: Callable[[], None]) -> None:
        """Records and logs the leader that `error` names, and calls `waiting` the first time."""
        leader = error.details["holder"]
        address = error.details.get(LEADER_ADDRESS, "")
        self.leader_page = error.details.get("leader_page", "")
        if (leader, address) != (self.leader, self.leader_address) or not self.standing_by:
            self.leader, self.leader_address = leader, address
            _log.info("standing_by", leader=leader, leader_address=address)
        if not self.standing_by:
            self.standing_by = True
            waiting()
