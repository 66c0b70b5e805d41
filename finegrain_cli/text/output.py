"""What goes to standard output, and how: tables for people, JSON for programs, errors for both.

Standard output is data; messages, progress and warnings go to standard error. Colour only on a
terminal, and never where NO_COLOR is set or TERM is "dumb" (FORCE_COLOR and --color override).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from finegrain.errors import FinegrainError

API_VERSION = "finegrain/v1"


class OutputFormat(StrEnum):
    """Forms of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"


class ColorChoice(StrEnum):
    """Forms of `--color`."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Style(StrEnum):
    """How a word stands out: the parameters of the terminal's SGR sequence."""

    BOLD = "1"
    GOOD = "32"
    DOUBTFUL = "33"
    BAD = "31"


_CHOICE: ContextVar[ColorChoice] = ContextVar("colour", default=ColorChoice.AUTO)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its heading, how a row fills it, and whether only `wide` shows it."""

    heading: str
    text: Callable[[Any], str]
    wide: bool = False
    right: bool = False


def colour_wanted(choice: ColorChoice, stream: Any) -> bool:
    """Whether to colour what is written to `stream`."""
    if choice is not ColorChoice.AUTO:
        return choice is ColorChoice.ALWAYS
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or bool(stream.isatty())


def choose_colour(choice: ColorChoice) -> None:
    """Makes this the choice for what `painted` returns."""
    _CHOICE.set(choice)


def painted(text: str, style: Style) -> str:
    """The text for standard output, in its style where colour is wanted there."""
    if not colour_wanted(_CHOICE.get(), sys.stdout):
        return text
    return f"\x1b[{style.value}m{text}\x1b[0m"


def print_list(
    kind: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], form: OutputFormat
) -> None:
    """Prints rows: as a table, as one JSON object with `items`, or one JSON object per line."""
    if form is OutputFormat.JSON:
        print_json({"api_version": API_VERSION, "kind": kind, "items": list(rows)})
    elif form is OutputFormat.JSONL:
        for row in rows:
            print_json_line(row)
    else:
        shown = [column for column in columns if form is OutputFormat.WIDE or not column.wide]
        print_table(shown, rows)


def print_object(kind: str, data: Mapping[str, Any], form: OutputFormat, text: str) -> None:
    """Prints one thing: `text` for people, or the data with its kind for programs."""
    if form is OutputFormat.JSON:
        print_json({"api_version": API_VERSION, "kind": kind, **data})
    elif form is OutputFormat.JSONL:
        print_json_line({"api_version": API_VERSION, "kind": kind, **data})
    else:
        print(text)


def print_table(columns: Sequence[Column], rows: Iterable[Any]) -> None:
    """Prints what `table_lines` gives."""
    heading, *lines = table_lines(columns, rows)
    print(painted(heading, Style.BOLD))
    for line in lines:
        print(line)


def table_lines(columns: Sequence[Column], rows: Iterable[Any]) -> list[str]:
    """Columns two spaces apart under headings in capitals; nothing is cut off."""
    cells = [[column.text(row) for column in columns] for row in rows]
    headings = [column.heading.upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    lines = []
    for line in (headings, *cells):
        padded = (
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return lines


def print_json(data: Mapping[str, Any]) -> None:
    """Prints one JSON document, indented."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def print_json_line(data: Mapping[str, Any]) -> None:
    """Prints one JSON document on one line, at once."""
    print(json.dumps(data, ensure_ascii=False, separators=(",", ":")), flush=True)


def say(message: str) -> None:
    """A message for people, on standard error. That nobody is there to read it is no error."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        discard_standard_error()


def discard_standard_error() -> None:
    """The reader of standard error is gone: a pipe, or a terminal that was closed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def print_error(error: FinegrainError, form: OutputFormat, hint: str = "") -> None:
    """One line, a hint and the stable code on standard error; as JSON also on standard output."""
    say(f"finegrain: {error.message} [{error.reason}]")
    if hint:
        say(f"hint: {hint}")
    if form in (OutputFormat.JSON, OutputFormat.JSONL):
        body = {
            "code": str(error.reason),
            "message": error.message,
            "details": error.details,
            **({"hint": hint} if hint else {}),
        }
        line = {"api_version": API_VERSION, "kind": "Error", **body}
        (print_json if form is OutputFormat.JSON else print_json_line)(line)
