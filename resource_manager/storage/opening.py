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
    check_in_load: bool = False,
    lease_ms: int = LEASE_MS,
) -> Store:
    """Opens the database at `url`: sqlite:////absolute/path.db or postgresql://user@host/name.

    Args:
        url: the database. postgres:// and postgresql+psycopg:// mean the same as postgresql://.
        create: True to create the database or its schema if it does not exist. With `read_only`,
            nothing is ever created.
        upgrade: True to upgrade an older schema if no process leads. False to raise an error if the
            schema is older.
        read_only: True to open the database for reading only. `lead` and `commit` then raise an
            error.
        check_in_load: only for SQLite: True to check the file for damage beside the first `load`,
            which takes less time; `load` then raises STORE_CORRUPT. False to check it here.
        lease_ms: only for PostgreSQL: time for which a leadership is valid without renewal; at
            least 100.

    Returns:
        The store. The caller must close it.

    Raises:
        ConfigurationError: the URL is not understood, or the `postgres` extra is not installed.
        StoreError: STORE_UNAVAILABLE (the database cannot be reached, or access is denied),
            STORE_IN_USE (it is locked), STORE_SCHEMA (its schema is older or newer, or belongs to
            another program), STORE_CORRUPT, DISK_FULL. Every message says what to do.
    """
    location = DatabaseUrl.parse(url)
    if location.is_sqlite:
        # The module is imported only when it is needed, because each kind of database needs
        # different libraries.
        from resource_manager.storage.sqlite_store import open_sqlite

        return open_sqlite(
            location,
            create=create,
            upgrade=upgrade,
            read_only=read_only,
            check_in_load=check_in_load,
        )
    from resource_manager.storage.postgresql_store import open_postgresql

    return open_postgresql(
        location, create=create, upgrade=upgrade, read_only=read_only, lease_ms=lease_ms
    )
