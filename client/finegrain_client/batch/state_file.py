"""Reads and writes the state file of a batch: all state that must survive the runner.

The file is a SQLite file in WAL mode with synchronous FULL, so data is on disk when `write`
returns. Only one runner can work on a batch: a runner locks the file, and the kernel releases the
lock when the process ends. A thread has at most one result. `sqlite_file.py` describes who can read
the file, and where the file must be.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from finegrain.errors import AlreadyExists, NotFound
from finegrain.ids import new_id
from finegrain_client import sqlite_file
from finegrain_client.batch.lock import take_lock
from finegrain_client.batch.rows import AttemptRow, Changes, JobRow, Known, SubmittedRow
from finegrain_client.batch.schema import (
    APPLICATION_ID,
    OLDEST_VERSION,
    RESULT_COLUMNS,
    RESULTS,
    SCHEMA_VERSION,
    TABLES,
    UPGRADE_FROM_1,
)
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.values import BatchState, ThreadResult, ThreadState


class StateFile:
    """The state of one batch, opened by the runner that works on it.

    Use `create` or `open` to get an object of this class.

    Args:
        path: the path of the state file.
        lock: the descriptor that holds the lock of the file.
        connection: the open connection to the file.
    """

    def __init__(self, path: Path, lock: int, connection: sqlite3.Connection) -> None:
        self.path = path
        self._lock = lock
        self._connection = connection
        meta = dict(connection.execute("select key, value from meta").fetchall())
        self.spec = BatchSpec.from_json(meta["spec"])
        self.batch_id: str = meta["batch_id"]
        self.results_dir = Path(meta["results_dir"]) if meta["results_dir"] else None
        self.create_time = float(meta["create_time"])

    @classmethod
    def create(cls, path: Path, spec: BatchSpec, results_dir: Path | None) -> StateFile:
        """Creates a state file and takes its lock.

        Args:
            path: the path of the new file. Missing folders are created.
            spec: the spec of the batch.
            results_dir: folder for the output, or None.

        Raises:
            AlreadyExists: the file exists, or another runner has its lock.
            ConfigurationError: the file cannot be created at this path.
        """
        with sqlite_file.named(path, "batch"):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Take the lock first: no other process may use the file before it is complete.
            lock = take_lock(path)
            try:
                # Create the file before SQLite opens it, so that no other user can ever read the
                # environment in it.
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                os.close(lock)
                raise AlreadyExists(
                    f"{path} exists already; leave out the spec to continue that batch, or name "
                    "another file",
                    details={"path": path},
                ) from None
            connection = sqlite_file.write_ahead(sqlite_file.connect(path))
            meta = {
                "spec": spec.to_json(),
                "batch_id": new_id(),
                "results_dir": str(results_dir.absolute()) if results_dir else "",
                "create_time": repr(time.time()),
                "state": BatchState.OPEN.value,
            }
            connection.executescript(
                f"pragma application_id = {APPLICATION_ID}; begin; {TABLES} "
                f"pragma user_version = {SCHEMA_VERSION};"
            )
            connection.executemany("insert into meta values (?, ?)", meta.items())
            # Everything is one transaction: after a crash before this commit, the file has no
            # version.
            connection.commit()
            return cls(path, lock, connection)

    @classmethod
    def open(cls, path: Path) -> StateFile:
        """Opens an existing state file and takes its lock.

        Raises:
            NotFound: there is no such file.
            AlreadyExists: another runner works on the batch.
            ConfigurationError: the file is not the state file of a batch, or has another version.
        """
        if not path.exists():
            raise NotFound(f"there is no state file {path}", details={"path": path})
        lock = take_lock(path)
        try:
            with sqlite_file.named(path, "batch"):
                connection = sqlite_file.connect(path)
                # check the file first, so that files of other kinds are not changed
                check_version(path, connection)
                _upgrade(connection)
                return cls(path, lock, sqlite_file.write_ahead(connection))
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Closes the file and releases its lock."""
        self._connection.close()
        os.close(self._lock)

    def meta(self, key: str) -> str:
        """Returns the value of a key; empty if the key has no value."""
        row = self._connection.execute("select value from meta where key = ?", (key,)).fetchone()
        return row[0] if row else ""

    def add_job(self, job_id: str) -> JobRow:
        """Records a newly registered job, which becomes the batch's current job.

        Raises:
            ConfigurationError: STORE_CORRUPT. The file is damaged or is not a state file.
            FinegrainError: STORE_UNAVAILABLE or DISK_FULL. The file cannot be read or written.
        """
        with sqlite_file.named(self.path, "batch"), self._connection as connection:
            cursor = connection.execute(
                "insert into jobs (job_id, range_id) values (?, ?)", (job_id, new_id())
            )
        return self._job(int(cursor.lastrowid or 0))

    def end_job(self, number: int) -> None:
        """Records that a job has ended. Its slots and their open attempts have ended with the job.

        Raises:
            ConfigurationError: STORE_CORRUPT. The file is damaged or is not a state file.
            FinegrainError: STORE_UNAVAILABLE or DISK_FULL. The file cannot be read or written.
        """
        with sqlite_file.named(self.path, "batch"), self._connection as connection:
            connection.execute("update jobs set ended = 1 where number = ?", (number,))
            connection.execute(
                "update attempts set outcome = 'cancelled', message = 'its job ended' "
                "where outcome = '' and job = ?",
                (number,),
            )

    def write(self, job: int, changes: Changes) -> None:
        """Writes all changes in one transaction.

        A second result of a thread is ignored, because only the first result counts.

        Raises:
            FinegrainError: DISK_FULL or STORE_UNAVAILABLE.
        """
        with sqlite_file.named(self.path, "batch"), self._connection as connection:
            connection.executemany(
                "insert into attempts (thread, attempt, job, allocation_id, generation, executor_id"
                ", start_time) values (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        each.thread,
                        each.attempt,
                        job,
                        each.allocation_id,
                        each.generation,
                        each.executor_id,
                        each.start_time,
                    )
                    for each in changes.begun
                ],
            )
            connection.executemany(
                "update attempts set outcome = '' where thread = ? and attempt = ?",
                changes.reopened,
            )
            connection.executemany(
                "update attempts set outcome = ?3, message = ?4 where thread = ?1 and attempt = ?2",
                changes.ended,
            )
            connection.executemany(
                f"insert into results ({RESULT_COLUMNS}) values ({', '.join('?' * 21)}) "  # noqa: S608
                "on conflict (thread) do nothing",
                [RESULTS.encode(each) for each in changes.results],
            )
            connection.executemany(
                "insert into asked (job, first_index, count) values (?, ?, ?)",
                [(job, each.first_index, each.count) for each in changes.submitted],
            )
            connection.executemany(
                "insert into meta values (?, ?) on conflict (key) do update set value = ?2",
                list(changes.meta.items()),
            )

    def forget_failures(self) -> int:
        """Deletes the results of failed threads. These threads then run again.

        Returns the number of these threads. Their failures and losses do not count towards the
        limits any more.

        Raises:
            ConfigurationError: STORE_CORRUPT. The file is damaged or is not a state file.
            FinegrainError: STORE_UNAVAILABLE or DISK_FULL. The file cannot be read or written.
        """
        with sqlite_file.named(self.path, "batch"), self._connection as connection:
            connection.execute(
                # Keep the rows of attempts, because a new attempt must get a new number.
                "update attempts set outcome = case outcome when 'failed' then 'forgiven' else "
                "'written off' end where outcome in ('failed', 'lost') and thread in "
                "(select thread from results where state = 'FAILED')"
            )
            return connection.execute("delete from results where state = 'FAILED'").rowcount

    def known(self) -> Known:
        """Returns the state that a new runner needs to start.

        Raises:
            ConfigurationError: STORE_CORRUPT. The file is damaged or is not a state file.
            FinegrainError: STORE_UNAVAILABLE or DISK_FULL. The file cannot be read or written.
        """
        with sqlite_file.named(self.path, "batch"):
            known = Known()
            rows = self._connection.execute("select thread, state, duration_s from results")
            for thread, state, duration_s in rows:
                known.final[thread] = ThreadState(state)
                if state == ThreadState.DONE:
                    known.durations_s.append(duration_s)
            rows = self._connection.execute(
                "select thread, max(attempt), sum(outcome = 'failed'), sum(outcome = 'lost') "
                "from attempts group by thread"
            )
            for thread, attempts, failures, losses in rows:
                known.attempts[thread] = attempts
                if failures:
                    known.failures[thread] = failures
                if losses:
                    known.losses[thread] = losses
            last = self._connection.execute("select max(number) from jobs").fetchone()[0]
            if last is not None:
                known.job = self._job(last)
                # The slots and attempts of an ended job no longer exist.
                if not known.job.ended:
                    self._read_job(known, last)
            return known

    def results(self, *, failed_only: bool = False, limit: int = -1) -> list[ThreadResult]:
        """Returns the results so far, ordered by index.

        Raises:
            ConfigurationError: STORE_CORRUPT. The file is damaged or is not a state file.
            FinegrainError: STORE_UNAVAILABLE or DISK_FULL. The file cannot be read or written.
        """
        with sqlite_file.named(self.path, "batch"):
            return list(read_results(self._connection, failed_only=failed_only, limit=limit))

    def _read_job(self, known: Known, number: int) -> None:
        known.submitted = [
            SubmittedRow(first, count)
            for first, count in self._connection.execute(
                "select first_index, count from asked where job = ? order by first_index",
                (number,),
            )
        ]
        rows = self._connection.execute(
            "select thread, attempt, job, allocation_id, generation, executor_id, start_time, "
            "outcome from attempts where job = ?",
            (number,),
        )
        for *row, outcome in rows:
            attempt = AttemptRow(*row)
            # After a slot has run a thread, it may run another thread only with the resource
            # manager's consent.
            known.used.add((attempt.allocation_id, attempt.generation))
            if outcome in ("", "lost", "revoked", "written off"):
                (known.lost if outcome else known.open).append(attempt)

    def _job(self, number: int) -> JobRow:
        row = self._connection.execute("select * from jobs where number = ?", (number,)).fetchone()
        return JobRow(row["number"], row["job_id"], row["range_id"], bool(row["ended"]))


