# ruff: noqa: S608  (only constants are put together, values travel as parameters)
"""The store in PostgreSQL. Several resource managers can share it, but only one leads.

The leader owns the lease row, which has its epoch and the end of the lease by the database's clock.
Every write transaction reads this row FOR SHARE. A successor therefore waits for writes in
progress, and later writes of the old leader find another epoch. Session locks are not safe, because
a connection pooler can drop them without notice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from finegrain.errors import InvalidArgument
from resource_manager.storage import migrate
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.postgresql_errors import postgresql_errors
from resource_manager.storage.postgresql_server import (
    DURABLE,
    LEASE_WAIT_MAX_S,
    NOW_MS,
    POLL_S,
    Lease,
    holder_id,
    in_use,
    postgresql_engine,
    prepare,
    read_lease,
    version_of,
)
from resource_manager.storage.sql_store import SqlStore
from resource_manager.storage.statements import PostgresqlStatements
from resource_manager.storage.tables import SCHEMA_VERSION
from resource_manager.storage.versions import check_not_ahead

LEASE_MS_MIN = 100

T = TypeVar("T")
Clock = Callable[[], float]


def boot_seconds() -> float:
    """Returns the seconds of a clock that is never adjusted. The clock also runs while the host is
    suspended.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


IDLE_SHARE = 0.4
"""If a client is idle in a transaction for this share of a lease, the server ends the
transaction.

Otherwise a frozen leader could lock the lease row and delay its successor. In a test with a lease
of 1 s, a timeout of 400 ms was enough.
"""

SURE_SHARE = 0.9
"""Share of a lease during which the leader relies on the lease without a query.

The rest of the lease is a margin: clocks run at different speeds, and some time passes between a
decision and the sending of its message.
"""

# The join makes the setting in `durable` take effect. Everything is one statement. So the
# transaction is never idle. Holders are unique: a row with this holder belongs to this store, even
# if the database's answer was lost.
_TAKE = text(
    f"""
    WITH durable AS MATERIALIZED (SELECT {DURABLE})
    UPDATE leadership SET holder = :holder, rm_epoch = greatest(rm_epoch, :above_epoch) + 1,
        until_time_ms = {NOW_MS} + :lease_ms, address = :address,
        page_address = :page_address
    FROM durable
    WHERE id = 1 AND (holder = :holder OR (:old_epoch = 0 AND until_time_ms < {NOW_MS}))
        AND (SELECT version_num FROM alembic_version) = :version
    RETURNING rm_epoch
    """
)

# A renewal need not be durable: if a server crash loses it, the lease only ends sooner.
_RENEW = text(
    f"""
    WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
    UPDATE leadership SET until_time_ms = {NOW_MS} + :lease_ms
    FROM quick WHERE id = 1 AND holder = :holder
    """
)

_RELEASE = text(
    """
    UPDATE leadership SET until_time_ms = 0
    WHERE id = 1 AND holder = :holder
    """
)

# A leader can also freeze while it waits for another session's lock. `lock_timeout` ends this wait.
# So the lease row does not stay locked.
_FENCE = f"""
    SELECT {DURABLE}, set_config('idle_in_transaction_session_timeout', %s, true),
        set_config('lock_timeout', %s, true)
    FROM leadership WHERE id = 1 AND holder = %s AND rm_epoch = %s FOR SHARE
    """

_RISKY_SETTINGS = {
    "fsync": ("off", "a power cut can damage the database; set fsync = on"),
    "full_page_writes": ("off", "a power cut can damage the database; set full_page_writes = on"),
}


