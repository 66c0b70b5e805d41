"""A database in memory: the same rows as in the real stores, and one lease row.

It follows `resource_manager/storage`. With a lease, the database behaves like a server with its own
clock. A process that takes the lease waits for open transactions. A transaction whose client is
silent is aborted. Without a lease, it behaves like a file: leadership ends with the leader's
process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.errors import Reason, StoreError
from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.storage.memory_store import snapshot_of
from resource_manager.storage.store import NotLeader
from tests.simulation.network import Loop, Node, Reply
from tests.simulation.rows import Rows

if TYPE_CHECKING:
    from tests.simulation.checks import Checks

LEASE_MS = 1_000
IDLE_MS = 400  # a client that is silent in a transaction for longer than this is disconnected
CALL_WAIT_MS = 1_200  # a client gives up a call after this time
LOCK_WAIT_MS = (
    CALL_WAIT_MS // 2
)  # a statement waits this long; the time is shorter, so that it fails before its caller gives up


STOP_MS = 2_500
AROUND_COMMIT = ("die before", "die after", "fail before", "fail after", "stop after")


@dataclass(eq=False)
class Client(Node):
    """A process that uses the database."""

    cut_off: bool = False  # True: it cannot reach the database
    epoch: int = 0  # the epoch at which it leads, as far as it knows; 0: it has never led
    next_commit: str = ""  # the fault of the next commit: see `Database.commit`

    @property
    def holder(self) -> str:
        """Returns the name under which this run of the process leads."""
        return f"{self.name} (life {self.life})"

    def stop_for(self, stop_ms: int) -> None:
        """Stops the process in the same way as SIGSTOP. The process continues after `stop_ms`."""
        self.next_commit = ""
        self.stopped_until_ms = self.loop.now_ms + stop_ms

    def crash(self) -> None:
        """Kills the process."""
        raise NotImplementedError


@dataclass(eq=False)
class Transaction:
    """A batch on its way to the database. Its rows are kept as they were when it was submitted."""

    client: Client
    holder: str
    epoch: int
    write: Callable[[Rows], list[str]]
    changes: Changes
    committing: bool = False
    broken: bool = False


@dataclass(eq=False)
class Database:
    """The database, which outlives its resource managers."""

    loop: Loop
    rng: Random
    checks: Checks
    lease_ms: int | None  # None: the database is a file
    rows: Rows = field(default_factory=Rows)
    rm_epoch: int = 0
    holder: str = ""
    held_by: Client | None = None
    until_ms: int = -1
    down_until_ms: int = 0
    slow_until_ms: int = 0
    open: dict[Transaction, None] = field(default_factory=dict)

    # -- leadership --------------------------------------------------------------------------

    def leads(self, holder: str, epoch: int) -> bool:
        """Returns whether this process leads at this epoch: the condition of every write."""
        return self.holder == holder and self.rm_epoch == epoch

    def _is_free(self, holder: str) -> bool:
        if self.holder == holder:
            return True  # taken by an earlier call whose answer came too late
        if self.lease_ms is None:
            held_by = self.held_by
            return held_by is None or not held_by.up or held_by.holder != self.holder
        return self.until_ms < self.loop.now_ms

    def lead(self, client: Client, above_epoch: int, answer: Reply) -> None:
        """Takes leadership if it is free, or raises the leader's epoch; answers with the epoch.

        Errors: StoreError (STORE_IN_USE while another process leads), NotLeader.
        """
        holder, epoch = client.holder, client.epoch
        give_up_ms = self.loop.now_ms + LOCK_WAIT_MS

        def take(reply: Reply) -> None:
            if self.open:  # open transactions lock the lease row
                if self.loop.now_ms < give_up_ms:
                    self.loop.after(20, lambda: take(reply))
                else:
                    reply(StoreError("the row stayed locked"))
            elif epoch and not self.leads(holder, epoch):
                reply(NotLeader("another took over"))
            elif not epoch and not self._is_free(holder):
                reply(StoreError("another leads", reason=Reason.STORE_IN_USE))
            else:
                self.rm_epoch = self._next_epoch(above_epoch)
                self.holder, self.held_by = holder, client
                self._prolong()
                self.checks.led(self.rm_epoch)
                reply(self.rm_epoch)

        self._call(client, answer, take)

    def _next_epoch(self, above_epoch: int) -> int:
        return max(self.rm_epoch, above_epoch) + 1

    def renew(self, client: Client, answer: Reply) -> None:
        """Renews the lease; answers with None. Errors: StoreError, NotLeader."""
        holder, epoch = client.holder, client.epoch
        give_up_ms = self.loop.now_ms + LOCK_WAIT_MS

        def take(reply: Reply) -> None:
            if self.open and self.lease_ms is not None:
                if self.loop.now_ms < give_up_ms:
                    self.loop.after(20, lambda: take(reply))
                else:
                    reply(StoreError("the row stayed locked"))
            elif not self.leads(holder, epoch):
                reply(NotLeader("another took over"))
            else:
                self._prolong()
                reply(None)

        self._call(client, answer, take)

    def give_back(self, client: Client) -> None:
        """Releases leadership at a planned stop."""
        if self.leads(client.holder, client.epoch):
            self.until_ms, self.holder, self.held_by = -1, "", None

    def _prolong(self) -> None:
        self.until_ms = self.loop.now_ms + (self.lease_ms or 0)

    # -- transactions ------------------------------------------------------------------------

    def commit(self, client: Client, changes: Changes, answer: Reply) -> None:
        """Stores a batch in one transaction; answers with None.

        `client.next_commit` names a fault, which happens once. "die before" and "die after": the
        client dies before or after the commit. "fail before" and "fail after": the commit fails
        before or after it was made. "stop before", "stop inside" and "stop after": the client stops
        for seconds before, in or after the transaction.

        Errors: NotLeader. Or StoreError, after which the transaction may or may not be stored.
        """
        write = Rows.write_of(changes)
        transaction = Transaction(client, client.holder, client.epoch, write, changes)
        life = client.life

        def begin(reply: Reply) -> None:
            if not client.up or client.life != life:
                return
            if not self._is_fenced(transaction):
                reply(NotLeader("another took over"))
                return
            self.open[transaction] = None
            if self.lease_ms is not None:
                self.loop.after(IDLE_MS, lambda: self._break_off(transaction))
            if client.next_commit == "stop inside":
                client.stop_for(STOP_MS)
            self.loop.after(1, lambda: client.run(life, lambda: self._end(transaction, reply)))

        if client.next_commit == "stop before":
            client.stop_for(STOP_MS)
        client.run(life, lambda: self._call(client, answer, begin))

    def _is_fenced(self, transaction: Transaction) -> bool:
        return self.leads(transaction.holder, transaction.epoch)

    def _break_off(self, transaction: Transaction) -> None:
        if not transaction.committing:
            transaction.broken = True
            self.open.pop(transaction, None)

    def _end(self, transaction: Transaction, reply: Reply) -> None:
        """Handles the client's COMMIT."""
        if transaction.broken:
            reply(StoreError("the transaction was broken off"))
        elif self._is_reached_by(transaction.client):
            transaction.committing = True
            self.loop.after(self._delay_ms(), lambda: self._apply(transaction, reply))
        elif self.lease_ms is None:
            self._break_off(transaction)

    def _apply(self, transaction: Transaction, reply: Reply) -> None:
        if transaction.broken:
            return
        client = transaction.client
        fate = ""
        lives = client.up and client.holder == transaction.holder
        if lives and client.next_commit in AROUND_COMMIT:
            fate, client.next_commit = client.next_commit, ""
        if not fate.endswith("before"):
            self._store(transaction)
        self.open.pop(transaction, None)
        if fate.startswith("die"):
            client.crash()
        elif fate.startswith("fail"):
            reply(StoreError("the connection was lost"))
        else:
            if fate == "stop after":
                client.stop_for(STOP_MS)
            reply(None)

    def _store(self, transaction: Transaction) -> None:
        self.checks.writes(transaction.holder, transaction.epoch)
        self.checks.require(transaction.write(self.rows))
        self.checks.stored(transaction.changes)

    def disconnected(self, client: Client) -> None:
        """Rolls back the open transactions of a client that died."""
        for transaction in [each for each in self.open if each.client is client]:
            self._break_off(transaction)

    def go_down(self, for_ms: int) -> None:
        """Answers no client for `for_ms`; transactions in a COMMIT may become durable."""
        self.down_until_ms = self.loop.now_ms + for_ms
        for transaction in list(self.open):
            if transaction.committing and self.rng.random() < 0.5:
                self._store(transaction)
            transaction.broken = True
        self.open.clear()

    # -- calls -------------------------------------------------------------------------------

    def _is_reached_by(self, client: Client) -> bool:
        return not client.cut_off and self.loop.now_ms >= self.down_until_ms

    def _call(self, client: Client, answer: Reply, serve: Callable[[Reply], None]) -> None:
        """Makes a round trip; a client that gets no answer in time gets a StoreError."""
        life = client.life
        settled = False

        def finish(result: Any) -> None:
            nonlocal settled
            if not settled:
                settled = True
                answer(result)

        def reply(result: Any) -> None:
            if self._is_reached_by(client):
                self.loop.after(1, lambda: client.run(life, lambda: finish(result)))

        def arrive() -> None:
            if self._is_reached_by(client):
                serve(reply)

        client.after(CALL_WAIT_MS, lambda: finish(StoreError("the database does not answer")))
        self.loop.after(self._delay_ms(), arrive)

    def _delay_ms(self) -> int:
        slow = self.loop.now_ms < self.slow_until_ms
        return self.rng.randint(100, 700) if slow else self.rng.randint(0, 4)

    # -- the whole database ---------------------------------------------------------------------

    def load(self) -> Snapshot:
        """Returns the snapshot that a new leader starts from."""
        return snapshot_of(self.rows, self.rm_epoch)

    def restore(self, backup: Rows, above_epoch: int) -> None:
        """Replaces the database by a backup, as `finegrain db restore` does without a leader."""
        self.rows = backup.copy()
        self.rows.leave_lost_history()
        self.rm_epoch = self._restored_epoch(above_epoch)
        self.until_ms, self.holder, self.held_by = -1, "", None
        for transaction in self.open:
            transaction.broken = True
        self.open.clear()

    def _restored_epoch(self, above_epoch: int) -> int:
        return max(self.rm_epoch, above_epoch) + 1
