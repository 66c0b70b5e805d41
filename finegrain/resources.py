"""Defines resource amounts of slots and hosts, and computes with them.

All amounts are non-negative integers, and an absent dimension is zero. `Amounts` maps the name of a
dimension to its amount. The names are the field names of the protocol ("cpu_milli", "memory_bytes",
...). For countable resources from the configuration, the name is "extended." followed by the
resource's name. For devices, the name is "device." followed by the dimension: "device.gpu-core", in
hundredths of a device, or "device.gpu-memory", in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from finegrain.devices.device import GPU_MEMORY, WHOLE, Device, DeviceShare
from finegrain.devices.request import DeviceRequest
from finegrain.mapping.json_form import JsonCodec, JsonForm

CPU_MILLI = "cpu_milli"
BEST_EFFORT_CPU_MILLI = "best_effort_cpu_milli"
MEMORY_BYTES = "memory_bytes"
TASK_HEAP_MEMORY_BYTES = "task_heap_memory_bytes"
TASK_OFF_HEAP_MEMORY_BYTES = "task_off_heap_memory_bytes"
MANAGED_MEMORY_BYTES = "managed_memory_bytes"
NETWORK_MEMORY_BYTES = "network_memory_bytes"
EXTENDED_PREFIX = "extended."
DEVICE_PREFIX = "device."
PORTS = "ports"
"""The countable resource of network ports, which executors offer if their option `task_ports` is
set.
"""

_KNOWN_BOOKINGS = 16_384  # cached bookings; a cluster has few different profiles

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
"""Booked memory is rounded up to a multiple of this size.

The kernel also rounds limits. Because finegrain rounds first, the limit of a slot always equals its
booking.
"""

Amounts = Mapping[str, int]
"""Non-negative amount by dimension; an absent dimension is zero."""


@dataclass(frozen=True, slots=True)
class ResourceProfile:
    """The resources of one slot.

    `extended` is sorted by name and has no zeros. `devices` is sorted by type, with at most one
    request for each type. `isolation` contains the required levels for cpu and memory. `devices`
    contains the required levels for devices.
    """

    cpu_milli: int = 0
    task_heap_memory_bytes: int = 0
    task_off_heap_memory_bytes: int = 0
    managed_memory_bytes: int = 0
    network_memory_bytes: int = 0
    extended: tuple[tuple[str, int], ...] = ()
    devices: tuple[DeviceRequest, ...] = ()
    isolation: tuple[tuple[str, str], ...] = ()

    @property
    def required_isolation(self) -> dict[str, str]:
        """All required levels of enforcement, by dimension."""
        asked = (self.isolation, *(each.isolation for each in self.devices))
        return {name: level for part in asked for name, level in part}

    @property
    def memory_bytes(self) -> int:
        """Sum of the memory parts as requested, not rounded."""
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
        """Returns the JSON form, without zeros."""
        data: dict[str, object] = _JSON.to_json(self)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> ResourceProfile:
        """Reads the data that `to_dict` returned. Ignores unknown keys.

        Raises:
            InvalidArgument: an amount is not an integer.
        """
        return _JSON.from_json(cls, data)


PROFILE_FORM = JsonForm(omit="default")
"""The JSON form of profiles everywhere: an absent amount is zero."""

PROFILE_FORMS = {ResourceProfile: PROFILE_FORM, DeviceRequest: JsonForm(omit="default")}

_JSON = JsonCodec(PROFILE_FORMS)


def extended_items(extended: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Returns countable resources in their canonical form: sorted, without zeros."""
    return tuple(sorted((name, amount) for name, amount in extended.items() if amount))


def booking(
    profile: ResourceProfile, *, separate_pools: bool, best_effort: bool = False
) -> dict[str, int]:
    """Returns the amounts that a slot of this profile books on its executor.

    Args:
        profile: the slot's resources.
        separate_pools: if false (the usual case), memory is booked as `memory_bytes`. If true, the
            executor has one memory pool per memory part, and each part is booked and rounded up
            separately.
        best_effort: if true, CPU is booked against the separate best-effort capacity.
    """
    cpu = BEST_EFFORT_CPU_MILLI if best_effort else CPU_MILLI
    amounts: dict[str, int] = {cpu: profile.cpu_milli}
    if separate_pools:
        # Round up each pool separately. The sum can then be larger than with one pool.
        for part in MEMORY_PARTS:
            amounts[part] = round_up(getattr(profile, part), MEMORY_GRAIN_BYTES)
    else:
        amounts[MEMORY_BYTES] = profile.booked_memory_bytes
    for name, amount in profile.extended:
        amounts[EXTENDED_PREFIX + name] = amount
    for request in profile.devices:
        # Book the requested amounts. The devices are not chosen yet, so the bytes of a share of
        # memory are unknown.
        for name, amount in request.totals:
            amounts[DEVICE_PREFIX + name] = amount
    # Leave out zeros, because an absent dimension is zero and equal amounts must be equal dicts.
    return {name: amount for name, amount in amounts.items() if amount}


