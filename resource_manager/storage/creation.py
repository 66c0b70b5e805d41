"""Creates databases and upgrades them.

A new database gets its final name only when it is complete. An upgrade is one transaction, and is
possible only while no process leads. Before an SQLite file is upgraded, a copy of the old version
is made.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection, insert

from finegrain.errors import Reason, StoreError
from resource_manager.storage import migrate, tables
from resource_manager.storage.sqlite_errors import sqlite_errors
from resource_manager.storage.sqlite_file import (
    check_is_ours,
    create_private,
    is_temporary,
    locked,
    os_errors,
    put_in_place,
    remove,
    shm_of,
    sqlite_engine,
    temporary_name,
    wal_of,
)
from resource_manager.storage.versions import check_not_ahead


def fill(connection: Connection) -> None:
    """Inserts the rows that every new database starts with."""
    facts = {
        "application": tables.APPLICATION,
        "cluster_id": str(uuid.uuid4()),
        "cluster_salt": secrets.token_hex(32),
        "create_time_ms": str(time.time_ns() // 1_000_000),
    }
    connection.execute(insert(tables.meta), [{"key": k, "value": v} for k, v in facts.items()])
    connection.execute(
        insert(tables.leadership).values(id=1, holder="", rm_epoch=0, until_time_ms=0)
    )


def create_sqlite(path: Path) -> None:
    """Creates the database at `path` if it does not exist.

    Raises:
        StoreError: the folder is not writable, the disk is full, or another process is creating the
            database at the same time.
    """
    with os_errors(path), locked(path, "finegrain creating the database"):
        # The path is checked again with the lock: possibly another process has created the
        # database.
        if path.exists():
            return
        _refuse_orphaned_wal(path)
        remove_leftovers(path)
        with temporary_database(path) as temporary:
            # The mode is set first, because the file will contain secrets (`cluster_salt`).
            create_private(temporary)
            with sqlite_errors(path), closing(sqlite3.connect(temporary)) as connection:
                connection.execute(f"PRAGMA application_id = {tables.APPLICATION_ID}")
                # This mode is stored in the file. So each later connection uses this mode.
                connection.execute("PRAGMA journal_mode = WAL")
            _make_tables(temporary, path)
            put_in_place(temporary, path)


def upgrade_sqlite(path: Path) -> int:
    """Upgrades the database at `path`, and returns its old version.

    A copy of the old version is kept as `<name>.before-<new version>` in the same folder.

    Raises:
        StoreError: another process leads (STORE_IN_USE), the schema is newer than this software
            (STORE_SCHEMA), or the disk failed. The database is then unchanged.
    """
    version = check_is_ours(path).schema_version
    check_not_ahead(version, str(path))
    # Most calls find the current version, and need no lock.
    if version == tables.SCHEMA_VERSION:
        return version
    with os_errors(path), locked(path, "finegrain db upgrade"):
        # The version is read again with the lock: possibly another process has upgraded the
        # database.
        version = check_is_ours(path).schema_version
        if version < tables.SCHEMA_VERSION:
            name = f"{path.name}.before-{migrate.revision_name(tables.SCHEMA_VERSION)}"
            # Make the copy before the migration. So administrators can return to the older version.
            copy_sqlite(path, path.with_name(name))
            run_migrations(path, path)
    return version


def copy_sqlite(source: Path, target: Path) -> None:
    """Makes a consistent and durable copy of a database, even while the source is in use.

    Raises:
        StoreError: reading or writing failed. Then the target does not exist, or is unchanged.
    """
    with os_errors(target), temporary_database(target) as temporary:
        create_private(temporary)
        with (
            sqlite_errors(source),
            closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as read,
            closing(sqlite3.connect(temporary)) as write,
        ):
            read.backup(write)
            # In this mode the copy is a single file that can be moved. When a store opens the copy,
            # the store sets the mode WAL again.
            write.execute("PRAGMA journal_mode = DELETE")
        put_in_place(temporary, target)


def _make_tables(database: Path, shown: Path) -> None:
    engine = sqlite_engine(database, read_only=False, connections=1)
    try:
        with sqlite_errors(shown), engine.begin() as connection:
            migrate.create(connection, tables.SCHEMA_VERSION)
            fill(connection)
    finally:
        engine.dispose()


def run_migrations(database: Path, shown: Path) -> None:
    """Migrates a database file that no other process has open.

    Args:
        database: the path of the file.
        shown: the path that errors name, for example the path of the backup that is restored.
    """
    engine = sqlite_engine(database, read_only=False, connections=1)
    try:
        # Run all migrations in one transaction. So a failed migration does not change the database.
        with sqlite_errors(shown), engine.begin() as connection:
            migrate.migrate(connection, tables.SCHEMA_VERSION)
    finally:
        engine.dispose()


@contextmanager
def temporary_database(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the folder of `path`, and removes its files afterwards."""
    temporary = temporary_name(path)
    try:
        yield temporary
    finally:
        remove(temporary)


def remove_leftovers(path: Path) -> None:
    """Removes temporary files of `path` that a crash has left. The caller must hold the lock."""
    for each in path.parent.iterdir():
        if is_temporary(each.name, path):
            each.unlink()  # includes the WAL files of temporary databases


def _refuse_orphaned_wal(path: Path) -> None:
    """Raises an error for a WAL without a database. SQLite would apply it to the new database.

    Raises:
        StoreError: STORE_CORRUPT. There is a WAL, but no database.
    """
    for orphan in (wal_of(path), shm_of(path)):
        if os.path.lexists(orphan):
            raise StoreError(
                f"there is {orphan} but no {path}: the database was moved or deleted without its "
                f"log, which may contain acknowledged requests; restore {path}, or remove "
                f"{orphan} to start with an empty database",
                reason=Reason.STORE_CORRUPT,
                details={"path": path},
            )
