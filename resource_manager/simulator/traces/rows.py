"""Reads lines and columns of logs, plain or gzip. Errors name file, line and field."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from finegrain.errors import InvalidArgument
from finegrain.values.bounds import AMOUNT_MAX

_GZIP_MAGIC = b"\x1f\x8b"


def lines_of(path: Path) -> Iterator[str]:
    """Yields the lines of a text file without line ends. Detects a gzip file by its content and
    unpacks it.

    Raises:
        InvalidArgument: the file cannot be read, is not a regular file, or is damaged.
    """
    # The file is read twice: to detect the format, and to read the records. A pipe can be read only
    # once.
    if path.is_fifo() or path.is_char_device():
        expected = "a file, because it is read twice; write the content of the pipe to a file"
        raise InvalidArgument("FILE", str(path), expected)
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        with (
            gzip.open(path, "rt", encoding="utf-8", errors="replace")
            if packed
            else path.open(encoding="utf-8", errors="replace")
        ) as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidArgument("FILE", str(path), f"a whole gzip file ({error})") from error
    except OSError as error:
        expected = f"a file that can be read ({error.strerror or error})"
        raise InvalidArgument("FILE", str(path), expected) from error


@dataclass(frozen=True, slots=True)
class Row:
    """One record: its texts by column, with file and line."""

    texts: Mapping[str, str]
    path: Path
    line: int

    def __contains__(self, column: str) -> bool:
        return column in self.texts

    def text(self, column: str) -> str:
        """Returns the text of a column."""
        return self.texts[column]

    def amount(self, column: str, *, factor: int = 1, least: int = 0, missing: int = 0) -> int:
        """Returns a number times a factor, rounded down.

        Args:
            column: column of the number.
            factor: factor to base units.
            least: the smallest valid number, before it is multiplied.
            missing: result for an empty text or -1, which mean that no value was recorded.

        Raises:
            InvalidArgument: the text is not a number, or below `least`.
        """
        text = self.texts[column].strip()
        if not text or text == "-1":
            return missing
        try:
            # Use Decimal, because a float times a factor such as GiB would give inexact bytes.
            number = Decimal(text) * factor
            if least * factor <= number <= AMOUNT_MAX:
                return int(number)
        except InvalidOperation:
            pass  # the error below is raised
        raise self.wrong(column, f"a number of at least {least}, or -1 where it was not recorded")

    def amount_if_known(self, column: str, *, factor: int = 1) -> int | None:
        """Returns the same as `amount`; None: no value was recorded."""
        return None if self.is_missing(column) else self.amount(column, factor=factor)

    def is_missing(self, column: str) -> bool:
        """Returns whether a column has no recorded value."""
        return self.texts[column].strip() in ("", "-1")

    def wrong(self, column: str, expected: str) -> InvalidArgument:
        """Returns the error for an invalid value in a column."""
        field = f"{self.path.name}, line {self.line}, {column}"
        return InvalidArgument(field, self.texts[column], expected)


def csv_rows(path: Path, needed: tuple[str, ...]) -> Iterator[Row]:
    """Yields the records of a CSV file with a header.

    Raises:
        InvalidArgument: the file cannot be read, lacks a needed column, or has a record with too
            few or too many fields.
    """
    reader = csv.reader(lines_of(path))
    header = [name.strip() for name in next(reader, [])]
    for name in needed:
        if name not in header:
            field = f"{path.name}, line 1"
            raise InvalidArgument(field, ",".join(header), f"a header with the column {name}")
    for fields in reader:
        if not fields:
            continue
        if len(fields) != len(header):
            field = f"{path.name}, line {reader.line_num}"
            expected = f"{len(header)} fields as in the header, not {len(fields)}"
            raise InvalidArgument(field, ",".join(fields), expected)
        yield Row(dict(zip(header, fields, strict=True)), path, reader.line_num)
