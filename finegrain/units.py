"""Reads amounts that people write, and writes amounts for people. All amounts are integers.

Sizes: a plain number is bytes; K, M, G, T, P (also Ki, KiB, KB) are powers of 1024, as in container
tools. Cpus: "2", "0.5", or "500m" for thousandths. Durations: a plain number is seconds; the units
are ms, s, m, h and d. The functions read texts as decimals, without floating point. An amount that
is not a whole number of the base unit is rejected.
"""

from __future__ import annotations

import re
from decimal import Decimal

from finegrain.errors import InvalidArgument
from finegrain.values.bounds import AMOUNT_MAX

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)i?B?", re.IGNORECASE)
_CPU = re.compile(r"(\d+(?:\.\d+)?)(m?)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SIZE_FACTOR = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_DURATION_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_bytes(field: str, text: str) -> int:
    """Returns the bytes of a size such as "512M" or "1.5Gi".

    Raises:
        InvalidArgument: the text is not a size, or not a whole number of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise InvalidArgument(field, text, "a size such as 268435456, 256M or 1.5Gi")
    return _whole(field, text, Decimal(match[1]) * _SIZE_FACTOR[match[2].upper()], "bytes")


def parse_cpu_milli(field: str, text: str) -> int:
    """Returns the thousandths of a core of an amount such as "2", "0.5" or "500m".

    Raises:
        InvalidArgument: the text is not an amount of cpu, or it is not a whole number of
            thousandths.
    """
    match = _CPU.fullmatch(text.strip())
    if not match:
        raise InvalidArgument(field, text, "cores such as 2 or 0.5, or thousandths such as 500m")
    factor = 1 if match[2] else 1000
    return _whole(field, text, Decimal(match[1]) * factor, "thousandths of a core")


def parse_duration_ms(field: str, text: str) -> int:
    """Returns the milliseconds of a duration such as "30", "1.5s", "250ms" or "10m".

    Raises:
        InvalidArgument: the text is not a duration, or not a whole number of milliseconds.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise InvalidArgument(field, text, "a duration such as 30s, 250ms, 10m or 1h")
    return _whole(field, text, Decimal(match[1]) * _DURATION_MS[match[2] or "s"], "milliseconds")


def parse_pair(field: str, text: str) -> tuple[str, str]:
    """Splits "KEY=VALUE" into key and value.

    Raises:
        InvalidArgument: there is no key or no "=".
    """
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidArgument(field, text, "KEY=VALUE")
    return key, value


def format_bytes(amount: int) -> str:
    """Returns a size for people, with three digits: "256Mi"."""
    for unit, factor in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if amount >= factor:
            return (
                f"{amount / factor:.3g}{unit}"
                # Use this unit only below 1000, because `.3g` writes larger numbers with an
                # exponent.
                if amount < 1000 * factor
                else f"{amount // factor}{unit}"
            )
    return str(amount)


def format_bytes_exactly(amount: int) -> str:
    """Returns a size that `parse_bytes` reads back exactly, in the largest unit that gives a whole
    number.
    """
    for unit, factor in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if amount and amount % factor == 0:
            return f"{amount // factor}{unit}"
    return str(amount)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 slot", "2 slots"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def format_cpu(cpu_milli: int) -> str:
    """Returns cores for people: "0.5", "12"."""
    whole, rest = divmod(cpu_milli, 1000)
    # Remove zeros first, and then the dot, so that the zero of "10" is not removed.
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".")


def format_duration(seconds: float) -> str:
    """Returns a duration for people: "4.2s", "3m07s", "2h05m", "3d04h"."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    # Round down. A duration must never be shown as longer than it was.
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02d}h"


def format_duration_exactly(milliseconds: int) -> str:
    """Returns a configured duration exactly, such as "1s", "1.5s", "1m30s", "2h"."""
    parts = []
    for unit, length_ms in ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000):
        count, milliseconds = divmod(milliseconds, length_ms)
        parts += [f"{count}{unit}"] if count else []
    if milliseconds or not parts:
        parts.append(f"{milliseconds / 1_000:g}s")
    return "".join(parts)


def _whole(field: str, text: str, amount: Decimal, unit: str) -> int:
    if amount != int(amount) or amount > AMOUNT_MAX:
        raise InvalidArgument(field, text, f"a whole number of {unit}, at most {AMOUNT_MAX}")
    return int(amount)
