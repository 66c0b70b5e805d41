"""Returns the devices that slots can have, from the detected hardware.

Slots can have the instances of a GPU in MIG mode, but not the GPU itself. If a GPU does not answer,
the executor registers the GPU with the reason, and the GPU gets no work. Only NICs with an RDMA
interface are devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from finegrain.devices.device import (
    FPGA,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA,
    WHOLE,
    Device,
    DeviceLink,
    HostDevices,
    VirtualFunction,
    pairs,
)
from finegrain.devices.names import MIG_PREFIX
from finegrain.topology import Fpga, Gpu, GpuHealth, GpuLink, HostTopology, PciDevice

_ON_ONE_BOARD: Final = "INTERNAL"  # the GPUs are nearer than PIX (a common PCIe switch)
_PROBLEMS: Final = {
    GpuHealth.LOST: "the GPU has fallen off the bus; reset the host",
    GpuHealth.UNKNOWN: "the driver does not report the GPU's memory",
    GpuHealth.FAULTY: "the driver asks for a repair of the GPU",
}


def devices_of(
    topology: HostTopology, *, configured: Iterable[Device] = (), fake: bool = False
) -> HostDevices:
    """Returns the devices of a host.

    Args:
        topology: the detected topology of the host.
        configured: the devices of configured types.
        fake: True if the GPUs are fake.
    """
    groups = {each.bus_id: each.pcie_group for each in topology.pci_devices}
    # Users do not know the minor numbers of MIG instances, so instances are numbered by type.
    counts: dict[str, int] = {}
    gpus = []
    for device in (device for gpu in topology.gpus for device in _of_gpu(gpu, groups)):
        if device.parent_uuid:
            minor = counts[device.type] = counts.get(device.type, -1) + 1
            gpus.append(replace(device, minor=minor))
        else:
            gpus.append(device)
    return HostDevices(
        (*gpus, *_nics(topology.pci_devices), *_fpgas(topology.fpgas, groups), *configured),
        tuple(_links(topology.gpu_links)),
        fake=fake,
    )


def _problem_of(gpu: Gpu) -> str:
    return gpu.problem or _PROBLEMS.get(gpu.health, "")


def _of_gpu(gpu: Gpu, groups: dict[str, str]) -> Iterator[Device]:
    """Yields the GPU itself or, in MIG mode, its instances."""
    address = gpu.pci_bus_id or ""
    if not gpu.mig_enabled:
        amounts = {GPU_CORE: WHOLE, GPU_MEMORY_RATIO: WHOLE, GPU_MEMORY: gpu.memory_bytes or 0}
        yield Device(
            GPU,
            gpu.uuid,
            gpu.index if gpu.minor is None else gpu.minor,
            pairs(amounts),
            vendor=gpu.vendor,
            model=gpu.name,
            numa_node=gpu.numa_node,
            pcie_group=gpu.pcie_group or groups.get(address, ""),
            pci_address=address,
            problem=_problem_of(gpu),
            memory_bytes=(gpu.memory_bytes or 0) + gpu.driver_bytes,
            driver_bytes=gpu.driver_bytes,
            local_cpus="" if gpu.cpus is None else str(gpu.cpus),
        )
        return
    for instance in gpu.mig_instances:
        type_ = f"{MIG_PREFIX}{instance.profile or 'unknown'}"
        yield Device(
            type_,
            instance.uuid,
            0,
            ((type_, WHOLE),),
            vendor=gpu.vendor,
            model=gpu.name,
            numa_node=gpu.numa_node,
            pcie_group=gpu.pcie_group or groups.get(address, ""),
            pci_address=address,
            parent_uuid=gpu.uuid,
            whole_only=True,
            problem=_problem_of(gpu),
            memory_bytes=instance.memory_bytes or 0,
        )


def _nics(devices: Iterable[PciDevice]) -> Iterator[Device]:
    """Yields the NICs with an RDMA interface. A virtual function is not a separate NIC."""
    found = [each for each in devices if each.infiniband]
    cards = [each for each in found if not each.is_virtual_function]
    functions: dict[str, list[VirtualFunction]] = {}
    for each in found:
        if each.physical_function:
            functions.setdefault(each.physical_function, []).append(VirtualFunction(each.bus_id))
    for minor, card in enumerate(cards):
        yield Device(
            RDMA,
            card.bus_id,
            minor,
            ((RDMA, WHOLE),),
            model=", ".join(card.infiniband),
            numa_node=card.numa_node,
            pcie_group=card.pcie_group,
            pci_address=card.bus_id,
            functions=tuple(functions.get(card.bus_id, ())),
            problem=card.problem,
            local_cpus="" if card.local_cpus is None else str(card.local_cpus),
        )


def _fpgas(fpgas: Iterable[Fpga], groups: dict[str, str]) -> Iterator[Device]:
    """Yields the regions of FPGAs that can be programmed."""
    for each in fpgas:
        address = each.pci_bus_id or ""
        yield Device(
            FPGA,
            # The kernel does not know the serial number of a board, so its PCI address identifies
            # it.
            f"{address}/{each.name}" if address else each.name,
            each.minor,
            ((FPGA, WHOLE),),
            model=each.model,
            numa_node=each.numa_node,
            pcie_group=groups.get(address, ""),
            pci_address=address,
            problem=each.problem,
        )


def _links(links: Iterable[GpuLink]) -> Iterator[DeviceLink]:
    for link in links:
        path = link.common_ancestor or ""
        path = "PIX" if path == _ON_ONE_BOARD else path
        yield DeviceLink(link.first_uuid, link.second_uuid, link.nvlink_count, path)
