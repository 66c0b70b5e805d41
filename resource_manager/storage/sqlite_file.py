"""Opens, recognizes, locks and replaces SQLite database files.

The connection settings in this module decide how durable commits are.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event

from finegrain.errors import Reason, StoreError
from resource_manager.storage.sqlite_errors import not_a_database, sqlite_errors
from resource_manager.storage.store import StoreAway
from resource_manager.storage.tables import APPLICATION_ID

BUSY_TIMEOUT_S = 5.0

SAFE_SQLITE = (3, 51, 3)
"""Older versions of SQLite can damage a database when two connections reset the WAL together.

finegrain checkpoints from one connection only, so it does no damage. Other programs can do damage.
"""

_MAGIC = b"SQLite format 3\0"

_PROFILE = (
    "synchronous = FULL",  # with WAL, NORMAL could lose the last commits at a power cut
    "foreign_keys = ON",
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "mmap_size = 0",
    "wal_autocheckpoint = 0",  # the store decides when its writer checkpoints
)


def sqlite_engine(path: Path, *, read_only: bool, connections: int) -> Engine:
    """Returns an engine with explicit transactions: IMMEDIATE to write, deferred to read.

    The driver's transaction handling is off, because it would begin a deferred transaction at the
    first write. If another connection has written in the meantime, such a transaction fails with
    SQLITE_BUSY immediately, without waiting for the timeout.

    Args:
        path: the database file. The file must exist.
        read_only: True to open the file read-only.
        connections: size of the connection pool.
    """
    engine = create_engine(
        "sqlite://",
        creator=lambda: sqlite_connection(path, read_only=read_only),
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
    )
    begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"

    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "begin", begin_transaction)
    return engine


def sqlite_connection(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Opens a connection without the driver's transaction handling; see `sqlite_engine`.

    Raises:
        StoreError: the disk does not allow SQLite's write-ahead log.
    """
    mode = "ro" if read_only else "rw"  # never rwc: databases are created under a temporary name
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_TIMEOUT_S,
    )
    try:
        for setting in _PROFILE:
            connection.execute(f"PRAGMA {setting}")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            _use_wal(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    # If an administrator copied a backup to this path, the file has another journal mode.
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(
            f"the disk below {path} does not allow SQLite's write-ahead log (mode {mode}; "
            f"network disks never allow it); put the database on a local disk",
            details={"path": path, "journal_mode": mode},
        )


@dataclass(frozen=True, slots=True)
class Header:
    """Fields of a database file's header."""

    application_id: int
    schema_version: int


def read_header(path: Path) -> Header:
    """Reads application id and schema version of a database file.

    Raises:
        StoreError: the file is not an SQLite database, or not readable.
    """
    try:
        with open(path, "rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise StoreError(
            f"the database {path} cannot be read: {error.strerror}; the resource manager's user "
            f"(uid {os.geteuid()}) must own it"
        ) from error
    if magic != _MAGIC:
        raise StoreError(not_a_database(path), reason=Reason.STORE_CORRUPT, details={"path": path})
    # Read through SQLite, because the newest header is possibly still in the WAL.
    with sqlite_errors(path), closing(_plain_connection(path)) as connection:
        application_id = int(connection.execute("PRAGMA application_id").fetchone()[0])
        schema_version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    return Header(application_id, schema_version)


def check_is_ours(path: Path) -> Header:
    """Checks that the file is a finegrain database, and returns its header.

    Raises:
        StoreError: the file belongs to another program, or is not a database.
    """
    header = read_header(path)
    if header.application_id != APPLICATION_ID:
        raise StoreError(
            f"{path} is a database, but not one of finegrain (application_id "
            f"{header.application_id:#x}, expected {APPLICATION_ID:#x}); name another file",
            reason=Reason.STORE_SCHEMA,
            details={"path": path, "application_id": header.application_id},
        )
    return header


def _plain_connection(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)


def wal_of(path: Path) -> Path:
    """Returns the path of a database's write-ahead log."""
    return path.with_name(path.name + "-wal")


def shm_of(path: Path) -> Path:
    """Returns the path of the write-ahead log's index."""
    return path.with_name(path.name + "-shm")


def temporary_name(path: Path) -> Path:
    """Returns an unused name beside `path`."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")


def is_temporary(name: str, path: Path) -> bool:
    """Returns True if `temporary_name` made this name for `path`, side files included."""
    pattern = re.escape(path.name) + r"\.[0-9a-f]{32}\.new(-wal|-shm|-journal)?"
    return re.fullmatch(pattern, name) is not None


def create_private(path: Path) -> None:
    """Creates an empty file with mode 0600. SQLite gives its side files the same mode."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def remove(path: Path) -> None:
    """Removes a database and its side files. Missing files are no error."""
    for each in (path, wal_of(path), shm_of(path)):
        each.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Calls fsync on a file or folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(finished: Path, path: Path) -> None:
    """Renames a finished, closed database to its final name, durably."""
    # The order matters: after a power cut, the name leads either to the old file or to the complete
    # new file.
    sync_file(finished)
    finished.replace(path)
    sync_file(path.parent)


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Converts the file system's errors about the database at `path` to `StoreError`s.

    Raises:
        StoreAway: the disk is full.
        StoreError: any other error.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in {28, 122}  # ENOSPC: no space left; EDQUOT: quota exceeded
        raise (StoreAway if full else StoreError)(
            f"the database {path} cannot be used: {error.strerror or error}; "
            + (
                f"free space on the disk that holds {path.parent}"
                if full
                else f"the folder {path.parent} must exist and be writable for uid {os.geteuid()}"
            ),
            reason=Reason.DISK_FULL if full else Reason.STORE_UNAVAILABLE,
            details={"path": path, "errno": error.errno},
        ) from error


class LockFile:
    """The lock file beside a database. The process that writes or replaces the database has the
    `flock` of this file.

    The kernel drops the lock when the process ends for any reason. The file is never removed:
    otherwise two processes could lock two different files with this name.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self.path = database.with_name(database.name + ".lock")
        self._descriptor: int | None = None

    def acquire(self, holder: str, address: str = "", page_address: str = "") -> None:
        """Takes the lock if this object does not have it yet, and writes the holder into the file.

        Raises:
            StoreError: STORE_IN_USE; the message names the holder.
        """
        with os_errors(self._database):
            if self._descriptor is None:
                self._descriptor = self._locked()
            note = f"{holder}\n{os.getpid()}\n{address}\n{page_address}\n".encode()
            # Write before truncate: rewriting existing bytes needs no space on a full disk.
            os.ftruncate(self._descriptor, os.pwrite(self._descriptor, note, 0))

    def check_free(self) -> None:
        """Checks that no process has the lock at this moment. Opens only the lock file.

        Raises:
            StoreError: STORE_IN_USE; the message names the holder.
        """
        with os_errors(self._database):
            os.close(self._locked())

    def _locked(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        while True:
            descriptor = os.open(self.path, flags, 0o600)
            # Do not block, because the caller must learn which process has the lock.
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise self._in_use() from None
            except BaseException:
                os.close(descriptor)
                raise
            if _same_file(descriptor, self.path):
                return descriptor
            os.close(descriptor)  # the file was replaced, so the loop locks the new file

    def _in_use(self) -> StoreError:
        try:
            lines = self.path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        unknown = ["unknown", "unknown", "", ""]
        holder, pid, address, page_address, *_ = [*lines, *unknown[len(lines) :]]
        return StoreError(
            f"the database {self._database} is in use by {holder} (pid {pid}); stop that process "
            "first, start this one with --standby to take over from it, or give this one another "
            "database",
            reason=Reason.STORE_IN_USE,
            details={
                "path": self._database,
                "holder": holder,
                "pid": pid,
                "leader_address": address,
                "leader_page": page_address,
            },
        )

    @property
    def held(self) -> bool:
        """True while this object has the lock and the path still leads to the locked file."""
        return self._descriptor is not None and _same_file(self._descriptor, self.path)

    def release(self) -> None:
        """Releases the lock. A second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: Path, holder: str) -> Iterator[None]:
    """Takes the lock of the database at `path`, and releases it when the context ends.

    Raises:
        StoreError: STORE_IN_USE; the message names the holder.
    """
    lock = LockFile(path)
    lock.acquire(holder)
    try:
        yield
    finally:
        lock.release()
