"""Decodes one table of a TOML file key by key, and converts amounts with units.

Each error names the file, the field, the value and the expected values. A key that the code never
reads is also an error. This error suggests the nearest known key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from finegrain.errors import ConfigurationError, FinegrainError, InvalidArgument
from finegrain.texts import LABEL_KEY_PATTERN, check_text
from finegrain.units import parse_bytes, parse_cpu_milli, parse_duration_ms
from finegrain.values.bounds import AMOUNT_MAX

LABEL_VALUE_LENGTH_MAX = 256
COUNT_MAX = 1_000_000


class ConfigTable:
    """One table of the file. Read every key, then call `end`.

    Args:
        content: the content of the table, as the TOML reader returns it.
        file: the path or name of the file, for errors.
        path: the name of the table within the file ("shape small"), for errors.
        error: the class of the errors that are raised.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        file: object,
        path: str = "",
        *,
        error: type[FinegrainError] = ConfigurationError,
    ) -> None:
        self._content = dict(content)
        self._error = error
        self._read_keys: dict[str, None] = {}
        self.file = file
        self.path = path

    def wrong(self, key: str, value: object, expected: str) -> NoReturn:
        """Raises the error for an invalid value.

        Args:
            key: the name of the key; empty: the table itself.
            value: the value in the file.
            expected: the allowed values.

        Raises:
            FinegrainError: the method always raises this error. Its class is `error`.
        """
        field = self.name(key)
        shown = repr(value) if isinstance(value, str) else _toml(value)
        raise self._error(
            f"{self.file}: {field} is {shown}; expected {expected}",
            details={"file": self.file, "field": field, "value": shown, "expected": expected},
        )

    def name(self, key: str) -> str:
        """Returns the full name of a key for errors."""
        return f"{self.path}.{key}" if self.path and key else self.path or key

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def text(self, key: str, default: str | None = None, *, empty_ok: bool = False) -> str:
        """Returns a string. Without a default, the key is required."""
        value = self._get(key, default, "a text")
        # An empty text is an error, unless `empty_ok` is set or the default is empty.
        if not isinstance(value, str) or not (value or empty_ok or value == default):
            self.wrong(key, value, "a text in quotes")
        return value

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """Returns one of the given words."""
        known = list(choices)
        value = self._get(key, default, "one of " + ", ".join(known))
        if value not in known:
            near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.5)
            hint = f" (did you mean {near[0]}?)" if near else ""
            self.wrong(key, value, "one of " + ", ".join(known) + hint)
        return str(value)

    def size(self, key: str, default: int | None = None) -> int:
        """Returns a size in bytes. The file contains a text such as "256MiB"."""
        return self._amount(key, default, parse_bytes)

    def cpu(self, key: str, default: int | None = None) -> int:
        """Returns CPU in thousandths of a core. The file contains cores, such as "0.5"."""
        return self._amount(key, default, parse_cpu_milli)

    def duration_ms(
        self,
        key: str,
        default: int | None = None,
        *,
        least_ms: int = 0,
        most_ms: int = AMOUNT_MAX,
    ) -> int:
        """Returns a duration in milliseconds. The file contains a text such as "30s"."""
        value = self._amount(key, default, parse_duration_ms)
        if value < least_ms:
            self.wrong(key, self._content.get(key), f"at least {least_ms} ms")
        if value > most_ms:
            self.wrong(key, self._content.get(key), f"at most {most_ms} ms")
        return value

    def integer(
        self, key: str, default: int | None = None, *, least: int = 0, most: int = COUNT_MAX
    ) -> int:
        """Returns a whole number between `least` and `most`."""
        value = self._get(key, default, "a whole number")
        # Compare the type: `isinstance` would accept True as an int.
        if type(value) is not int or not least <= value <= most:
            self.wrong(key, value, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Returns a number, 0 or more, with or without decimals."""
        value = self._get(key, default, "a number")
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            self.wrong(key, value, "a number, 0 or more")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Returns true or false."""
        value = self._get(key, default, "true or false")
        if not isinstance(value, bool):
            self.wrong(key, value, "true or false")
        return value

    def words(self, key: str, default: Iterable[str] | None = None, *, least: int = 0) -> list[str]:
        """Returns a list of at least `least` strings."""
        value = self._get(key, None if default is None else list(default), "a list of strings")
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self.wrong(key, value, 'a list of strings, such as ["a", "b"]')
        if len(value) < least:
            self.wrong(key, value, f"{least} or more strings")
        return list(value)

    def integers(self, key: str, default: Iterable[int]) -> list[int]:
        """Returns a list of whole numbers."""
        value = self._get(key, list(default), "a list of whole numbers")
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            self.wrong(key, value, "a list of whole numbers, such as [3, 4]")
        return list(value)

    def pattern(self, key: str) -> str:
        """Returns a regular expression; empty if the key is missing."""
        value = self.text(key, "", empty_ok=True)
        try:
            re.compile(value)
        except re.error as error:
            self.wrong(key, value, f"a regular expression: {error}")
        return value

    def labels(self, key: str) -> tuple[tuple[str, str], ...]:
        """Returns a table of labels as pairs, sorted by name."""
        table = self.table(key)
        for name, value in table._content.items():
            if not LABEL_KEY_PATTERN.fullmatch(name):
                table.wrong(name, name, "a label's name: letters, digits, . _ / -")
            try:
                check_text(name, str(value), longest=LABEL_VALUE_LENGTH_MAX, empty_ok=True)
            except InvalidArgument as error:
                table.wrong(name, value, error.expected)
            if not isinstance(value, str):
                table.wrong(name, value, "a text in quotes")
        return tuple(sorted(table._content.items()))

    def amounts(
        self, key: str, parser_of: Callable[[str], Callable[[str, str], int]]
    ) -> dict[str, int]:
        """Returns a table of amounts by name. `parser_of` returns the parser for the amount of a
        name."""
        table = self.table(key)
        return {name: table._amount(name, None, parser_of(name)) for name in table._content}

    def counts(self, key: str) -> dict[str, int]:
        """Returns a table of whole numbers, each 1 or more."""
        table = self.table(key)
        # `integer` marks each key as read, so no call of `end` is needed.
        return {name: table.integer(name, least=1, most=2**53) for name in table._content}

    def table(self, key: str, *, path: str = "") -> ConfigTable:
        """Returns the table below this key; an empty table if the key is missing."""
        value = self._get(key, {}, "a table")
        if not isinstance(value, dict):
            self.wrong(key, value, "a table")
        return ConfigTable(value, self.file, path or self.name(key), error=self._error)

    def tables(self, key: str, *, path: str = "") -> list[ConfigTable]:
        """Returns a list of tables ([[key]]). Errors name each table by its position, starting at
        1."""
        value = self._get(key, [], "a list of tables")
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.wrong(key, value, f"a list of tables, each written [[{key}]]")
        name = path or self.name(key)
        return [
            ConfigTable(each, self.file, f"{name} {n}", error=self._error)
            for n, each in enumerate(value, 1)
        ]

    def plain(self) -> dict[str, Any]:
        """Returns the whole content, for a caller that checks it later. All keys count as read."""
        # The caller checks the keys later. Mark all of them as read here. Otherwise `end` would
        # reject them.
        self._read_keys = dict.fromkeys(self._content)
        return dict(self._content)

    def note(self, key: str) -> None:
        """Marks a key as known. Call this if you read the key only when the table has it."""
        self._read_keys[key] = None

    def end(self) -> None:
        """Checks that every key in the table has been read.

        Raises:
            FinegrainError: there is a key that was not read.
        """
        for key in self._content:
            if key not in self._read_keys:
                known = sorted(self._read_keys)
                close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
                near = f", did you mean {close[0]!r}?" if close else ""
                raise self._error(
                    f"{self.file}: unknown key {self.name(key)}{near}; known keys: "
                    + ", ".join(known),
                    details={"file": self.file, "field": self.name(key)},
                )

    def _get(self, key: str, default: Any, expected: str) -> Any:
        self._read_keys[key] = None
        if key not in self._content and default is None:
            raise self._error(
                f"{self.file}: {self.name(key)} is missing; expected {expected}",
                details={"file": self.file, "field": self.name(key), "expected": expected},
            )
        return self._content.get(key, default)

    def _amount(self, key: str, default: int | None, parse: Callable[[str, str], int]) -> int:
        # Defaults are in the unit of the result and need no parsing.
        if key not in self._content and default is not None:
            self._read_keys[key] = None
            return default
        value = self._get(key, None, "an amount")
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            self.wrong(key, value, "an amount such as 2 or a text with a unit")
        try:
            return parse(self.name(key), str(value))
        except InvalidArgument as error:
            self.wrong(key, value, error.expected)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
