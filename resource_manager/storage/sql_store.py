"""The common part of the stores in SQLite and PostgreSQL: writes batches, and reads snapshots and
event logs.

Subclasses fence transactions, make connections, and translate the driver's errors.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, Select, select, union_all

from finegrain.errors import ConfigurationError, StoreError
from resource_manager.engine.model.audit import AuditEntry
from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.engine.model.entities import ClusterEvent, JobEvent
from resource_manager.storage import rows, tables
from resource_manager.storage.codecs import Codec
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.lost_history import leave_lost_history
from resource_manager.storage.prepared import PreparedChanges
from resource_manager.storage.statements import C, Statements
from resource_manager.storage.store import NotLeader, Store

T = TypeVar("T")

ROWS_AT_A_TIME = 2_000
"""Number of rows that one fetch returns when tables are read."""


class SqlStore(Store, Generic[C]):
    """A store that reads through an SQLAlchemy engine, and writes through connections of type `C`.

    Args:
        location: the database.
        read_only: whether the store refuses to write.
        reader: the engine that only reads.
        statements: the statements that write.
    """

    def __init__(
        self,
        location: DatabaseUrl,
        *,
        read_only: bool,
        reader: Engine,
        statements: Statements[C],
    ) -> None:
        self.location = location
        self._read_only = read_only
        self._reader = reader
        self._statements = statements
        self._write_lock = threading.Lock()
        self._holder = ""
        self._rm_epoch = 0
        self._closed = False

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[C]:
        """Opens a transaction that can write. It ends with a commit, or after an error with a
        rollback.
        """

    @abstractmethod
    def _run(self, connection: C, statement: str) -> object:
        """Runs a statement without parameters."""

    @abstractmethod
    def _fence(self, connection: C) -> bool:
        """Returns True if this store leads at its epoch. Then no other process can take over before
        the transaction ends.
        """

    @abstractmethod
    def _errors(self) -> AbstractContextManager[None]:
        """Converts the driver's errors to `FinegrainError`s."""

    def _must_be_writable(self) -> None:
        if self._read_only:
            raise ConfigurationError(f"the database {self.location} was opened read-only")

    @contextmanager
    def _writing(self) -> Iterator[C]:
        """Opens a write transaction, in which the caller must call `_fence`."""
        self._must_be_writable()
        with self._write_lock:
            self._must_be_open()  # checked with the lock, because `close` waits for the lock
            with self._errors(), self._transaction() as connection:
                yield connection

    @contextmanager
    def _read_connection(self) -> Iterator[Connection]:
        """Opens a read transaction: one consistent view of the database."""
        self._must_be_open()
        with self._errors(), self._reader.begin() as connection:
            yield connection

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreError(f"the database {self.location} was closed by this process")

    def _not_leader(self) -> NotLeader:
        return NotLeader(
            f"this resource manager no longer leads at epoch {self._rm_epoch}: another one has "
            f"taken over the database {self.location}; if this was not intended, give each "
            "resource manager its own database",
            details={"rm_epoch": self._rm_epoch, "holder": self._holder},
        )

    def commit(self, changes: Changes) -> None:
        """See `Store.commit`."""
        # Encode before the transaction begins. So other transactions wait less for this one.
        prepared = PreparedChanges(changes)
        with self._writing() as connection:
            # Check in the same transaction that writes. So no other process can take over between
            # the check and the writes.
            if not self._rm_epoch or not self._fence(connection):
                raise self._not_leader()
            prepared.apply(connection, self._statements)

    def leave_lost_history(self) -> None:
        """See `Store.leave_lost_history`."""
        with self._writing() as connection:
            if not self._rm_epoch or not self._fence(connection):
                raise self._not_leader()
            leave_lost_history(partial(self._run, connection))

    def load(self) -> Snapshot:
        """See `Store.load`."""
        with self._read_connection() as connection:
            return Snapshot(
                rm_epoch=connection.scalar(select(tables.leadership.c.rm_epoch)) or 0,
                jobs=_all(connection, rows.JOBS),
                requests=_all(connection, rows.REQUESTS),
                slots=_all(connection, rows.SLOTS),
                executors=_all(connection, rows.EXECUTORS),
                gangs=_all(connection, rows.GANGS),
                provisions=_all(connection, rows.PROVISIONS),
                ranges=_all(connection, rows.RANGES),
                groups=_all(connection, rows.GROUPS),
                user_limits=_all(connection, rows.USER_LIMITS),
                usage_records=_all(connection, rows.TALLIES),
                host_settings=_all(connection, rows.HOST_SETTINGS),
                counters={row[0]: row[1] for row in connection.execute(_COUNTERS)},
            )

    def read_job_events(self, job_id: str, after_sequence: int, limit: int) -> list[JobEvent]:
        """See `Store.read_job_events`."""
        log = tables.job_events
        query = (
            select(log)
            .where(log.c.job_id == job_id, log.c.sequence > after_sequence)
            .order_by(log.c.sequence)
            .limit(limit)
        )
        with self._read_connection() as connection:
            return _decoded(connection, query, rows.JOB_EVENTS)

    def read_cluster_events(
        self, from_sequence: int, limit: int, subject_id: str = ""
    ) -> list[ClusterEvent]:
        """See `Store.read_cluster_events`."""
        with self._read_connection() as connection:
            query = _cluster_events(from_sequence, limit, subject_id)
            found = _decoded(connection, query, rows.CLUSTER_EVENTS)
        # Without `from_sequence`, the query returns the newest events first, because it stops at
        # `limit`.
        return found if from_sequence else found[::-1]

    def meta(self, key: str) -> str | None:
        """See `Store.meta`."""
        with self._read_connection() as connection:
            found = connection.scalar(select(tables.meta.c.value).where(tables.meta.c.key == key))
        return None if found is None else str(found)

    def metas(self, prefix: str) -> dict[str, str]:
        """See `Store.metas`."""
        key = tables.meta.c.key
        query = select(key, tables.meta.c.value).where(key.startswith(prefix, autoescape=True))
        with self._read_connection() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def read_audit(
        self, before_sequence: int, limit: int, *, actor: str = "", method: str = ""
    ) -> list[AuditEntry]:
        """See `Store.read_audit`."""
        log = tables.audit
        query = select(log).order_by(log.c.sequence.desc()).limit(limit)
        if before_sequence:
            query = query.where(log.c.sequence < before_sequence)
        if actor:
            query = query.where(log.c.actor == actor)
        if method:
            query = query.where(log.c.method == method)
        with self._read_connection() as connection:
            return _decoded(connection, query, rows.AUDIT)[::-1]


