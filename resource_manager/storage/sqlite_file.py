"""An SQLite database as a file: how it is opened, recognised, locked, put in place.

Decides the profile (durability settings of every connection), the lock file and how a finished file
replaces what was there. Refuses to know tables.
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
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event

from finegrain.errors import Reason, StoreError
from resource_manager.storage.sqlite_errors import not_a_database, sqlite_errors
from resource_manager.storage.store import StoreAway
from resource_manager.storage.tables import APPLICATION_ID

BUSY_TIMEOUT_S = 5.0

SAFE_SQLITE = (3, 51, 3)
"""Earlier ones can damage a database when two connections reset the WAL at once. One connection
checkpoints here, which removes that precondition; an operator's own tools may not be as careful."""

_MAGIC = b"SQLite format 3\0"

_PROFILE = (
    "synchronous = FULL",  # in WAL mode NORMAL would lose the last commits at a power cut
    "foreign_keys = ON",
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "mmap_size = 0",
    "wal_autocheckpoint = 0",  # the writer decides when; readers never do
)


def sqlite_engine(path: Path, *, read_only: bool, connections: int) -> Engine:
    """An engine whose transactions begin where we say so: IMMEDIATE to write, deferred to read.

    The driver's own transaction handling is off: it begins deferred transactions at the first
    write, and those get SQLITE_BUSY at once when another connection wrote meanwhile, whatever the
    timeout.
    """
    mode = "ro" if read_only else "rw"  # never rwc: a database is made under another name

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            f"{path.as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_TIMEOUT_S,
        )

    engine = create_engine(
        "sqlite://", creator=connect, poolclass=QueuePool, pool_size=connections, max_overflow=0
    )
    begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"

    def configure(connection: Any, _record: Any) -> None:
        for setting in _PROFILE:
            connection.execute(f"PRAGMA {setting}")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            _use_wal(connection, path)

    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin_transaction)
    return engine


def _use_wal(connection: Any, path: Path) -> None:
    # A file that came back from a backup by hand is in another mode.
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(
            f"the disk below {path} does not allow SQLite's write-ahead log (mode {mode}), as "
            f"network disks do not; put the database on a local disk",
            details={"path": path, "journal_mode": mode},
        )


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself."""

    application_id: int
    schema_version: int


def read_header(path: Path) -> Header:
    """Whose database this is, and of which version.

    Raises:
        StoreError: not an SQLite database, or not readable.
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
    # Asked of SQLite, not of the bytes: the newest header may still lie in the WAL.
    with sqlite_errors(path), closing(_plain_connection(path)) as connection:
        application_id = int(connection.execute("PRAGMA application_id").fetchone()[0])
        schema_version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    return Header(application_id, schema_version)


def check_is_ours(path: Path) -> Header:
    """The header, if the file is a finegrain database.

    Raises:
        StoreError: it is another program's, or not a database.
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
    """The write-ahead log beside a database."""
    return path.with_name(path.name + "-wal")


def shm_of(path: Path) -> Path:
    """The index of the write-ahead log."""
    return path.with_name(path.name + "-shm")


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody uses."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")


def is_temporary(name: str, path: Path) -> bool:
    """Whether a file beside `path` bears a name that `temporary_name` gave, or belongs to one."""
    pattern = re.escape(path.name) + r"\.[0-9a-f]{32}\.new(-wal|-shm|-journal)?"
    return re.fullmatch(pattern, name) is not None


def create_private(path: Path) -> None:
    """An empty file for this user only; SQLite gives its side files the same mode."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def remove(path: Path) -> None:
    """A database with its side files, as far as they exist."""
    for each in (path, wal_of(path), shm_of(path)):
        each.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """fsync of a file or folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(finished: Path, path: Path) -> None:
    """Give a finished, closed database its name, durably."""
    sync_file(finished)
    finished.replace(path)
    sync_file(path.parent)


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Turns the file system's errors about the database at `path` into ours."""
    try:
        yield
    except OSError as error:
        full = error.errno in {28, 122}  # ENOSPC, EDQUOT
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
    """The file beside a database whose `flock` says that somebody leads, or replaces the database.

    The kernel drops the lock with the process, however it ends. The file itself stays: removing it
    would let two processes lock two files of one name.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self.path = database.with_name(database.name + ".lock")
        self._descriptor: int | None = None

    def acquire(self, holder: str, address: str = "") -> None:
        """Take the lock, or keep it, and note who has it.

        Raises:
            StoreError: STORE_IN_USE, naming who has it.
        """
        with os_errors(self._database):
            if self._descriptor is None:
                self._descriptor = self._locked()
            note = f"{holder}\n{os.getpid()}\n{address}\n".encode()
            # In this order what is there already needs no new room on a full disk.
            os.ftruncate(self._descriptor, os.pwrite(self._descriptor, note, 0))

    def check_free(self) -> None:
        """Return if nobody has the lock at this moment; opens the lock file only.

        Raises:
            StoreError: STORE_IN_USE, naming who has it.
        """
        with os_errors(self._database):
            os.close(self._locked())

    def _locked(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        while True:
            descriptor = os.open(self.path, flags, 0o600)
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
            os.close(descriptor)  # somebody removed the name meanwhile: lock the new file

    def _in_use(self) -> StoreError:
        try:
            lines = self.path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        holder, pid, address, *_ = [*lines, *(["unknown", "unknown", ""][len(lines) :])]
        return StoreError(
            f"the database {self._database} is in use by {holder} (pid {pid}); stop that one "
            f"first, start this one with --standby to take over from it, or give this one a "
            f"database of its own",
            reason=Reason.STORE_IN_USE,
            details={
                "path": self._database,
                "holder": holder,
                "pid": pid,
                "leader_address": address,
            },
        )

    @property
    def held(self) -> bool:
        """True while locked by this object, and the name still leads to the locked file."""
        return self._descriptor is not None and _same_file(self._descriptor, self.path)

    def release(self) -> None:
        """Give the lock back; may be repeated."""
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
    """Hold the lock of the database at `path`.

    Raises:
        StoreError: STORE_IN_USE, naming who has it.
    """
    lock = LockFile(path)
    lock.acquire(holder)
    try:
        yield
    finally:
        lock.release()
