"""Reads fake GPUs: an NVML source that returns the GPUs of a recorded or invented machine.

The source reads profiles in two schemas: `gpu_topology/1` (a link matrix) and `gpu_listing/1` (a
listing with MIG instances). Examples are in `tests/data/gpu_topologies`. If a profile lacks a value
(UUID, memory), the source computes the value from the profile. So the same profile always gives the
same machine.
"""

import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from finegrain.resources import GIB
from finegrain.topology import Gpu, GpuLink, MigInstance, PciDevice, PciKind
from task_executor.host.nvml import GpuInventory

_NAMESPACE: Final = uuid.UUID("8c0b5cf6-6f3c-4b52-9a53-1e0a4e6f2d11")
_BELOW_ONE_SWITCH: Final = ("PIX", "PXB")
_LANES: Final = re.compile(r"(?:NV|XGMI)(\d+)", re.ASCII)
_GPU_LINE: Final = re.compile(r"GPU (\d+): (.+) \(UUID: (\S+)\)", re.ASCII)
_MIG_LINE: Final = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", re.ASCII)
_MIG_MEMORY: Final = re.compile(r"\.(\d+)gb", re.ASCII)


class FakeNvml:
    """A source that returns `inventory`. Tests assign `inventory` to change the machine."""

    def __init__(self, inventory: GpuInventory) -> None:
        self.inventory = inventory

    def read(self) -> GpuInventory:
        return self.inventory

    @classmethod
    def from_file(cls, path: Path, memory_bytes: int = 80 * GIB) -> "FakeNvml":
        """Returns the machine that a profile file describes.

        Args:
            path: the profile file.
            memory_bytes: the memory of each GPU, if the profile does not contain it.

        Raises:
            InvalidArgument: the schema is unknown.
        """
        return cls(inventory_from_profile(json.loads(path.read_text()), memory_bytes))


def inventory_from_profile(profile: Mapping[str, Any], memory_bytes: int) -> GpuInventory:
    """Returns the GPUs of a profile.

    Args:
        profile: the content of a profile file.
        memory_bytes: the memory of each GPU, if the profile does not contain it.

    Raises:
        InvalidArgument: the schema is unknown.
    """
    schema = profile.get("schema")
    if schema == "gpu_topology/1":
        return _from_matrix(profile, memory_bytes)
    if schema == "gpu_listing/1":
        return GpuInventory(gpus=_from_listing(profile["listing"], memory_bytes))
    raise InvalidArgument("schema", schema, "gpu_topology/1 or gpu_listing/1")


def nics_from_profile(profile: Mapping[str, Any]) -> tuple[PciDevice, ...]:
    """Returns the NICs of a profile with a link matrix, in the form of detected PCI devices."""
    groups = _pcie_groups(profile)
    return tuple(
        PciDevice(
            bus_id=nic.get("pci_busid") or f"fake-{nic['name']}",
            kind=PciKind.INFINIBAND,
            pci_class="0x020700",
            vendor="",
            device="",
            numa_node=None,
            reported_numa_node=None,
            local_cpus=None,
            is_virtual_function=False,
            infiniband=(nic.get("device") or nic["name"],),
            pcie_group=groups[nic["name"]],
        )
        for nic in profile["nics"]
    )


def _pcie_groups(profile: Mapping[str, Any]) -> dict[str, str]:
    """Returns a name for the PCIe switch of each GPU and NIC.

    Devices have the same name if the path between them crosses only PCIe switches.
    """
    order, matrix = profile["order"], profile["matrix"]
    groups = {name: f"switch-{name}" for name in order}
    for row, first in zip(matrix, order, strict=True):
        for link, second in zip(row, order, strict=True):
            if link in _BELOW_ONE_SWITCH and groups[first] != groups[second]:
                kept, merged = sorted((groups[first], groups[second]))
                groups = {name: kept if its == merged else its for name, its in groups.items()}
    return groups


def _from_matrix(profile: Mapping[str, Any], memory_bytes: int) -> GpuInventory:
    name = str(profile["name"])
    groups = _pcie_groups(profile)
    gpus = tuple(
        Gpu(
            uuid=_made_up_uuid(name, told["index"]),
            index=told["index"],
            minor=told["index"],
            pci_bus_id=told.get("pci_busid"),
            name=profile.get("gpu_model") or "unknown",
            memory_bytes=memory_bytes,
            cpus=CpuSet.parse(told["cpu_affinity"]) if told.get("cpu_affinity") else None,
            memory_numa_node=_node_id(told.get("gpu_numa_id")),
            vendor=profile.get("vendor", "nvidia"),
            pcie_group=groups[f"GPU{told['index']}"],
        )
        for told in profile["gpus"]
    )
    links = tuple(
        _link(first, second, profile["matrix"][position][position + 1 + offset])
        for position, first in enumerate(gpus)
        for offset, second in enumerate(gpus[position + 1 :])
    )
    return GpuInventory(gpus, links)


def _made_up_uuid(machine: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{machine}/{index}')}"


def _link(first: Gpu, second: Gpu, link_class: str | None) -> GpuLink:
    lanes = _LANES.fullmatch(link_class or "")
    return GpuLink(
        first_uuid=first.uuid,
        second_uuid=second.uuid,
        nvlink_count=int(lanes.group(1)) if lanes else 0,
        via_switch=False,
        common_ancestor=None if lanes else link_class,
    )


def _from_listing(lines: list[str], memory_bytes: int) -> tuple[Gpu, ...]:
    """Returns the GPUs of `nvidia-smi -L` output, each with its MIG instances."""
    found: list[tuple[re.Match[str], list[MigInstance]]] = []
    # The line of a GPU comes first, then the lines of its MIG instances.
    for line in lines:
        gpu, mig = _GPU_LINE.match(line), _MIG_LINE.match(line)
        if gpu is not None:
            found.append((gpu, []))
        elif mig is not None and found:
            size = _MIG_MEMORY.search(mig.group(1))
            found[-1][1].append(
                MigInstance(
                    uuid=mig.group(2),
                    profile=mig.group(1),
                    memory_bytes=int(size.group(1)) * GIB if size else None,
                    multiprocessor_count=None,
                )
            )
    return tuple(
        Gpu(
            uuid=gpu.group(3),
            index=int(gpu.group(1)),
            minor=int(gpu.group(1)),
            name=gpu.group(2),
            memory_bytes=memory_bytes,
            mig_enabled=bool(instances),
            mig_instances=tuple(instances),
        )
        for gpu, instances in found
    )


def _node_id(value: Any) -> int | None:
    return int(value) if value is not None and str(value).isdecimal() else None
