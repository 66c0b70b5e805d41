"""The promise of durable state, whatever database keeps it.

What the service may rely on: `sqlite_store.py` and `postgresql_store.py` keep the promise, and
`memory_store.py` all of it but durability. The same tests run on all three.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from finegrain.errors import FailedPrecondition, Reason, StoreError
from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.engine.model.entities import ClusterEvent, JobEvent

LEASE_MS = 1000
"""How long a leadership lasts without renewal where another host may take over (PostgreSQL)."""


class NotLeader(FailedPrecondition):
    """Another incarnation has taken over, or this one never led: nothing was written, step down."""

    default_reason = Reason.NOT_LEADER


class StoreAway(StoreError):
    """The database cannot be reached, is held up or has no room; that may pass by itself.

    Wait, then `lead` and `load`.
    """


class StoreBroken(StoreError):
    """This process must not use the database any more, since what it wrote may be neither on the
    disk nor gone; a new process may."""


class Store(ABC):
    """Durable books, fenced by leadership.

    `lead`, `commit` and `maintain` MUST be called from one thread at a time (the writer);
    everything else MAY be called from any thread meanwhile. All methods block. Whatever goes wrong
    with the database is a `StoreError`; after one from `commit` it is unknown whether the
    transaction is durable, so the caller MUST drop its state and either exit (`StoreBroken`) or
    `lead` and `load` again (after a pause where it is `StoreAway`). Texts MUST be valid Unicode
    without NUL, integers MUST fit 64 bits.
    """

    @abstractmethod
    def lead(
        self,
        holder: str,
        *,
        above_epoch: int = 0,
        wait_s: float | None = None,
        address: str = "",
    ) -> int:
        """Take leadership, or, leading already, raise the epoch once more.

        Args:
            holder: names this process to people and to the others, for instance "host:port (pid
                42)".
            above_epoch: an epoch that was seen reported; the new one is above it.
            wait_s: how long to wait for the lease of a predecessor to run out; None: one lease, so
                that a restart after a crash succeeds; 0: try once, as a standby does again and
                again. No wait is needed where the operating system ends a leadership with its
                process.
            address: where this process is called, for those who ask a standby; empty: not told.

        Returns:
            The new `rm_epoch`. It MUST be above every epoch ever returned for this database, and
            committed by a conditional write before the call returns.

        Raises:
            StoreError: reason STORE_IN_USE when another process leads; the message names it, and so
                do the details `holder` and, where it told one, `leader_address`.
            NotLeader: this store led, and another took over.
        """

    @abstractmethod
    def renew(self) -> None:
        """Say that the leader lives. To be called several times per lease; cheap.

        Raises:
            NotLeader: another took over, or the files were replaced under this process.
        """

    @abstractmethod
    def holds_lease(self) -> bool:
        """Whether nobody can have taken over yet, as far as this process can tell by itself.

        Asks no database. True means: the lease that was last taken or renewed cannot have run out,
        counted by this host's boot time from before that was asked for. False means: `renew`, and
        let nothing out before that succeeded. Always true where a leadership ends only with its
        process.
        """

    @abstractmethod
    def load(self) -> Snapshot:
        """Everything durable, as of one moment. Runtime fields are at their defaults, free capacity
        is not included."""

    @abstractmethod
    def commit(self, changes: Changes) -> None:
        """Store a batch in one transaction; all of it or nothing.

        MUST be durable on return, MUST have no effect unless this store still leads at its epoch,
        and MUST be idempotent: the same changes once more leave the same rows. Deletions go first;
        rows of a deleted job that are not part of a new one with its id are dropped with it.

        Raises:
            NotLeader: another took over; nothing was written.
            InvariantBroken: the rows contradict each other (a request without its job); nothing was
                written.
            StoreError: anything else, DISK_FULL among them. See the class on what to do then.
        """

    @abstractmethod
    def leave_lost_history(self) -> None:
        """These books are an older copy of what executors and job masters know: go on beyond
        whatever was told since; see `lost_history.py`. Needs leadership, like `commit`.

        Raises:
            NotLeader, StoreError: as `commit`.
        """

    @abstractmethod
    def maintain(self) -> None:
        """House-keeping that is due, most often none. The writer calls it between batches and about
        once per second."""

    @abstractmethod
    def read_job_events(self, job_id: str, after_sequence: int, limit: int) -> list[JobEvent]:
        """Entries of a job's log above `after_sequence`, oldest first, `limit` at most."""

    @abstractmethod
    def read_cluster_events(
        self, from_sequence: int, limit: int, subject_id: str = ""
    ) -> list[ClusterEvent]:
        """Entries of the cluster's history, oldest first, `limit` at most.

        From `from_sequence` (inclusive) on; 0: the newest ones. With `subject_id` only those that
        name this executor, job or allocation.
        """

    @abstractmethod
    def meta(self, key: str) -> str | None:
        """A fact settled when the database was made: "cluster_id", "cluster_salt" (secret, 256 bits
        as hexadecimal)."""

    @abstractmethod
    def check(self) -> list[str]:
        """What an operator should know: damage, risky versions and settings. Empty: nothing. May
        take seconds."""

    @abstractmethod
    def close(self) -> None:
        """Give leadership back and let go of the database. May be repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
