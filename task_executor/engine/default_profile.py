"""Computes the size of the default slot: the slot that a request without a resource profile gets.

Each executor computes its default slot once, at its start. With the same fraction, a larger host
has a larger default slot (as in Flink's dynamic slot allocation, FLIP-56).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from finegrain.errors import InvalidArgument
from finegrain.resources import (
    MANAGED_MEMORY_BYTES,
    MEMORY_GRAIN_BYTES,
    MIB,
    NETWORK_MEMORY_BYTES,
    TASK_HEAP_MEMORY_BYTES,
    TASK_OFF_HEAP_MEMORY_BYTES,
    round_down,
)
from finegrain.units import format_bytes, format_cpu

CPU_MILLI_MIN: Final = 10
MEMORY_BYTES_MIN: Final = 4 * MIB
PART_OF_NAME: Final = {
    "task_off_heap": TASK_OFF_HEAP_MEMORY_BYTES,
    "managed": MANAGED_MEMORY_BYTES,
    "network": NETWORK_MEMORY_BYTES,
}
"""Parts of the memory of a default slot, by their name in the configuration."""


@dataclass(frozen=True, slots=True)
class DefaultSlot:
    """Amounts of the default slot.

    The memory is a multiple of 64 KiB. Booked memory is rounded up to such multiples, so a default
    slot never books more memory than `memory_bytes`.
    """

    cpu_milli: int
    memory_bytes: int  # a multiple of 64 KiB
    deprecation_warning: str | None = None  # logged once at the start


def default_slot(
    cpu_milli_total: int,
    memory_bytes_total: int,
    core_count: int,
    *,
    default_slot_fraction: Fraction | None = None,
    number_of_slots: int | None = None,
    default_slot_cpu_milli: int | None = None,
    default_slot_memory_bytes: int | None = None,
) -> DefaultSlot:
    """Returns the default slot.

    Its amounts are `default_slot_cpu_milli` and `default_slot_memory_bytes`. An amount that is not
    given is `default_slot_fraction` of the total. Without this fraction, the amount is 1 /
    `number_of_slots` of the total. Without both options, the amount is 1 / `core_count` of the
    total.

    Args:
        cpu_milli_total: CPU of the executor, in thousandths of a core.
        memory_bytes_total: memory of the executor.
        core_count: physical cores of the executor.
        default_slot_fraction: a fraction above 0, at most 1.
        number_of_slots: the deprecated option. If it is set, the result contains a warning that
            names the new option.
        default_slot_cpu_milli: explicit CPU of the default slot; None: compute the CPU from the
            fraction.
        default_slot_memory_bytes: explicit memory of the default slot; None: compute the memory
            from the fraction.

    Raises:
        InvalidArgument: the fraction is outside (0, 1], or the count is below 1, or an explicit
            amount is more than the total. Or the slot would be too small to start anything: it
            would have less than 0.01 cores or 4 MiB.
    """
    warning = None
    if number_of_slots is not None:
        warning = _deprecation(number_of_slots, default_slot_fraction)
    fraction, origin = _fraction(core_count, default_slot_fraction, number_of_slots)
    # Round down the size. So for example 4 slots of 1/4 fit into the totals.
    cpu_milli = _explicit(
        "default_slot_cpu", default_slot_cpu_milli, CPU_MILLI_MIN, cpu_milli_total, format_cpu
    )
    memory_bytes = _explicit(
        "default_slot_memory",
        default_slot_memory_bytes,
        MEMORY_BYTES_MIN,
        memory_bytes_total,
        format_bytes,
    )
    if cpu_milli is None:
        cpu_milli = int(cpu_milli_total * fraction)
    if memory_bytes is None:
        memory_bytes = int(memory_bytes_total * fraction)
    slot = DefaultSlot(
        cpu_milli=cpu_milli,
        memory_bytes=round_down(memory_bytes, MEMORY_GRAIN_BYTES),
        deprecation_warning=warning,
    )
    if slot.cpu_milli < CPU_MILLI_MIN or slot.memory_bytes < MEMORY_BYTES_MIN:
        raise InvalidArgument(
            "default_slot_fraction",
            f"{fraction} (from {origin})",
            f"a fraction that gives at least {format_cpu(CPU_MILLI_MIN)} cores and "
            f"{format_bytes(MEMORY_BYTES_MIN)} of the {format_cpu(cpu_milli_total)} cores and "
            f"{format_bytes(memory_bytes_total)} of this executor",
        )
    return slot


def memory_parts(memory_bytes: int, percents: Mapping[str, int]) -> dict[str, int]:
    """Divides the memory of the default slot among its parts. The task heap gets the rest.

    Args:
        memory_bytes: the memory of the slot, a multiple of 64 KiB.
        percents: percentages by name of the part: "task_off_heap", "managed" and "network".

    Raises:
        InvalidArgument: a name is unknown, a percentage is not from 0 to 100, or the sum of the
            percentages is above 100.
    """
    for name, percent in percents.items():
        if name not in PART_OF_NAME:
            expected = f"one of {', '.join(PART_OF_NAME)}; the task heap gets the rest"
            raise InvalidArgument("default_slot_memory_percent", name, expected)
        if not 0 <= percent <= 100:
            raise InvalidArgument(f"default_slot_memory_percent.{name}", percent, "0 to 100")
    if (together := sum(percents.values())) > 100:
        expected = "at most 100 percent in total"
        raise InvalidArgument("default_slot_memory_percent", f"{together} percent", expected)
    parts = {
        PART_OF_NAME[name]: round_down(memory_bytes * percent // 100, MEMORY_GRAIN_BYTES)
        for name, percent in percents.items()
    }
    # All rounding losses go to the heap. So the parts always add up to the memory of the slot.
    return {TASK_HEAP_MEMORY_BYTES: memory_bytes - sum(parts.values()), **parts}


def _explicit(
    field: str, amount: int | None, least: int, total: int, text: Callable[[int], str]
) -> int | None:
    if amount is not None and not least <= amount <= total:
        raise InvalidArgument(field, text(amount), f"{text(least)} to {text(total)}, the total")
    return amount


def parse_fraction(
    value: str | int | float | Decimal, field: str = "default_slot_fraction"
) -> Fraction:
    """Parses an exact fraction from the configuration: `0.1` is a tenth, `1/3` is a third.

    Args:
        value: the configured number.
        field: the name of the field, for errors.

    Raises:
        InvalidArgument: `value` is not a number.
    """
    try:
        # Parse the text of the number. So the float 0.1 becomes exactly a tenth, and not the
        # nearest binary fraction.
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise InvalidArgument(field, value, "a fraction such as 0.25 or 1/3") from None


def _fraction(
    core_count: int, fraction: Fraction | None, number_of_slots: int | None
) -> tuple[Fraction, str]:
    """Returns the default slot's fraction of the totals, and the option that determined it."""
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise InvalidArgument("default_slot_fraction", fraction, "more than 0 and at most 1")
        return fraction, "default_slot_fraction"
    if number_of_slots is not None:
        return Fraction(1, number_of_slots), "number_of_slots"
    return Fraction(1, max(core_count, 1)), "the number of cores"


def _deprecation(number_of_slots: int, fraction: Fraction | None) -> str:
    if number_of_slots < 1:
        raise InvalidArgument("number_of_slots", number_of_slots, "1 or more")
    if fraction is not None:
        return (
            f"number_of_slots is deprecated and ignored, because default_slot_fraction is set "
            f"({fraction}); remove it"
        )
    return (
        f"number_of_slots is deprecated: slots are carved to size. Set default_slot_fraction to "
        f"1/{number_of_slots} for the same default slot"
    )
