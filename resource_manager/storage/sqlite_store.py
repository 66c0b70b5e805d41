"""The store in an SQLite file: one process, no server.

The leader has the lock on the file beside the database. One connection writes and checkpoints
(copies the write-ahead log, WAL, into the database file); readers see the last commit.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Engine

from finegrain.errors import Reason, StoreError
from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.storage.creation import create_sqlite, upgrade_sqlite
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.sql_store import SqlStore
from resource_manager.storage.sqlite_errors import sqlite_errors
from resource_manager.storage.sqlite_file import (
    SAFE_SQLITE,
    LockFile,
    check_is_ours,
    os_errors,
    sqlite_connection,
    sqlite_engine,
)
from resource_manager.storage.statements import SqliteStatements
from resource_manager.storage.store import StoreAway, StoreBroken
from resource_manager.storage.versions import check_not_ahead, check_not_behind

READERS = 2
CHECKPOINT_COMMITS = 500
"""Commits after which `maintain` checkpoints the WAL.

If `maintain` is not called, `commit` checkpoints the WAL after ten times as many commits. A commit
of one row writes about five pages, so 500 commits write about 10 MiB.
"""
CHECKPOINT_ROWS = 20_000
"""After this number of written rows, `maintain` checkpoints the WAL, even after few commits."""
QUIET_S = 5.0
"""After this time without a commit, `maintain` empties the WAL. The database file alone is then
complete, so it can be copied.
"""


class SqliteStore(SqlStore[sqlite3.Connection]):
    """A store in one file; see the module. Create it with `open_store`."""

    def __init__(
        self, location: DatabaseUrl, *, read_only: bool, check_in_load: bool, reader: Engine
    ) -> None:
        super().__init__(
            location, read_only=read_only, reader=reader, statements=SqliteStatements()
        )
        self._path: Path = location.path
        self._check_in_load = check_in_load
        self._writer: sqlite3.Connection | None = None  # opened by the first write
        self._lock = LockFile(self._path)
        # `renew` compares this identity, because the file can be replaced later
        self._identity = self._path.stat()
        self._broken: StoreBroken | None = None
        self._commits = 0
        self._rows = 0
        self._last_commit_at_s = time.monotonic()

    def _connection(self) -> sqlite3.Connection:
        if self._writer is None:
            self._writer = sqlite_connection(self._path, read_only=False)
        return self._writer

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            try:
                # After some errors, SQLite has already rolled back.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except sqlite3.Error:
                # Without the connection, its transaction has no effect.
                self._writer = None
                connection.close()
            raise

    def _run(self, connection: sqlite3.Connection, statement: str) -> object:
        return connection.execute(statement)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        # After a failed write, earlier data is possibly missing, although a retry could succeed. So
        # refuse all further operations; see `_KINDS` in `sqlite_errors.py`.
        if self._broken is not None:
            raise StoreBroken(
                f"writing to {self._path} failed earlier; restart this process: {self._broken}",
                reason=self._broken.reason,
                details=self._broken.details,
            )
        try:
            with sqlite_errors(self._path):
                yield
        except StoreBroken as error:
            self._broken = error
            raise

    def lead(
        self,
        holder: str,
        *,
        above_epoch: int = 0,
        wait_s: float | None = None,  # noqa: ARG002
        address: str = "",
        page_address: str = "",
    ) -> int:
        """See `Store.lead`. Never waits for a lease to expire: the lock ends with its process."""
        self._must_be_writable()
        self._must_be_open()
        # Take the lock first, because only the owner of the lock is allowed to write the epoch.
        self._lock.acquire(holder, address, page_address)
        # Leftover commits are checkpointed only before the first leadership. Later, `maintain`
        # checkpoints the WAL.
        if not self._rm_epoch:
            self._checkpoint_leftovers()
        with self._writing() as connection:
            if self._rm_epoch and not self._fence(connection):
                raise self._not_leader()
            # Newer software possibly upgraded the file before this process got the lock.
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            check_not_ahead(version, str(self._path))
            (stored,) = connection.execute("SELECT max(rm_epoch) FROM leadership").fetchone()
            rm_epoch = max(stored or 0, above_epoch) + 1
            written = connection.execute(
                "UPDATE leadership SET holder = ?, rm_epoch = ?, address = ?, page_address = ? "
                "WHERE id = 1 AND rm_epoch = ?",
                (holder, rm_epoch, address, page_address, stored),
            )
            if written.rowcount != 1:
                raise StoreError(
                    f"the database {self._path} is damaged: it has no leadership row; "
                    f"`finegrain db restore` a backup",
                    reason=Reason.STORE_CORRUPT,
                )
        # Set the two attributes only after the commit, because the fence compares them with the
        # row.
        self._holder, self._rm_epoch = holder, rm_epoch
        return rm_epoch

    def _fence(self, connection: sqlite3.Connection) -> bool:
        # BEGIN IMMEDIATE holds the write lock, so this result stays true until the commit.
        found = connection.execute(
            "SELECT 1 FROM leadership WHERE id = 1 AND holder = ? AND rm_epoch = ?",
            (self._holder, self._rm_epoch),
        )
        return found.fetchone() is not None

    def renew(self) -> None:
        """See `Store.renew`. Checks that the lock file and the database were not replaced."""
        self._must_be_open()
        with os_errors(self._path):  # a disk error does not mean that another process leads
            try:
                in_place = os.path.samestat(self._identity, self._path.stat())
            except FileNotFoundError:
                in_place = False
            if not self._rm_epoch or not self._lock.held or not in_place:
                raise self._not_leader()

    def holds_lease(self) -> bool:
        """See `Store.holds_lease`: the lock ends with the process, never by time."""
        return self._rm_epoch > 0

    def load(self) -> Snapshot:
        """See `Store.load`. If `open_store` did not check the file, it is checked here, once."""
        if not self._check_in_load:
            return super().load()
        # SQLite holds no lock of Python during the check, so the thread does not slow the read.
        with ThreadPoolExecutor(1) as pool:
            checked = pool.submit(self.check_sound)
            try:
                snapshot = super().load()
            finally:
                checked.result()  # damage is a better explanation than an error of the read
        self._check_in_load = False
        return snapshot

    def commit(self, changes: Changes) -> None:
        """See `Store.commit`."""
        super().commit(changes)
        self._commits += 1
        self._rows += len(changes.requests) + len(changes.slots) + len(changes.job_events)
        self._rows += len(changes.moved_requests) + len(changes.moved_slots)
        self._last_commit_at_s = time.monotonic()
        # Limit the WAL even if `maintain` is not called.
        if self._commits >= 10 * CHECKPOINT_COMMITS or self._rows >= 10 * CHECKPOINT_ROWS:
            self._checkpoint("PASSIVE")

    def maintain(self) -> None:
        """See `Store.maintain`. Checkpoints the WAL when it has grown. Empties the WAL after a
        quiet time.
        """
        if not self._commits:
            return
        if time.monotonic() - self._last_commit_at_s >= QUIET_S:
            self._checkpoint("TRUNCATE")
        elif self._commits >= CHECKPOINT_COMMITS or self._rows >= CHECKPOINT_ROWS:
            self._checkpoint("PASSIVE")

    def _checkpoint_leftovers(self) -> None:
        """Checkpoints the commits that a killed process left in the WAL.

        Otherwise the WAL would grow with every process that is killed before its first checkpoint.
        And every start would read the whole WAL.
        """
        # Ignore errors such as a full disk. If the problem persists, the next commit reports it.
        with suppress(StoreAway):
            self._checkpoint("TRUNCATE")

    def _checkpoint(self, mode: str) -> None:
        with self._write_lock, self._errors():
            connection = self._connection()
            connection.execute("PRAGMA busy_timeout = 50")
            try:
                (blocked, _, _) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            finally:
                connection.execute("PRAGMA busy_timeout = 5000")
        # A reader can block TRUNCATE. Then the counters keep their values. So `maintain` tries
        # again.
        if not blocked:
            self._commits = self._rows = 0

    def check(self) -> list[str]:
        """See `Store.check`."""
        return self.damage() + version_findings()

    def damage(self) -> list[str]:
        """Returns the damage found in the file, at most 40 lines; empty if there is no damage.

        The method reads the whole file.
        """
        with self._read_connection() as connection:
            found = connection.exec_driver_sql("PRAGMA quick_check(20)").scalars().all()
            orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        findings = [f"{self._path} is damaged: {each}" for each in found if each != "ok"]
        return findings + [
            f"{self._path} is damaged: {each[0]} has a row without its {each[2]}"
            for each in orphans[:20]
        ]

    def check_sound(self) -> None:
        """Raises StoreError if the file is damaged."""
        damage = self.damage()
        if damage:
            raise StoreError(
                f"{damage[0]}; `finegrain db restore` a backup",
                reason=Reason.STORE_CORRUPT,
                details={"path": self._path, "damage": "; ".join(damage)},
            )

    def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        with self._write_lock:
            self._closed = True
            # Close the readers first. When the last connection closes, SQLite copies the WAL into
            # the database. So the last connection must be the writer's.
            self._reader.dispose()
            if self._writer is not None:
                self._writer.close()
            # Release the lock last, because no other process must open the files earlier.
            self._lock.release()


def version_findings() -> list[str]:
    """Warns if this SQLite version can damage a database that several connections checkpoint."""
    if sqlite3.sqlite_version_info >= SAFE_SQLITE:
        return []
    safe = ".".join(str(part) for part in SAFE_SQLITE)
    found = (
        f"SQLite {sqlite3.sqlite_version} is older than {safe}: two programs that checkpoint at "
        f"once can damage the database; let only finegrain write to it, or update SQLite"
    )
    return [found]


def open_sqlite(
    location: DatabaseUrl, *, create: bool, upgrade: bool, read_only: bool, check_in_load: bool
) -> SqliteStore:
    """Opens a file; see `resource_manager.storage.opening.open_store` for arguments and errors."""
    path = location.path
    with os_errors(path):
        exists = path.exists()
    if not exists:
        if not create or read_only:
            raise StoreError(
                f"there is no database at {path}; `finegrain db upgrade` or a start of the "
                "resource manager creates it",
                details={"path": path},
            )
        create_sqlite(path)
    # Bring the schema to the version of this software, or reject the file.
    version = check_is_ours(path).schema_version
    check_not_ahead(version, str(path))
    if upgrade and not read_only:
        upgrade_sqlite(path)
    else:
        check_not_behind(version, str(path))
    # SQLite allows many readers, and one writer at a time.
    reader = sqlite_engine(path, read_only=True, connections=READERS)
    store = SqliteStore(location, read_only=read_only, check_in_load=check_in_load, reader=reader)
    if check_in_load:
        return store
    # Check at each start. If damage is found late, all backups possibly contain it.
    try:
        store.check_sound()
    except BaseException:
        store.close()
        raise
    return store
