"""Reads the small files of /sys and /proc below a root directory.

If a file does not exist, cannot be read, is too large or is malformed, its value is None. A
malformed or too large file adds a warning. All detection reads files with this class, so a
directory with recorded files can replace a real machine.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from finegrain.topology import printable

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_WARNINGS: Final = 100
MAX_WARNING_LENGTH: Final = 500
_DIGITS: Final = re.compile(r"[0-9]+")
T = TypeVar("T")


class TreeReader:
    """Reads files below ``root`` by their relative path. The methods never raise."""

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        self._warnings: dict[str, list[str]] = {}  # the key is the message without its numbers

    @property
    def warnings(self) -> tuple[str, ...]:
        """All warnings, in the order in which they occurred.

        If several messages differ only in numbers, for example in the number of a CPU, only the
        first message appears, with a count.
        """
        return tuple(
            each[0] if len(each) == 1 else f"{each[0]} (and {len(each) - 1} more of this kind)"
            for each in self._warnings.values()
        )

    def warn(self, message: str) -> None:
        """Records a warning. The number of different warnings is limited."""
        message = printable(message)
        if len(message) > MAX_WARNING_LENGTH:
            message = f"{message[: MAX_WARNING_LENGTH - 3]}..."
        # Messages that differ only in numbers count as one warning.
        kind = _DIGITS.sub("N", message)
        if kind in self._warnings or len(self._warnings) < MAX_WARNINGS:
            alike = self._warnings.setdefault(kind, [])
            if message not in alike:
                alike.append(message)

    def text(self, path: str) -> str | None:
        """Returns the file's content without surrounding white space, or None; see the module."""
        try:
            with open(self._absolute(path), "rb", buffering=0) as file:
                # Read one byte more than allowed, to find out whether the file is too large.
                content = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError):  # ValueError: the path contains a null byte
            return None
        if content is None or len(content) > MAX_FILE_BYTES:
            self.warn(f"/{path}: larger than {MAX_FILE_BYTES} bytes, ignored")
            return None
        # Some files end with a null byte.
        return content.decode("utf-8", "replace").strip().strip("\0")

    def lines(self, path: str) -> list[str]:
        """Returns the file's lines; empty if it cannot be read."""
        return (self.text(path) or "").splitlines()

    def integer(self, path: str) -> int | None:
        """Returns a decimal number, possibly negative; None for an empty file."""
        return self._parsed(path, _integer, "a number")

    def hexadecimal(self, path: str) -> int | None:
        """Returns a number such as 0x00000000410fd870, or None."""
        return self._parsed(path, _hexadecimal, "a hexadecimal number")

    def cpu_list(self, path: str) -> CpuSet | None:
        """Returns a set in list notation, such as 0-3,8, or None."""
        return self._parsed(path, CpuSet.parse, "a CPU list")

    def cpu_mask(self, path: str) -> CpuSet | None:
        """Returns a set in mask notation, such as 00000001,000000ff, or None."""
        return self._parsed(path, CpuSet.parse_mask, "a CPU mask")

    def exists(self, path: str) -> bool:
        try:
            return os.path.exists(self._absolute(path))  # noqa: PTH110 - hot path
        except ValueError:
            return False

    def is_directory(self, path: str) -> bool:
        try:
            return os.path.isdir(self._absolute(path))  # noqa: PTH112 - hot path
        except ValueError:
            return False

    def names(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted; empty if it cannot be read."""
        try:
            return sorted(os.listdir(self._absolute(path)))  # noqa: PTH208 - hot path
        except (OSError, ValueError):
            return []

    def numbered(self, path: str, prefix: str) -> list[int]:
        """Returns the numbers N of all entries named ``prefix`` + N in the directory, ascending."""
        tails = (name[len(prefix) :] for name in self.names(path) if name.startswith(prefix))
        return sorted({int(tail) for tail in tails if _is_plain_number(tail)})

    def resolved(self, path: str) -> str | None:
        """Returns the path with links resolved, relative to the root; None if it is outside the
        root."""
        try:
            root = os.path.realpath(self._root)
            real = os.path.realpath(self._absolute(path))
        except (OSError, ValueError):
            return None
        # In a directory with recorded files, a link can point to files of the real machine.
        relative = os.path.relpath(real, root)
        return None if relative.startswith("..") else relative

    def _absolute(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _parsed(self, path: str, parse: Callable[[str], T | None], what: str) -> T | None:
        text = self.text(path)
        if text is None:
            return None
        try:
            return parse(text)
        except (InvalidArgument, ValueError):
            self.warn(f"/{path}: {text[:40]!r} is not {what}, ignored")
            return None


def _integer(text: str) -> int | None:
    # The kernel never prints longer numbers. The limit protects against malformed files.
    return int(text[:32]) if text else None


def _hexadecimal(text: str) -> int | None:
    return int(text[:32], 16) if text else None


def _is_plain_number(text: str) -> bool:
    # Ids of CPUs and nodes are at most 65536, so a longer number is not such an id.
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65_535
