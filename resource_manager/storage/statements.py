# ruff: noqa: S608  (names come from tables.py, values travel as parameters)
"""Bulk SQL statements for each database, which write or delete many rows together.

The result is the same in both databases. An upsert replaces a stored row, so a repeated transaction
changes nothing.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Table

from resource_manager.storage.arrays import Given, type_name, unnested

Rows = Sequence[tuple[Any, ...]]

ROWS_PER_STATEMENT = 2000
"""PostgreSQL: rows sent in one statement.

The number limits the memory, and the pause between two statements of a transaction. The server ends
a transaction whose pause is longer than `idle_in_transaction_session_timeout`.
"""

_STATEMENTS_KEPT = 1_024  # maximum number of cached SQL texts


C = TypeVar("C")
"""The type that statements run on: a connection in a transaction, or tables in memory."""


class Statements(ABC, Generic[C]):
    """Writes or deletes many rows together."""

    @abstractmethod
    def upsert(self, connection: C, table: Table, rows: Rows) -> None:
        """Inserts rows. A row with the primary key of a stored row replaces the stored row.

        Args:
            connection: the connection to write to, with an open transaction.
            table: the table.
            rows: all columns in declared order; each key at most once.
        """

    @abstractmethod
    def update(
        self,
        connection: C,
        table: Table,
        key: tuple[str, ...],
        changed: tuple[str, ...],
        rows: Rows,
    ) -> int:
        """Changes columns of stored rows. Rows that are not stored are skipped.

        Args:
            connection: the connection to write to, with an open transaction.
            table: the table.
            key: names of the key columns.
            changed: names of the columns to change.
            rows: values of the columns `key`, then `changed`; each key at most once.

        Returns:
            The number of rows that were found in the table.
        """

    @abstractmethod
    def delete(self, connection: C, table: Table, key: tuple[str, ...], keys: Rows) -> None:
        """Deletes rows by key.

        Args:
            connection: the connection to write to, with an open transaction.
            table: the table.
            key: names of the key columns.
            keys: values of these columns, one tuple per row.
        """

    @abstractmethod
    def trim(self, connection: C, table: Table, owner: str, position: str, upto: Rows) -> None:
        """Deletes the first rows of some owners, up to and including a position of each owner.

        Args:
            connection: the connection to write to, with an open transaction.
            table: the table.
            owner: name of the column with the owner.
            position: name of the column with the position.
            upto: pairs of an owner and its last position to delete.
        """

    @abstractmethod
    def trim_all(self, connection: C, table: Table, position: str, upto: int) -> None:
        """Deletes all rows up to and including a position.

        Args:
            connection: the connection to write to, with an open transaction.
            table: the table.
            position: name of the column with the position.
            upto: the last position to delete.
        """


def _conflict_clause(table: Table) -> str:
    key = ", ".join(column.name for column in table.primary_key)
    rest = [column.name for column in table.columns if not column.primary_key]
    return f"ON CONFLICT ({key}) DO UPDATE SET " + ", ".join(f"{c} = excluded.{c}" for c in rest)


def _columns(table: Table) -> str:
    return ", ".join(table.columns.keys())


@cache
def _sqlite_upsert(table: Table) -> str:
    marks = ", ".join("?" * len(table.columns))
    return (
        f"INSERT INTO {table.name} ({_columns(table)}) VALUES ({marks}) {_conflict_clause(table)}"
    )


@cache
def _sqlite_update(table: Table, key: tuple[str, ...], changed: tuple[str, ...]) -> str:
    places = {name: number for number, name in enumerate(key + changed, start=1)}
    values = ", ".join(f"{name} = ?{places[name]}" for name in changed)
    where = " AND ".join(f"{name} = ?{places[name]}" for name in key)
    return f"UPDATE {table.name} SET {values} WHERE {where}"


class SqliteStatements(Statements[sqlite3.Connection]):
    """Runs one prepared statement per row: SQLite is in the process, so there is no round trip.

    The statements use the driver and not SQLAlchemy, which takes more time than SQLite for a
    transaction of a few rows.
    """

    def upsert(self, connection: sqlite3.Connection, table: Table, rows: Rows) -> None:
        """See `Statements.upsert`."""
        if rows:
            connection.executemany(_sqlite_upsert(table), rows)

    def update(
        self,
        connection: sqlite3.Connection,
        table: Table,
        key: tuple[str, ...],
        changed: tuple[str, ...],
        rows: Rows,
    ) -> int:
        """See `Statements.update`."""
        if not rows:
            return 0
        return connection.executemany(_sqlite_update(table, key, changed), rows).rowcount

    def delete(
        self, connection: sqlite3.Connection, table: Table, key: tuple[str, ...], keys: Rows
    ) -> None:
        """See `Statements.delete`."""
        if keys:
            where = " AND ".join(f"{name} = ?" for name in key)
            connection.executemany(f"DELETE FROM {table.name} WHERE {where}", keys)

    def trim(
        self, connection: sqlite3.Connection, table: Table, owner: str, position: str, upto: Rows
    ) -> None:
        """See `Statements.trim`."""
        if upto:
            where = f"{owner} = ? AND {position} <= ?"
            connection.executemany(f"DELETE FROM {table.name} WHERE {where}", upto)

    def trim_all(
        self, connection: sqlite3.Connection, table: Table, position: str, upto: int
    ) -> None:
        """See `Statements.trim_all`."""
        connection.execute(f"DELETE FROM {table.name} WHERE {position} <= ?", (upto,))


class PostgresqlStatements(Statements[Connection]):
    """Sends thousands of rows in one statement, which costs one round trip and one plan.

    If all rows have the same value in a column, the column is sent as a single value. Otherwise it
    is sent as an array.
    """

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> None:
        """See `Statements.upsert`."""
        names = tuple(table.columns.keys())
        # The rows are sent in chunks; see `ROWS_PER_STATEMENT` for the reasons.
        for chunk in _chunks(rows):
            given = Given(table, names, chunk)
            sql = _postgresql_upsert(table, given.single)
            connection.exec_driver_sql(sql, given.singles + given.arrays)

    def update(
        self,
        connection: Connection,
        table: Table,
        key: tuple[str, ...],
        changed: tuple[str, ...],
        rows: Rows,
    ) -> int:
        """See `Statements.update`."""
        found = 0
        for chunk in _chunks(rows):
            # Keys are always sent as arrays. So the statement has at least one array.
            given = Given(table, key + changed, chunk, arrays=len(key))
            sql = _postgresql_update(table, key, changed, given.single)
            found += connection.exec_driver_sql(sql, given.singles + given.arrays).rowcount
        return found

    def delete(
        self, connection: Connection, table: Table, key: tuple[str, ...], keys: Rows
    ) -> None:
        """See `Statements.delete`."""
        where = " AND ".join(f"{table.name}.{name} = given.{name}" for name in key)
        for chunk in _chunks(keys):
            given = Given(table, key, chunk, arrays=len(key))
            sql = f"DELETE FROM {table.name} USING {unnested(table, key)} WHERE {where}"
            connection.exec_driver_sql(sql, given.arrays)

    def trim(
        self, connection: Connection, table: Table, owner: str, position: str, upto: Rows
    ) -> None:
        """See `Statements.trim`."""
        names = (owner, position)
        sql = (
            f"DELETE FROM {table.name} USING {unnested(table, names)} "
            f"WHERE {table.name}.{owner} = given.{owner} "
            f"AND {table.name}.{position} <= given.{position}"
        )
        for chunk in _chunks(upto):
            connection.exec_driver_sql(sql, Given(table, names, chunk, arrays=2).arrays)

    def trim_all(self, connection: Connection, table: Table, position: str, upto: int) -> None:
        """See `Statements.trim_all`."""
        connection.execute(table.delete().where(table.c[position] <= upto))


def _chunks(rows: Rows) -> Iterator[Rows]:
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        yield rows[start : start + ROWS_PER_STATEMENT]


def _given(table: Table, name: str, names: tuple[str, ...], single: tuple[bool, ...]) -> str:
    """Returns the SQL expression for a column of the rows that the statement receives."""
    one = single[names.index(name)]
    return f"%s::{type_name(table.columns[name].type)}" if one else f"given.{name}"


def _arrays_of(names: tuple[str, ...], single: tuple[bool, ...]) -> tuple[str, ...]:
    return tuple(name for name, one in zip(names, single, strict=True) if not one)


@lru_cache(_STATEMENTS_KEPT)
def _postgresql_upsert(table: Table, single: tuple[bool, ...]) -> str:
    names = tuple(table.columns.keys())
    values = ", ".join(_given(table, name, names, single) for name in names)
    several = _arrays_of(names, single)
    source = f" FROM {unnested(table, several)}" if several else ""
    # `WHERE true` shows the parser that ON CONFLICT is not a join condition.
    return (
        f"INSERT INTO {table.name} ({_columns(table)}) SELECT {values}{source} WHERE true "
        + _conflict_clause(table)
    )


@lru_cache(_STATEMENTS_KEPT)
def _postgresql_update(
    table: Table, key: tuple[str, ...], changed: tuple[str, ...], single: tuple[bool, ...]
) -> str:
    names = key + changed
    values = ", ".join(f"{name} = {_given(table, name, names, single)}" for name in changed)
    where = " AND ".join(f"{table.name}.{name} = given.{name}" for name in key)
    several = _arrays_of(names, single)
    return f"UPDATE {table.name} SET {values} FROM {unnested(table, several)} WHERE {where}"