class PostgresqlStore(SqlStore[Connection]):
    """A store on a PostgreSQL server; see the module. Create it with `open_store`."""

    def __init__(
        self,
        location: DatabaseUrl,
        engine: Engine,
        *,
        read_only: bool,
        lease_ms: int,
        clock: Clock = boot_seconds,
    ) -> None:
        super().__init__(
            location,
            read_only=read_only,
            reader=engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            ),
            statements=PostgresqlStatements(),
        )
        self._engine = engine
        # The lease has a separate connection that stays open. So renewals are cheap and never wait
        # for readers.
        self._lease_engine = postgresql_engine(location, connections=1)
        self._single = self._lease_engine.execution_options(isolation_level="AUTOCOMMIT")
        self._kept: Connection | None = None
        self._mark = holder_id()
        self._lease_lock = threading.Lock()  # a renewal must not see a half-changed epoch
        self._lease_ms = lease_ms
        self._idle_ms = str(max(1, round(lease_ms * IDLE_SHARE)))
        self._clock = clock
        self._sure_until_s = float("-inf")

    def _transaction(self) -> AbstractContextManager[Connection]:
        return self._engine.begin()

    def _run(self, connection: Connection, statement: str) -> object:
        return connection.exec_driver_sql(statement)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with postgresql_errors(self.location):
            yield

    def lead(
        self,
        holder: str,
        *,
        above_epoch: int = 0,
        wait_s: float | None = None,
        address: str = "",
        page_address: str = "",
    ) -> int:
        """See `Store.lead`."""
        self._must_be_writable()
        give_up_at_s = None if wait_s is None else time.monotonic() + wait_s
        while True:
            rm_epoch = self._take(holder, address, page_address, above_epoch)
            if rm_epoch is not None:
                return rm_epoch
            # If this store led before, another process has taken over. Waiting would not help.
            if self._rm_epoch:
                raise self._not_leader()
            lease = self._lease()
            if give_up_at_s is None:
                runs_s = min(max(lease.remaining_ms, 0) / 1000, LEASE_WAIT_MAX_S)
                give_up_at_s = time.monotonic() + runs_s + POLL_S
            if time.monotonic() >= give_up_at_s:
                raise in_use(self.location, lease)
            time.sleep(POLL_S)

    def _take(self, holder: str, address: str, page_address: str, above_epoch: int) -> int | None:
        # A store that already leads only raises its epoch. In this case, the store does not take
        # over from another leader.
        values: dict[str, Any] = {
            "holder": self._holder or f"{holder}{self._mark}",
            "address": address,
            "page_address": page_address,
            "above_epoch": above_epoch,
            "lease_ms": self._lease_ms,
            "version": migrate.revision_name(SCHEMA_VERSION),
        }
        with self._lease_lock, self._errors():
            self._must_be_open()
            # Read the epoch under the lock, because another call of `_take` can change the epoch.
            values["old_epoch"] = self._rm_epoch
            query_at_s = self._clock()
            found = self._on_lease_connection(lambda connection: connection.scalar(_TAKE, values))
            if found is None:
                return None
            self._holder, self._rm_epoch = values["holder"], int(found)
            self._extend_certainty(query_at_s)
            return self._rm_epoch

    def _lease(self) -> Lease:
        def read(connection: Connection) -> Lease:
            # Newer software possibly upgraded the schema while this process waited for the lease.
            check_not_ahead(migrate.recorded_version(connection), str(self.location))
            return read_lease(connection)

        with self._lease_lock, self._errors():
            return self._on_lease_connection(read)

    def _on_lease_connection(self, query: Callable[[Connection], T]) -> T:
        """Runs one query on the open connection. If the connection was broken, tries once more on a
        new connection.
        """
        while True:
            used_before = self._kept is not None
            connection = self._kept = self._kept or self._single.connect()
            try:
                return query(connection)
            except BaseException as error:
                self._kept = None
                # Drop the connection after an interrupted call, too: a part of an answer is
                # possibly still in the connection.
                connection.invalidate()
                connection.close()
                broke = isinstance(error, DBAPIError) and error.connection_invalidated
                # A connection can break while it is not used. If a new connection breaks, too, the
                # server cannot be reached.
                if not (broke and used_before):
                    raise

    def _extend_certainty(self, query_at_s: float) -> None:
        # The time is counted from the start of the query, because the answer can take long.
        self._sure_until_s = query_at_s + self._lease_ms / 1000 * SURE_SHARE

    def holds_lease(self) -> bool:
        """See `Store.holds_lease`."""
        return self._rm_epoch > 0 and self._clock() < self._sure_until_s

    def _fence(self, connection: Connection) -> bool:
        found = connection.exec_driver_sql(
            _FENCE, (self._idle_ms, str(self._lease_ms), self._holder, self._rm_epoch)
        )
        return found.first() is not None

    def renew(self) -> None:
        """See `Store.renew`."""
        self._must_be_open()
        with self._lease_lock, self._errors():
            if not self._rm_epoch:
                raise self._not_leader()
            query_at_s = self._clock()
            values = {"holder": self._holder, "lease_ms": self._lease_ms}
            renewed = self._on_lease_connection(lambda one: one.execute(_RENEW, values).rowcount)
            # If no row was renewed, another process leads, and this process must send nothing more.
            if renewed != 1:
                self._sure_until_s = float("-inf")
                raise self._not_leader()
            self._extend_certainty(query_at_s)

    def maintain(self) -> None:
        """See `Store.maintain`. Does nothing, because the server has autovacuum."""

    def check(self) -> list[str]:
        """See `Store.check`."""
        findings = []
        with self._read_connection() as connection:
            check_not_ahead(version_of(connection, self.location), str(self.location))
            for name, (risky, advice) in _RISKY_SETTINGS.items():
                if (
                    connection.scalar(text("SELECT current_setting(:name)"), {"name": name})
                    == risky
                ):
                    findings.append(f"PostgreSQL runs with {name} = {risky}: {advice}")
            encoding = connection.scalar(text("SHOW server_encoding"))
            if encoding != "UTF8":
                findings.append(
                    f"the database {self.location} is encoded in {encoding}; create it again: "
                    "createdb --encoding UTF8 --template template0 ..."
                )
        return findings

    def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        # Take the locks, to wait for a commit or renewal in progress.
        with self._write_lock, self._lease_lock:
            self._closed = True
            if self._rm_epoch:
                # Release the lease, so that a successor does not have to wait until it expires.
                values = {"holder": self._holder}
                with suppress(SQLAlchemyError):  # after an error, the lease expires by itself
                    self._on_lease_connection(lambda one: one.execute(_RELEASE, values))
            if self._kept is not None:
                with suppress(SQLAlchemyError):
                    self._kept.close()
            self._engine.dispose()
            self._lease_engine.dispose()


def open_postgresql(
    location: DatabaseUrl, *, create: bool, upgrade: bool, read_only: bool, lease_ms: int
) -> PostgresqlStore:
    """Opens a server's database; see `resource_manager.storage.opening.open_store`."""
    if lease_ms < LEASE_MS_MIN:
        raise InvalidArgument("lease_ms", lease_ms, f"at least {LEASE_MS_MIN}")
    engine = postgresql_engine(location)
    try:
        prepare(
            engine,
            location,
            create=create and not read_only,
            upgrade=upgrade and not read_only,
        )
    except BaseException:  # close the connections after any error
        engine.dispose()
        raise
    return PostgresqlStore(location, engine, read_only=read_only, lease_ms=lease_ms)
