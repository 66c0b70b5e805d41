"""Fits tables to the width of the terminal. To fit a table, the module leaves out columns and
shortens long cells.
"""

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
"""By default, columns are left out before cells become shorter than this number of characters."""

CELL_MIN: Final = 8
"""A cell is never shortened below this number of characters."""

SHORT_LENGTH: Final = 8
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class Fitting(Protocol):
    """The attributes of a column that decide how the column is fitted."""

    @property
    def heading(self) -> str:
        """The heading of the column."""

    @property
    def rank(self) -> int:
        """The order in which columns are left out, highest rank first. A column with rank 0 is
        always shown.
        """

    @property
    def shrinks(self) -> bool:
        """True if the cells of the column can be shortened."""

    @property
    def readable(self) -> int:
        """Other columns are left out before the cells of this column become shorter."""


def output_width() -> int:
    """Returns the maximum width of a table: the variable COLUMNS or, if it is not set, the width of
    the terminal. Without both, the width is 80.

    Without a terminal, the width is at least 80, because a pipe has no width.
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
    """Chooses the columns to show, and the width of each column, so that a line has at most `width`
    characters if possible.

    The function first leaves out columns without any value ("-" in each row), and then columns by
    `rank`, the highest rank first. Columns of rank 0 always stay. If lines are still too long, the
    function shortens the cells of the longest columns first.

    Returns:
        The index and the width of each column that is shown.
    """
    widths = [
        max(map(len, (column.heading, *(row[at] for row in rows))))
        for at, column in enumerate(columns)
    ]

    def least(at: int, floor: int = 0) -> int:
        floor = max(floor or columns[at].readable, len(columns[at].heading))
        return min(widths[at], floor) if columns[at].shrinks else widths[at]

    def order(at: int) -> tuple[bool, int, int]:
        is_empty = bool(rows) and all(row[at] in ("-", "") for row in rows)
        return is_empty, columns[at].rank, at

    def room(at: int, floor: int) -> tuple[bool, int, int]:
        # Cells of columns with a large `readable` are shortened last.
        left = widths[at] - least(at, floor)
        return left > 0, -columns[at].readable, left

    shown = list(range(len(columns)))
    for at in sorted((at for at in shown if columns[at].rank), key=order, reverse=True):
        if sum(map(least, shown)) + GAP * (len(shown) - 1) <= width:
            break
        shown.remove(at)
    excess = sum(widths[at] for at in shown) + GAP * (len(shown) - 1) - width
    for floor in (0, CELL_MIN):
        while excess > 0:
            longest = max(shown, key=lambda at: room(at, floor))
            if widths[longest] <= least(longest, floor):
                break
            widths[longest] -= 1
            excess -= 1
    return [(at, widths[at]) for at in shown]


def shortened(text: str, width: int) -> str:
    """Returns a text of at most `width` characters. A longer text loses its middle part."""
    if len(text) <= width:
        return text
    kept = width - len(ELLIPSIS)
    end = kept // 2
    return f"{text[: kept - end]}{ELLIPSIS}{text[len(text) - end :]}"


class ShortIds:
    """Short forms of ids. A short form has the last 8 characters of the id. It has more characters
    if two of the ids would otherwise have the same short form.

    Only UUIDs are shortened, because all other ids were chosen as names. The id of a range member,
    RANGE.17, keeps its index: "a1b2c3d4.17".
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
        """Returns the short form of one of the ids. An id that is not a UUID stays unchanged."""
        stem, index = _split(full)
        return stem[-self._lengths.get(stem, len(stem)) :] + index


def _split(full: str) -> tuple[str, str]:
    """Splits the id of a range member into the id of the range, and a dot with the index."""
    stem, dot, index = full.partition(".")
    return stem, dot + index
