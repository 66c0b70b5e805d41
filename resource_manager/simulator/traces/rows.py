"""Lines and columns of logs, plain or gzip; whatever is wrong is said with file, line and field."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from finegrain.errors import InvalidArgument
from finegrain.resources import AMOUNT_MAX

_GZIP_MAGIC = b"\x1f\x8b"


def active_queues_of(path: Path) -> Iterator[str]:
    """The lines of a text file, unpacked if it is gzip (by its content), without line ends.

    Raises:
        InvalidArgument: it cannot be read, or is broken.
    """
    if path.is_fifo() or path.is_char_device():
        expected = "a file, which can be read more than once; write what the pipe says to one"
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
    """One record: its texts by column, and where it stands."""

    texts: Mapping[str, str]
    path: Path
    line: int

    def __contains__(self, column: str) -> bool:
        return column in self.texts

    def text(self, column: str) -> str:
        """What the column says."""
        return self.texts[column]

    def amount(self, column: str, *, factor: int = 1, least: int = 0, missing: int = 0) -> int:
        """A number times a factor, rounded down; an empty text, or -1, says that it is missing.

        Raises:
            InvalidArgument: it is not a number from `least` on.
        """
        text = self.texts[column].strip()
        if not text or text == "-1":
            return missing
        try:
            number = Decimal(text) * factor
            if least * factor <= number <= AMOUNT_MAX:
                return int(number)
        except InvalidOperation:
            pass  # told below
        raise self.wrong(column, f"a number of at least {least}, or -1 where it was not recorded")

    def amount_if_known(self, column: str, *, factor: int = 1) -> int | None:
        """The same; None where nothing was recorded."""
        return None if self.is_missing(column) else self.amount(column, factor=factor)

    def is_missing(self, column: str) -> bool:
        """True where nothing was recorded."""
        return self.texts[column].strip() in ("", "-1")

    def wrong(self, column: str, expected: str) -> InvalidArgument:
        """The error that says what is wrong with a column."""
        field = f"{self.path.name}, line {self.line}, {column}"
        return InvalidArgument(field, self.texts[column], expected)


def csv_rows(path: Path, needed: tuple[str, ...]) -> Iterator[Row]:
    """The records of a CSV file with a header.

    Raises:
        InvalidArgument: it cannot be read, lacks a needed column, or a record has too few or too
            many fields.
    """
    reader = csv.reader(active_queues_of(path))
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