@lru_cache(_KNOWN_BOOKINGS)
def shared_booking(
    profile: ResourceProfile, separate_pools: bool, best_effort: bool = False
) -> dict[str, int]:
    """Returns the result of `booking`. Calls with equal arguments return the same dict, so callers
    must not change it.
    """
    return booking(profile, separate_pools=separate_pools, best_effort=best_effort)


def devices_or_bytes(dimension: str, amount: int) -> float:
    """Returns an amount of a device dimension in the unit for people: bytes for memory, otherwise
    devices (0.5 is half a device).
    """
    return amount if dimension == GPU_MEMORY else amount / WHOLE


def total_of_devices(devices: Iterable[Device | DeviceShare]) -> dict[str, int]:
    """Returns the sums over devices, or over shares of devices, by dimension."""
    return total_of(
        {
            DEVICE_PREFIX + name: amount
            for name, amount in (each.capacity if isinstance(each, Device) else each.amounts)
        }
        for each in devices
    )


def has_separate_pools(total: Amounts) -> bool:
    """True if an executor's total has one memory pool per part."""
    return not total.get(MEMORY_BYTES, 0) and any(total.get(part, 0) for part in MEMORY_PARTS)


def add(left: Amounts, right: Amounts) -> dict[str, int]:
    """Returns the sum per dimension, without zeros."""
    return _combine(left, right, 1)


def subtract(left: Amounts, right: Amounts) -> dict[str, int]:
    """Returns the difference per dimension, without zeros.

    A difference can be negative. The caller must handle this case.
    """
    return _combine(left, right, -1)


def increase(amounts: dict[str, int], more: Amounts) -> None:
    """Adds amounts in place."""
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + amount


def add_all(amounts: dict[str, int], many: Sequence[Amounts]) -> None:
    """Adds many amounts in place, one dimension after the other. This takes less time than
    `increase` for each of them.
    """
    for name in dict.fromkeys(chain.from_iterable(many)):
        amounts[name] = amounts.get(name, 0) + sum([each.get(name, 0) for each in many])


def decrease(amounts: dict[str, int], less: Amounts) -> None:
    """Subtracts amounts in place, and removes dimensions whose amount becomes 0."""
    for name, amount in less.items():
        left = amounts[name] - amount
        if left:
            amounts[name] = left
        else:
            # Remove zeros. Equal sums are then equal dicts, and the checks of invariants compare
            # dicts.
            del amounts[name]


def larger_of(left: Amounts, right: Amounts) -> dict[str, int]:
    """Returns the larger amount per dimension, without zeros."""
    result = {name: amount for name, amount in left.items() if amount}
    for name, amount in right.items():
        if amount > result.get(name, 0):
            result[name] = amount
    return result


def total_of(many: Iterable[Amounts]) -> dict[str, int]:
    """Returns the sum of many amounts, without zeros."""
    result: dict[str, int] = {}
    for amounts in many:
        for name, amount in amounts.items():
            result[name] = result.get(name, 0) + amount
    return {name: amount for name, amount in result.items() if amount}


def total_of_shared(many: Sequence[Amounts]) -> dict[str, int]:
    """Returns the sum of amounts like `total_of`. If the same objects occur many times, this
    function is faster: it adds up each object once.
    """
    distinct = {id(amounts): amounts for amounts in many}
    counts = Counter(map(id, many))
    return total_of(
        {name: amount * counts[key] for name, amount in amounts.items()}
        for key, amounts in distinct.items()
    )


def fits(need: Amounts, free: Amounts) -> bool:
    """True if `free` has enough of every dimension in `need`."""
    return all(amount <= free.get(name, 0) for name, amount in need.items())


def shortfall(need: Amounts, free: Amounts) -> dict[str, int]:
    """Returns the missing amount per dimension; empty if `need` fits."""
    return {
        name: missing
        for name, amount in need.items()
        if (missing := amount - free.get(name, 0)) > 0
    }


def round_up(amount: int, grain: int) -> int:
    """Returns the smallest multiple of `grain` that is not below `amount`."""
    # Integer division rounds down. With a negation before it and another one after it, the result
    # is rounded up.
    return -(-amount // grain) * grain


def round_down(amount: int, grain: int) -> int:
    """Returns the largest multiple of `grain` that is not above `amount`."""
    return amount // grain * grain


def _combine(left: Amounts, right: Amounts, sign: int) -> dict[str, int]:
    result = dict(left)
    for name, amount in right.items():
        result[name] = result.get(name, 0) + sign * amount
    return {name: amount for name, amount in result.items() if amount}
