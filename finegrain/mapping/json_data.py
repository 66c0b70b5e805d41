"""Checks JSON data against the types of fields.

The functions raise InvalidArgument, which names the path of the wrong part. The argument `where` is
the path of the data, such as "job.requests[3]".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from functools import partial
from itertools import repeat
from typing import Any

from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument

Reader = Callable[[Any, str], Any]
"""A function that reads data. Its second argument is the path of the data, for errors."""

Items = type[list[Any]] | type[tuple[Any, ...]]
"""The Python type of a converted JSON list."""


def join_path(where: str, key: str) -> str:
    """Returns the path of a member of the object at `where`."""
    return f"{where}.{key}" if where else key


def required(where: str, key: str) -> None:
    """Raises InvalidArgument for a missing key that is required."""
    raise InvalidArgument(join_path(where, key), None, "a value: the field is required")


def check_list(longest: int, data: Any, where: str) -> None:
    """Raises InvalidArgument unless the data is a list of at most `longest` items."""
    if not isinstance(data, list | tuple) or len(data) > longest:
        raise InvalidArgument(where, data, f"a list of at most {longest} items")


def check_object(name: str, data: Any, where: str) -> None:
    """Raises InvalidArgument unless the data is an object. If the path is empty, the error contains
    `name` in place of the path.
    """
    if not isinstance(data, Mapping):
        raise InvalidArgument(where or name, data, "an object")


def refuse_unknown(keys: frozenset[str], data: Mapping[str, Any], where: str) -> None:
    """Raises InvalidArgument for the first unknown key, in sorted order."""
    path = join_path(where, str(min(data.keys() - keys)))
    raise InvalidArgument(path, "present", f"one of {', '.join(sorted(keys))}")


def read_member(kind: type[Enum], members: Mapping[Any, Enum], data: Any, where: str) -> Any:
    """Returns the enum member whose value is `data`."""
    try:
        # Lists and objects cannot be hashed. For them, the lookup raises TypeError, not KeyError.
        return members[data]
    except (KeyError, TypeError):
        known = ", ".join(str(member.value) for member in kind)
        raise InvalidArgument(where, data, f"one of {known}") from None


def read_plain(kind: type, data: Any, where: str) -> Any:
    """Returns data of a plain type: text, number or boolean."""
    # Compare exact types, because in Python a bool is an int. Accept an int for a float, because
    # some JSON writers write 2.0 as 2.
    if type(data) is kind:
        return data
    if kind is float and type(data) is int:
        return float(data)
    raise InvalidArgument(where, data, f"a value of type {kind.__name__}")


def read_any(data: Any, _where: str) -> Any:
    """Returns the data unchanged."""
    return data


def read_items(read: Reader, kind: Items, data: Any, where: str) -> Any:
    """Reads a list item by item into a list or tuple."""
    if type(data) is not list and not isinstance(data, tuple):
        raise InvalidArgument(where, data, "a list")
    try:
        return kind(map(read, data, repeat(where)))
    except InvalidArgument:  # read again with the path of each item, for the error
        return kind([read(each, f"{where}[{at}]") for at, each in enumerate(data)])


def read_plain_items(item: type, kind: Items, data: Any, where: str) -> Any:
    """Reads a list of plain items; faster than `read_items`."""
    # This check runs in C. If the list has an item of another type, such as an int for a float,
    # call `read_items`.
    if type(data) is list and set(map(type, data)) <= {item}:
        return kind(data)
    return read_items(partial(read_plain, item), kind, data, where)


def read_pairs(key: type, read: Reader, frozen: bool, data: Any, where: str) -> Any:
    """Reads an object into a mapping, or into sorted pairs if `frozen`."""
    if type(data) is not dict:
        check_object("", data, where)
    pairs = {key(name): read(item, f"{where}[{name}]") for name, item in data.items()}
    # Sort the pairs, so that equal mappings are equal as tuples.
    return tuple(sorted(pairs.items())) if frozen else pairs


def read_plain_pairs(value: type, frozen: bool, data: Any, where: str) -> Any:
    """Reads an object with text keys and plain values; faster than `read_pairs`."""
    if type(data) is dict and set(map(type, data.values())) <= {value}:
        return tuple(sorted(data.items())) if frozen else dict(data)
    return read_pairs(str, partial(read_plain, value), frozen, data, where)


def read_cpu_list(data: Any, where: str) -> CpuSet:
    """Reads a cpu list in the kernel's notation."""
    if not isinstance(data, str):
        raise InvalidArgument(where, data, "a CPU list, such as 0-3,8")
    return CpuSet.parse(data, where)


def read_moment(data: Any, where: str) -> datetime:
    """Reads a time in RFC 3339."""
    try:
        return datetime.fromisoformat(data)
    except (ValueError, TypeError):
        raise InvalidArgument(where, data, "a time, such as 2024-05-01T12:00:00Z") from None
