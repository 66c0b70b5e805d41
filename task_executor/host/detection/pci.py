"""Finds GPUs, accelerators, NICs and NVMe on the PCI bus, and the nearest NUMA node of each device.

The PCI class alone does not identify a GPU: the graphics of a board's management processor is also
a VGA controller. So vendor and driver decide. The value -1 of numa_node means that the node is
unknown, which is common even on hosts with many nodes. In this case, the device's own CPU list
shows the node, if the list does not contain all CPUs. Otherwise a bridge above the device shows the
node, or the node stays unknown.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from finegrain.cpuset import CpuSet
from finegrain.topology import NumaNode, PciDevice, PciKind, printable
from task_executor.host.detection.reader import TreeReader

PCI: Final = "sys/bus/pci/devices"
INFINIBAND: Final = "sys/class/infiniband"
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_GPU_VENDORS: Final = frozenset({"0x10de", "0x1002", "0x8086"})
_KIND_BY_CLASS: Final = {
    "0302": PciKind.GPU,
    "0380": PciKind.GPU,
    "0b40": PciKind.COPROCESSOR,
    "0200": PciKind.ETHERNET,
    "0207": PciKind.INFINIBAND,
    "0280": PciKind.NETWORK,
    "0108": PciKind.NVME,
}
_CARD: Final = re.compile(r"card\d+", re.ASCII)


def read_pci(
    reader: TreeReader, online: CpuSet, nodes: Sequence[NumaNode]
) -> tuple[PciDevice, ...] | None:
    """Returns the devices, sorted by bus id; None if the host has no PCI bus.

    Args:
        reader: reads the files of the host.
        online: the online CPUs.
        nodes: the NUMA nodes of the host.
    """
    if not reader.is_directory(PCI):
        return None
    nvidia = set(reader.names("proc/driver/nvidia/gpus"))
    devices = []
    for name in reader.names(PCI):
        if _BUS_ID.fullmatch(name):
            device = _read_device(reader, name, name in nvidia, online, nodes)
            if device is not None:
                devices.append(device)
    return tuple(devices)


def _read_device(
    reader: TreeReader,
    bus_id: str,
    known_to_nvidia: bool,
    online: CpuSet,
    nodes: Sequence[NumaNode],
) -> PciDevice | None:
    path = f"{PCI}/{bus_id}"
    pci_class = (reader.text(f"{path}/class") or "").lower()
    vendor = (reader.text(f"{path}/vendor") or "").lower()
    kind = _kind(pci_class, vendor, known_to_nvidia)
    if kind is None:
        return None
    infiniband = tuple(reader.names(f"{path}/infiniband"))
    return PciDevice(
        bus_id=bus_id,
        kind=kind,
        pci_class=pci_class,
        vendor=vendor,
        device=(reader.text(f"{path}/device") or "").lower(),
        numa_node=_nearest_node(reader, path, online, nodes),
        reported_numa_node=reader.integer(f"{path}/numa_node"),
        local_cpus=_local_cpus(reader, path, online),
        is_virtual_function=reader.exists(f"{path}/physfn"),
        net=tuple(reader.names(f"{path}/net")),
        infiniband=infiniband,
        drm=tuple(name for name in reader.names(f"{path}/drm") if _CARD.fullmatch(name)),
        mic=tuple(reader.names(f"{path}/mic")),
        pcie_group=_pcie_group(reader, path),
        physical_function=_physical_function(reader, path),
        problem=_port_problem(reader, infiniband),
    )


def _physical_function(reader: TreeReader, path: str) -> str:
    """Returns the bus id of the card to which a virtual function belongs; empty for a card."""
    name = (reader.resolved(f"{path}/physfn") or "").rsplit("/", 1)[-1]
    return name if _BUS_ID.fullmatch(name) else ""


def _port_problem(reader: TreeReader, infiniband: Sequence[str]) -> str:
    """Returns the reason why an RDMA interface cannot send; empty if a port is active, or if no
    state is known.
    """
    states: dict[str, str] = {}
    for name in infiniband:
        ports = f"{INFINIBAND}/{name}/ports"
        for port in reader.names(ports):
            state = reader.text(f"{ports}/{port}/state")  # for example "4: ACTIVE"
            if state:
                states[f"{name} port {port}"] = printable(state.rsplit(":", 1)[-1])
    if not states or any(state == "ACTIVE" for state in states.values()):
        return ""
    shown = ", ".join(f"{port} is {state}" for port, state in list(states.items())[:2])[:100]
    return f"no port is active ({shown}): check the cable, the switch and the subnet manager"


def _pcie_group(reader: TreeReader, path: str) -> str:
    """Returns the bus id of the PCIe switch above a device, or of the root port if the device has
    no switch.

    A switch is an upstream port, with a downstream port for each device below it. So the path of a
    device behind a switch is: root port, upstream port, downstream port, device.
    """
    bridges = [
        place.rsplit("/", 1)[-1]
        for place in list(_with_bridges(reader, path))[1:]
        if _BUS_ID.fullmatch(place.rsplit("/", 1)[-1])
    ]
    if not bridges:
        return ""
    return bridges[1] if len(bridges) > 2 else bridges[-1]


def _kind(pci_class: str, vendor: str, known_to_nvidia: bool) -> PciKind | None:
    code = pci_class.removeprefix("0x")[:4]
    if code == "0300":
        return PciKind.GPU if vendor in _GPU_VENDORS or known_to_nvidia else PciKind.DISPLAY
    if code.startswith("12"):
        return PciKind.ACCELERATOR
    return _KIND_BY_CLASS.get(code)


def _local_cpus(reader: TreeReader, path: str, online: CpuSet) -> CpuSet | None:
    cpus = reader.cpu_list(f"{path}/local_cpulist")
    if cpus is None:
        cpus = reader.cpu_mask(f"{path}/local_cpus")
    return None if cpus is None else cpus & online


def _nearest_node(
    reader: TreeReader, path: str, online: CpuSet, nodes: Sequence[NumaNode]
) -> int | None:
    """Returns the id of the node to which the device is attached; None if the node is not known."""
    # A host with one node needs no search.
    if len(nodes) < 2:
        return nodes[0].id if nodes else None
    # Try the device itself first, and then the bridges above the device. The first known node is
    # the result.
    for place in _with_bridges(reader, path):
        reported = reader.integer(f"{place}/numa_node")
        # The value -1, or a node without a directory, means that the node is not known.
        if reported is not None and any(node.id == reported for node in nodes):
            return reported
        cpus = _local_cpus(reader, place, online)
        # A list of all cpus means that the firmware does not know the nearest cpus.
        if cpus and cpus != online:
            node_id = node_of_cpus(cpus, nodes)
            if node_id is not None:
                return node_id
    return None


def node_of_cpus(cpus: CpuSet, nodes: Sequence[NumaNode]) -> int | None:
    """Returns the node that has all these CPUs; None if there is no such node."""
    holders = [node.id for node in nodes if not node.cpus.isdisjoint(cpus)]
    return holders[0] if len(holders) == 1 else None


def _with_bridges(reader: TreeReader, path: str) -> Iterator[str]:
    """Yields the device, then the bridges above it up to the host bridge."""
    yield path
    real = reader.resolved(path)
    # The loop ends at the host bridge, whose name is not a bus id.
    while real is not None and "/" in real:
        real = real.rsplit("/", 1)[0]
        if not _BUS_ID.fullmatch(real.rsplit("/", 1)[-1]):
            if real.rsplit("/", 1)[-1].startswith("pci"):
                yield real
            return
        yield real
