"""Reads AMD GPUs from the files of their kernel driver (amdgpu, with its component KFD).

In KFD, both CPUs and GPUs are nodes of one topology, and a node with a GPU has a `gpu_id`. This
module computes the UUID of a GPU from its unique id, in the same way as ROCm. So
ROCR_VISIBLE_DEVICES accepts the UUID.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import Gpu, GpuHealth, GpuLink, NumaNode, PciDevice, printable
from task_executor.host.detection.pci import PCI, node_of_cpus
from task_executor.host.detection.reader import TreeReader
from task_executor.host.nvml import GpuInventory

KFD: Final = "sys/class/kfd/kfd/topology/nodes"
VENDOR: Final = "0x1002"
_XGMI: Final = 11  # the type of XGMI links in KFD, as in the CRAT table
_VRAM: Final = (1, 2)  # heap types of memory on the card: visible to CPUs, not visible to CPUs


def read_amd_gpus(
    reader: TreeReader,
    devices: Sequence[PciDevice],
    online: CpuSet,
    nodes: Sequence[NumaNode],
    first_index: int = 0,
) -> GpuInventory:
    """Returns the AMD GPUs that can compute. This function never raises.

    Args:
        reader: reads the files of the host.
        devices: the PCI devices of the host.
        online: the online CPUs.
        nodes: the NUMA nodes of the host.
        first_index: the number of the first AMD GPU, after the GPUs of other vendors.
    """
    cards = {each.bus_id: each for each in devices if each.vendor == VENDOR}
    gpus: dict[int, Gpu] = {}
    uuids: set[str] = set()
    for node in reader.numbered(KFD, ""):
        properties = _properties(reader, f"{KFD}/{node}/properties")
        # Skip a node whose `gpu_id` is 0, because the node has no GPU. Also skip a node whose
        # properties this process cannot read.
        if not reader.integer(f"{KFD}/{node}/gpu_id") or not properties:
            continue
        bus_id = _bus_id(properties)
        uuid = f"GPU-{properties.get('unique_id', 0):016x}"
        if not properties.get("unique_id"):
            # Consumer cards have no unique id. ROCm identifies such a card only by its index.
            uuid = f"GPU-{bus_id}"
        if uuid in uuids:
            reader.warn(
                f"AMD GPU {bus_id} is left out, because it is partitioned and has the same id as "
                "another one; amd-smi set --compute-partition SPX makes it one GPU"
            )
            continue
        uuids.add(uuid)
        gpus[node] = _gpu(
            reader,
            node,
            properties,
            uuid=uuid,
            number=first_index + len(gpus),
            card=cards.get(bus_id),
            online=online,
            nodes=nodes,
        )
    _warn_of_silent(reader, cards, {gpu.pci_bus_id for gpu in gpus.values()})
    return GpuInventory(tuple(gpus.values()), tuple(_links(reader, gpus)))


def _gpu(
    reader: TreeReader,
    node: int,
    properties: Mapping[str, int],
    *,
    uuid: str,
    number: int,
    card: PciDevice | None,
    online: CpuSet,
    nodes: Sequence[NumaNode],
) -> Gpu:
    bus_id = _bus_id(properties)
    memory = reader.integer(f"{PCI}/{bus_id}/mem_info_vram_total") or _memory(reader, node)
    if not memory:
        reader.warn(f"AMD GPU {bus_id} offers no capacity: the driver does not report its memory")
    cpus = (card.local_cpus if card is not None else None) or EMPTY
    numa_node = card.numa_node if card is not None else None
    if numa_node is None and cpus & online:
        numa_node = node_of_cpus(cpus & online, nodes)
    name = reader.text(f"{PCI}/{bus_id}/product_name") or reader.text(f"{KFD}/{node}/name")
    return Gpu(
        uuid=uuid,
        index=number,
        minor=number,
        pci_bus_id=bus_id,
        name=printable(name or "")[:200] or "unknown",
        memory_bytes=memory or None,
        vendor="amd",
        health=GpuHealth.OK if memory else GpuHealth.UNKNOWN,
        cpus=cpus or None,
        numa_node=numa_node,
    )


def _properties(reader: TreeReader, path: str) -> dict[str, int]:
    """Returns the numbers in the lines "name number" of a file, by name."""
    found = {}
    for line in reader.lines(path):
        name, _, text = line.strip().partition(" ")
        if text.strip().isdecimal() and text.isascii() and len(text) <= 20:
            found[name] = int(text)
    return found


def _bus_id(properties: Mapping[str, int]) -> str:
    """Returns the PCI address, from KFD's number that contains bus, device and function."""
    place = properties.get("location_id", 0)
    bus, device, function = place >> 8 & 0xFF, place >> 3 & 0x1F, place & 7
    return f"{properties.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"


def _memory(reader: TreeReader, node: int) -> int:
    """Returns the bytes of a node's memory banks that are on the card."""
    banks = f"{KFD}/{node}/mem_banks"
    found = (_properties(reader, f"{banks}/{bank}/properties") for bank in reader.names(banks))
    return sum(each.get("size_in_bytes", 0) for each in found if each.get("heap_type") in _VRAM)


def _links(reader: TreeReader, gpus: Mapping[int, Gpu]) -> Iterator[GpuLink]:
    """Yields the pairs of GPUs that XGMI connects. KFD lists each link at both of its ends."""
    seen: set[tuple[int, int]] = set()
    for node in gpus:
        folder = f"{KFD}/{node}/io_links"
        for name in reader.names(folder):
            link = _properties(reader, f"{folder}/{name}/properties")
            other = link.get("node_to", -1)
            pair = (min(node, other), max(node, other))
            if link.get("type") != _XGMI or other not in gpus or other == node or pair in seen:
                continue
            seen.add(pair)
            # KFD does not report the number of lanes of a link. So each link counts as one lane.
            yield GpuLink(gpus[pair[0]].uuid, gpus[pair[1]].uuid, 1, False, None)


def _warn_of_silent(
    reader: TreeReader, cards: Mapping[str, PciDevice], reported: set[str | None]
) -> None:
    silent = [
        bus_id
        for bus_id, card in cards.items()
        if card.kind.value in ("gpu", "accelerator")
        and not card.is_virtual_function
        and bus_id not in reported
    ]
    if silent:
        reason = (
            "the driver does not list them as compute devices"
            if reader.is_directory(KFD)
            else "the kernel driver is not loaded (modprobe amdgpu)"
        )
        reader.warn(f"AMD GPUs on the PCI bus are not offered ({', '.join(silent)}): {reason}")
