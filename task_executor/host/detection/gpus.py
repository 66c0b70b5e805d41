"""Combines the data of the GPU driver and of the PCI bus about GPUs.

The NUMA node of a GPU is the node of its PCI device. The driver's CPU affinity contains only CPUs
in the cpuset of the caller, so it can be empty for a GPU of another socket. On some hosts, the
driver reports the NUMA node of the GPU's own memory. Such a node has no CPUs. So this module does
not use the node.
"""

import dataclasses
from collections.abc import Sequence

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import Gpu, NumaNode, PciDevice, PciKind
from task_executor.host.detection.amd import read_amd_gpus
from task_executor.host.detection.pci import node_of_cpus
from task_executor.host.detection.reader import TreeReader
from task_executor.host.nvml import GpuInventory, NvmlSource

_NVIDIA = "0x10de"


def read_gpus(
    reader: TreeReader,
    source: NvmlSource | None,
    devices: Sequence[PciDevice],
    online: CpuSet,
    nodes: Sequence[NumaNode],
) -> GpuInventory:
    """Returns the NVIDIA and AMD GPUs with their NUMA nodes.

    The function adds a warning for each GPU on the PCI bus that cannot be offered.

    Args:
        reader: reads the files of the host.
        source: the source of NVIDIA GPUs; None: do not search for NVIDIA GPUs.
        devices: the PCI devices of the host.
        online: the online CPUs.
        nodes: the NUMA nodes of the host.
    """
    if source is None:
        inventory = GpuInventory(absence_reason="there was no search for GPUs")
    else:
        inventory = source.read()
    for warning in inventory.warnings:
        reader.warn(warning)
    cards = [each for each in devices if each.kind is PciKind.GPU and not each.is_virtual_function]
    reported = {gpu.pci_bus_id for gpu in inventory.gpus}
    # If the bus reports a card but the driver does not, the card is broken or its driver is
    # missing.
    silent = [
        card.bus_id for card in cards if card.vendor == _NVIDIA and card.bus_id not in reported
    ]
    if source is not None and silent:
        reason = inventory.absence_reason or "the driver does not list them"
        reader.warn(f"NVIDIA GPUs on the PCI bus are not offered ({', '.join(silent)}): {reason}")
    by_bus_id = {card.bus_id: card for card in devices}
    placed = tuple(_placed(gpu, by_bus_id, online, nodes) for gpu in inventory.gpus)
    if source is None or inventory.complete:
        return dataclasses.replace(inventory, gpus=placed)
    # Minor numbers must be unique on a host, so the numbers of AMD GPUs begin after the NVIDIA
    # GPUs.
    numbers = (max(gpu.index, gpu.minor or 0) for gpu in placed)
    amd = read_amd_gpus(reader, devices, online, nodes, max(numbers, default=-1) + 1)
    # On a host with AMD GPUs and without NVIDIA cards, a missing NVIDIA driver is no problem.
    absence_reason = None if amd.gpus and not silent else inventory.absence_reason
    return dataclasses.replace(
        inventory,
        gpus=(*placed, *amd.gpus),
        links=(*inventory.links, *amd.links),
        absence_reason=absence_reason,
    )


def _placed(
    gpu: Gpu, cards: dict[str, PciDevice], online: CpuSet, nodes: Sequence[NumaNode]
) -> Gpu:
    card = cards.get(gpu.pci_bus_id) if gpu.pci_bus_id else None
    cpus = (gpu.cpus or EMPTY) & online
    # Use the most reliable source first: the bus, then the driver's affinity. The last choice is
    # the only node of a host with one node.
    node_id = None if card is None else card.numa_node
    if node_id is None and cpus:
        node_id = node_of_cpus(cpus, nodes)
    if node_id is None and len(nodes) == 1:
        node_id = nodes[0].id
    # Ignore a node without CPUs, because it is the GPU's own memory or other memory.
    if node_id is not None and not any(node.id == node_id and node.cpus for node in nodes):
        node_id = None
    if not cpus and card is not None:
        cpus = card.local_cpus or EMPTY
    return dataclasses.replace(gpu, cpus=cpus or None, numa_node=node_id)
