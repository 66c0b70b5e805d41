"""The interface of stores for durable state, and their guarantees.

`sqlite_store.py` and `postgresql_store.py` give all guarantees. `memory_store.py` gives all
guarantees except durability. The same tests run on all three stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from finegrain.errors import FailedPrecondition, Reason, StoreError
from resource_manager.engine.model.audit import AuditEntry
from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.engine.model.entities import ClusterEvent, JobEvent

LEASE_MS = 1000
"""PostgreSQL: the time without renewal after which another host can take over the leadership."""


class NotLeader(FailedPrecondition):
    """Another process has taken over, or this process never led. Nothing was written. The caller
    must stop leading.
    """

    default_reason = Reason.NOT_LEADER


class Contested(FailedPrecondition):
    """An earlier leader of this database stopped, because an executor had seen a newer epoch.

    An administrator must decide which database to keep.

    Args:
        seen: the epoch that the executor had seen.
    """

    default_reason = Reason.STALE_EPOCH

    def __init__(self, seen: int) -> None:
        super().__init__(
            f"an executor has seen rm_epoch {seen} of a newer resource manager, so no resource "
            "manager serves from this database until an administrator decides",
            details={"seen": seen},
        )
        self.seen = seen


class StoreAway(StoreError):
    """The database cannot be reached, is locked or has no space. The problem can end by itself.

    The caller waits, and then calls `lead` and `load`.
    """


class StoreBroken(StoreError):
    """This process must not use the database again, but a new process can use it.

    Data that this process wrote is possibly missing on the disk, although it can still be read.
    """


class Store(ABC):
    """Durable state, fenced by leadership.

    `lead`, `commit` and `maintain` MUST be called from one thread at a time (the writer). All other
    methods MAY be called from any thread at the same time. All methods block.

    The methods report every problem with the database as a `StoreError`. After a StoreError from
    `commit`, it is unknown whether the transaction is on disk. The caller MUST then drop its state.
    After `StoreBroken`, the caller exits. After `StoreAway`, the caller waits, and calls `lead` and
    `load` again.

    Texts MUST be valid Unicode without NUL; integers MUST fit 64 bits.
    """

    @abstractmethod
    def lead(
        self,
        holder: str,
        *,
        above_epoch: int = 0,
        wait_s: float | None = None,
        address: str = "",
        page_address: str = "",
    ) -> int:
        """Takes leadership. If this store already leads, the method only raises the epoch.

        Args:
            holder: names this process to people and to other processes, for instance "host:port
                (pid 42)".
            above_epoch: an epoch that an executor reported; the new epoch is higher.
            wait_s: time to wait for the end of a predecessor's lease. None: wait for one lease, so
                that a restart after a crash succeeds. 0: try only once, as a standby does
                repeatedly. Stores whose leadership ends with the process (SQLite, memory) never
                wait.
            address: the address at which callers reach this process. If the address is not empty,
                standbys report it to their callers.
            page_address: the address of the web page of this process, such as
                "https://rm.example.org:7172". If it is not empty, pages of standbys link to it.

        Returns:
            The new `rm_epoch`. The new epoch MUST be above every epoch that was ever returned for
            this database. A conditional write MUST commit the new epoch before the call returns.

        Raises:
            StoreError: reason STORE_IN_USE: another process leads. The message and the detail
                `holder` name the leader. The details `leader_address` and `leader_page` are its
                addresses, if the leader gave them.
            NotLeader: this store led, and another process took over.
        """

    @abstractmethod
    def renew(self) -> None:
        """Renews the leadership. Cheap; the leader calls it several times per lease.

        Raises:
            NotLeader: another process took over, or the database files were replaced.
        """

    @abstractmethod
    def holds_lease(self) -> bool:
        """Returns True if no other process can have taken over yet. Makes no query.

        The result is True while the lease that was last taken or renewed cannot have expired. The
        time of a lease counts from the start of the query that took or renewed it, by this host's
        boot clock. If the result is False, the caller must send no message before `renew` has
        succeeded. The result is always True for stores whose leadership ends only with the process.
        """

    @abstractmethod
    def load(self) -> Snapshot:
        """Returns all durable state as of one moment.

        Runtime fields have their defaults. Free capacity is not included.
        """

    @abstractmethod
    def commit(self, changes: Changes) -> None:
        """Stores a batch in one transaction: the whole batch or nothing.

        The batch MUST be durable on return. If this store does not lead at its epoch any more, the
        batch MUST have no effect. The commit MUST be idempotent: a second commit of the same
        changes leaves the same rows. Deletions come first. Rows of a deleted job are written only
        if the batch contains a new job with the same id.

        Raises:
            NotLeader: another process has taken over. Nothing was written.
            InvariantBroken: the rows contradict each other, such as a request without its job.
                Nothing was written.
            StoreError: any other problem, such as DISK_FULL. The class `Store` says what the caller
                must do.
        """

    @abstractmethod
    def leave_lost_history(self) -> None:
        """Raises all counters above the values that a lost newer copy of this database has possibly
        used.

        Call it after an older copy was restored; see `lost_history.py`. Needs leadership.

        Raises:
            NotLeader: see `commit`.
            StoreError: see `commit`.
        """

    @abstractmethod
    def maintain(self) -> None:
        """Does the maintenance that is due. Most calls find nothing to do.

        The writer calls it between batches, about once per second.
        """

    @abstractmethod
    def read_job_events(self, job_id: str, after_sequence: int, limit: int) -> list[JobEvent]:
        """Returns events of a job, oldest first.

        Args:
            job_id: the job.
            after_sequence: return only events with a higher sequence number.
            limit: maximum number of events.
        """

    @abstractmethod
    def read_cluster_events(
        self, from_sequence: int, limit: int, subject_id: str = ""
    ) -> list[ClusterEvent]:
        """Returns cluster events, oldest first, at most `limit`.

        Args:
            from_sequence: the first sequence number to return; 0: return the newest events.
            limit: maximum number of events.
            subject_id: return only events that name this executor, job or allocation; empty: return
                all events.
        """

    @abstractmethod
    def meta(self, key: str) -> str | None:
        """Returns a value of the cluster as a whole, or None.

        Keys are, for example, "cluster_id", and "join_token/ID" for each token.
        """

    @abstractmethod
    def metas(self, prefix: str) -> dict[str, str]:
        """Returns all values whose keys begin with `prefix`, by key."""

    @abstractmethod
    def read_audit(
        self, before_sequence: int, limit: int, *, actor: str = "", method: str = ""
    ) -> list[AuditEntry]:
        """Returns the newest entries of the audit log, oldest first, at most `limit`.

        Args:
            before_sequence: return only entries with a lower sequence number; 0: return all
                entries.
            limit: maximum number of entries.
            actor: return only entries of this identity; empty: return all entries.
            method: return only entries of this method; empty: return all entries.
        """

    @abstractmethod
    def check(self) -> list[str]:
        """Returns problems that an administrator should know: damage, risky versions and risky
        settings. Can take seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives up leadership and closes the database. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
