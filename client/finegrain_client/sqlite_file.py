"""Opens the state files of runners: SQLite files in WAL mode, with synchronous FULL.

Committed changes are on disk. A state file contains the environment of tasks, so only its owner can
read it. The file must be on a local disk, because WAL needs shared memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from finegrain.errors import ConfigurationError, FinegrainError, NotFound, Reason

BUSY_TIMEOUT_S = 30.0


def connect(path: Path) -> sqlite3.Connection:
    """Opens a file. Any thread may use the connection, but only one thread at a time."""
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection


def write_ahead(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Prepares a connection for durable writes, and returns it."""
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    return connection


def check_version(
    path: Path,
    connection: sqlite3.Connection,
    what: str,
    application_id: int,
    version: int,
    *,
    oldest: int | None = None,
) -> None:
    """Checks that this version of the client can read the file.

    Args:
        path: the file.
        connection: an open connection to the file.
        what: the kind of work that the file must belong to: "batch" or "job".
        application_id: SQLite's application id of files of this kind.
        version: version of the tables that this client reads.
        oldest: the oldest version that this client also reads; None means only `version`.

    Raises:
        ConfigurationError: the file is not a state file of this kind of work, or has another
            version.
    """
    found_id = connection.execute("pragma application_id").fetchone()[0]
    found = connection.execute("pragma user_version").fetchone()[0]
    if found_id != application_id or not found:
        raise ConfigurationError(
            f"{path} is not the state file of a {what}, or its creation was interrupted; name "
            "another file",
            reason=Reason.STORE_CORRUPT,
            details={"path": path},
        )
    if not (oldest or version) <= found <= version:
        raise ConfigurationError(
            f"{path} has version {found}, this client reads version {version}; use the "
            "client that wrote it",
            reason=Reason.STORE_SCHEMA,
            details={"path": path, "version": found},
        )


@contextmanager
def reading(
    path: Path, what: str, application_id: int, version: int, *, oldest: int | None = None
) -> Iterator[sqlite3.Connection]:
    """Opens a state file for reading, even while a runner works on it.

    The arguments are those of `check_version`.

    Raises:
        NotFound: there is no such file.
        ConfigurationError: the file is not a state file of this kind of work, or has another
            version.
    """
    if not path.exists():
        raise NotFound(f"there is no state file {path}", details={"path": path})
    with named(path, what), closing(connect(path)) as connection:
        check_version(path, connection, what, application_id, version, oldest=oldest)
        yield connection


@contextmanager
def named(path: Path, what: str) -> Iterator[None]:
    """Converts errors of SQLite and the file system to errors with the file's name and advice."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        full = "full" in str(error)
        if "not a database" in str(error) or "malformed" in str(error):
            raise ConfigurationError(
                f"{path} is not the state file of a {what}, or is damaged: {error}",
                reason=Reason.STORE_CORRUPT,
                details={"path": path},
            ) from error
        raise FinegrainError(
            f"the state file {path} cannot be used: {error}; "
            f"{'free some space there' if full else 'check its disk'} and run the {what} again",
            reason=Reason.DISK_FULL if full else Reason.STORE_UNAVAILABLE,
            details={"path": path},
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"the state file {path} cannot be used: {error.strerror}; name another file",
            details={"path": path},
        ) from error
