"""Resource amounts: what a slot consists of, and what a host has.

All amounts are non-negative integers. A dimension that is absent is zero. `Amounts` maps the name
of a dimension to its amount; the names are the field names of the protocol ("cpu_milli",
"memory_bytes", ...) and, for countable resources that operators declare, "extended." followed by
the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from finegrain.mapping.json_form import JsonCodec, JsonForm

CPU_MILLI = "cpu_milli"
BEST_EFFORT_CPU_MILLI = "best_effort_cpu_milli"
MEMORY_BYTES = "memory_bytes"
TASK_HEAP_MEMORY_BYTES = "task_heap_memory_bytes"
TASK_OFF_HEAP_MEMORY_BYTES = "task_off_heap_memory_bytes"
MANAGED_MEMORY_BYTES = "managed_memory_bytes"
NETWORK_MEMORY_BYTES = "network_memory_bytes"
EXTENDED_PREFIX = "extended."

MEMORY_PARTS = (
    TASK_HEAP_MEMORY_BYTES,
    TASK_OFF_HEAP_MEMORY_BYTES,
    MANAGED_MEMORY_BYTES,
    NETWORK_MEMORY_BYTES,
)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MEMORY_GRAIN_BYTES = 64 * KIB
"""Booked memory is rounded up to this, so that the kernel's own rounding never differs from the
books.
"""

AMOUNT_MAX = 2**53
"""Largest amount accepted anywhere: far beyond any host, and exact in every language's JSON."""

Amounts = Mapping[str, int]
"""Dimension name to non-negative amount; an absent dimension is zero."""


@dataclass(frozen=True, slots=True)
class ResourceProfile:
    """What one slot consists of. `extended` is sorted by name and holds no zeros."""

    cpu_milli: int = 0
    task_heap_memory_bytes: int = 0
    task_off_heap_memory_bytes: int = 0
    managed_memory_bytes: int = 0
    network_memory_bytes: int = 0
    extended: tuple[tuple[str, int], ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Sum of the memory parts as asked, not rounded."""
        return (
            self.task_heap_memory_bytes
            + self.task_off_heap_memory_bytes
            + self.managed_memory_bytes
            + self.network_memory_bytes
        )

    @property
    def booked_memory_bytes(self) -> int:
        """The slot's memory limit and booking: the sum, rounded up to `MEMORY_GRAIN_BYTES`."""
        return round_up(self.memory_bytes, MEMORY_GRAIN_BYTES)

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able form, without zeros."""
        data: dict[str, object] = _JSON.to_json(self)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> ResourceProfile:
        """Reads what `to_dict` wrote; keys of others are ignored.

        Raises:
            InvalidArgument: an amount is no integer.
        """
        return _JSON.from_json(cls, data)


PROFILE_FORM = JsonForm(omit="default")
"""JSON of profiles wherever it stands: an absent amount is zero."""

_JSON = JsonCodec({ResourceProfile: PROFILE_FORM})


def extended_items(extended: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Canonical form of a map of countable resources: sorted, without zeros."""
    return tuple(sorted((name, amount) for name, amount in extended.items() if amount))


def booking(
    profile: ResourceProfile, *, separate_pools: bool, best_effort: bool = False
) -> dict[str, int]:
    """What a slot of this profile takes from its executor's books.

    With one memory pool (the rule) that is `memory_bytes`; an executor that declares a pool per
    part books each part, rounded up on its own. Cpu of best-effort slots has a capacity of its own.
    """
    cpu = BEST_EFFORT_CPU_MILLI if best_effort else CPU_MILLI
    amounts: dict[str, int] = {cpu: profile.cpu_milli}
    if separate_pools:
        for part in MEMORY_PARTS:
            amounts[part] = round_up(getattr(profile, part), MEMORY_GRAIN_BYTES)
    else:
        amounts[MEMORY_BYTES] = profile.booked_memory_bytes
    for name, amount in profile.extended:
        amounts[EXTENDED_PREFIX + name] = amount
    return {name: amount for name, amount in amounts.items() if amount}


def has_separate_pools(total: Amounts) -> bool:
    """True where an executor's total declares a memory pool per part."""
    return not total.get(MEMORY_BYTES, 0) and any(total.get(part, 0) for part in MEMORY_PARTS)


def add(left: Amounts, right: Amounts) -> dict[str, int]:
    """Sum per dimension, without zeros."""
    return _combine(left, right, 1)


def subtract(left: Amounts, right: Amounts) -> dict[str, int]:
    """Difference per dimension, without zeros.

    May be negative: that is the caller's finding to judge.
    """
    return _combine(left, right, -1)


def larger_of(left: Amounts, right: Amounts) -> dict[str, int]:
    """The larger amount per dimension, without zeros."""
    result = {name: amount for name, amount in left.items() if amount}
    for name, amount in right.items():
        if amount > result.get(name, 0):
            result[name] = amount
    return result


def total_of(many: Iterable[Amounts]) -> dict[str, int]:
    """Sum over many, without zeros."""
    result: dict[str, int] = {}
    for amounts in many:
        for name, amount in amounts.items():
            result[name] = result.get(name, 0) + amount
    return {name: amount for name, amount in result.items() if amount}


def fits(need: Amounts, free: Amounts) -> bool:
    """True if every dimension needed is there."""
    return all(amount <= free.get(name, 0) for name, amount in need.items())


def shortfall(need: Amounts, free: Amounts) -> dict[str, int]:
    """What is missing per dimension; empty if `need` fits."""
    return {
        name: missing
        for name, amount in need.items()
        if (missing := amount - free.get(name, 0)) > 0
    }


def round_up(amount: int, grain: int) -> int:
    """Smallest multiple of `grain` that is not below `amount`."""
    return -(-amount // grain) * grain


def round_down(amount: int, grain: int) -> int:
    """Largest multiple of `grain` that is not above `amount`."""
    return amount // grain * grain


def _combine(left: Amounts, right: Amounts, sign: int) -> dict[str, int]:
    result = dict(left)
    for name, amount in right.items():
        result[name] = result.get(name, 0) + sign * amount
    return {name: amount for name, amount in result.items() if amount}
