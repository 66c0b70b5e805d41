"""Amounts and profiles as text for people, in the units in which people type them."""

from __future__ import annotations

from finegrain.devices.device import GPU_MEMORY
from finegrain.resources import (
    DEVICE_PREFIX,
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
    unit = name.removeprefix(EXTENDED_PREFIX).removeprefix(DEVICE_PREFIX)
    if _is_cpu(name) or name.endswith("_bytes"):
        unit = name.removesuffix("_milli").removesuffix("_bytes").replace("_", " ")
    return f"{of.join(number_text(name, each) for each in amounts)} {unit}"


def number_text(name: str, amount: int) -> str:
    """Returns an amount without its dimension: "1", "5Gi"."""
    if _is_cpu(name):
        return format_cpu(amount)
    is_bytes = name.endswith("_bytes") or name == DEVICE_PREFIX + GPU_MEMORY
    return format_bytes_exactly(amount) if is_bytes else str(amount)


def _is_cpu(name: str) -> bool:
    return name.endswith("_milli")
