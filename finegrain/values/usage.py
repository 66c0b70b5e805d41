"""Describes the measured use of slots, and the capacity of NUMA nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class Usage(Value):
    """Measured use of slots. It may differ from the booked amounts."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    tasks: int = 0


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class SlotDeviceUsage(Value):
    """Use of one device by the processes of one slot."""

    allocation_id: str
    generation: int
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class DeviceUsage(Value):
    """Measured use of one device, in total and by slot.

    `memory_bytes` counts the memory of all processes and of the driver itself. `busy_percent` is
    the part of the last second in which the device was busy, in percent.
    """

    type: str
    uuid: str
    memory_bytes: int = 0
    busy_percent: int = 0
    slots: tuple[SlotDeviceUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class Zone(Value):
    """Capacity of one NUMA node for slots: in total, allocated and available.

    If a slot is not bound to a node, only the dedicated cpus of the slot count in this zone. All
    amounts of such a slot count against the total of the host.
    """

    node: int  # id of the node
    total: Mapping[str, int]
    allocated: Mapping[str, int]
    available: Mapping[str, int]
