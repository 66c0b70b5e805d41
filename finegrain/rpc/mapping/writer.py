"""Converts dataclasses to protocol messages, with generated and compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from finegrain.mapping.fields import (
    Attribute,
    MappingError,
    attribute_at,
    attributes_of,
    find_attribute,
    is_mapped,
    item_of,
)
from finegrain.mapping.source import Source
from finegrain.rpc.mapping.fields import (
    DURATION,
    TIMESTAMP,
    UNIT_SUFFIXES,
    by_type,
    fields_of,
    is_map,
    is_repeated,
    message_class,
    message_name,
    numbers_of,
)

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class As:
    """A field whose value `convert` computes from the attribute at `path`."""

    path: str
    convert: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class FromValue:
    """A field that a function computes from the whole value. The function reads only `attributes`.

    If the function returns None, the field is not set.
    """

    convert: Callable[[Any], Any]
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Writing:
    """One class, the message to which it is written, and the differences between class and message.

    An attribute of type str contains names or paths, separated by spaces.

    Attributes:
        kind: the dataclass.
        message: the message.
        exceptions: the differences, by field. If only the name of the attribute differs, the entry
            is the path of the attribute ("registration.default_profile"). Otherwise, the entry is
            an `As` or `FromValue` that computes the field.
        parts: paths of nested values whose attributes are also fields of the message. An attribute
            of the value itself has priority over an attribute of a part.
        given: fields that the caller passes by name. If the caller does not pass such a field, the
            field is not set.
        kept: paths of attributes that are not written.
        unset: fields without an attribute.
    """

    kind: type
    message: type[Message]
    exceptions: Mapping[str, str | As | FromValue] = field(default_factory=dict)
    parts: str = ""
    given: str = ""
    kept: str = ""
    unset: str = ""


class Writer:
    """Writes messages from dataclasses. The writer compiles a function for each pair of class and
    message on first use.

    Nested values become dicts of their fields, which protobuf writes into the outer message. Nested
    messages would take longer, because protobuf copies each of them.

    Args:
        writings: the pairs of class and message that differ. Pairs without differences need not be
            listed.
        converters: functions that convert values to nested messages or texts. The key is the type
            of the attribute or the class of the message.
    """

    def __init__(
        self, writings: Sequence[Writing], *, converters: Mapping[type, Callable[[Any], Any]]
    ) -> None:
        self.writings = {(each.kind, each.message): each for each in writings}
        self._converters = by_type(converters)
        self._compiled: dict[tuple[type, type], Callable[..., Any]] = {}
        self._nested: dict[tuple[type, type], Callable[..., Any]] = {}

    def __call__(self, message: type[MessageT], value: object, /, **given: Any) -> MessageT:
        """Converts a value to a message.

        Args:
            message: the message class.
            value: the value to convert, an instance of a dataclass.
            given: fields that the value does not have.
        """
        function = self._compiled.get((value.__class__, message))
        if function is None:
            function = self.function(value.__class__, message)
        return cast("MessageT", function(value, **given) if given else function(value))

    def each(self, message: type[MessageT], values: Sequence[object]) -> list[MessageT]:
        """Converts many values of one class."""
        if not values:
            return []
        function = self.function(values[0].__class__, message)
        return [function(value) for value in values]

    def items(self, message: type[Message], values: Sequence[object]) -> list[Any]:
        """Converts many values of one class to items of a repeated field: messages, or dicts of
        their fields. A message is made faster from these items than from the messages of `each`.
        """
        if not values:
            return []
        function = self._function_of_part(values[0].__class__, message)
        return [function(value) for value in values]

    def function(self, kind: type, message: type[MessageT]) -> Callable[..., MessageT]:
        """Returns the compiled function of a pair.

        Raises:
            MappingError: the class or the message has a field that the other one lacks, and no
                exception names this field.
        """
        found = self._compiled.get((kind, message))
        if found is None:
            found = self._compiled[kind, message] = self._compile(kind, message, nested=False)
        return found

    def _function_of_part(self, kind: type, message: type[Message]) -> Callable[..., Any]:
        """Returns the function that converts nested values of a pair."""
        found = self._nested.get((kind, message))
        if found is None:
            found = self._nested[kind, message] = self._compile(kind, message, nested=True)
        return found

    @property
    def pairs(self) -> Sequence[tuple[type, type]]:
        """All compiled pairs, including pairs of nested values."""
        return tuple({**self._compiled, **self._nested})

    def _compile(self, kind: type, message: type[Message], *, nested: bool) -> Callable[..., Any]:
        if (kind, message) not in self.writings and kind in self._converters:
            return self._converters[kind]
        writing = self.writings.get((kind, message)) or Writing(kind, message)
        source, used = Source(), set(writing.kept.split())
        arguments, parameters = list[tuple[str, str]](), list[str]()
        for name, described in fields_of(message).items():
            if name in writing.unset.split():
                continue
            if name in writing.given.split():
                arguments.append((name, name))
                parameters.append(f"{name}=None")
                continue
            exception = writing.exceptions.get(name)
            if isinstance(exception, FromValue):
                used.update(exception.attributes)
                arguments.append((name, f"{source.bind(exception.convert, 'convert')}(_value)"))
                continue
            path = exception.path if isinstance(exception, As) else exception
            path = path or _attribute_path(writing, described)
            used.add(path)
            attribute = attribute_at(kind, path)
            convert = exception.convert if isinstance(exception, As) else None
            access = _access(writing, path)
            argument = self._value(source, attribute, described, access, convert)
            arguments.append((name, argument))
        # Check that every attribute of the value is either used or listed in `kept`.
        _check(writing, used)
        # The generated code reads each part once, into a local variable.
        body = [f"{_local(part)} = _value.{part}" for part in writing.parts.split()]
        if nested:
            fields = ", ".join(f"{name!r}: {argument}" for name, argument in arguments)
            body.append(f"return {{{fields}}}")
        else:
            fields = ", ".join(f"{name}={argument}" for name, argument in arguments)
            body.append(f"return {source.bind(message, 'message')}({fields})")
        return source.compile(f"write({', '.join(['_value', *parameters])})", body)

    def _value(
        self,
        source: Source,
        attribute: Attribute,
        described: FieldDescriptor,
        access: str,
        convert: Callable[[Any], Any] | None,
    ) -> str:
        """Returns the expression of a field. If the expression gives None, the field is not set."""
        # A local variable can be tested and converted directly. An attribute is first read into the
        # variable `item`, so that the attribute is read only once.
        item = "item" if attribute.optional and not access.isidentifier() else access
        if convert is not None:
            value = f"{source.bind(convert, 'convert')}({item})"
        elif is_repeated(described):
            value = self._many(source, attribute, described, item)
        else:
            value = self._one(source, attribute.hint, described, item)
        if attribute.optional and value != item:
            test = access if item == access else f"(item := {access})"
            return f"None if {test} is None else {value}"
        return access if value == item else value

    def _many(
        self, source: Source, attribute: Attribute, described: FieldDescriptor, access: str
    ) -> str:
        if is_map(described):
            frozen = item_of(attribute.hint) is not None
            return f"dict({access})" if frozen else access
        inner = self._one(source, item_of(attribute.hint), described, "each")
        return access if inner == "each" else f"[{inner} for each in {access}]"

    def _one(self, source: Source, hint: Any, described: FieldDescriptor, access: str) -> str:
        """Returns the expression of one value that is present."""
        name = message_name(described)
        convert = self._converters.get(hint) or self._converters.get(name)
        if name:
            message = message_class(described)
            if convert is not None and (hint, message) not in self.writings:
                return f"{source.bind(convert, 'convert')}({access})"
            if is_mapped(hint):
                function = self._function_of_part(hint, message)
                return f"{source.bind(function, 'write')}({access})"
            if (name, hint) in _MOMENTS:
                return _MOMENTS[name, hint].format(access)
            raise MappingError(f"no rule for {described.full_name} of {hint}")
        if described.enum_type is not None:
            numbers = numbers_of(hint, described.enum_type)
            return f"{source.bind(numbers, 'numbers')}[{access}]"
        if convert is not None:
            return f"{source.bind(convert, 'convert')}({access})"
        return access


_MOMENTS: dict[tuple[str, Any], str] = {
    (kind, int): "{{'seconds': {0} // 1000, 'nanos': {0} % 1000 * 1_000_000}}"
    for kind in (TIMESTAMP, DURATION)
} | {(TIMESTAMP, datetime): "{0}"}


def _attribute_path(writing: Writing, described: FieldDescriptor) -> str:
    """Returns the path of a field's attribute. The attribute is in the value itself, or else in the
    first part that has it.
    """
    suffixes = UNIT_SUFFIXES.get(message_name(described), ("",))
    owners = {"": writing.kind} | {
        part: attribute_at(writing.kind, part).hint for part in writing.parts.split()
    }
    for part, owner in owners.items():
        for suffix in (*suffixes, ""):
            name = described.name + suffix
            if find_attribute(owner, name) is not None:
                return f"{part}.{name}" if part else name
    raise MappingError(
        f"{writing.kind.__name__} has no attribute for the field {described.full_name}"
    )


def _check(writing: Writing, used: set[str]) -> None:
    known = {
        "": attributes_of(writing.kind),
        **{
            part: attributes_of(attribute_at(writing.kind, part).hint)
            for part in writing.parts.split()
        },
    }
    paths = {f"{part}.{name}" if part else name for part, names in known.items() for name in names}
    missed = sorted(
        path
        for path in paths - used - set(writing.parts.split())
        if not any(each.startswith(f"{path}.") for each in used)
    )
    if missed:
        kind, message = writing.kind.__name__, writing.message.__name__
        raise MappingError(f"{message} has no field for {', '.join(missed)} of {kind}")


def _local(part: str) -> str:
    return f"_value_{part.replace('.', '_')}" if part else "_value"


def _access(writing: Writing, path: str) -> str:
    parent, _, name = path.rpartition(".")
    if parent in writing.parts.split() or not parent:
        return f"{_local(parent)}.{name}"
    return f"_value.{path}"
