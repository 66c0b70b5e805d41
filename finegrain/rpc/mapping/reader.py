"""Converts protocol messages to dataclasses, with generated and compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from finegrain.mapping.fields import (
    Attribute,
    MappingError,
    attributes_of,
    is_mapped,
    item_of,
)
from finegrain.mapping.source import Source
from finegrain.rpc.mapping.fields import (
    DURATION,
    TIMESTAMP,
    UNIT_SUFFIXES,
    by_type,
    field_at,
    fields_of,
    is_map,
    is_repeated,
    members_of,
    message_class,
    message_name,
)

T = TypeVar("T")
UnknownNumber = Callable[[type[Enum], EnumDescriptor, int], Exception]
"""Returns the error for a number that no member of an enum has."""


@dataclass(frozen=True, slots=True)
class Via:
    """An attribute that a function converts from the field at `path`."""

    path: str
    convert: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class FromMessage:
    """An attribute that a function computes from the whole message. The function reads only
    `fields`.
    """

    convert: Callable[[Any], Any]
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """One class, the message from which it is read, and the differences between class and message.

    An attribute of type str contains names, separated by spaces.

    Attributes:
        kind: the dataclass.
        message: the message.
        exceptions: the differences, by attribute. If the field has another name, the value is its
            path ("request.pids_max"). Otherwise the value is a `Via` or `FromMessage` that computes
            the attribute.
        given: attributes that the caller passes by name.
        kept: attributes without a field, which get their default.
        unread: fields without an attribute.
    """

    kind: type
    message: type[Message]
    exceptions: Mapping[str, str | Via | FromMessage] = field(default_factory=dict)
    given: str = ""
    kept: str = ""
    unread: str = ""


class Reader:
    """Reads dataclasses from messages. The reader compiles a function for each pair of class and
    message on first use.

    Args:
        readings: the pairs of class and message that differ. Pairs without differences need not be
            listed.
        converters: functions that convert nested messages (the key is the class of the message) or
            texts (the key is the type of the attribute).
        unknown: a function that creates the error for a number that no enum member has.
    """

    def __init__(
        self,
        readings: Sequence[Reading],
        *,
        converters: Mapping[type, Callable[[Any], Any]],
        unknown: UnknownNumber,
    ) -> None:
        self.readings: Mapping[tuple[type, type], Reading] = {
            (each.kind, each.message): each for each in readings
        }
        self._converters = by_type(converters)
        self._unknown = unknown
        self._compiled: dict[tuple[type, type], Callable[..., Any]] = {}

    def extended(
        self,
        readings: Sequence[Reading],
        converters: Mapping[type, Callable[[Any], Any]] = MappingProxyType({}),
    ) -> Reader:
        """Returns a reader that has the pairs and converters of this reader and the additional
        ones.
        """
        other = Reader(readings, converters=converters, unknown=self._unknown)
        other.readings = {**self.readings, **other.readings}
        other._converters = {**self._converters, **other._converters}
        return other

    def __call__(self, kind: type[T], message: Message, /, **given: Any) -> T:
        """Converts a message to a value.

        Args:
            kind: the dataclass.
            message: the message to convert.
            given: attributes that the message does not have.

        Raises:
            Exception: the error that `unknown` created, or that a converter raised.
        """
        function = self._compiled.get((kind, message.__class__))
        if function is None:
            function = self.function(kind, message.__class__)
        return cast("T", function(message, **given) if given else function(message))

    def each(self, kind: type[T], messages: Sequence[Message]) -> list[T]:
        """Converts many messages of one type."""
        if not messages:
            return []
        function = self.function(kind, messages[0].__class__)
        return [function(message) for message in messages]

    def function(self, kind: type[T], message: type[Message]) -> Callable[..., T]:
        """Returns the compiled function of a pair.

        Raises:
            MappingError: the class or the message has a field that the other one lacks, and no
                exception names this field.
        """
        found = self._compiled.get((kind, message))
        if found is None:
            found = self._compiled[kind, message] = self._compile(kind, message)
        return found

    @property
    def pairs(self) -> Sequence[tuple[type, type]]:
        """All compiled pairs, including pairs of nested values."""
        return tuple(self._compiled)

    def _compile(self, kind: type, message: type[Message]) -> Callable[..., Any]:
        reading = self.readings.get((kind, message)) or Reading(kind, message)
        source, used = Source(), set(reading.unread.split())
        values, parameters = list[str](), list[str]()
        parents: dict[str, str] = {}
        for each in attributes_of(kind).values():
            exception = reading.exceptions.get(each.name)
            if isinstance(exception, FromMessage):
                used.update(exception.fields)
                value = f"{source.bind(exception.convert, 'convert')}(_message)"
            elif each.name in reading.given.split():
                value = each.name
                parameters.append(value if each.required else f"{value}={source.default(each)}")
            elif each.name in reading.kept.split():
                value = source.default(each)
            else:
                convert = exception.convert if isinstance(exception, Via) else None
                path = exception.path if isinstance(exception, Via) else exception
                path = path or _field_name(message, each.name)
                used.add(path.partition(".")[0])
                described, access = field_at(message, path), _access(path, parents)
                value = self._value(source, each, described, access, convert)
            values.append(value)
        # Check that every field of the message is used or named in the table.
        self._check(reading, used)
        # The generated code reads each parent message once, into a local variable.
        body = [f"{name} = _message.{path}" for path, name in parents.items()]
        body.append(f"return {source.bind(kind, 'kind')}({', '.join(values)})")
        return source.compile(f"read({', '.join(['_message', *parameters])})", body)

    def _check(self, reading: Reading, used: set[str]) -> None:
        # Raise an error for a forgotten field, because otherwise its data would be lost silently.
        if missed := sorted(fields_of(reading.message).keys() - used):
            kind, message = reading.kind.__name__, reading.message.__name__
            raise MappingError(f"{kind} has no attribute for {', '.join(missed)} of {message}")

    def _value(
        self,
        source: Source,
        each: Attribute,
        described: FieldDescriptor,
        access: tuple[str, str],
        convert: Callable[[Any], Any] | None,
    ) -> str:
        """Returns the expression of an attribute.

        `access` has two expressions: one for the parent message, and one that reads the field.
        """
        parent, read = access
        if convert is not None:
            value = f"{source.bind(convert, 'convert')}({read})"
        elif is_repeated(described):
            return self._many(source, each, described, read)
        else:
            value = self._one(source, each.hint, described, read)
        if each.optional and described.has_presence:
            return f"{value} if {parent}.HasField({described.name!r}) else None"
        if each.optional and described.enum_type is not None:
            # If an enum field is absent, it reads as 0 (UNSPECIFIED).
            return f"{value} if {read} else None"
        if each.optional and convert is None:
            raise MappingError(
                f"the field {described.full_name} cannot be absent, but the attribute {each.name}"
                " can be None"
            )
        return value

    def _many(self, source: Source, each: Attribute, described: FieldDescriptor, read: str) -> str:
        if is_map(described):
            frozen = item_of(each.hint) is not None
            return f"tuple(sorted({read}.items()))" if frozen else f"dict({read})"
        inner = self._one(source, item_of(each.hint), described, "item")
        return f"tuple({read})" if inner == "item" else f"tuple([{inner} for item in {read}])"

    def _one(self, source: Source, hint: Any, described: FieldDescriptor, read: str) -> str:
        """Returns the expression of one value that is present."""
        name = message_name(described)
        convert = self._converters.get(name or hint)
        if name and (message := message_class(described)) is not None:
            reading = self.readings.get((hint, message))
            if reading is None and convert is not None:
                return f"{source.bind(convert, 'convert')}({read})"
            if is_mapped(hint):
                return f"{source.bind(self.function(hint, message), 'read')}({read})"
            if (name, hint) in _MOMENTS:
                return _MOMENTS[name, hint].format(read, utc=source.bind(UTC, "utc"))
            raise MappingError(f"no rule converts {described.full_name} to {hint}")
        if described.enum_type is not None:
            return self._member(source, hint, described.enum_type, read)
        if convert is not None:
            return f"{source.bind(convert, 'convert')}({read})"
        return read

    def _member(self, source: Source, kind: Any, described: EnumDescriptor, read: str) -> str:
        members = members_of(kind, described)
        get = source.bind(_Members(members, partial(self._unknown, kind, described)), "members")
        return f"{get}[{read}]"


class _Members(dict[int, Any]):
    """Maps numbers to enum members. Raises the error from `unknown` for a missing number."""

    def __init__(self, members: Mapping[int, Any], unknown: Callable[[int], Exception]) -> None:
        super().__init__(members)
        self._unknown = unknown

    def __missing__(self, number: int) -> Any:
        raise self._unknown(number)


_MOMENTS: dict[tuple[str, Any], str] = {
    (TIMESTAMP, datetime): "{0}.ToDatetime({utc})",
    (TIMESTAMP, int): "({0}.seconds * 1000 + {0}.nanos // 1_000_000)",
    (DURATION, float): "{0}.ToMicroseconds() / 1e6",
    # Round up to whole milliseconds, as in `duration_ms_from_proto`.
    (DURATION, int): "({0}.seconds * 1000 - (-{0}.nanos // 1_000_000))",
}


def _field_name(message: type[Message], name: str) -> str:
    """Returns the name of an attribute's field.

    For times and durations, the attribute's name can have a unit suffix that the field's name lacks
    (`lease_ms` for `lease`).
    """
    fields = fields_of(message)
    if name in fields:
        return name
    for kind, suffixes in UNIT_SUFFIXES.items():
        for suffix in suffixes:
            found = fields.get(name.removesuffix(suffix))
            if suffix and found is not None and message_name(found) == kind:
                return found.name
    raise MappingError(f"{message.__name__} has no field for the attribute {name!r}")


def _access(path: str, parents: dict[str, str]) -> tuple[str, str]:
    parent, _, name = path.rpartition(".")
    if not parent:
        return "_message", f"_message.{name}"
    local = parents.setdefault(parent, f"_message_{parent.replace('.', '_')}")
    return local, f"{local}.{name}"
