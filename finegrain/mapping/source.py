"""Compiles the functions that the mappers generate.

Straight-line code is several times faster than a loop over fields; `dataclasses` and attrs generate
their methods for the same reason.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

_numbers = count(1)


class Source:
    """The names that one generated function uses, and its compilation."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}

    def bind(self, value: object, hint: str = "bound") -> str:
        """Returns the name by which the generated function refers to a value."""
        for name, known in self._names.items():
            # By identity: 1, 1.0 and True are equal, but generated code must not mix them up.
            if known is value:
                return name
        name = f"_{hint}_{len(self._names)}"
        self._names[name] = value
        return name

    def compile(self, signature: str, body: Iterable[str]) -> Callable[..., Any]:
        """Returns the function `signature` ("name(parameters)") with these lines as its body.

        Tracebacks show the generated lines.
        """
        text = "\n    ".join([f"def {signature}:", *body]) + "\n"
        name = signature.partition("(")[0]
        file = f"<mapping {next(_numbers)}: {name}>"
        # Without a modification time, `linecache` never looks for the file on disk.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        namespace = dict(self._names)
        # Safe: the text has only names of classes and fields, never data.
        exec(compile(text, file, "exec"), namespace)  # noqa: S102
        function: Callable[..., Any] = namespace[name]
        return function
