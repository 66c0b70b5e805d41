"""Amounts and profiles as text for people."""

from __future__ import annotations

from finegrain.resources import CPU_MILLI, Amounts, ResourceProfile, booking
from finegrain.units import format_bytes, format_cpu


def profile_text(profile: ResourceProfile | None) -> str:
    """Returns the amounts of a profile in human units: "1 cpu, 1Gi"."""
    if profile is None:
        return "a default slot"
    return amounts_text(booking(profile, separate_pools=False))


def amounts_text(amounts: Amounts) -> str:
    """Returns amounts in human units: "1 cpu, 1Gi"."""
    parts = []
    for name, amount in amounts.items():
        if name == CPU_MILLI:
            parts.append(f"{format_cpu(amount)} cpu")
        elif name.endswith("memory_bytes"):
            parts.append(format_bytes(amount))
        else:
            parts.append(f"{amount} {name.removeprefix('extended.')}")
    return ", ".join(parts)
