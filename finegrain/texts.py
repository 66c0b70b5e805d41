"""Checks the form of ids, names and texts that callers choose."""

from __future__ import annotations

import re

from finegrain.errors import InvalidArgument

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
LABEL_KEY_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?")


def check_id(field: str, value: str) -> str:
    """Returns the value unchanged, if it is a well-formed id.

    Raises:
        InvalidArgument: the value is empty, too long, or has characters that are not allowed.
    """
    if not ID_PATTERN.fullmatch(value):
        raise InvalidArgument(
            field,
            value,
            "1 to 128 characters out of A-Z a-z 0-9 . _ - that start with a letter or digit",
        )
    return value


def check_text(field: str, value: str, *, longest: int, empty_ok: bool = False) -> str:
    """Checks that a value is printable text and not too long. Returns it unchanged.

    Args:
        field: name of the field, for errors.
        value: the text.
        longest: largest number of characters.
        empty_ok: True if the text may be empty.

    Raises:
        InvalidArgument: the text is too long, has control characters, or is empty although
            `empty_ok` is False.
    """
    if not value and empty_ok:
        return value
    if not value or len(value) > longest or not value.isprintable():
        raise InvalidArgument(field, value, f"1 to {longest} printable characters")
    return value
