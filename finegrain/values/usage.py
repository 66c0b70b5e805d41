"""The measured use of slots, and the capacity of NUMA nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class Usage(Value):
    """Measured use of slots, as opposed to what is booked."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    tasks: int = 0


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class SlotDeviceUsage(Value):
    """What the processes of one slot use of one device."""

    allocation_id: str
    generation: int
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class DeviceUsage(Value):
    """Measured use of one device: all of it, and what slots use.

    `memory_bytes` counts all processes and what the driver itself uses. `busy_percent` is the share
    of the last second in which the device was busy.
    """

    type: str
    uuid: str
    memory_bytes: int = 0
    busy_percent: int = 0
    slots: tuple[SlotDeviceUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class Zone(Value):
    """Capacity of one NUMA node for slots: in total, allocated and available.

    Slots that are bound to no node are not counted, except for their dedicated cpus. They count
    only against the host's total.
    """

    node: int  # id of the node
    total: Mapping[str, int]
    allocated: Mapping[str, int]
    available: Mapping[str, int]
