"""Generates ids. `texts.py` checks the allowed form of ids.

Callers choose ids. So a repeated call is idempotent. This project generates UUIDv7 (RFC 9562,
section 5.7). UUIDv7 are roughly sorted by time, so new ids are close together in an index. No code
relies on this order.
"""

from __future__ import annotations

import os
import time
import uuid

from finegrain.texts import ID_PATTERN, LABEL_KEY_PATTERN, check_id, check_text

__all__ = ["ID_PATTERN", "LABEL_KEY_PATTERN", "check_id", "check_text", "new_id"]


def new_id() -> str:
    """Returns a new UUIDv7 as text."""
    millis = time.time_ns() // 1_000_000
    random_bits = int.from_bytes(os.urandom(10), "big")
    # From the highest bit: 48 bits of time, 4 bits of version, 12 random bits, 2 bits of variant,
    # 62 random bits.
    value = (millis & (2**48 - 1)) << 80
    value |= 0x7 << 76
    value |= (random_bits >> 64 & 0xFFF) << 64
    value |= 0b10 << 62
    value |= random_bits & (2**62 - 1)
    return str(uuid.UUID(int=value))
