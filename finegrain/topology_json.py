"""Turns frozen dataclasses of CPU sets, enums and tuples into JSON-able data and back.

Decides the notation: dataclass fields by name, CPU sets as kernel lists, enums by value, tuples as
lists.  Refuses to know any particular dataclass; the annotations of the class are the schema.
"""

from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument

T = TypeVar("T")
_HINTS: dict[type, dict[str, Any]] = {}  # resolving annotations costs more than decoding


def encode(value: Any) -> Any:
    """JSON-able form of a dataclass, CPU set, enum, tuple or plain value."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: encode(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, CpuSet):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    return value


def decode(cls: type[T], data: Any, where: str = "") -> T:
    """An instance of the dataclass ``cls`` from what ``encode`` made.

    Unknown keys are ignored, so that an older reader understands a newer writer.  Raises
    InvalidArgument with the path of the field.
    """
    if not isinstance(data, dict):
        raise InvalidArgument(where or cls.__name__, data, "an object")
    hints = _HINTS.get(cls) or _HINTS.setdefault(cls, get_type_hints(cls))
    values: dict[str, Any] = {}
    for each in fields(cls):  # type: ignore[arg-type]
        path = f"{where}.{each.name}" if where else each.name
        if each.name in data:
            values[each.name] = _decode_value(hints[each.name], data[each.name], path)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise InvalidArgument(path, None, "a value: the field is required")
    return cls(**values)


def _decode_value(hint: Any, value: Any, path: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in get_args(hint):
            return None
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
        return _decode_value(hint, value, path)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InvalidArgument(path, value, "a list")
        item = get_args(hint)[0]
        return tuple(_decode_value(item, each, f"{path}[{i}]") for i, each in enumerate(value))
    if is_dataclass(hint):
        return decode(hint, value, path)  # type: ignore[arg-type]
    return _decode_scalar(hint, value, path)


def _decode_scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is CpuSet:
        if isinstance(value, str):
            return CpuSet.parse(value, path)
        raise InvalidArgument(path, value, "a CPU list, such as 0-3,8")
    if issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            known = ", ".join(str(member.value) for member in hint)
            raise InvalidArgument(path, value, f"one of {known}") from None
    # bool is an int in Python, but not in the model.
    if type(value) is not hint:
        raise InvalidArgument(path, value, f"a value of type {hint.__name__}")
    return value
