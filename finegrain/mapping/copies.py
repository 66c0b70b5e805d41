"""Creates instances of one class from the fields of another class, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from finegrain.mapping.fields import MappingError, attributes_of
from finegrain.mapping.source import Source

T = TypeVar("T")


def copier(target: type[T], source: type, given: str = "") -> Callable[..., T]:
    """Compiles a function that creates a `target` from a `source`. The compiled function is as fast
    as a hand-written call.

    The function copies the fields that both classes have. A field that only `target` has gets its
    default.

    Args:
        target: a dataclass, which can be `source` itself.
        source: the class from which the function takes values.
        given: names of fields whose values the caller passes, separated by spaces.

    Returns:
        A function `make(source, *, ...)`, with the given fields as keyword arguments.

    Raises:
        MappingError: a required field is missing in both `source` and `given`. Or `given` names an
            unknown field.
    """
    passed, known, has = given.split(), attributes_of(target), attributes_of(source)
    if unknown := sorted(set(passed) - known.keys()):
        raise MappingError(f"{target.__name__} has no fields {', '.join(unknown)}")
    # Check the fields here, so that a forgotten field causes an error at the start, and not in a
    # rare call.
    missing = [
        name
        for name, each in known.items()
        if each.required and name not in has and name not in passed
    ]
    if missing:
        raise MappingError(f"{source.__name__} lacks {', '.join(missing)} of {target.__name__}")
    code = Source()
    values = [f"{name}={name}" for name in passed]
    values += [f"{name}=source.{name}" for name in known if name in has and name not in passed]
    signature = f"make(source, *, {', '.join(passed)})" if passed else "make(source)"
    return code.compile(signature, [f"return {code.bind(target, 'class')}({', '.join(values)})"])
