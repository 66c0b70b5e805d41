"""Amounts and profiles as text for people, in the units in which people type them."""

from __future__ import annotations

from collections.abc import Iterable

from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    EXTENDED_PREFIX,
    Amounts,
    ResourceProfile,
    booking,
)
from finegrain.units import format_bytes_exactly, format_cpu


def profile_text(profile: ResourceProfile | None) -> str:
    """Returns the amounts of a profile: "1 cpu, 1Gi memory"."""
    if profile is None:
        return "a default slot"
    return amounts_text(booking(profile, separate_pools=False))


def amounts_text(amounts: Amounts) -> str:
    """Returns amounts: "1 cpu, 1Gi memory"."""
    return ", ".join(amount_text(name, amount) for name, amount in amounts.items())


def amount_text(name: str, *amounts: int, of: str = " of ") -> str:
    """Returns one amount, or several of one dimension: "1 cpu", "5 of 4 cpu"."""
    texts: Iterable[str]
    if name in (CPU_MILLI, BEST_EFFORT_CPU_MILLI):
        texts, unit = map(format_cpu, amounts), name.removesuffix("_milli")
    elif name.endswith("_bytes"):
        texts, unit = map(format_bytes_exactly, amounts), name.removesuffix("_bytes")
    else:
        return f"{of.join(map(str, amounts))} {name.removeprefix(EXTENDED_PREFIX)}"
    return f"{of.join(texts)} {unit.replace('_', ' ')}"
