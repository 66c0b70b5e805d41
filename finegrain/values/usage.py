"""Describes the measured use of slots, devices and hosts, and the capacity of NUMA nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class Temperature(Value):
    """One temperature sensor of a host, such as "coretemp/Package id 0"."""

    sensor: str
    celsius: float


@dataclass(frozen=True, slots=True)
class HostUsage(Value):
    """Measured use of a whole host, by slots and by all other programs.

    Rates are averages over the last interval of some seconds. A value that the host does not report
    is 0.

    Attributes:
        cpu_milli: thousandths of a core, over all online cpus.
        cpus: the online cpus, as a list such as "0-7".
        cpu_busy_percent: the busy part of each cpu of `cpus`, in percent, in ascending order of
            cpus.
        memory_used_bytes: memory in use, without the page cache.
        disk_total_bytes: size of the file system of the executor's state directory.
        disk_used_bytes: used part of this file system.
        network_receive_bytes_per_second: bytes per second that all interfaces except
            loopback receive.
        load_1m: average number of processes that ran or waited to run, over the last minute.
    """

    cpu_milli: int = 0
    cpus: str = ""
    cpu_busy_percent: tuple[int, ...] = ()
    memory_total_bytes: int = 0
    memory_used_bytes: int = 0
    swap_total_bytes: int = 0
    swap_used_bytes: int = 0
    disk_total_bytes: int = 0
    disk_used_bytes: int = 0
    disk_read_bytes_per_second: int = 0
    disk_write_bytes_per_second: int = 0
    network_receive_bytes_per_second: int = 0
    network_transmit_bytes_per_second: int = 0
    load_1m: float = 0.0
    load_5m: float = 0.0
    load_15m: float = 0.0
    temperatures: tuple[Temperature, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotUsage(Value):
    """Measured use of one slot. It can differ from the booked amounts."""

    cpu_milli: int
    memory_bytes: int
    pids: int


@dataclass(frozen=True, slots=True)
class Usage(Value):
    """Measured use of the slots of an executor, and of its whole host.

    `host` is None in two cases: the host was not measured, or the use is the sum of several
    executors.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    tasks: int = 0
    host: HostUsage | None = None


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
    """The resources of one NUMA node, including its devices.

    If a slot is not bound to a node, only the dedicated cpus of the slot count in this zone. All
    amounts of such a slot count against the total of the host.
    """

    node: int  # id of the node
    total: Mapping[str, int]  # the allocatable part: what slots can have
    allocated: Mapping[str, int]
    available: Mapping[str, int]
    # all that lies on the node; empty: the resource manager is of an older version
    capacity: Mapping[str, int] = field(default_factory=dict)
