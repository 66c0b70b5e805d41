"""Declares immutable classes of which a process creates very many instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def checked_frozen(kind: type[T]) -> type[T]:
    """Makes a dataclass with slots whose fields must not be assigned. Only the type checker rejects
    such an assignment.

    A dataclass with `frozen=True` also rejects it at runtime. For this, its `__init__` sets each
    field by a call, so an instance with 16 fields takes about three times as long.
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)
