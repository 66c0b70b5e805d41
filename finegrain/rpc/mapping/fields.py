"""Describes the fields of protocol messages, for the reader and the writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from finegrain.mapping.fields import MappingError

EnumT = TypeVar("EnumT", bound=Enum)

TIMESTAMP = "google.protobuf.Timestamp"
DURATION = "google.protobuf.Duration"
UNSPECIFIED = "UNSPECIFIED"
UNIT_SUFFIXES = {TIMESTAMP: ("_ms", ""), DURATION: ("_ms", "_s")}
"""Unit suffixes of attribute names, by type of the field.

Example: the Duration field `lease` can be the attribute `lease_ms` or `lease_s`.
"""


def by_type(
    converters: Mapping[type, Callable[[Any], Any]],
) -> dict[type | str, Callable[[Any], Any]]:
    """Returns the converters by type. The key of a message class is its full message name."""
    return {
        each.DESCRIPTOR.full_name if issubclass(each, Message) else each: convert
        for each, convert in converters.items()
    }


def fields_of(message: Any) -> Mapping[str, FieldDescriptor]:
    """Returns the fields of a message, or of its descriptor, by name."""
    descriptor = getattr(message, "DESCRIPTOR", message)
    return {each.name: each for each in descriptor.fields}


def field_at(message: type[Message], path: str) -> FieldDescriptor:
    """Returns the field at a path such as "request.pids_max".

    Raises:
        MappingError: there is no such field.
    """
    found, owner = None, fields_of(message)
    for name in path.split("."):
        found = owner.get(name)
        if found is None:
            raise MappingError(f"{message.__name__} has no field {path}")
        owner = fields_of(found.message_type) if found.message_type is not None else {}
    return cast("FieldDescriptor", found)


def is_repeated(field: FieldDescriptor) -> bool:
    """True for lists and maps."""
    return bool(field.default_value == [])


def is_map(field: FieldDescriptor) -> bool:
    """True for maps."""
    kind = field.message_type
    return kind is not None and is_repeated(field) and kind.GetOptions().map_entry


def message_name(field: FieldDescriptor) -> str:
    """Returns the full name of the message type of a field; empty if the field contains no
    message.
    """
    return "" if field.message_type is None else field.message_type.full_name


def message_class(field: FieldDescriptor) -> type[Message]:
    """Returns the class of the message that a field contains."""
    return GetMessageClass(cast("Descriptor", field.message_type))


def numbers_of(kind: type[EnumT], descriptor: EnumDescriptor) -> dict[EnumT, int]:
    """Returns the numbers of enum members in the protocol. Members without a number are left
    out.

    Members are found by name: PENDING has the number of REQUEST_STATE_PENDING. A member named
    DEFAULT has the number 0 (UNSPECIFIED).
    """
    prefix = descriptor.values[0].name.removesuffix(UNSPECIFIED)
    known = descriptor.values_by_name
    numbers = {
        each: known[f"{prefix}{each.name}"].number for each in kind if prefix + each.name in known
    }
    if unspecified := kind.__members__.get("DEFAULT"):
        numbers[unspecified] = 0
    return numbers


def members_of(kind: type[EnumT], descriptor: EnumDescriptor) -> dict[int, EnumT]:
    """Returns the enum members by number; the inverse of `numbers_of`."""
    return {number: member for member, number in numbers_of(kind, descriptor).items()}
