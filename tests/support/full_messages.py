"""Builds messages and values in which no field has its default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin

from google.protobuf.message import Message

from finegrain.cpuset import CpuSet
from finegrain.devices.request import DeviceRequest
from finegrain.mapping.fields import (
    attributes_of,
    is_mapped,
    item_of,
    pair_of,
    split_optional,
)
from finegrain.rpc.mapping.fields import (
    fields_of,
    is_map,
    is_repeated,
    message_class,
)
from finegrain.v1 import resources_pb2

MessageT = TypeVar("MessageT", bound=Message)

DEVICES_OF_A_PROFILE = ("devices", "device_hints", "require_isolation")
"""Fields of `ResourceProfile` that are valid only together."""

TEXT = "7"  # valid as a cpu list, an id and a text
NAME = "cpu_milli"  # valid as a dimension, a label and a name


def full_message(kind: type[MessageT]) -> MessageT:
    """Returns a message with every field set, including nested messages and one item per list."""
    message = kind()
    for name, described in fields_of(kind).items():
        if kind is resources_pb2.ResourceProfile and name in DEVICES_OF_A_PROFILE:
            # They depend on each other: see tests/finegrain/devices/test_wire_devices.py.
            if name == "devices":
                getattr(message, name)["gpu"] = 200
            elif name == "require_isolation":
                getattr(message, name)["memory"] = "kernel"
        elif is_map(described):
            value = fields_of(described.message_type)["value"]
            key = fields_of(described.message_type)["key"]
            getattr(message, name)[NAME if key.type == key.TYPE_STRING else 7] = _scalar(value)
        elif described.message_type is not None:
            item = getattr(message, name)
            item = item.add() if is_repeated(described) else item
            item.CopyFrom(full_message(message_class(described)))
        elif is_repeated(described):
            getattr(message, name).append(_scalar(described))
        else:
            setattr(message, name, _scalar(described))
    return message


def _scalar(described: Any) -> Any:
    if described.enum_type is not None:
        return described.enum_type.values[2].number
    if described.type == described.TYPE_STRING:
        return TEXT
    if described.type == described.TYPE_BYTES:
        return TEXT.encode()
    return described.type == described.TYPE_BOOL or 7


def left_at_default(value: Any, path: str = "") -> Iterator[str]:
    """Yields the paths of fields that are empty or at their default. It looks in a value and in the
    parts of the value.
    """
    if isinstance(value, DeviceRequest):
        return
    if is_dataclass(value) and not isinstance(value, type):
        defaults = attributes_of(type(value))
        for each in fields(value):
            found, inner = getattr(value, each.name), f"{path}.{each.name}"
            known = defaults.get(each.name)
            if not found or (known is not None and found == known.default):
                yield inner
            else:
                yield from left_at_default(found, inner)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from left_at_default(item, f"{path}[]")


def full_value(hint: Any, special: Mapping[Any, Any]) -> Any:
    """Returns a value of a type in which no part is empty, with one item in each list.

    Args:
        hint: the type.
        special: ready values by type, or by "Class.name" for attributes.
    """
    hint, _ = split_optional(hint)
    if hint in special:
        return special[hint]
    if is_mapped(hint):
        return hint(
            **{
                name: special[known]
                if (known := f"{hint.__name__}.{name}") in special
                else full_value(each.hint, special)
                for name, each in attributes_of(hint).items()
            }
        )
    if (pair := pair_of(hint)) is not None:
        pairs = {NAME if pair[0] is str else 7: full_value(pair[1], special)}
        return tuple(pairs.items()) if item_of(hint) is not None else pairs
    if (item := item_of(hint)) is not None:
        return (full_value(item, special),)
    if get_origin(hint) is tuple:
        return tuple(full_value(each, special) for each in get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    return {str: TEXT, bool: True, float: 7.0, CpuSet: CpuSet.of(7)}.get(hint, 7)
