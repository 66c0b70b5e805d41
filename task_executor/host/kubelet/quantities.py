"""Parses amounts in Kubernetes notation: 500m, 2, 1.5, 1Gi, 1e3."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil
from typing import Any, Final

_QUANTITY: Final = re.compile(
    r"\+?(\d{1,20}(?:\.\d{0,18})?|\.\d{1,18})(?:([eE][+-]?\d{1,2})|([KMGTPE]i|[numkMGTPE]))?",
    re.ASCII,
)
_SCALES: Final[dict[str, Fraction]] = {
    "": Fraction(1),
    "m": Fraction(1, 10**3),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
    **{name: Fraction(1000**power) for power, name in enumerate("kMGTPE", 1)},
    **{f"{name}i": Fraction(1024**power) for power, name in enumerate("KMGTPE", 1)},
}


def parse_quantity(value: Any) -> Fraction | None:
    """Returns an amount of 0 or more; None if `value` is not such an amount.

    `value` can be a text, or a number that YAML has already parsed.
    """
    match = _QUANTITY.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    # In Python a bool is an int, but true is not an amount.
    if match is None or isinstance(value, bool):
        return None
    number, exponent, suffix = match.groups()
    return Fraction(number + (exponent or "")) * _SCALES[suffix or ""]


def cpu_milli(value: Any) -> int | None:
    """Returns an amount in thousandths of a cpu, rounded up; None if `value` is not an amount."""
    quantity = parse_quantity(value)
    return None if quantity is None else ceil(quantity * 1000)


def size_bytes(value: Any) -> int | None:
    """Returns an amount in bytes, rounded up; None if `value` is not an amount."""
    quantity = parse_quantity(value)
    return None if quantity is None else ceil(quantity)
