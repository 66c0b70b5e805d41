"""The devices of a host, as an executor announces them.

A device is identified by type and UUID. Its minor number may change with a restart of the host. All
amounts are integers: shares in hundredths of a device, memory in bytes.
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
    """A virtual function of a NIC, which one slot can have for itself."""

    bus_id: str
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a host.

    Attributes:
        type: "gpu", "rdma", "fpga", the profile of a MIG instance ("mig-1g.10gb"), or a type that
            the operator configured.
        uuid: identity, which stays the same after a restart or in another PCI slot.
        minor: number of the device on its host, as long as the host runs.
        capacity: what slots can have of it when it is healthy, by dimension.
        vendor: such as "nvidia"; empty: unknown.
        model: as the vendor names it.
        numa_node: id of the NUMA node that it is attached to; None: unknown.
        pcie_group: names the PCIe switch or root port above it; devices with equal names are near
            to each other. Empty: unknown.
        pci_address: such as "0000:3b:00.0".
        labels: further properties that requests can select by.
        functions: its virtual functions.
        parent_uuid: the GPU that a MIG instance is a part of.
        whole_only: no slot can have a part of it.
        problem: why it gets no new work; empty: it is healthy.
        memory_bytes: memory of the device, as the vendor states it.
        driver_bytes: memory that the driver reserves, which is no part of the capacity.
        local_cpus: cpus close to it, as a cpu list.
        levels: how strictly its executor can hold a slot to a share of it, by dimension, and to the
            whole device ("whole"); see `finegrain/devices/levels.py`.
        parking: how slots that have it can be parked: "same-gpu" or "any-gpu"; empty: not at all.
            See `finegrain/devices/parking.py`.
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
        """The device as people name it: "gpu3"."""
        return f"{self.type}{self.minor}"


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """How two GPUs of a host are connected, other than by their place on the PCIe bus."""

    first_uuid: str
    second_uuid: str
    lanes: int = 0  # bonded NVLink or XGMI links, direct or through a switch; 0: none
    path: str = ""  # nearest first: PIX, PXB, PHB, NODE, SYS; empty: unknown


@dataclass(frozen=True, slots=True)
class Partition:
    """A set of GPUs that the vendor lets work together, such as one half of a board."""

    minors: tuple[int, ...]
    score: int = 1  # higher is better; partitions of equal score are a tier
    bandwidth: int = 0  # of a ring over its members, in GB/s; 0: unknown


@dataclass(frozen=True)
class HostDevices:
    """All devices of a host.

    Attributes:
        devices: by type and minor, ascending.
        links: between GPUs; pairs that are not listed have no NVLink.
        partitions: sets of GPUs to choose from; empty: any set may be used.
        partitions_only: GPUs are given out in these sets only, if a slot has several whole ones.
        fake: no real devices are behind them.
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
    """What a slot has of one device.

    Attributes:
        type: of the device.
        uuid: of the device.
        minor: of the device when it was given to the slot.
        amounts: by dimension, memory both in bytes and as a ratio.
        functions: bus ids of its virtual functions that belong to the slot.
    """

    type: str
    uuid: str
    minor: int
    amounts: Pairs
    functions: tuple[str, ...] = ()


def shares_together(
    before: Iterable[DeviceShare], after: Iterable[DeviceShare]
) -> tuple[DeviceShare, ...]:
    """Returns what a slot has while either of two sets of shares may be in force: of each device
    the larger amount in each dimension.
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
