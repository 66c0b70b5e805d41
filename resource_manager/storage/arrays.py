"""Rows as parameters of one PostgreSQL statement: an array per column, written as text.

The driver's own conversion handles every element in Python. That took four times as long as
everything else in a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Boolean, Integer, Table
from sqlalchemy.sql.type_api import TypeEngine

from finegrain.errors import StoreError

_NUL = "\0"  # separator: texts do not contain it, and PostgreSQL could not store it


class Given:
    """Columns of some rows, as parameters of a statement.

    Example: the rows (a, 1), (b, 1) become one array {"a","b"} and one single value 1.

    Args:
        table: the table of the columns.
        names: the columns in the rows, in order.
        rows: at least one.
        arrays: the first `arrays` columns are always sent as arrays, even if all rows are equal.

    Attributes:
        single: by column, True if it is equal in all rows, so that it is sent as one value.
        singles, arrays: the parameters of both kinds, in order of the columns.
    """

    __slots__ = ("arrays", "single", "singles")

    def __init__(
        self,
        table: Table,
        names: tuple[str, ...],
        rows: Sequence[tuple[Any, ...]],
        *,
        arrays: int = 0,
    ) -> None:
        single = []
        singles: list[Any] = []
        texts: list[str] = []
        for number, (name, column) in enumerate(zip(names, zip(*rows, strict=True), strict=True)):
            # One value is shorter than an array, and many columns of a batch have equal values.
            one = number >= arrays and column.count(column[0]) == len(column)
            single.append(one)
            if one:
                singles.append(column[0])
            else:
                texts.append(array_text(column, table.columns[name].type))
        self.single = tuple(single)
        self.singles = tuple(singles)
        self.arrays = tuple(texts)


def unnested(table: Table, names: tuple[str, ...]) -> str:
    """Returns the SQL that turns the arrays of these columns into rows named `given`."""
    arrays = ", ".join(f"%s::{type_name(table.columns[name].type)}[]" for name in names)
    return f"unnest({arrays}) AS given ({', '.join(names)})"


def type_name(column_type: TypeEngine[Any]) -> str:
    """Returns PostgreSQL's name of a type."""
    if isinstance(column_type, Boolean):
        return "boolean"
    return "bigint" if isinstance(column_type, Integer) else "text"


def array_text(column: Sequence[Any], column_type: TypeEngine[Any]) -> str:
    """Returns a PostgreSQL array as text.

    Raises:
        StoreError: a text contains a NUL character.
    """
    if isinstance(column_type, Boolean | Integer):  # numbers, true and false, None
        # PostgreSQL reads Python's spelling of numbers, and of True and False.
        return "{" + str(list(column))[1:-1].replace("None", "NULL") + "}"
    if None in column:
        return "{" + ",".join("NULL" if each is None else _quoted([each]) for each in column) + "}"
    return "{" + _quoted(column) + "}"


def _quoted(texts: Sequence[str]) -> str:
    # Joined first, so that escaping takes three passes in all and not three for each text.
    joined = _NUL.join(texts)
    if joined.count(_NUL) != len(texts) - 1:
        raise StoreError("a text holds a NUL character, which PostgreSQL cannot keep")
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace(_NUL, '","')
    return f'"{escaped}"'
