"""Backs up an SQLite database, and restores it.

A copy gets its final name only when it is complete. A restore keeps the replaced database under
another name, and sets an epoch above all epochs that executors can know. For PostgreSQL,
administrators use the tools of PostgreSQL.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from finegrain.errors import ConfigurationError, InvalidArgument, Reason, StoreError
from finegrain.values.bounds import RAISED_EPOCH_MAX
from resource_manager.engine.model.changes import CONTESTED_EPOCH
from resource_manager.storage.audit_log import AuditedCall, local_actor, record_in_file
from resource_manager.storage.creation import (
    copy_sqlite,
    remove_leftovers,
    run_migrations,
    temporary_database,
)
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.lost_history import leave_lost_history
from resource_manager.storage.sqlite_errors import sqlite_errors
from resource_manager.storage.sqlite_file import (
    check_is_ours,
    locked,
    os_errors,
    put_in_place,
    shm_of,
    sync_file,
    wal_of,
)
from resource_manager.storage.versions import check_not_ahead

AUTHORITY_KEY = "authority_key"
"""Key in the table `meta`: public key of the cluster authority that the database belongs to."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore.

    Attributes:
        rm_epoch: the epoch of the restored database.
        kept: the new path of the replaced database; None if there was no database.
        authority_key: public key of the cluster authority that the database belongs to, in
            hexadecimal; empty if the database belongs to no authority yet.
    """

    rm_epoch: int
    kept: Path | None
    authority_key: str = ""


def backup(url: str, path: Path) -> None:
    """Writes a complete copy of the database at `url` to `path`, even while the database is in use.

    An older backup at `path` is replaced when the new backup is complete.

    Raises:
        ConfigurationError: the database is not a file.
        InvalidArgument: `path` exists and is not an older backup.
        StoreError: the database cannot be read, or the copy cannot be written.
    """
    source = _file(url, "pg_dump --format=custom")
    path = path.absolute()
    with os_errors(path):
        # Replace only an older backup. So a mistyped path destroys no other file.
        if path.exists() and (not path.is_file() or _same(source, path) or not _is_ours(path)):
            raise InvalidArgument("path", str(path), "a new file, or an older backup to replace")
    check_is_ours(source)
    copy_sqlite(source, path)


def check_restorable(url: str) -> None:
    """Checks that `restore` supports this kind of database.

    Raises:
        ConfigurationError: the database is not a file.
    """
    _file(url, "pg_restore, then finegrain db raise-epoch")


def restore(url: str, path: Path, *, above_epoch: int) -> Restored:
    """Replaces the database at `url` with the backup at `path`.

    The resource manager must be stopped. All changes after the backup are lost. The next epoch is
    above `above_epoch` and above the epoch of the backup. If the replaced database can be read, the
    next epoch is also above the epoch of the replaced database.

    Args:
        url: the database to replace.
        path: the backup.
        above_epoch: the highest epoch that an executor reports.

    Returns:
        The epoch of the restored database, and the new path of the replaced database.

    Raises:
        ConfigurationError: the database is not a file.
        InvalidArgument: `above_epoch` is negative.
        StoreError: another process leads (STORE_IN_USE). Or the backup is damaged, was written by
            newer software, or belongs to another program. In all these cases, nothing has changed.
    """
    target = _file(url, "pg_restore, then finegrain db raise-epoch")
    path = path.absolute()
    check_above_epoch(above_epoch)
    with os_errors(target), locked(target, "finegrain db restore"):
        check_not_ahead(check_is_ours(path).schema_version, str(path))
        # Executors that do not report at present can know the epoch of the replaced database.
        above_epoch = max(above_epoch, _epoch_if_readable(target))
        remove_leftovers(target)
        # All steps except the last two work on a copy. So if one of these steps fails, the database
        # has not changed.
        with temporary_database(target) as fresh:
            copy_sqlite(path, fresh)
            _check_sound(fresh, path)
            run_migrations(fresh, path)
            rm_epoch = _raise_epoch(fresh, above_epoch, path)
            authority_key = _authority_key(fresh)
            kept = _set_aside(target)
            put_in_place(fresh, target)
    return Restored(rm_epoch, kept, authority_key)


def _file(url: str, tools: str) -> Path:
    location = DatabaseUrl.parse(url)
    if not location.is_sqlite:
        raise ConfigurationError(f"{location} is on a server; use the tools of PostgreSQL: {tools}")
    return location.path


def _same(one: Path, other: Path) -> bool:
    return one.exists() and one.samefile(other)


def _is_ours(path: Path) -> bool:
    try:
        check_is_ours(path)
    except StoreError:
        return False
    return True


def _check_sound(database: Path, shown: Path) -> None:
    with sqlite_errors(shown), closing(sqlite3.connect(database)) as connection:
        found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreError(
            f"the backup {shown} is damaged ({found}); use another one",
            reason=Reason.STORE_CORRUPT,
            details={"path": shown},
        )


def _epoch_if_readable(database: Path) -> int:
    """Returns the epoch of the database; 0 if the database cannot be read, for example because it
    is damaged.
    """
    try:
        check_is_ours(database)
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT max(rm_epoch) FROM leadership").fetchone()[0])
    except (StoreError, sqlite3.Error, TypeError):
        # Raise no error for a damaged database, because damage is a frequent reason for a restore.
        return 0


def check_above_epoch(above_epoch: int) -> None:
    """Checks an epoch that an administrator has typed. A typing error could otherwise use up all
    epochs.

    Raises:
        InvalidArgument: the epoch is negative, or higher than any resource manager can have.
    """
    if not 0 <= above_epoch <= RAISED_EPOCH_MAX:
        expected = f"0, or the highest epoch that an executor reports, at most {RAISED_EPOCH_MAX}"
        raise InvalidArgument("above_epoch", above_epoch, expected)


def _raise_epoch(database: Path, above_epoch: int, source: Path) -> int:
    with sqlite_errors(database), closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        # In this mode the database is a single file, which can be renamed.
        connection.execute("PRAGMA journal_mode = DELETE")
        with connection:
            leave_lost_history(connection.execute)
            connection.execute("DELETE FROM counters WHERE name = ?", (CONTESTED_EPOCH,))
            record_in_file(connection, AuditedCall(local_actor(), "db restore", str(source)))
            # Remove the holder. So no former leader can continue to lead.
            connection.execute(
                "UPDATE leadership SET holder = '', rm_epoch = max(rm_epoch, ?) + 1", (above_epoch,)
            )
        return int(connection.execute("SELECT rm_epoch FROM leadership").fetchone()[0])


def _authority_key(database: Path) -> str:
    with sqlite_errors(database), closing(sqlite3.connect(database)) as connection:
        found = connection.execute(
            "SELECT value FROM meta WHERE key = ?", (AUTHORITY_KEY,)
        ).fetchone()
    return str(found[0]) if found else ""


def _set_aside(database: Path) -> Path | None:
    """Keeps the old database and its WAL under another name. Returns the new path, or None.

    The old file also keeps its name until the new database replaces it. The WAL must be moved,
    because SQLite would apply the old WAL to the new file.
    """
    if not database.exists():
        wal_of(database).unlink(missing_ok=True)
        shm_of(database).unlink(missing_ok=True)
        return None
    kept = database.with_name(f"{database.name}.replaced-{time.time_ns() // 1_000_000}")
    # The link is a second name of the file. The old name stays valid until the file is replaced.
    os.link(database, kept)
    if wal_of(database).exists():
        wal_of(database).replace(wal_of(kept))
    shm_of(database).unlink(missing_ok=True)
    sync_file(database.parent)
    return kept
