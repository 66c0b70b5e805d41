"""What it takes to keep one kind of entity in a table.

Decides that a row is a tuple of columns in declared order. Refuses to know any entity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Table

Row = tuple[Any, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How one kind of entity stands in its table. Rows hold all columns in declared order."""

    table: Table
    encode: Callable[[T], Row]
    decode: Callable[[Sequence[Any]], T]


@dataclass(frozen=True, slots=True)
class MoveCodec(Generic[T]):
    """How it is written where something stands now. Rows hold the columns `key`, then `changed`."""

    table: Table
    key: tuple[str, ...]
    changed: tuple[str, ...]
    encode: Callable[[T], Row]
