"""Tables in memory, with the same keys, references and integer bounds as tables of a database.

A transaction has one writer. If the transaction fails, all its changes are undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Self

from sqlalchemy import Table

from finegrain.errors import InvariantBroken, StoreError
from finegrain.mapping.rows import Row
from resource_manager.storage.statements import Rows, Statements
from resource_manager.storage.tables import jobs, metadata

Key = tuple[Any, ...]

_INTEGER_MAX = 2**63 - 1


class MemoryTables:
    """The rows of every table by primary key, in the order of their first write."""

    def __init__(self) -> None:
        self._rows: dict[Table, dict[Key, Row]] = {table: {} for table in metadata.tables.values()}
        # The keys of each job, for tables whose rows are deleted with their job.
        self._of_job: dict[Table, dict[str, dict[Key, None]]] = {
            table: {} for table in self._rows if _refers_to_jobs(table)
        }
        self._undo: list[tuple[Table, Key, Row | None]] | None = None

    def copy(self) -> Self:
        """Returns a copy of all rows."""
        found = type(self)()
        found._rows = {table: dict(rows) for table, rows in self._rows.items()}
        found._of_job = {
            table: {job_id: dict(keys) for job_id, keys in owners.items()}
            for table, owners in self._of_job.items()
        }
        return found

    def keyed(self, table: Table) -> Mapping[Key, Row]:
        """Returns all rows of a table by primary key."""
        return self._rows[table]

    def rows(self, table: Table) -> list[Row]:
        """Returns all rows of a table."""
        return list(self._rows[table].values())

    def row(self, table: Table, key: Key) -> Row | None:
        """Returns the row with this key, or None."""
        return self._rows[table].get(key)

    def rows_of_job(self, table: Table, job_id: str) -> list[Row]:
        """Returns the rows of a table that are deleted with this job."""
        rows = self._rows[table]
        return [rows[key] for key in self._of_job[table].get(job_id, ())]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Undoes all writes in the context if the context raises."""
        # For each write, the row as it was before the write. The oldest write is first.
        self._undo = []
        try:
            yield
        except BaseException:
            # Undo the writes after every exception, even after KeyboardInterrupt. So a batch is
            # never stored partly. The order is reversed: a row that was written twice must get its
            # first value back.
            for table, key, before in reversed(self._undo):
                self._put(table, key, before)
            raise
        finally:
            self._undo = None

    def write(self, table: Table, key: Key, row: Row | None) -> None:
        """Stores or deletes a row. Deleting a job also deletes the rows that refer to it.

        Args:
            table: the table.
            key: the primary key of the row.
            row: the values of all columns; None: delete the row.

        Raises:
            InvariantBroken: the row's job is not stored.
            StoreError: a value does not fit its column.
        """
        rows = self._rows[table]
        if row is None:
            if key in rows:
                self._put(table, key, None)
                if table is jobs:
                    self._delete_with_job(key[0])
            return
        _check(table, row)
        if table in self._of_job and (row[_place(table, "job_id")],) not in self._rows[jobs]:
            raise InvariantBroken(
                f"rows contradict each other: the job of {table.name} {key} is not stored;"
                " nothing was written"
            )
        self._put(table, key, row)

    def _delete_with_job(self, job_id: str) -> None:
        for table, keys in self._of_job.items():
            for key in list(keys.get(job_id, ())):  # a copy: `_put` removes keys
                self._put(table, key, None)

    def _put(self, table: Table, key: Key, row: Row | None) -> None:
        rows = self._rows[table]
        before = rows.get(key)
        if self._undo is not None:
            self._undo.append((table, key, before))
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row
        if table not in self._of_job:
            return
        owners, place = self._of_job[table], _place(table, "job_id")
        # The new row can belong to another job. So remove the entry of the old row first.
        if before is not None:
            keys = owners[before[place]]
            keys.pop(key, None)
            if not keys:
                del owners[before[place]]
        if row is not None:
            owners.setdefault(row[place], {})[key] = None


class MemoryStatements(Statements[MemoryTables]):
    """Bulk changes of tables in memory. `connection` is the tables themselves."""

    def upsert(self, connection: MemoryTables, table: Table, rows: Rows) -> None:
        """See `Statements.upsert`."""
        places = _key_places(table)
        for row in rows:
            connection.write(table, tuple(row[place] for place in places), tuple(row))

    def update(
        self,
        connection: MemoryTables,
        table: Table,
        key: tuple[str, ...],
        changed: tuple[str, ...],
        rows: Rows,
    ) -> int:
        """See `Statements.update`."""
        places = [_place(table, name) for name in changed]
        found = 0
        for given in rows:
            stored = connection.row(table, tuple(given[: len(key)]))
            if stored is None:
                continue
            found += 1
            row = list(stored)
            for place, value in zip(places, given[len(key) :], strict=True):
                row[place] = value
            connection.write(table, tuple(given[: len(key)]), tuple(row))
        return found

    def delete(
        self,
        connection: MemoryTables,
        table: Table,
        key: tuple[str, ...],  # noqa: ARG002 -- always the primary key
        keys: Rows,
    ) -> None:
        """See `Statements.delete`."""
        for each in keys:
            connection.write(table, tuple(each), None)

    def trim(
        self,
        connection: MemoryTables,
        table: Table,
        owner: str,  # noqa: ARG002 -- always a job
        position: str,
        upto: Rows,
    ) -> None:
        """See `Statements.trim`."""
        places, at = _key_places(table), _place(table, position)
        for job_id, last in upto:
            for row in connection.rows_of_job(table, job_id):
                if row[at] <= last:
                    connection.write(table, tuple(row[place] for place in places), None)

    def trim_all(self, connection: MemoryTables, table: Table, position: str, upto: int) -> None:
        """See `Statements.trim_all`."""
        places, at = _key_places(table), _place(table, position)
        for row in connection.rows(table):
            if row[at] <= upto:
                connection.write(table, tuple(row[place] for place in places), None)


@cache
def _place(table: Table, name: str) -> int:
    return table.columns.keys().index(name)


@cache
def _key_places(table: Table) -> tuple[int, ...]:
    return tuple(_place(table, column.name) for column in table.primary_key)


def _refers_to_jobs(table: Table) -> bool:
    return any(key.column.table is jobs for key in table.foreign_keys)


def _check(table: Table, row: Row) -> None:
    for name, value in zip(table.columns.keys(), row, strict=True):
        if isinstance(value, int) and not -_INTEGER_MAX - 1 <= value <= _INTEGER_MAX:
            raise StoreError(f"{table.name}.{name}: {value} does not fit 64 bits")
        # Almost all texts are ASCII, which can always be encoded.
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise StoreError(f"{table.name}.{name} is not Unicode text: {error}") from None
