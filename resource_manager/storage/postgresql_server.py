"""Connects to a PostgreSQL database, recognizes it, and creates or upgrades its schema.

All times come from the database's clock (`clock_timestamp()`), because the clocks of hosts differ,
and the clock of a frozen host is wrong.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, create_engine, inspect, select, text

from finegrain.errors import ConfigurationError, Reason, StoreError
from resource_manager.storage import migrate, tables
from resource_manager.storage.creation import fill
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.postgresql_errors import postgresql_errors
from resource_manager.storage.tables import SCHEMA_VERSION
from resource_manager.storage.versions import check_not_ahead, check_not_behind

CONNECTIONS = 3  # one for the writer and two for readers; the lease has another connection
CONNECT_TIMEOUT_S = 5
SILENCE_MS = 10_000
"""A server that acknowledges nothing for this long counts as unreachable."""

POLL_S = 0.1  # pause between two attempts to get the lease
LEASE_WAIT_MAX_S = 30.0  # longest wait for a predecessor's lease

NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

DURABLE = (
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
    "WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
)
"""Makes one transaction durable, even if the server's default is `off`.

The setting is made for each transaction, because a pooler can give one session to several clients.
A stronger setting (remote_apply) stays in effect.
"""

_UPGRADE_LOCK = tables.APPLICATION_ID
"""Key of the advisory lock for creating and changing the schema; held for one transaction."""


def postgresql_engine(location: DatabaseUrl, *, connections: int = CONNECTIONS) -> Engine:
    """Returns an engine for this database; it connects at first use.

    Raises:
        ConfigurationError: the driver is not installed.
    """
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"PostgreSQL needs the extra `postgres`: pip install 'finegrain[postgres]' ({error})"
        ) from error
    defaults: dict[str, object] = {
        "application_name": "finegrain",
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": SILENCE_MS,
        # Prepared statements belong to a session, and a pooler can use another session for the next
        # transaction.
        "prepare_threshold": None,
    }
    # A setting in the administrator's URL takes precedence.
    given = {key: value for key, value in defaults.items() if key not in location.url.query}
    return create_engine(
        location.url,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=30,
        connect_args=given,
    )


_MARK = re.compile(r" \[[0-9a-f]{16}\]$")


def holder_id() -> str:
    """Returns a random suffix that makes the name of a holder unique. `read_lease` removes it."""
    return f" [{secrets.token_hex(8)}]"


@dataclass(frozen=True, slots=True)
class Lease:
    """The leader and its lease. The lease has expired if `remaining_ms` is 0 or less."""

    holder: str
    rm_epoch: int
    remaining_ms: int
    address: str = ""
    page_address: str = ""


def read_lease(connection: Connection, *, lock: bool = False) -> Lease:
    """Reads the lease row.

    Args:
        connection: the connection to read from, with an open transaction.
        lock: True to lock the row. No other process can then take or renew the lease until the
            transaction ends.

    Raises:
        StoreError: the row is missing (STORE_CORRUPT).
    """
    row = connection.execute(
        text(
            # The query also works without the columns of addresses, because before an upgrade it
            # reads older schemas.
            f"SELECT holder, rm_epoch, until_time_ms - {NOW_MS}, "  # noqa: S608
            "coalesce(to_jsonb(leadership) ->> 'address', ''), "
            "coalesce(to_jsonb(leadership) ->> 'page_address', '') FROM leadership WHERE id = 1"
            + (" FOR UPDATE" if lock else "")
        )
    ).first()
    if row is None:
        raise StoreError(
            "the database is damaged: it has no leadership row; restore it from a backup",
            reason=Reason.STORE_CORRUPT,
        )
    return Lease(_MARK.sub("", row[0]), *row[1:])


def in_use(location: DatabaseUrl, lease: Lease) -> StoreError:
    """Returns the error for a database on which another process leads."""
    return StoreError(
        f"the database {location} is in use by {lease.holder} (epoch {lease.rm_epoch}, renewed "
        f"for another {lease.remaining_ms} ms); stop that process first, start this one with "
        "--standby to take over from it, or give this one another database",
        reason=Reason.STORE_IN_USE,
        details={
            "holder": lease.holder,
            "rm_epoch": lease.rm_epoch,
            "leader_address": lease.address,
            "leader_page": lease.page_address,
        },
    )


def version_of(connection: Connection, location: DatabaseUrl) -> int:
    """Returns the schema version of the database; 0 if the database is empty.

    Raises:
        StoreError: the database belongs to another program.
    """
    names = set(inspect(connection).get_table_names())
    if not names:
        return 0
    ours = "meta" in names and (
        connection.scalar(select(tables.meta.c.value).where(tables.meta.c.key == "application"))
        == tables.APPLICATION
    )
    if not ours:
        raise StoreError(
            f"the database {location} has tables, but not those of finegrain; name an empty "
            "database, or create one: createdb finegrain",
            reason=Reason.STORE_SCHEMA,
            details={"database": location},
        )
    return migrate.recorded_version(connection)


def prepare(engine: Engine, location: DatabaseUrl, *, create: bool, upgrade: bool) -> int:
    """Creates the schema of this software, or upgrades an older schema to it.

    If a process leads, an upgrade waits for the remaining time of the lease, but at most for
    `LEASE_WAIT_MAX_S`.

    Args:
        engine: the database.
        location: the URL of the database, for messages.
        create: True to create the schema in an empty database.
        upgrade: True to upgrade an older schema.

    Returns:
        The version that the database had before; 0 if it was empty.

    Raises:
        StoreError: STORE_SCHEMA, or STORE_IN_USE if an upgrade is needed and another process leads.
    """
    with postgresql_errors(location):
        # Check without locks first, because nearly every start finds the current version.
        with engine.begin() as connection:
            version = version_of(connection, location)
        check_not_ahead(version, str(location))
        if version == SCHEMA_VERSION:
            return version
        if version == 0 and not create:
            raise StoreError(
                f"the database {location} is empty; `finegrain db upgrade` or a start of the "
                "resource manager creates its tables",
                reason=Reason.STORE_SCHEMA,
            )
        if version and not upgrade:
            check_not_behind(version, str(location))
        give_up_at_s: float | None = None
        while True:
            # A leader that was killed cannot release its lease. So wait until the lease expires.
            remaining_ms = _try_upgrade(engine, location, give_up_at_s)
            if remaining_ms <= 0:
                return version
            # This limit is set only once. Otherwise the wait for a leader that renews its lease
            # would never end.
            if give_up_at_s is None:
                give_up_at_s = (
                    time.monotonic() + min(remaining_ms / 1000, LEASE_WAIT_MAX_S) + POLL_S
                )
            time.sleep(POLL_S)


def _try_upgrade(engine: Engine, location: DatabaseUrl, give_up_at_s: float | None) -> int:
    """Upgrades the schema unless a process leads. Returns the remaining time of the leader's lease
    in ms, or 0 if the schema is current.
    """
    with engine.begin() as connection:
        # Two processes that start at the same time must not both create the tables.
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
        connection.execute(text(f"SELECT {DURABLE}"))
        # Read the version again under the lock: possibly another process has upgraded the schema.
        version = version_of(connection, location)
        check_not_ahead(version, str(location))
        if version == SCHEMA_VERSION:
            return 0
        if version:
            # Lock the lease row. So no process becomes leader during the upgrade.
            lease = read_lease(connection, lock=True)
            if lease.remaining_ms > 0:
                if give_up_at_s is not None and time.monotonic() >= give_up_at_s:
                    raise in_use(location, lease)
                return lease.remaining_ms
            migrate.migrate(connection, SCHEMA_VERSION)
        else:
            migrate.create(connection, SCHEMA_VERSION)
            fill(connection)
        return 0
