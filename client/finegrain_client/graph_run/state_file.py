"""Reads and writes the state file of a job that runs a plan. The file contains the spec of the job,
and all events that its schedule has applied.

Only one runner can work on a job, because a runner locks the file. The kernel releases the lock
when the process ends.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from finegrain.errors import AlreadyExists
from finegrain.ids import new_id
from finegrain_client import sqlite_file
from finegrain_client.batch.lock import take_lock
from finegrain_client.graph.schedule import Event
from finegrain_client.graph_run.event_json import event_from_json, event_to_json
from finegrain_client.graph_run.spec import GraphRunSpec

APPLICATION_ID = 0x6667474A
"""SQLite's application id, by which the state file of a job differs from other SQLite files."""

SCHEMA_VERSION = 1
WHAT = "job"

TABLES = """
create table meta (key text primary key, value text not null) without rowid;
create table events (number integer primary key, event text not null);
create table executors (executor_id text primary key, address text not null) without rowid;
"""


class GraphStateFile:
    """The state of one job, opened by the runner that works on it."""

    def __init__(self, path: Path, lock: int, connection: sqlite3.Connection) -> None:
        self.path = path
        self._lock = lock
        self._connection = connection
        self.spec = GraphRunSpec.from_json(self.meta("spec"))
        self.run_id = self.meta("run_id")
        self.create_time = float(self.meta("create_time"))

    @classmethod
    def create(cls, path: Path, spec: GraphRunSpec) -> GraphStateFile:
        """Creates a state file and takes its lock. Creates missing folders.

        Raises:
            AlreadyExists: the file exists, or another runner has its lock.
            ConfigurationError: the file cannot be created.
        """
        with sqlite_file.named(path, WHAT):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = take_lock(path)
            try:
                # Create the file before SQLite opens it, so that no other user can ever read the
                # tasks' environment.
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                os.close(lock)
                raise AlreadyExists(
                    f"{path} exists already; attach to that job, or name another file",
                    details={"path": path},
                ) from None
            connection = sqlite_file.write_ahead(sqlite_file.connect(path))
            meta = {
                "spec": spec.to_json(),
                "run_id": new_id(),
                "create_time": repr(time.time()),
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
    def open(cls, path: Path) -> GraphStateFile:
        """Opens an existing state file and takes its lock.

        Raises:
            NotFound: there is no such file.
            AlreadyExists: another runner works on the job.
            ConfigurationError: the file is not the state file of a job, or has another version.
        """
        with reading(path):  # checks the file first, so that files of other kinds are not changed
            pass
        lock = take_lock(path)
        try:
            with sqlite_file.named(path, WHAT):
                return cls(path, lock, sqlite_file.write_ahead(sqlite_file.connect(path)))
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Closes the file and releases its lock."""
        self._connection.close()
        os.close(self._lock)

    def meta(self, key: str) -> str:
        """Returns the value of a key; empty if the key has no value."""
        return read_meta(self._connection).get(key, "")

    def set_meta(self, values: Mapping[str, str]) -> None:
        """Stores values by key."""
        with sqlite_file.named(self.path, WHAT), self._connection:
            self._connection.executemany(
                "insert or replace into meta values (?, ?)", values.items()
            )

    def append(self, events: Sequence[Event], addresses: Mapping[str, str]) -> None:
        """Stores events, and the addresses of the executors that the events name."""
        with sqlite_file.named(self.path, WHAT), self._connection:
            self._connection.executemany(
                "insert into events (event) values (?)", [(event_to_json(each),) for each in events]
            )
            self._connection.executemany(
                "insert or replace into executors values (?, ?)", addresses.items()
            )

    def events(self) -> list[Event]:
        """Returns all events, in order."""
        return read_events(self._connection)

    def addresses(self) -> dict[str, str]:
        """Returns the addresses of executors, by id."""
        return read_addresses(self._connection)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens a state file for reading, even while a runner works on it.

    Raises:
        NotFound: there is no such file.
        ConfigurationError: the file is not the state file of a job, or has another version.
    """
    with sqlite_file.reading(path, WHAT, APPLICATION_ID, SCHEMA_VERSION) as connection:
        yield connection


def read_meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Returns all values by key."""
    return dict(connection.execute("select key, value from meta").fetchall())


def read_addresses(connection: sqlite3.Connection) -> dict[str, str]:
    """Returns the addresses of executors, by id."""
    return dict(connection.execute("select executor_id, address from executors").fetchall())


def read_events(connection: sqlite3.Connection) -> list[Event]:
    """Returns all events, in order."""
    rows = connection.execute("select event from events order by number")
    return [event_from_json(each[0]) for each in rows]
