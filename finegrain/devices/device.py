"""Defines the devices of a host, as an executor registers them.

Type and UUID identify a device. Its minor number can change when the host restarts. All amounts are
integers: shares in hundredths of a device, memory in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

WHOLE: Final = 100
"""Hundredths of a whole device."""

GPU: Final = "gpu"
RDMA: Final = "rdma"
FPGA: Final = "fpga"

GPU_CORE: Final = "gpu-core"
"""Dimension: compute of GPUs, in hundredths of one GPU."""

GPU_MEMORY: Final = "gpu-memory"
"""Dimension: memory of GPUs, in bytes."""

GPU_MEMORY_RATIO: Final = "gpu-memory-ratio"
"""Dimension: memory of GPUs, in hundredths of the memory of one GPU."""

Pairs = tuple[tuple[str, int], ...]
"""Amounts by dimension: sorted, without zeros."""

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted."""


@dataclass(frozen=True, slots=True)
class VirtualFunction:
    """A virtual function of a NIC. Only one slot can have it."""

    bus_id: str
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a host.

    Attributes:
        type: "gpu", "rdma", "fpga", the profile of a MIG instance ("mig-1g.10gb"), or a configured
            type.
        uuid: identity of the device, which stays the same after a restart or in another PCI slot.
        minor: number of the device on its host, valid until the host restarts.
        capacity: capacity for slots while the device is healthy, by dimension.
        vendor: name of the vendor, such as "nvidia"; empty: unknown.
        model: the vendor's name of the model.
        numa_node: id of the NUMA node to which the device is attached; None: unknown.
        pcie_group: name of the PCIe switch or root port above the device; empty: unknown. Devices
            with equal names are near to each other.
        pci_address: address on the PCI bus, such as "0000:3b:00.0".
        labels: further properties that requests can select by.
        functions: virtual functions of the device.
        parent_uuid: for a MIG instance, the UUID of its GPU.
        whole_only: True if no slot can have only a part of the device.
        problem: the reason why the device gets no new work; empty: the device is healthy.
        memory_bytes: memory of the device according to its vendor.
        driver_bytes: memory that the driver reserves and that is not in `capacity`.
        local_cpus: cpus near to the device, as a cpu list.
        levels: for each dimension, the level at which the executor can enforce a share. The key
            "whole" has the level for the whole device; see `finegrain/devices/levels.py`.
        parking: how slots with the device can be parked: "same-gpu" or "any-gpu"; empty: such slots
            cannot be parked. See `finegrain/devices/parking.py`.
    """

    type: str
    uuid: str
    minor: int
    capacity: Pairs
    vendor: str = ""
    model: str = ""
    numa_node: int | None = None
    pcie_group: str = ""
    pci_address: str = ""
    labels: Labels = ()
    functions: tuple[VirtualFunction, ...] = ()
    parent_uuid: str = ""
    whole_only: bool = False
    problem: str = ""
    memory_bytes: int = 0
    driver_bytes: int = 0
    local_cpus: str = ""
    levels: Labels = ()
    parking: str = ""

    @property
    def name(self) -> str:
        """The name of the device for people: "gpu3"."""
        return f"{self.type}{self.minor}"


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """A link between two GPUs of a host."""

    first_uuid: str
    second_uuid: str
    lanes: int = 0  # bonded NVLink or XGMI links, direct or through a switch; 0: no link
    path: str = ""  # PIX (nearest), PXB, PHB, NODE or SYS; empty: unknown


@dataclass(frozen=True, slots=True)
class Partition:
    """A set of GPUs that, according to the vendor, can work together: for example half of a
    board.
    """

    minors: tuple[int, ...]
    score: int = 1  # higher is better; partitions with equal scores form a tier
    bandwidth: int = 0  # bandwidth of a ring over its members, in GB/s; 0: unknown


@dataclass(frozen=True)
class HostDevices:
    """All devices of a host.

    Attributes:
        devices: the devices, sorted by type and minor.
        links: links between GPUs. If a pair of GPUs is not listed, it has no NVLink.
        partitions: sets of GPUs to choose from; empty: a slot can have any set.
        partitions_only: True if a slot with several whole GPUs must get one of these sets.
        fake: True if the devices do not really exist.
    """

    devices: tuple[Device, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    partitions: tuple[Partition, ...] = ()
    partitions_only: bool = False
    fake: bool = False

    @cached_property
    def types(self) -> tuple[str, ...]:
        """All types of devices that the host has, sorted."""
        return tuple(sorted({device.type for device in self.devices}))


NO_DEVICES = HostDevices()


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A slot's share of one device.

    Attributes:
        type: type of the device.
        uuid: UUID of the device.
        minor: minor number of the device when the slot got it.
        amounts: amounts by dimension. Memory of GPUs has two dimensions: bytes and ratio.
        functions: bus ids of the device's virtual functions that the slot has.
    """

    type: str
    uuid: str
    minor: int
    amounts: Pairs
    functions: tuple[str, ...] = ()


def shares_together(
    before: Iterable[DeviceShare], after: Iterable[DeviceShare]
) -> tuple[DeviceShare, ...]:
    """Returns shares that contain both `before` and `after`. They are for the time in which either
    can be in effect.

    For each device, the result has the larger amount in each dimension.
    """
    found: dict[tuple[str, str], DeviceShare] = {}
    for share in (*before, *after):
        key = (share.type, share.uuid)
        if (known := found.get(key)) is not None and known != share:
            most = dict(known.amounts)
            for name, amount in share.amounts:
                most[name] = max(amount, most.get(name, 0))
            functions = tuple(dict.fromkeys((*known.functions, *share.functions)))
            share = replace(share, amounts=pairs(most), functions=functions)  # noqa: PLW2901
        found[key] = share
    return tuple(found.values())


def ratio_to_bytes(ratio: int, total_bytes: int) -> int:
    """Returns the bytes of a share of a GPU's memory, rounded down."""
    return total_bytes * ratio // WHOLE


def bytes_to_ratio(amount_bytes: int, total_bytes: int) -> int:
    """Returns bytes as hundredths of a GPU's memory, rounded down."""
    return amount_bytes * WHOLE // total_bytes


def pairs(amounts: dict[str, int]) -> Pairs:
    """Returns amounts in their canonical form."""
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
