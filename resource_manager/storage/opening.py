"""Opens the store that a database URL names."""

from __future__ import annotations

from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.store import LEASE_MS, Store


def open_store(
    url: str,
    *,
    create: bool = True,
    upgrade: bool = True,
    read_only: bool = False,
    lease_ms: int = LEASE_MS,
) -> Store:
    """Opens the database at `url`: sqlite:////absolute/path.db or postgresql://user@host/name.

    Args:
        url: the database; postgres:// and postgresql+psycopg:// mean postgresql://.
        create: create the database or its schema if missing (never with `read_only`).
        upgrade: upgrade an older schema, provided that no process leads; if False, an older schema
            is an error.
        read_only: never write; `lead` and `commit` are refused.
        lease_ms: PostgreSQL: how long a leadership lasts without renewal, at least 100.

    Returns:
        The store; the caller closes it.

    Raises:
        ConfigurationError: the URL is not understood, or the `postgres` extra is not installed.
        StoreError: STORE_UNAVAILABLE (unreachable, no permission), STORE_IN_USE (locked),
            STORE_SCHEMA (older, newer, or another program's), STORE_CORRUPT, DISK_FULL. Every
            message says what to do.
    """
    location = DatabaseUrl.parse(url)
    if location.is_sqlite:
        # Imported when needed: each database needs libraries that the other does without.
        from resource_manager.storage.sqlite_store import open_sqlite

        return open_sqlite(location, create=create, upgrade=upgrade, read_only=read_only)
    from resource_manager.storage.postgresql_store import open_postgresql

    return open_postgresql(
        location, create=create, upgrade=upgrade, read_only=read_only, lease_ms=lease_ms
    )
