"""Amounts and profiles as text for people, in the units in which people type them."""

from __future__ import annotations

from finegrain.devices.device import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, WHOLE
from finegrain.resources import (
    DEVICE_PREFIX,
    EXTENDED_PREFIX,
    GIB,
    Amounts,
    ResourceProfile,
    booking,
)
from finegrain.units import format_bytes_exactly, format_cpu

WHOLE_GPUS = f"{DEVICE_PREFIX}gpu"
"""The dimension that texts use for GPUs, in hundredths of a GPU, if the shares of compute and
memory are equal.
"""


def profile_text(profile: ResourceProfile | None) -> str:
    """Returns the amounts of a profile, such as "1 cpu, 1Gi memory"."""
    if profile is None:
        return "a default slot"
    return amounts_text(booking(profile, separate_pools=False))


def amounts_text(amounts: Amounts) -> str:
    """Returns the amounts, such as "1 cpu, 1Gi memory, 2 gpu"."""
    parts = _with_whole_gpus(amounts)
    return ", ".join(amount_text(name, amount) for name, amount in parts.items())


def largest_text(requested: Amounts, largest: Amounts) -> str:
    """Returns a text about the dimensions of which no executor has enough, such as "cpu: requested
    64, largest executor 2".

    Args:
        requested: the amounts of the request.
        largest: the largest amount of one executor, for each dimension of which no executor has
            enough.
    """
    largest = _with_whole_gpus(largest)
    return "; ".join(
        f"{dimension_text(name)}: requested {number_text(name, amount)}, "
        f"largest executor {_rounded_text(name, largest[name])}"
        for name, amount in _with_whole_gpus(requested).items()
        if name in largest
    )


def _with_whole_gpus(amounts: Amounts) -> Amounts:
    """Replaces the two dimensions of GPU shares by `WHOLE_GPUS`, if their amounts are equal."""
    core, ratio = DEVICE_PREFIX + GPU_CORE, DEVICE_PREFIX + GPU_MEMORY_RATIO
    if core not in amounts or amounts[core] != amounts.get(ratio):
        return amounts
    others = {name: amount for name, amount in amounts.items() if name not in (core, ratio)}
    return {**others, WHOLE_GPUS: amounts[core]}


def _rounded_text(name: str, amount: int) -> str:
    """Returns an amount without its dimension; sizes are rounded down to a tenth of a GiB."""
    if name.endswith("_bytes") and amount >= GIB:
        return f"{amount * 10 // GIB / 10:g}Gi"
    return number_text(name, amount)


def amount_text(name: str, *amounts: int, of: str = " of ") -> str:
    """Returns one amount, or several amounts of one dimension, such as "1 cpu" or "5 of 4 cpu"."""
    unit = name.removeprefix(EXTENDED_PREFIX).removeprefix(DEVICE_PREFIX)
    if name == "slots" and amounts[-1] == 1:
        unit = "slot"
    if _is_cpu(name) or name.endswith("_bytes"):
        unit = name.removesuffix("_milli").removesuffix("_bytes").replace("_", " ")
    return f"{of.join(number_text(name, each) for each in amounts)} {unit}"


def dimension_text(name: str) -> str:
    """Returns a dimension without an amount, such as "cpu"."""
    return amount_text(name, 0).partition(" ")[2]


def number_text(name: str, amount: int) -> str:
    """Returns an amount without its dimension, such as "1" or "5Gi"."""
    if _is_cpu(name):
        return format_cpu(amount)
    if name == WHOLE_GPUS:
        return f"{amount / WHOLE:g}"
    is_bytes = name.endswith("_bytes") or name == DEVICE_PREFIX + GPU_MEMORY
    return format_bytes_exactly(amount) if is_bytes else str(amount)


def _is_cpu(name: str) -> bool:
    return name.endswith("_milli")
