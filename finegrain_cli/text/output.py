"""Prints the output of commands: tables for people, JSON for programs, and errors for people and
programs.

Data goes to standard output, and messages, progress and warnings go to standard error. Color is
used on a terminal, unless NO_COLOR is set or TERM is "dumb". FORCE_COLOR and --color override this
rule.
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
from finegrain_cli.text.fit import CELL_READABLE, fitted, output_width, shortened

API_VERSION = "finegrain/v1"


class OutputFormat(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"


class ColorChoice(StrEnum):
    """The values of `--color`."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Style(StrEnum):
    """The way in which a word is highlighted. The value is the parameter of the terminal's SGR
    sequence.
    """

    BOLD = "1"
    GOOD = "32"
    DOUBTFUL = "33"
    BAD = "31"


_CHOICE: ContextVar[ColorChoice] = ContextVar("colour", default=ColorChoice.AUTO)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        heading: the heading, which is printed in capitals.
        text: a function that returns the cell of a row.
        wide: True if only `-o wide` shows the column.
        right: True if the column is right-aligned.
        rank: a narrow table first leaves out the columns with the highest rank. A column with rank
            0 is always shown.
        shrinks: True if a narrow table can have shortened cells in this column.
        readable: other columns are left out before the cells of this column become shorter.
    """

    heading: str
    text: Callable[[Any], str]
    wide: bool = False
    right: bool = False
    rank: int = 0
    shrinks: bool = False
    readable: int = CELL_READABLE


def colour_wanted(choice: ColorChoice, stream: Any) -> bool:
    """Returns True if output to `stream` has color."""
    if choice is not ColorChoice.AUTO:
        return choice is ColorChoice.ALWAYS
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or bool(stream.isatty())


def choose_colour(choice: ColorChoice) -> None:
    """Sets the choice of color that `painted` uses."""
    _CHOICE.set(choice)


def painted(text: str, style: Style) -> str:
    """Returns the text, with this style if standard output has color."""
    if not colour_wanted(_CHOICE.get(), sys.stdout):
        return text
    return f"\x1b[{style.value}m{text}\x1b[0m"


def print_list(
    kind: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], form: OutputFormat
) -> None:
    """Prints rows in one of three forms: a table, one JSON object with `items`, or one JSON object
    per line.

    Args:
        kind: value of "kind" in JSON.
        rows: the data.
        columns: columns of the table.
        form: table or JSON.
    """
    if form is OutputFormat.JSON:
        print_json({"api_version": API_VERSION, "kind": kind, "items": list(rows)})
    elif form is OutputFormat.JSONL:
        for row in rows:
            print_json_line(row)
    else:
        print_table(columns_in(columns, form), rows, form)


def columns_in(columns: Sequence[Column], form: OutputFormat) -> list[Column]:
    """Returns the columns that are shown. Without `-o wide`, the wide columns are left out."""
    return [column for column in columns if form is OutputFormat.WIDE or not column.wide]


def print_object(kind: str, data: Mapping[str, Any], form: OutputFormat, text: str) -> None:
    """Prints one object: `text` for people, or the data with its kind for programs.

    Args:
        kind: value of "kind" in JSON.
        data: the data to print as JSON.
        form: table or JSON.
        text: the text to print for people.
    """
    if form is OutputFormat.JSON:
        print_json({"api_version": API_VERSION, "kind": kind, **data})
    elif form is OutputFormat.JSONL:
        print_json_line({"api_version": API_VERSION, "kind": kind, **data})
    else:
        print(text)


def print_table(columns: Sequence[Column], rows: Iterable[Any], form: OutputFormat) -> None:
    """Prints the lines of `table_lines`, with the heading in bold."""
    heading, *lines = table_lines(columns, rows, form)
    print(painted(heading, Style.BOLD))
    for line in lines:
        print(line)


def table_lines(
    columns: Sequence[Column], rows: Iterable[Any], form: OutputFormat = OutputFormat.TABLE
) -> list[str]:
    """Returns a table with headings in capitals and columns two spaces apart.

    A table is fitted to the width of the terminal. With `-o wide`, the table has all columns and
    full cells.
    """
    cells = [[column.text(row) for column in columns] for row in rows]
    width = output_width() if form is OutputFormat.TABLE else sys.maxsize
    shown = fitted(columns, cells, width)
    lines = []
    for line in ([column.heading.upper() for column in columns], *cells):
        padded = (
            shortened(line[at], size).rjust(size)
            if columns[at].right
            else shortened(line[at], size).ljust(size)
            for at, size in shown
        )
        lines.append("  ".join(padded).rstrip())
    return lines


def json_text(data: Mapping[str, Any]) -> str:
    """Returns one JSON document, indented."""
    return json.dumps(data, indent=2, ensure_ascii=False)


def print_json(data: Mapping[str, Any]) -> None:
    """Prints one JSON document, indented."""
    print(json_text(data))


def print_json_line(data: Mapping[str, Any]) -> None:
    """Prints one JSON document on one line, and flushes the output, so that readers get the line at
    once.
    """
    print(json.dumps(data, ensure_ascii=False, separators=(",", ":")), flush=True)


def say(message: str) -> None:
    """Prints a message for people on standard error, unless standard error is closed."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        discard_standard_error()


def discard_standard_error() -> None:
    """Redirects standard error to /dev/null. Callers use this function when the pipe or terminal of
    standard error is closed.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def print_error(error: FinegrainError, form: OutputFormat, hint: str = "") -> None:
    """Prints an error with its code and hint on standard error. With JSON, also prints it on
    standard output.

    Args:
        error: the error.
        form: table or JSON.
        hint: the text of the hint. If empty, no hint is printed.
    """
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