_COUNTERS = select(tables.counters.c.name, tables.counters.c.value)


def _decoded(connection: Connection, query: Select[Any], codec: Codec[T]) -> list[T]:
    decode = codec.decode
    return [decode(row) for row in connection.execute(query)]


def _all(connection: Connection, codec: Codec[T]) -> list[T]:
    # Stream the rows: all rows of a table together with their entities would need twice the memory.
    query = select(codec.table).execution_options(yield_per=ROWS_AT_A_TIME)
    return _decoded(connection, query, codec)


def _cluster_events(from_sequence: int, limit: int, subject_id: str) -> Select[Any]:
    """Returns the query for events. The newest event is first if `from_sequence` is 0; otherwise,
    the oldest event is first.
    """
    log = tables.cluster_events

    def part(*conditions: Any) -> Select[Any]:
        query = select(log).where(*conditions).limit(limit)
        if from_sequence:
            return query.where(log.c.sequence >= from_sequence).order_by(log.c.sequence)
        return query.order_by(log.c.sequence.desc())

    if not subject_id:
        return part()
    # The query makes one ordered, limited scan per index. `<> ''` lets the planner use the partial
    # index.
    found = union_all(
        *(
            select(part(log.c[subject] == subject_id, log.c[subject] != "").subquery())
            for subject in tables.CLUSTER_EVENT_SUBJECTS
        )
    ).subquery()
    order = found.c.sequence if from_sequence else found.c.sequence.desc()
    return select(found).distinct().order_by(order).limit(limit)