def _upgrade(connection: sqlite3.Connection) -> None:
    if connection.execute("pragma user_version").fetchone()[0] == OLDEST_VERSION:
        # Use one transaction, so that a crash leaves either the old version or the new version.
        connection.executescript(
            f"begin; {UPGRADE_FROM_1}; pragma user_version = {SCHEMA_VERSION}; commit;"
        )


def read_results(
    connection: sqlite3.Connection, *, failed_only: bool = False, limit: int = -1
) -> Iterator[ThreadResult]:
    """Yields the results in a state file, ordered by index.

    Args:
        connection: the state file.
        failed_only: yield only threads that have failed and are not tried again.
        limit: maximum number of results; -1 means no limit.
    """
    where = "where state = 'FAILED'" if failed_only else ""
    query = f"select {RESULT_COLUMNS} from results {where} order by thread limit ?"  # noqa: S608
    return map(RESULTS.decode, connection.execute(query, (limit,)))


def check_version(path: Path, connection: sqlite3.Connection) -> None:
    """Checks that this version of the client can read the file.

    Raises:
        ConfigurationError: the file is not the state file of a batch, or has another version.
    """
    sqlite_file.check_version(
        path, connection, "batch", APPLICATION_ID, SCHEMA_VERSION, oldest=OLDEST_VERSION
    )


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens a state file for reading, even while a runner works on it.

    Raises:
        NotFound: there is no such file.
        ConfigurationError: the file is not the state file of a batch, or has another version.
    """
    with sqlite_file.reading(
        path, "batch", APPLICATION_ID, SCHEMA_VERSION, oldest=OLDEST_VERSION
    ) as connection:
        yield connection
