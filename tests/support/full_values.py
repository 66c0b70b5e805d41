"""Builds dataclass instances in which no field is empty or has its default."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from finegrain.cpuset import CpuSet
from finegrain.intervals import IntervalSet
from finegrain.mapping.fields import Attribute, attributes_of, is_mapped, item_of, pair_of

T = TypeVar("T")


def full_value(kind: type[T], leave: Collection[str] = (), path: str = "") -> T:
    """Returns an instance with a different value in every field. No value is the default of its
    field.

    Args:
        kind: a dataclass or named tuple.
        leave: paths of fields that keep their default, such as "spec.gang_id".
        path: path of this instance in the outermost one.
    """
    given: dict[str, Any] = {}
    for number, each in enumerate(attributes_of(kind).values()):
        inner = f"{path}.{each.name}" if path else each.name
        if inner not in leave:
            given[each.name] = _other_than_default(each, _full(each.hint, number, leave, inner))
    return kind(**given)


def _other_than_default(each: Attribute, value: Any) -> Any:
    if value == each.default and isinstance(value, Enum):
        return next(member for member in type(value) if member is not value)
    if value == each.default and isinstance(value, bool):
        return not value
    assert each.required or value != each.default, each.name
    return value


def _full(hint: Any, number: int, leave: Collection[str], path: str) -> Any:
    if is_mapped(hint):
        return full_value(hint, leave, path)
    if hint is Any or hint is object or hint is str:
        return f"{path} {number}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    made = {
        bool: True,
        int: number + 1,
        float: number + 0.5,
        bytes: b"%d" % number,
        CpuSet: CpuSet.of(number, 9),
        Path: Path(path, str(number)),
        datetime: datetime(2026, 1, 1, number, tzinfo=UTC),
    }
    if hint in made:
        return made[hint]
    if hint is IntervalSet:
        return IntervalSet([(0, number + 1), (number + 5, number + 9)])
    return _collection(hint, number, leave, path)


def _collection(hint: Any, number: int, leave: Collection[str], path: str) -> Any:
    if (pair := pair_of(hint)) is not None:
        key, value = (_full(each, number, leave, path) for each in pair)
        return ((key, value),) if item_of(hint) is not None else {key: value}
    if (item := item_of(hint)) is not None:
        value = _full(item, number, leave, path)
        return [value] if get_origin(hint) is list else (value,)
    assert get_origin(hint) is tuple, f"{path}: {hint}"
    return tuple(_full(each, number, leave, path) for each in get_args(hint))
