"""Converts rows to the parameters of one PostgreSQL statement: one array per column, as text.

The driver also accepts lists, but it converts every element of a list in Python. In a measurement,
this conversion took four times as long as all other parts of a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Boolean, Integer, Table
from sqlalchemy.sql.type_api import TypeEngine

from finegrain.errors import StoreError

_NUL = "\0"  # the separator. PostgreSQL cannot store this character, so no stored text contains it


class Given:
    """The columns of some rows, as parameters of a statement.

    Example: the rows (a, 1), (b, 1) become the array {"a","b"} and the single value 1.

    Args:
        table: the table of the columns.
        names: the names of the columns, in the order of the rows' values.
        rows: the rows. There must be at least one.
        arrays: the number of leading columns that are always sent as arrays, even if all rows have
            the same value.

    Attributes:
        single: for each column, True if all rows have the same value. The value is then sent once.
        singles: the parameters of columns with a single value.
        arrays: the parameters of columns with an array.
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
            # A single value is shorter than an array, and many columns of a batch have equal
            # values.
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
    """Returns the SQL that makes rows named `given` from the arrays of these columns."""
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
        # PostgreSQL accepts numbers, True and False as Python prints them.
        return "{" + str(list(column))[1:-1].replace("None", "NULL") + "}"
    if None in column:
        return "{" + ",".join("NULL" if each is None else _quoted([each]) for each in column) + "}"
    return "{" + _quoted(column) + "}"


def _quoted(texts: Sequence[str]) -> str:
    # Join the texts first. Escaping then needs three passes for all texts together.
    joined = _NUL.join(texts)
    if joined.count(_NUL) != len(texts) - 1:
        raise StoreError("a text contains a NUL character, which PostgreSQL cannot store")
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace(_NUL, '","')
    return f'"{escaped}"'
