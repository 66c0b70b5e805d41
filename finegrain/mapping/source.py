"""Compiles the functions that the mappers generate.

The generated code has a statement for each field, which is several times faster than a loop over
the fields. `dataclasses` and attrs generate their methods for the same reason.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from itertools import count
from typing import Any

from finegrain.mapping.fields import Attribute, MappingError

_numbers = count(1)


class Source:
    """Compiles one generated function, and collects the names that it uses."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}

    def bind(self, value: object, hint: str = "bound") -> str:
        """Returns the name by which the generated function refers to a value."""
        for name, known in self._names.items():
            # Compare by identity, because 1, 1.0 and True are equal but must get different names.
            if known is value:
                return name
        name = f"_{hint}_{len(self._names)}"
        self._names[name] = value
        return name

    def default(self, each: Attribute) -> str:
        """Returns source code for the default of a field.

        Raises:
            MappingError: the field has no default.
        """
        if each.required:
            raise MappingError(f"{each.name} has no default")
        if each.default is MISSING:
            return f"{self.bind(each.default_factory, 'factory')}()"
        return self.bind(each.default, "default")

    def compile(self, signature: str, body: Iterable[str]) -> Callable[..., Any]:
        """Returns the function with this signature ("name(parameters)") and body.

        Tracebacks show the generated lines.
        """
        text = "\n    ".join([f"def {signature}:", *body]) + "\n"
        name = signature.partition("(")[0]
        file = f"<mapping {next(_numbers)}: {name}>"
        # The modification time is None, so `linecache` never looks for the file on disk.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        namespace = dict(self._names)
        # This call is safe, because the generated text contains only names of classes and fields,
        # never data.
        exec(compile(text, file, "exec"), namespace)  # noqa: S102
        function: Callable[..., Any] = namespace[name]
        return function
