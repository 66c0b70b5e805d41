"""A store in memory, for tests, trials and simulations.

Rows are encoded and checked in the same way as for a database. So reading them gives the same
result. All data is lost when the process ends.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from finegrain.errors import ConfigurationError, Reason, StoreError
from finegrain.ids import new_id
from resource_manager.engine.model.audit import AuditEntry
from resource_manager.engine.model.changes import GENERATION_FLOOR
from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.engine.model.entities import ClusterEvent, JobEvent
from resource_manager.storage import rows, tables
from resource_manager.storage.codecs import Codec
from resource_manager.storage.lost_history import GENERATION_STEP, SEQUENCE_STEP
from resource_manager.storage.memory_tables import MemoryStatements, MemoryTables
from resource_manager.storage.prepared import PreparedChanges
from resource_manager.storage.store import NotLeader, Store

T = TypeVar("T")

STATEMENTS = MemoryStatements()


@dataclass(eq=False)
class MemoryDatabase:
    """The data that several memory stores share, like several processes share a database."""

    tables: MemoryTables = field(default_factory=MemoryTables)
    lock: threading.RLock = field(default_factory=threading.RLock)
    leader: MemoryStore | None = None
    rm_epoch: int = 0

    def __post_init__(self) -> None:
        if not self.tables.rows(tables.meta):
            facts = {"cluster_id": new_id(), "cluster_salt": secrets.token_hex(32)}
            STATEMENTS.upsert(self.tables, tables.meta, list(facts.items()))


class MemoryStore(Store):
    """A store in memory. See the docstring of the module."""

    def __init__(self, database: MemoryDatabase | None = None, *, read_only: bool = False) -> None:
        """Creates a store.

        Args:
            database: the data, which other stores can share; None: new data.
            read_only: True to reject all changes.
        """
        self.database = database or MemoryDatabase()
        self._read_only = read_only
        self._holder = ""
        self._address = ""
        self._page_address = ""
        self._rm_epoch = 0
        self._closed = False

    def lead(
        self,
        holder: str,
        *,
        above_epoch: int = 0,
        wait_s: float | None = None,  # noqa: ARG002 -- a leadership ends when its store is closed
        address: str = "",
        page_address: str = "",
    ) -> int:
        """See `Store.lead`."""
        self._must_be_writable()
        with self._open() as database:
            leader = database.leader
            if leader is not None and leader is not self:
                raise StoreError(
                    f"the database in memory is in use by {leader._holder}; close that store first",
                    reason=Reason.STORE_IN_USE,
                    details={
                        "holder": leader._holder,
                        "leader_address": leader._address,
                        "leader_page": leader._page_address,
                    },
                )
            database.leader = self
            database.rm_epoch = max(database.rm_epoch, above_epoch) + 1
            self._holder, self._address, self._page_address = holder, address, page_address
            self._rm_epoch = database.rm_epoch
            return self._rm_epoch

    def renew(self) -> None:
        """See `Store.renew`."""
        with self._as_leader():
            return

    def holds_lease(self) -> bool:
        """See `Store.holds_lease`."""
        return True

    def load(self) -> Snapshot:
        """See `Store.load`."""
        with self._open() as database:
            return snapshot_of(database.tables, database.rm_epoch)

    def commit(self, changes: Changes) -> None:
        """See `Store.commit`."""
        self._must_be_writable()
        # The changes are encoded before the lock is taken, as for a database.
        prepared = PreparedChanges(changes)
        with self._as_leader() as database, database.tables.transaction():
            prepared.apply(database.tables, STATEMENTS)

    def leave_lost_history(self) -> None:
        """See `Store.leave_lost_history`."""
        with self._as_leader() as database, database.tables.transaction():
            leave_lost_history(database.tables)

    def maintain(self) -> None:
        """See `Store.maintain`."""

    def read_job_events(self, job_id: str, after_sequence: int, limit: int) -> list[JobEvent]:
        """See `Store.read_job_events`."""
        with self._open() as database:
            found = _decoded(
                rows.JOB_EVENTS, database.tables.rows_of_job(tables.job_events, job_id)
            )
        later = [each for each in found if each.sequence > after_sequence]
        return sorted(later, key=lambda each: each.sequence)[:limit]

    def read_cluster_events(
        self, from_sequence: int, limit: int, subject_id: str = ""
    ) -> list[ClusterEvent]:
        """See `Store.read_cluster_events`."""
        with self._open() as database:
            found = _all(database.tables, rows.CLUSTER_EVENTS)
        found = [
            each
            for each in sorted(found, key=lambda each: each.sequence)
            if each.sequence >= from_sequence
            and subject_id in ("", each.executor_id, each.job_id, each.allocation_id)
        ]
        # `max` is necessary because a negative index would count from the end.
        return found[:limit] if from_sequence else found[max(0, len(found) - limit) :]

    def meta(self, key: str) -> str | None:
        """See `Store.meta`."""
        with self._open() as database:
            row = database.tables.row(tables.meta, (key,))
        return None if row is None else str(row[1])

    def metas(self, prefix: str) -> dict[str, str]:
        """See `Store.metas`."""
        with self._open() as database:
            found = database.tables.rows(tables.meta)
        return {key: value for key, value in found if key.startswith(prefix)}

    def read_audit(
        self, before_sequence: int, limit: int, *, actor: str = "", method: str = ""
    ) -> list[AuditEntry]:
        """See `Store.read_audit`."""
        with self._open() as database:
            found = _all(database.tables, rows.AUDIT)
        found = [
            each
            for each in sorted(found, key=lambda each: each.sequence)
            if (not before_sequence or each.sequence < before_sequence)
            and actor in ("", each.actor)
            and method in ("", each.method)
        ]
        return found[max(0, len(found) - limit) :]

    def check(self) -> list[str]:
        """See `Store.check`."""
        return ["the database is in memory and is lost when this process ends"]

    def close(self) -> None:
        """See `Store.close`."""
        with self.database.lock:
            if self.database.leader is self:
                self.database.leader = None
            self._closed = True

    @contextmanager
    def _open(self) -> Iterator[MemoryDatabase]:
        with self.database.lock:
            if self._closed:
                raise StoreError("the database in memory was closed by this process")
            yield self.database

    @contextmanager
    def _as_leader(self) -> Iterator[MemoryDatabase]:
        with self._open() as database:
            if database.leader is not self or database.rm_epoch != self._rm_epoch:
                raise NotLeader(
                    f"this resource manager does not lead the database in memory at epoch"
                    f" {self._rm_epoch}",
                    details={"rm_epoch": self._rm_epoch, "holder": self._holder},
                )
            yield database

    def _must_be_writable(self) -> None:
        if self._read_only:
            raise ConfigurationError("the database in memory was opened read-only")


def snapshot_of(of: MemoryTables, rm_epoch: int) -> Snapshot:
    """Returns all rows as entities, in the same way as `Store.load`."""
    return Snapshot(
        rm_epoch=rm_epoch,
        jobs=_all(of, rows.JOBS),
        requests=_all(of, rows.REQUESTS),
        slots=_all(of, rows.SLOTS),
        executors=_all(of, rows.EXECUTORS),
        gangs=_all(of, rows.GANGS),
        provisions=_all(of, rows.PROVISIONS),
        ranges=_all(of, rows.RANGES),
        groups=_all(of, rows.GROUPS),
        user_limits=_all(of, rows.USER_LIMITS),
        usage_records=_all(of, rows.TALLIES),
        host_settings=_all(of, rows.HOST_SETTINGS),
        counters=dict(of.rows(tables.counters)),
    )


def leave_lost_history(of: MemoryTables) -> None:
    """Does the same as `lost_history.py` does in SQL. The caller opens the transaction."""
    for job in _all(of, rows.JOBS):
        job.last_sequence += SEQUENCE_STEP
        job.trimmed_sequence = job.last_sequence
        STATEMENTS.upsert(of, tables.jobs, [rows.JOBS.encode(job)])
        last = [(job.job_id, job.last_sequence)]
        STATEMENTS.trim(of, tables.job_events, "job_id", "sequence", last)
    counters: dict[str, int] = dict(of.rows(tables.counters))
    placed = [each.generation for each in _all(of, rows.REQUESTS)]
    placed += [each.generation for each in _all(of, rows.SLOTS)]
    floor = max([counters.get(GENERATION_FLOOR, 0), *placed])
    STATEMENTS.upsert(of, tables.counters, [(GENERATION_FLOOR, floor + GENERATION_STEP)])


def _all(of: MemoryTables, codec: Codec[T]) -> list[T]:
    return _decoded(codec, of.rows(codec.table))


def _decoded(codec: Codec[T], found: Sequence[Sequence[object]]) -> list[T]:
    decode = codec.decode
    return [decode(row) for row in found]
