"""Command templates: lists of words with placeholders. No shell interprets them.

`PLACEHOLDERS` lists all placeholders. Placeholders have the syntax of Python's format strings, but
only plain names are allowed.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

from finegrain.config_table import ConfigTable

HANDLE = "handle"
PLACEHOLDERS = {
    "executor_id": "the name with which the executor must register",
    "shape": "the name of the shape",
    "resource_manager": "addresses of the resource manager, separated by commas",
    "cpu": "cores of the shape, such as 2 or 0.5",
    "cpu_milli": "cores of the shape, in thousandths",
    "memory_bytes": "memory of the shape",
    "memory_mib": "memory of the shape in MiB, rounded down",
    "labels": "labels as name=value, separated by commas",
    "token_file": "file with the executor's join token, on the resource manager's host",
    HANDLE: "handle that the start command printed (see handle); in stop and status",
}


def read_template(table: ConfigTable, key: str, *, with_handle: bool) -> tuple[str, ...]:
    """Decodes and checks a template of a shape.

    Args:
        table: the shape's table.
        key: the template's key in this table.
        with_handle: whether the placeholder {handle} is allowed.

    Raises:
        ConfigurationError: the value is not a list of words, or has an unknown placeholder.
    """
    words = table.words(key, least=1)
    known = [name for name in PLACEHOLDERS if with_handle or name != HANDLE]
    for word in words:
        try:
            used = fields_of(word)
        except ValueError as error:
            table.wrong(key, word, f"placeholders such as {{executor_id}} ({error}); {{{{ is {{")
        for name in used:
            if name not in known:
                table.wrong(
                    key,
                    f"{{{name}}}",
                    "one of " + ", ".join(f"{{{each}}}" for each in known) + "; {{ is {",
                )
    if not words[0]:
        table.wrong(key, "", "a program as the first word")
    return tuple(words)


def fields_of(word: str) -> list[str]:
    """Returns the names of the placeholders in a word.

    Raises:
        ValueError: an opening or closing brace is missing, or a pair of braces contains more than a
            name.
    """
    names = []
    for _, name, form, conversion in string.Formatter().parse(word):
        if name is None:
            continue
        # Format options are not allowed, because they could change a value. For example, a width
        # would pad an id.
        if form or conversion:
            raise ValueError("a placeholder has only a name")
        names.append(name)
    return names


def fill(template: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Returns the words of a template with all placeholders replaced by their values."""
    filled = []
    for word in template:
        parts = []
        for text, name, _, _ in string.Formatter().parse(word):
            parts.append(text)  # literal text in front of the placeholder
            if name is not None:
                parts.append(values[name])
        filled.append("".join(parts))
    return filled


def uses_handle(template: Sequence[str]) -> bool:
    """Returns whether a template has the placeholder {handle}."""
    return any(HANDLE in fields_of(word) for word in template)
