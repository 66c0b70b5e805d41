"""Fits tables to the width of the terminal: leaves out columns, and shortens long cells."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

WIDTH_DEFAULT: Final = 80
GAP: Final = 2
ELLIPSIS: Final = ".."
CELL_READABLE: Final = 20
"""Before cells get shorter than this, columns are left out."""

CELL_MIN: Final = 8
"""No cell is shortened below this many characters."""

SHORT_LENGTH: Final = 8
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class Fitting(Protocol):
    """The part of a column that decides how it is fitted."""

    @property
    def heading(self) -> str:
        """Its heading."""

    @property
    def rank(self) -> int:
        """0: it is always shown; else the higher, the earlier it is left out."""

    @property
    def shrinks(self) -> bool:
        """Whether its cells may be shortened."""


def output_width() -> int:
    """Returns the width that a table may have: COLUMNS, or that of the terminal, or 80.

    Without a terminal it is at least 80, since a pipe has no width.
    """
    columns = os.environ.get("COLUMNS", "")
    given = int(columns) if columns.isdecimal() and columns.isascii() else 0
    with suppress(OSError, ValueError):
        if sys.stdout.isatty():
            return given or os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH_DEFAULT
    return max(given, WIDTH_DEFAULT)


def fitted(
    columns: Sequence[Fitting], rows: Sequence[Sequence[str]], width: int
) -> list[tuple[int, int]]:
    """Chooses columns, and a width for each, so that a line has at most `width` characters.

    Columns are left out in order: first those without any value ("-" in each row), then by `rank`,
    the highest first. Columns of rank 0 always stay. Cells that are too long for what is left are
    shortened, the longest first.

    Returns:
        The number of each column that is shown, and its width.
    """
    widths = [
        max(map(len, (column.heading, *(row[at] for row in rows))))
        for at, column in enumerate(columns)
    ]

    def least(at: int, floor: int = CELL_READABLE) -> int:
        heading = len(columns[at].heading)
        return min(widths[at], max(floor, heading)) if columns[at].shrinks else widths[at]

    def order(at: int) -> tuple[bool, int, int]:
        is_empty = bool(rows) and all(row[at] in ("-", "") for row in rows)
        return is_empty, columns[at].rank, at

    shown = list(range(len(columns)))
    for at in sorted((at for at in shown if columns[at].rank), key=order, reverse=True):
        if sum(map(least, shown)) + GAP * (len(shown) - 1) <= width:
            break
        shown.remove(at)
    excess = sum(widths[at] for at in shown) + GAP * (len(shown) - 1) - width
    for floor in (CELL_READABLE, CELL_MIN):
        while excess > 0:
            longest = max(shown, key=lambda at: widths[at] - least(at, floor))
            if widths[longest] <= least(longest, floor):
                break
            widths[longest] -= 1
            excess -= 1
    return [(at, widths[at]) for at in shown]


def shortened(text: str, width: int) -> str:
    """Returns a text of at most `width` characters, without its middle if it is longer."""
    if len(text) <= width:
        return text
    kept = width - len(ELLIPSIS)
    end = kept // 2
    return f"{text[: kept - end]}{ELLIPSIS}{text[len(text) - end :]}"


class ShortIds:
    """Short forms of ids: the last 8 characters, or more if two of the ids would look alike.

    Only UUIDs are shortened: other ids were chosen as names. A member of a range, RANGE.17, keeps
    its index: "a1b2c3d4.17".
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._lengths: dict[str, int] = {}
        stems = {_split(each)[0] for each in ids}
        alike: dict[str, list[str]] = {}
        for stem in filter(_UUID.fullmatch, stems):
            alike.setdefault(stem[-SHORT_LENGTH:], []).append(stem)
        for group in alike.values():
            length = SHORT_LENGTH
            while len({stem[-length:] for stem in group}) < len(group):
                length += 1
            self._lengths |= dict.fromkeys(group, length)

    def __call__(self, full: str) -> str:
        """Returns the short form of one of the ids; an id that is no UUID stays as it is."""
        stem, index = _split(full)
        return stem[-self._lengths.get(stem, len(stem)) :] + index


def _split(full: str) -> tuple[str, str]:
    """Splits off the index of a member, with its dot."""
    stem, dot, index = full.partition(".")
    return stem, dot + index
