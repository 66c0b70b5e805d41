"""Codecs between entities and rows of a table, in the order of the table's columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Table

from finegrain.mapping.rows import RowCodec, Text
from resource_manager.storage.texts import TEXTS

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Codec(RowCodec[T]):
    """A codec for one kind of entity, with all columns of its table."""

    table: Table


@dataclass(frozen=True, kw_only=True)
class MoveCodec(RowCodec[T]):
    """A codec for changes of some columns of stored rows. Its columns are `key`, then `changed`."""

    table: Table
    key: tuple[str, ...]
    changed: tuple[str, ...]


def codec(
    table: Table,
    kind: type[T],
    *,
    exceptions: Mapping[str, str | tuple[str, Text]] | None = None,
    parts: str = "",
    unstored: str = "",
) -> Codec[T]:
    """Returns the codec for all columns of a table.

    Args:
        table: the table.
        kind: the class of the entities.
        exceptions: the columns whose attribute has another name, or that need a special text form;
            see `RowCodec`.
        parts: the paths of nested dataclasses whose fields are columns; see `RowCodec`.
        unstored: the paths of attributes without a column; see `RowCodec`.
    """
    columns = tuple(table.columns.keys())
    return Codec(kind, columns, TEXTS, exceptions or {}, parts, unstored, table=table)


def move_codec(whole: Codec[T], *changed: str) -> MoveCodec[T]:
    """Returns the codec for the table's key and the columns `changed`."""
    key = tuple(column.name for column in whole.table.primary_key)
    columns = key + changed
    exceptions = {name: each for name, each in whole.exceptions.items() if name in columns}
    return MoveCodec(
        whole.kind,
        columns,
        whole.texts,
        exceptions,
        whole.parts,
        table=whole.table,
        key=key,
        changed=changed,
    )
