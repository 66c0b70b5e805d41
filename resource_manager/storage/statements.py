# ruff: noqa: S608  (names come from tables.py, values travel as parameters)
"""Bulk statements, spelled for each database.

Decides the SQL by which many rows are written or deleted at once. Refuses to know what the rows
mean. Both spellings say the same: an upsert makes the row as given, whatever was there, so that a
repeated transaction changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Boolean, Connection, Integer, Table
from sqlalchemy.sql.type_api import TypeEngine

Rows = Sequence[tuple[Any, ...]]

ROWS_PER_STATEMENT = 2000
"""PostgreSQL: rows sent in one statement. Bounds memory, and the pause between two statements of a
transaction, which `idle_in_transaction_session_timeout` watches."""


class Statements(ABC):
    """What `SqlStore` needs of a database beyond plain SQL."""

    @abstractmethod
    def upsert(self, connection: Connection, table: Table, rows: Rows) -> None:
        """Write rows (all columns in declared order), each key at most once."""

    @abstractmethod
    def delete(
        self, connection: Connection, table: Table, key: tuple[str, ...], keys: Rows
    ) -> None:
        """Delete the rows whose columns `key` equal one of `keys`."""

    @abstractmethod
    def trim(
        self, connection: Connection, table: Table, owner: str, position: str, upto: Rows
    ) -> None:
        """For each (owner, position) in `upto`: delete that owner's rows up to and including the
        position."""


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


class SqliteStatements(Statements):
    """One prepared statement run per row: inside SQLite that is a loop, not a round trip."""

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> None:
        """See `Statements.upsert`."""
        if rows:
            connection.exec_driver_sql(_sqlite_upsert(table), list(rows))

    def delete(
        self, connection: Connection, table: Table, key: tuple[str, ...], keys: Rows
    ) -> None:
        """See `Statements.delete`."""
        if keys:
            where = " AND ".join(f"{name} = ?" for name in key)
            connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE {where}", list(keys))

    def trim(
        self, connection: Connection, table: Table, owner: str, position: str, upto: Rows
    ) -> None:
        """See `Statements.trim`."""
        if upto:
            where = f"{owner} = ? AND {position} <= ?"
            connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE {where}", list(upto))


def _array(column_type: TypeEngine[Any]) -> str:
    if isinstance(column_type, Boolean):
        return "%s::boolean[]"
    return "%s::bigint[]" if isinstance(column_type, Integer) else "%s::text[]"


@cache
def _postgresql_upsert(table: Table) -> str:
    arrays = ", ".join(_array(column.type) for column in table.columns)
    return (
        f"INSERT INTO {table.name} ({_columns(table)}) SELECT * FROM unnest({arrays}) "
        + _conflict_clause(table)
    )


def _unnested(table: Table, names: tuple[str, ...]) -> str:
    arrays = ", ".join(_array(table.columns[name].type) for name in names)
    return f"unnest({arrays}) AS given ({', '.join(names)})"


def _in_chunks(connection: Connection, sql: str, rows: Rows) -> None:
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        chunk = rows[start : start + ROWS_PER_STATEMENT]
        connection.exec_driver_sql(sql, tuple(list(column) for column in zip(*chunk, strict=True)))


class PostgresqlStatements(Statements):
    """One statement with one array per column: one round trip and one plan for thousands of
    rows."""

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> None:
        """See `Statements.upsert`."""
        _in_chunks(connection, _postgresql_upsert(table), rows)

    def delete(
        self, connection: Connection, table: Table, key: tuple[str, ...], keys: Rows
    ) -> None:
        """See `Statements.delete`."""
        where = " AND ".join(f"{table.name}.{name} = given.{name}" for name in key)
        sql = f"DELETE FROM {table.name} USING {_unnested(table, key)} WHERE {where}"
        _in_chunks(connection, sql, keys)

    def trim(
        self, connection: Connection, table: Table, owner: str, position: str, upto: Rows
    ) -> None:
        """See `Statements.trim`."""
        sql = (
            f"DELETE FROM {table.name} USING {_unnested(table, (owner, position))} "
            f"WHERE {table.name}.{owner} = given.{owner} "
            f"AND {table.name}.{position} <= given.{position}"
        )
        _in_chunks(connection, sql, upto)
