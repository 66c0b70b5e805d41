"""Converts dataclasses to table rows and back: one value per column, in column order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Generic, TypeVar

from finegrain.mapping.fields import Attribute, MappingError, attribute_at, attributes_of
from finegrain.mapping.source import Source

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Converts values of one type: `write` returns the stored form, and `read` returns the
    value.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


FLOAT = Text(repr, float)
"""Stores a float as text, because a text is exact in every database."""

WORD = Text(str, str)
"""Stores an enum member as plain text, because some drivers treat enum members differently."""


@dataclass(frozen=True)
class RowCodec(Generic[T]):
    """Writes and reads the rows of one class.

    Enums are stored as text. Booleans and None are passed to the driver unchanged.

    Attributes:
        kind: the dataclass.
        columns: names of the columns, in order. Each name is the name of an attribute.
        texts: converters for values of other types, by type (without `| None`).
        exceptions: columns for which the attribute has another name, or a converter that is not in
            `texts`. The value is the path of the attribute ("spec.request.allocation_id"), or a
            pair of this path and a `Text`.
        parts: paths of nested dataclasses, each field of which has a separate column ("spec").
        unstored: paths of attributes that have no column ("booked spec.gang_id").
    """

    kind: type[T]
    columns: tuple[str, ...]
    texts: Mapping[Any, Text] = field(default_factory=dict)
    exceptions: Mapping[str, str | tuple[str, Text]] = field(default_factory=dict)
    parts: str = ""
    unstored: str = ""

    @cached_property
    def encode(self) -> Callable[[T], Row]:
        """The function that returns the row of a value; compiled on first use.

        Raises:
            MappingError: a column has no attribute.
        """
        return _compile_encode(self)

    @cached_property
    def decode(self) -> Callable[[Sequence[Any]], T]:
        """The function that returns the value of a row; compiled on first use.

        Attributes without a column get their default.

        Raises:
            MappingError: a column has no attribute. Or an attribute has no column, and is not in
                `unstored`.
        """
        return _compile_decode(self)


def _compile_encode(codec: RowCodec[Any]) -> Callable[..., Any]:
    source = Source()
    body = [f"{_local(part)} = value.{part}" for part in codec.parts.split()]
    values = ", ".join(
        _stored(source, codec, column, attribute, access)
        for column, (attribute, access) in _located(codec).items()
    )
    return source.compile("encode(value)", [*body, f"return ({values},)"])


def _compile_decode(codec: RowCodec[Any]) -> Callable[..., Any]:
    source = Source()
    stored = {
        access: _loaded(source, codec, column, attribute, f"c{at}")
        for at, (column, (attribute, access)) in enumerate(_located(codec).items())
    }
    parts, unstored = codec.parts.split(), set(codec.unstored.split())

    def made(kind: type, path: str) -> str:
        arguments, has_gap = list[str](), False
        for each in attributes_of(kind).values():
            inner = f"{path}.{each.name}" if path else each.name
            access = f"{_local(path)}.{each.name}"
            if inner in parts:
                arguments.append(each.argument(made(each.hint, inner), named=has_gap))
            elif access in stored:
                # If an argument is left out, all later arguments must be passed by name.
                arguments.append(each.argument(stored[access], named=has_gap))
            elif inner in unstored and not each.required:
                unstored.remove(inner)
                has_gap = True
            else:
                raise MappingError(f"{codec.kind.__name__}.{inner} has no column")
        return f"{source.bind(kind, 'kind')}({', '.join(arguments)})"

    value = made(codec.kind, "")
    if unstored:
        names = ", ".join(sorted(unstored))
        raise MappingError(f"{codec.kind.__name__} stores {names}, or has no such attribute")
    # The unpacking raises ValueError if the row has a wrong number of columns.
    columns = ", ".join(f"c{at}" for at in range(len(codec.columns)))
    return source.compile("decode(row)", [f"{columns}, = row", f"return {value}"])


def _located(codec: RowCodec[Any]) -> dict[str, tuple[Attribute, str]]:
    """Returns, for each column, its attribute and the expression that reads it."""
    if unknown := codec.exceptions.keys() - set(codec.columns):
        raise MappingError(f"{codec.kind.__name__} has no columns {', '.join(sorted(unknown))}")
    parts = codec.parts.split()
    owners = {part: attribute_at(codec.kind, part).hint for part in parts}
    found: dict[str, tuple[Attribute, str]] = {}
    for column in codec.columns:
        exception = codec.exceptions.get(column, column)
        path = exception if isinstance(exception, str) else exception[0]
        # A column that is no field of the class itself must be a field of one of the parts.
        if path == column and path not in attributes_of(codec.kind):
            holders = [part for part in parts if path in attributes_of(owners[part])]
            if not holders:
                raise MappingError(f"{codec.kind.__name__} has no attribute for column {column!r}")
            path = f"{holders[0]}.{path}"
        parent, _, name = path.rpartition(".")
        access = f"{_local(parent)}.{name}" if parent in parts else f"value.{path}"
        found[column] = attribute_at(codec.kind, path), access
    return found


def _local(part: str) -> str:
    return f"value_{part.replace('.', '_')}" if part else "value"


def _text(codec: RowCodec[Any], column: str, attribute: Attribute) -> Text | None:
    exception = codec.exceptions.get(column, column)
    return codec.texts.get(attribute.hint) if isinstance(exception, str) else exception[1]


def _stored(
    source: Source, codec: RowCodec[Any], column: str, attribute: Attribute, access: str
) -> str:
    text = _text(codec, column, attribute)
    if text is not None:
        write = source.bind(text.write, "write")
    elif isinstance(attribute.hint, type) and issubclass(attribute.hint, str):
        if attribute.hint is str:
            return access
        write = source.bind(str, "str")  # drivers can treat StrEnum members differently
    else:
        return access
    if attribute.optional:
        return f"None if (item := {access}) is None else {write}(item)"
    return f"{write}({access})"


def _loaded(
    source: Source, codec: RowCodec[Any], column: str, attribute: Attribute, access: str
) -> str:
    text, hint = _text(codec, column, attribute), attribute.hint
    if text is not None:
        value = f"{source.bind(text.read, 'read')}({access})"
    elif hint is bool:
        # Some databases return 0 and 1 for booleans.
        value = f"{source.bind(bool, 'bool')}({access})"
    elif isinstance(hint, type) and issubclass(hint, Enum):
        # Use a dict of members: a call of the enum costs as much as the rest of the row.
        value = f"{source.bind({each.value: each for each in hint}, 'members')}[{access}]"
    else:
        return access
    return f"None if {access} is None else {value}" if attribute.optional else value
