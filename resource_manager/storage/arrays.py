"""Rows as PostgreSQL takes in thousands of them at once: an array per column.

Decides how an array is written as text. (The driver's own way looks at every element in Python:
that took four times as long as everything else about a commit.) Refuses to know what the columns
mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Boolean, Integer, Table
from sqlalchemy.sql.type_api import TypeEngine

from finegrain.errors import StoreError

_NUL = "\0"  # no text of ours holds it, and PostgreSQL could not keep it


class Given:
    """Columns of some rows, as parameters.

    Args:
        table: whose columns they are.
        names: the columns that the rows hold, in order.
        rows: at least one.
        arrays: so many of the first columns are arrays even where all rows say the same.

    Attributes:
        single: by column, whether all rows say the same, so that it is given once.
        singles, arrays: the parameters of either kind, in order.
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
    """The arrays of these columns as rows, called `given`."""
    arrays = ", ".join(f"%s::{type_name(table.columns[name].type)}[]" for name in names)
    return f"unnest({arrays}) AS given ({', '.join(names)})"


def type_name(column_type: TypeEngine[Any]) -> str:
    """PostgreSQL's name of a type."""
    if isinstance(column_type, Boolean):
        return "boolean"
    return "bigint" if isinstance(column_type, Integer) else "text"


def array_text(column: Sequence[Any], column_type: TypeEngine[Any]) -> str:
    """A PostgreSQL array, spelled as text.

    Raises:
        StoreError: a text with a NUL character.
    """
    if isinstance(column_type, Boolean | Integer):  # numbers, true and false, None
        return "{" + str(list(column))[1:-1].replace("None", "NULL") + "}"
    if None in column:
        return "{" + ",".join("NULL" if each is None else _quoted([each]) for each in column) + "}"
    return "{" + _quoted(column) + "}"


def _quoted(texts: Sequence[str]) -> str:
    joined = _NUL.join(texts)
    if joined.count(_NUL) != len(texts) - 1:
        raise StoreError("a text holds a NUL character, which PostgreSQL cannot keep")
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace(_NUL, '","')
    return f'"{escaped}"'
