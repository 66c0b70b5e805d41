"""Finds the fields of dataclasses and named tuples, with resolved types."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import reduce
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


class MappingError(TypeError):
    """A class cannot be mapped, because its fields, or the exceptions that are declared for its
    fields, are wrong.
    """


@dataclass(frozen=True, slots=True)
class Attribute:
    """One field or property of a class."""

    name: str
    hint: Any  # type of the field; `| None` is removed
    optional: bool  # True if None is allowed
    default: Any  # MISSING: the field has no default
    default_factory: Any  # MISSING: the field has no default factory
    keyword_only: bool = False

    @property
    def required(self) -> bool:
        """True if the constructor needs a value for the field."""
        return self.default is MISSING and self.default_factory is MISSING

    def argument(self, expression: str, *, named: bool = False) -> str:
        """Returns source code that passes `expression` to the constructor as this field.

        The code passes the argument by position, because this is faster. If `named` is true or the
        field is keyword-only, the code passes the argument by name.
        """
        return f"{self.name}={expression}" if named or self.keyword_only else expression


def is_mapped(kind: Any) -> bool:
    """True for classes with fields: dataclasses and named tuples."""
    return isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))


_NONE = (MISSING, MISSING)  # a property has no default
_known: dict[type, Mapping[str, Attribute]] = {}  # cached, because resolving annotations is slow


def attributes_of(kind: type) -> Mapping[str, Attribute]:
    """Returns the fields that the constructor takes, by name, in the order of the constructor's
    parameters.
    """
    found = _known.get(kind)
    if found is None:
        found = _known[kind] = _resolved(kind)
    return found


def _resolved(kind: type) -> Mapping[str, Attribute]:
    hints = _hints_of(kind)
    if hasattr(kind, "_fields"):
        defaults: Mapping[str, Any] = kind._field_defaults  # type: ignore[attr-defined]
        return {
            name: Attribute(
                name, *split_optional(hints[name]), defaults.get(name, MISSING), MISSING
            )
            for name in kind._fields
        }
    return {
        each.name: Attribute(
            each.name,
            *split_optional(hints[each.name]),
            each.default,
            each.default_factory,
            each.kw_only is True,
        )
        # Put keyword-only fields last, as the constructor does, wherever the class declares them.
        for each in sorted(fields(kind), key=lambda each: each.kw_only is True)
        if each.init
    }


def _hints_of(kind: type) -> Mapping[str, Any]:
    """Returns the types of the fields.

    Some annotations cannot be evaluated at run time (`array[int]`). The type of such a field is
    Any. No mapper uses these fields.
    """
    known: dict[str, Any] = {}
    # Read base classes first, so that the annotation of a subclass has priority.
    for base in reversed(kind.__mro__):
        for name, annotation in vars(base).get("__annotations__", {}).items():
            # Evaluate one annotation at a time, so that a failure does not affect the other
            # annotations.
            alone = SimpleNamespace(__annotations__={name: annotation})
            try:
                known |= get_type_hints(alone, vars(sys.modules[base.__module__]))
            except TypeError:
                known[name] = Any
    return known


def attribute_at(kind: type, path: str) -> Attribute:
    """Returns the field or property at a path such as "executor.registration.labels".

    Raises:
        MappingError: there is no such attribute.
    """
    *parents, name = path.split(".")
    owner = reduce(lambda owner, parent: attribute_at(owner, parent).hint, parents, kind)
    found = find_attribute(owner, name)
    if found is None:
        raise MappingError(f"{owner.__name__} has no attribute {name!r} ({kind.__name__}.{path})")
    return found


def find_attribute(kind: type, name: str) -> Attribute | None:
    """Returns a field or property by name, or None if the class has none with this name."""
    if name in attributes_of(kind):
        return attributes_of(kind)[name]
    found = getattr(kind, name, None)
    if isinstance(found, property) and found.fget is not None:
        return Attribute(name, *split_optional(get_type_hints(found.fget)["return"]), *_NONE)
    return None


def split_optional(hint: Any) -> tuple[Any, bool]:
    """Splits `X | None` into X and True. For any other type, returns the type and False."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    others = [each for each in get_args(hint) if each is not NoneType]
    if len(others) > 1:
        # A union of several types becomes `Any`: each value is converted by its own type.
        return Any, NoneType in get_args(hint)
    return others[0], True


def item_of(hint: Any) -> Any:
    """Returns the type of the items of a sequence type; None for other types.

    Sequence types are `tuple[X, ...]`, `list[X]` and `Sequence[X]`.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    # A tuple type without the ellipsis has a fixed length, and its items can differ in type.
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[0]
    if isinstance(origin, type) and origin is not tuple and issubclass(origin, Sequence):
        return arguments[0]
    return None


def pair_of(hint: Any) -> tuple[Any, Any] | None:
    """Returns the key and value types of a mapping type; None for other types.

    A tuple of pairs, `tuple[tuple[K, V], ...]`, is also a mapping type: it is the hashable form of
    a mapping.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return arguments[0], arguments[1]
    item = item_of(hint)
    if origin is tuple and get_origin(item) is tuple and len(get_args(item)) == 2:
        key, value = get_args(item)
        # With an ellipsis (`tuple[tuple[X, ...], ...]`), the items are sequences, so the type is
        # not a mapping type.
        return None if value is Ellipsis else (key, value)
    return None
