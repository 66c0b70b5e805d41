"""Translates types and values of the asyncio client into source text of the blocking client.

If an argument is a handle, the `inner` of the handle is passed on. A returned handle is wrapped in
its blocking twin. Async iterators become plain iterators, and callbacks must be plain functions.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
from collections import defaultdict
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_UNIONS = (Union, UnionType)
_MANY = (list, Collection, Iterable, Sequence)
_BLOCKING = {AsyncIterable: Iterable, AsyncIterator: Iterator}


class Types:
    """Writes types and conversions for one generated module, and collects the imports they need.

    Args:
        module: the module that is generated.
        twins: classes that have a blocking twin of the same name, and the twin's module.
        protocols: protocols that the asyncio client accepts instead of a class to avoid an import
            cycle, and that class.
    """

    def __init__(
        self, module: str, twins: dict[type, str], protocols: Mapping[Any, type] | None = None
    ) -> None:
        self.module = module
        self.twins = twins
        self.protocols = protocols or {}
        self.imports: dict[str, set[str]] = defaultdict(set)
        self.type_imports: dict[str, set[str]] = defaultdict(set)

    def name(self, named: Any) -> str:
        """Returns the name of a class, and adds an import if it needs one.

        Raises:
            TypeError: the class has coroutine methods and no blocking twin.
        """
        if (twin := self.twin(named)) is not None:
            return self.imported(self.twins[twin], twin.__name__)
        if any(map(inspect.iscoroutinefunction, vars(named).values())):
            raise TypeError(f"{named.__qualname__} has to be awaited and has no blocking twin")
        # Some versions of the standard library define public classes in private modules.
        module = named.__module__.partition("._")[0]
        return self.imported(module, named.__qualname__)

    def imported(self, module: str, name: str) -> str:
        """Returns `name`. If it needs an import, adds the import from `module`."""
        if module not in (self.module, "builtins"):
            self.imports[module].add(name)
        return name

    def asynchronous(self, named: Any) -> str:
        """Returns the name under which a class or function of the asyncio client is imported."""
        name = f"{'Async' if isinstance(named, type) else 'async_'}{named.__name__}"
        self.imports[named.__module__].add(f"{named.__name__} as {name}")
        return name

    def quoted(self, inner: type) -> str:
        """Returns the quoted name of a class of the asyncio client, for use as a type parameter.

        The generated module does not import the class at run time, because the import is slow.
        """
        name = f"Async{inner.__name__}"
        self.type_imports[inner.__module__].add(f"{inner.__name__} as {name}")
        return f'"{name}"'

    def twin(self, hint: Any) -> type | None:
        """Returns the class whose blocking twin represents values of this type, or None."""
        found = self.protocols.get(hint, hint) if isinstance(hint, type) else None
        return found if found in self.twins else None

    def written(self, hint: Any) -> str:
        """Returns the type that replaces `hint` in the blocking client, as source text."""
        if hint in (None, NoneType):
            return "None"
        if hint is asyncio.Event:
            return self.imported("finegrain_client.blocking.handle", "Lost")
        if self.twin(hint) is None and (item := item_of(hint)) is not None:
            return f"{self.name(Iterator)}[{self.written(item)}]"
        origin, args = get_origin(hint), get_args(hint)
        if origin is None:
            return self.name(hint)
        if origin in _UNIONS:
            return " | ".join(dict.fromkeys(self.written(each) for each in args))
        if origin is Literal:
            return f"{self.name(Literal)}[{', '.join(map(repr, args))}]"
        if origin is Awaitable:
            return self.written(args[0])
        if origin is Callable:
            taken = ", ".join(self.written(each) for each in args[0])
            return f"{self.name(Callable)}[[{taken}], {self.written(args[1])}]"
        parts = ", ".join("..." if each is ... else self.written(each) for each in args)
        return f"{self.name(_BLOCKING.get(origin, origin))}[{parts}]"

    def default(self, value: object) -> str:
        """Returns the default value of a parameter, as source text."""
        if isinstance(value, enum.Enum):
            return f"{self.name(type(value))}.{value.name}"
        if value is None or isinstance(value, bool | int | float | str | tuple):
            return repr(value)
        raise TypeError(f"a default like {value!r} cannot be written")

    def wrapped(self, value: str, hint: Any) -> str:
        """Returns an expression that converts `value` from the asyncio client for the caller."""
        if self.twin(hint) is not None or hint is asyncio.Event:
            return f"{self.written(hint)}(self.loop, {value})"
        if (item := item_of(hint)) is not None:
            return self._each_wrapped(f"self.loop.iterate({value})", item, "({})")
        origin, args = get_origin(hint), get_args(hint)
        if not any(self.wrapped("", each) for each in args):
            return value
        if origin in _UNIONS and len(args) == 2 and NoneType in args:
            (some,) = (each for each in args if each is not NoneType)
            found = self.wrapped("found", some)
            return f"{found} if (found := {value}) is not None else None"
        if origin is dict and not self.wrapped("", args[0]):
            each = self.wrapped("each", args[1])
            return f"{{key: {each} for key, each in {value}.items()}}"
        if origin in _MANY:
            return self._each_wrapped(value, args[0], "[{}]")
        raise TypeError(f"a result like {hint} cannot be wrapped")

    def unwrapped(self, value: str, hint: Any) -> str:
        """Returns an expression that converts the caller's `value` for the asyncio client."""
        if self.twin(hint) is not None:
            return f"{value}.inner"
        origin, args = get_origin(hint), get_args(hint)
        if origin is AsyncIterable:
            source = self.imported("finegrain_client.blocking.standard_input", "async_input")
            return f"{source}({value})"
        if origin is Callable or not any(self.unwrapped("", each) for each in args):
            return value
        if origin in _UNIONS:
            for each in args:
                if get_origin(each) is AsyncIterable:
                    return self.unwrapped(value, each)
                if self.twin(each) is not None:
                    return (
                        f"{value}.inner if isinstance({value}, {self.written(each)}) else {value}"
                    )
        if origin is tuple:
            parts = (self.unwrapped(f"{value}[{at}]", each) for at, each in enumerate(args))
            return f"({', '.join(parts)})"
        if origin in _MANY:
            return f"[{self.unwrapped('each', args[0])} for each in {value}]"
        raise TypeError(f"an argument like {hint} cannot be unwrapped")

    def _each_wrapped(self, values: str, item: Any, brackets: str) -> str:
        each = self.wrapped("each", item)
        return values if each == "each" else brackets.format(f"{each} for each in {values}")


def item_of(hint: Any) -> Any:
    """Returns the type of the items if `hint` is an async iterator, else None."""
    if get_origin(hint) is AsyncIterator:
        return get_args(hint)[0]
    if isinstance(hint, type) and hasattr(hint, "__anext__"):
        return get_type_hints(hint.__anext__)["return"]
    return None


def is_collection(hint: Any) -> bool:
    """Returns whether values of this type are containers whose items can change."""
    found = get_origin(hint) or hint
    return (
        isinstance(found, type)
        and issubclass(found, Sized)
        and not issubclass(found, str | bytes | tuple)
    )


def is_lazy(hint: Any) -> bool:
    """Returns whether values of this type do nothing until the caller's own thread iterates."""
    return item_of(hint) is None and hasattr(hint, "__next__")
