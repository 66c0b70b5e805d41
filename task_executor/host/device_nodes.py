"""Finds the device files of devices: the files that a slot can open, and the files that are closed
to the slot.

A device file is identified by its kind, major number and minor number, and not by its path. All
files with the major numbers of detected devices are closed. So devices that appear later are
closed, too. But configured devices can share their major numbers with other devices. So for
a configured device, only its own files are closed, not all files with its major number. Some files
are common to all devices of a driver: a slot with at least one of these devices can open the common
files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from finegrain.devices.device import FPGA, RDMA, Device, DeviceShare, HostDevices
from finegrain.topology import Gpu, HostTopology
from task_executor.host.detection.fpgas import REGIONS
from task_executor.host.detection.pci import PCI
from task_executor.host.detection.reader import TreeReader

_DRM: Final = ("c", 226)  # closed even if the module for graphics is loaded later
_NVIDIA_MAJOR: Final = 195
_NVIDIA_CONTROL: Final = (254, 255)  # minors: nvidia-modeset, nvidiactl
_NVIDIA_UVM: Final = (0, 1)  # minors: nvidia-uvm, nvidia-uvm-tools
_NVIDIA_MAJORS: Final = (
    "nvidia-uvm",
    "nvidia-caps",
    "nvidia-caps-imex-channels",
    "nvidia-nvlink",
    "nvidia-nvswitch",
)
"""Names, in /proc/devices, of drivers with dynamic major numbers."""
_GPUS: Final = "proc/driver/nvidia/gpus"
_CAPABILITIES: Final = "proc/driver/nvidia/capabilities"

DeviceKey = tuple[str, str]
"""Type and UUID of a device. For a virtual function, its bus id replaces the UUID."""


class Node(NamedTuple):
    """One device file."""

    kind: str  # kind of device: "c" or "b"
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class DeviceRules:
    """The device files that a slot can open, in the form of `SlotLimits`.

    Both fields contain lists of minor numbers by kind and major number ("c 195").
    """

    open: Mapping[str, str] = field(default_factory=dict)
    closed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceNodes:
    """The device files of the devices that an executor gives to slots.

    Attributes:
        own: the files that belong to only one device, by device.
        drivers: the driver of each device, as a key of `common`.
        common: the files that all devices of a driver share, by driver.
        majors: kinds and major numbers of which all files are closed, except the files of the
            slot's devices.
        open_types: types of devices that every task can open. The fields above do not contain files
            of these types.
    """

    own: Mapping[DeviceKey, frozenset[Node]] = field(default_factory=dict)
    drivers: Mapping[DeviceKey, str] = field(default_factory=dict)
    common: Mapping[str, frozenset[Node]] = field(default_factory=dict)
    majors: frozenset[tuple[str, int]] = frozenset()
    open_types: frozenset[str] = frozenset()

    @property
    def are_known(self) -> bool:
        """True if at least one known device file can be closed to slots."""
        return bool(self.own)

    def of(self, share: DeviceShare) -> frozenset[Node]:
        """Returns the files that a slot with this share can open; empty if they are not known."""
        # A slot with virtual functions of a NIC can open only these functions, not the card.
        uuids = share.functions or (share.uuid,)
        return frozenset().union(*(self.own.get((share.type, uuid), ()) for uuid in uuids))

    def rules(self, shares: Iterable[DeviceShare]) -> DeviceRules:
        """Returns the rules for a slot with these devices."""
        mine = set[Node]()
        for share in shares:
            mine |= self.of(share)
            mine |= self.common.get(self.drivers.get((share.type, share.uuid), ""), frozenset())
        guarded = frozenset[Node]().union(*self.own.values(), *self.common.values())
        closed = {node for node in guarded - mine if node[:2] not in self.majors}
        opened = {node for node in mine if node[:2] in self.majors}
        majors = {f"{kind} {number}": "" for kind, number in sorted(self.majors)}
        return DeviceRules(majors | _by_major(opened), _by_major(closed))


NO_NODES: Final = DeviceNodes()


def _by_major(nodes: Iterable[Node]) -> dict[str, str]:
    """Returns lists of minor numbers, by kind and major number. The lists use ranges to be short,
    because a message has rules for many slots.
    """
    ranges: dict[str, list[list[int]]] = {}
    for kind, major, minor in sorted(nodes):
        found = ranges.setdefault(f"{kind} {major}", [])
        if found and found[-1][1] == minor - 1:
            found[-1][1] = minor
        else:
            found.append([minor, minor])
    return {
        name: ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in found)
        for name, found in ranges.items()
    }


def read_device_nodes(
    topology: HostTopology,
    devices: HostDevices,
    files: Mapping[DeviceKey, tuple[str, ...]],
    root: Path = Path("/"),
    open_types: Iterable[str] = (),
) -> DeviceNodes:
    """Returns the device files of all devices with capacity. This function never raises.

    Args:
        topology: the detected topology of the host.
        devices: the devices that slots can have.
        files: the paths of the files of configured devices.
        root: the root of the file system.
        open_types: the types of devices that every task can open.
    """
    if devices.fake:
        return NO_NODES
    left_open = frozenset(open_types)
    guarded = [each for each in devices.devices if each.capacity and each.type not in left_open]
    found = _Search(TreeReader(root), root, topology).found(guarded, files)
    return replace(found, open_types=left_open)


class _Search:
    """Finds the device files of one host."""

    def __init__(self, reader: TreeReader, root: Path, topology: HostTopology) -> None:
        self._reader = reader
        self._root = root
        self._gpus = {gpu.uuid: gpu for gpu in topology.gpus}
        self._fpgas = {each.minor: each.name for each in topology.fpgas}
        self._own: dict[DeviceKey, frozenset[Node]] = {}
        self._drivers: dict[DeviceKey, str] = {}
        self._common: dict[str, frozenset[Node]] = {}
        self._majors = set[tuple[str, int]]()
        self._numbers = _majors_by_name(reader)

    def found(
        self, devices: Iterable[Device], files: Mapping[DeviceKey, tuple[str, ...]]
    ) -> DeviceNodes:
        for device in devices:
            key = device.type, device.uuid
            gpu = self._gpus.get(device.parent_uuid or device.uuid)
            if key in files:
                self._keep(key, self._configured(files[key]))
            elif gpu is not None:
                self._gpu(device, gpu)
            elif device.type == RDMA:
                self._nic(device)
            elif device.type == FPGA and device.minor in self._fpgas:
                region = f"{REGIONS}/{self._fpgas[device.minor]}"
                self._keep(key, self._below(region, "dfl-"), "fpga")
        return DeviceNodes(self._own, self._drivers, self._common, frozenset(self._majors))

    def _keep(self, key: DeviceKey, nodes: Iterable[Node], driver: str = "") -> None:
        """Records the files of a device. If a driver is named, closes all files with the same major
        numbers.
        """
        if found := frozenset(nodes):
            self._own[key] = found
        if driver:
            self._drivers[key] = driver
            self._majors |= {(node.kind, node.major) for node in found}

    def _configured(self, paths: Iterable[str]) -> Iterator[Node]:
        for path in paths:
            try:
                status = (self._root / path.lstrip("/")).stat()
            except (OSError, ValueError):
                continue
            kind = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}.get(stat.S_IFMT(status.st_mode))
            if kind is not None:
                yield Node(kind, os.major(status.st_rdev), os.minor(status.st_rdev))

    def _below(self, folder: str, prefix: str = "") -> Iterator[Node]:
        """Yields a device file for each device in a folder of /sys. The folder of each device has a
        file `dev` with the major and minor numbers.
        """
        for name in self._reader.names(folder):
            if name.startswith(prefix):
                yield from self._node(f"{folder}/{name}/dev")

    def _node(self, path: str) -> Iterator[Node]:
        major, _, minor = (self._reader.text(path) or "").partition(":")
        if major.isdecimal() and minor.isdecimal() and len(major + minor) < 12:
            yield Node("c", int(major), int(minor))

    def _gpu(self, device: Device, gpu: Gpu) -> None:
        nodes = set(self._below(f"{PCI}/{device.pci_address}/drm"))
        driver = gpu.vendor
        if driver == "nvidia":
            minor = self._nvidia_minor(device.pci_address, gpu)
            if device.parent_uuid:  # a MIG instance has no graphics files
                nodes = self._capabilities(device.uuid, gpu, minor)
            if minor is not None:
                nodes.add(Node("c", _NVIDIA_MAJOR, minor))
        self._keep((device.type, device.uuid), nodes, driver)
        self._majors.add(_DRM)
        if driver in self._common:
            return
        if driver == "nvidia":
            self._common[driver] = frozenset(self._nvidia())
        elif driver == "amd":
            self._common[driver] = frozenset(self._node("sys/class/kfd/kfd/dev"))
        else:
            return
        self._majors |= {node[:2] for node in self._common[driver]}

    def _nvidia_minor(self, pci_address: str, gpu: Gpu) -> int | None:
        """Returns the present minor number. After a reset of the GPU, this number can differ from
        the number at the start.
        """
        minor = self._number(f"{_GPUS}/{pci_address}/information", "Device Minor")
        return gpu.minor if minor is None else minor

    def _nvidia(self) -> Iterator[Node]:
        """Yields the common files of NVIDIA GPUs, and closes all major numbers of the driver."""
        for minor in _NVIDIA_CONTROL:
            yield Node("c", _NVIDIA_MAJOR, minor)
        # The driver makes these files when they are first used. If one of the drivers has no major
        # number yet, its files need no rule: a task that cannot open the files of a GPU can do
        # nothing with them.
        for name in _NVIDIA_MAJORS:
            self._majors |= {("c", number) for number in self._numbers.get(name, ())}
        for number in self._numbers.get("nvidia-uvm", ()):
            yield from (Node("c", number, minor) for minor in _NVIDIA_UVM)
        for number in self._numbers.get("nvidia-caps-imex-channels", ()):
            channels = self._reader.numbered("dev/nvidia-caps-imex-channels", "channel")
            yield from (Node("c", number, minor) for minor in channels)

    def _capabilities(self, uuid: str, gpu: Gpu, minor: int | None) -> set[Node]:
        """Returns the two files that give access to a MIG instance."""
        number = next(iter(self._numbers.get("nvidia-caps", ())), None)
        instance = next((each for each in gpu.mig_instances if each.uuid == uuid), None)
        if number is None or instance is None:
            return set()
        folder = f"{_CAPABILITIES}/gpu{minor}/mig/gi{instance.gpu_instance}"
        places = (f"{folder}/access", f"{folder}/ci{instance.compute_instance}/access")
        minors = (self._number(path, "DeviceFileMinor") for path in places)
        return {Node("c", number, each) for each in minors if each is not None}

    def _number(self, path: str, wanted: str) -> int | None:
        """Returns the number in the line "wanted: number" of a file; None if there is no such
        line.
        """
        for line in self._reader.lines(path):
            name, _, number = line.partition(":")
            if name == wanted and number.strip().isdecimal():
                return int(number.strip()[:9])
        return None

    def _nic(self, device: Device) -> None:
        for bus_id in (device.uuid, *(each.bus_id for each in device.functions)):
            nodes = set(self._below(f"{PCI}/{bus_id}/infiniband_verbs"))
            nodes |= set(self._below(f"{PCI}/{bus_id}/infiniband_mad", "umad"))
            self._keep((device.type, bus_id), nodes, RDMA)
        if RDMA not in self._common:
            self._common[RDMA] = frozenset(self._node("sys/class/misc/rdma_cm/dev"))


def _majors_by_name(reader: TreeReader) -> dict[str, tuple[int, ...]]:
    """Returns the major numbers of character devices, by the name of their driver."""
    found: dict[str, tuple[int, ...]] = {}
    for line in reader.lines("proc/devices"):
        if line.startswith("Block"):
            break
        number, _, name = line.strip().partition(" ")
        if number.isdecimal() and len(number) < 6:
            found[name] = (*found.get(name, ()), int(number))
    return found
