"""Ids: how they are made and what they may look like.

Callers choose ids, so that a repeated call is the same call. The library makes UUIDv7 (RFC 9562,
section 5.7), which sort roughly by time and stay close together in an index; nothing relies on that
order.
"""

from __future__ import annotations

import os
import re
import time
import uuid

from finegrain.errors import InvalidArgument

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
LABEL_KEY_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?")


def new_id() -> str:
    """A new UUIDv7 as text."""
    millis = time.time_ns() // 1_000_000
    random_bits = int.from_bytes(os.urandom(10), "big")
    value = (millis & (2**48 - 1)) << 80
    value |= 0x7 << 76
    value |= (random_bits >> 64 & 0xFFF) << 64
    value |= 0b10 << 62
    value |= random_bits & (2**62 - 1)
    return str(uuid.UUID(int=value))


def check_id(field: str, value: str) -> str:
    """The value itself if it is a well-formed id.

    Raises:
        InvalidArgument: it is empty, too long or holds other characters.
    """
    if not ID_PATTERN.fullmatch(value):
        raise InvalidArgument(
            field,
            value,
            "1 to 128 characters out of A-Z a-z 0-9 . _ - that start with a letter or digit",
        )
    return value


def check_text(field: str, value: str, *, longest: int, empty_ok: bool = False) -> str:
    """The value itself if it is printable text of acceptable length.

    Raises:
        InvalidArgument: it is empty (unless allowed), too long or holds control characters.
    """
    if not value and empty_ok:
        return value
    if not value or len(value) > longest or not value.isprintable():
        raise InvalidArgument(field, value, f"1 to {longest} printable characters")
    return value
