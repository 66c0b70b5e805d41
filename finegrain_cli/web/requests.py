"""Reads messages of the protocol from JSON and from the query of a URL.

Fields have their names in the protocol. But a duration `grace` is the number `grace_s`, in seconds.
A word of an enum, such as "PENDING", does not contain the name of the enum. A time is a text in the
format of RFC 3339.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from finegrain.errors import InvalidArgument
from finegrain.rpc.mapping.fields import (
    DURATION,
    TIMESTAMP,
    UNSPECIFIED,
    fields_of,
    is_map,
    is_repeated,
)

DURATION_S_MAX = 10 * 366 * 24 * 3600
INTEGER_RANGES = {  # smallest and largest value of each kind of integer
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


def message_from_query(kind: type[Message], pairs: Iterable[tuple[str, str]]) -> Message:
    """Returns a message from the query of a URL. If a name is repeated, its values become a list.

    Raises:
        InvalidArgument: a name or a value is not allowed.
    """
    described = named_fields(kind.DESCRIPTOR)
    data: dict[str, Any] = {}
    for name, text in pairs:
        field = described.get(name)
        value: Any = text
        if field is not None and field.message_type is None and not is_map(field):
            value = _from_text(field, text, name)
        elif field is not None and _message_name(field) == DURATION:
            value = _number(text, name)
        if field is not None and is_repeated(field):
            data.setdefault(name, []).append(value)
        elif name in data:
            raise InvalidArgument(name, "several values", "one value")
        else:
            data[name] = value
    return message_from(kind, data)


def message_from(kind: type[Message], data: Any) -> Message:
    """Returns a message from JSON.

    Args:
        kind: the class of the message.
        data: the parsed JSON.

    Raises:
        InvalidArgument: a name or a value is not allowed. The error has the path of the field.
    """
    message = kind()
    _fill(message, data, "")
    return message


def named_fields(descriptor: Any) -> dict[str, FieldDescriptor]:
    """Returns the fields of a message by their names in JSON."""
    return {json_name(field): field for field in fields_of(descriptor).values()}


def json_name(field: FieldDescriptor) -> str:
    """Returns the name of a field in JSON. Names of durations end with `_s`."""
    return f"{field.name}_s" if _message_name(field) == DURATION else field.name


def entry_of(field: FieldDescriptor, name: str) -> FieldDescriptor:
    """Returns the field `name` of the entries of a map: `key` or `value`."""
    assert field.message_type is not None  # noqa: S101 - every map has a message of its entries
    return field.message_type.fields_by_name[name]


def words_of(enum: EnumDescriptor) -> dict[str, int]:
    """Returns the words of an enum without the name of the enum, with their numbers."""
    unset = next(each.name for each in enum.values if each.number == 0)
    prefix = unset.removesuffix(UNSPECIFIED)
    return {each.name.removeprefix(prefix): each.number for each in enum.values if each.number != 0}


def _fill(message: Message, data: Any, path: str) -> None:
    if not isinstance(data, Mapping):
        raise InvalidArgument(path or "body", _shown(data), "a JSON object")
    described = named_fields(message.DESCRIPTOR)
    for name, value in data.items():
        where = f"{path}.{name}" if path else str(name)
        field = described.get(name)
        if field is None:
            raise InvalidArgument(
                where, _shown(value), f"one of the fields {', '.join(sorted(described))}"
            )
        if value is None:
            continue  # null means that the field is absent
        if is_map(field):
            _fill_map(getattr(message, field.name), field, value, where)
        elif is_repeated(field):
            _fill_list(getattr(message, field.name), field, value, where)
        elif field.message_type is not None:
            _fill_message(getattr(message, field.name), value, where)
        else:
            setattr(message, field.name, _plain(field, value, where))


def _fill_map(target: Any, field: FieldDescriptor, value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise InvalidArgument(where, _shown(value), "a JSON object")
    of_key, of_value = entry_of(field, "key"), entry_of(field, "value")
    for key, each in value.items():
        place = f"{where}.{key}"
        number = _from_text(of_key, str(key), place)
        if of_value.message_type is not None:
            _fill_message(target[number], each, place)
        else:
            target[number] = _plain(of_value, each, place)


def _fill_list(target: Any, field: FieldDescriptor, value: Any, where: str) -> None:
    if not isinstance(value, list | tuple):
        raise InvalidArgument(where, _shown(value), "a JSON list")
    for at, each in enumerate(value):
        place = f"{where}[{at}]"
        if field.message_type is not None:
            _fill_message(target.add(), each, place)
        else:
            target.append(_plain(field, each, place))


def _fill_message(target: Any, value: Any, where: str) -> None:
    kind = target.DESCRIPTOR.full_name
    if kind == DURATION:
        seconds = _number(value, where)
        if not 0 <= seconds <= DURATION_S_MAX:
            raise InvalidArgument(where, value, f"0 to {DURATION_S_MAX} seconds")
        target.FromNanoseconds(round(seconds * 1e9))
    elif kind == TIMESTAMP:
        try:
            target.FromDatetime(datetime.fromisoformat(value))
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgument(
                where, _shown(value), "a time such as 2026-11-28T12:00:00Z"
            ) from None
    else:
        target.SetInParent()
        _fill(target, value, where)


def _plain(field: FieldDescriptor, value: Any, where: str) -> Any:
    """Returns the value of a field that is not a message."""
    if field.enum_type is not None:
        words = words_of(field.enum_type)
        if not isinstance(value, str) or value not in words:
            raise InvalidArgument(where, _shown(value), f"one of {', '.join(words)}")
        return words[value]
    if field.cpp_type in INTEGER_RANGES:
        low, high = INTEGER_RANGES[field.cpp_type]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidArgument(where, _shown(value), f"an integer from {low} to {high}")
        return value
    if field.cpp_type in _FLOATS:
        return _number(value, where)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise InvalidArgument(where, _shown(value), "true or false")
        return value
    if not isinstance(value, str) or not value.isprintable():
        raise InvalidArgument(where, _shown(value), "printable text")
    return value


def _number(value: Any, where: str) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(where, _shown(value), "a number") from None
    if not math.isfinite(number):
        raise InvalidArgument(where, _shown(value), "a number")
    return number


def _from_text(field: FieldDescriptor, text: str, where: str) -> Any:
    """Converts a text to the JSON value of a field. The text comes from a query, or is the key of a
    map.
    """
    if field.cpp_type in INTEGER_RANGES and field.enum_type is None:
        if not re.fullmatch(r"-?[0-9]{1,20}", text):
            raise InvalidArgument(where, _shown(text), "an integer")
        return int(text)
    if field.cpp_type in _FLOATS:
        return _number(text, where)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if text not in ("true", "false"):
            raise InvalidArgument(where, text, "true or false")
        return text == "true"
    return text


def _message_name(field: FieldDescriptor) -> str:
    return field.message_type.full_name if field.message_type is not None else ""


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
