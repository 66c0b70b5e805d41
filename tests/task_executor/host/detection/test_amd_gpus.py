"""Finds AMD GPUs from the files of their kernel driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from finegrain.topology import HostTopology
from task_executor.host.detection import detect
from task_executor.host.devices import devices_of
from task_executor.host.nvml import NoNvml

Machine = Callable[[Mapping[str, str]], Path]
GIB = 1024**3
KFD = "sys/class/kfd/kfd/topology/nodes"
HOST = {
    "sys/devices/system/cpu/online": "0-7",
    "sys/devices/system/node/node0/cpulist": "0-3",
    "sys/devices/system/node/node1/cpulist": "4-7",
    f"{KFD}/0/gpu_id": "0",
    f"{KFD}/0/properties": "cpu_cores_count 8\nsimd_count 0\n",
}


def card(
    node: int, bus: int, unique_id: int, numa: int = 0, memory: int = 192 * GIB
) -> dict[str, str]:
    pci = f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
    return {
        f"{KFD}/{node}/gpu_id": str(1000 + node),
        f"{KFD}/{node}/name": "gfx942",
        f"{KFD}/{node}/properties": f"simd_count 304\nlocation_id {bus << 8}\ndomain 0\n"
        f"unique_id {unique_id}\nvendor_id 4098\n",
        f"{KFD}/{node}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {memory}\n",
        f"{pci}/class": "0x120000",
        f"{pci}/vendor": "0x1002",
        f"{pci}/numa_node": str(numa),
        f"{pci}/local_cpulist": "0-3" if numa == 0 else "4-7",
    }


def link(node: int, other: int, kind: int) -> dict[str, str]:
    text = f"type {kind}\nnode_from {node}\nnode_to {other}\n"
    return {f"{KFD}/{node}/io_links/{other}/properties": text}


def read(root: Path) -> HostTopology:
    return detect(root, NoNvml("no library"))


def test_everything_about_two_gpus(machine: Machine) -> None:
    first, second = card(1, 0x1B, 0xABC), card(2, 0x3D, 0xDEF, numa=1)
    second["sys/bus/pci/devices/0000:3d:00.0/product_name"] = "AMD Instinct MI300X\n"
    second["sys/bus/pci/devices/0000:3d:00.0/mem_info_vram_total"] = str(64 * GIB)
    root = machine(HOST | first | second | link(1, 2, 11) | link(2, 1, 11) | link(1, 0, 2))
    host = read(root)
    assert host.gpu_absence_reason is None
    assert host.warnings == read(root).warnings
    found = devices_of(host)
    one, two = found.devices
    assert (one.name, one.uuid, one.vendor) == ("gpu0", "GPU-0000000000000abc", "amd")
    assert (one.model, one.pci_address, one.numa_node) == ("gfx942", "0000:1b:00.0", 0)
    assert (dict(one.capacity)["gpu-memory"], one.local_cpus) == (192 * GIB, "0-3")
    assert (two.name, two.model, two.numa_node) == ("gpu1", "AMD Instinct MI300X", 1)
    assert two.memory_bytes == 64 * GIB
    assert [(each.first_uuid, each.second_uuid, each.lanes) for each in found.links] == [
        (one.uuid, two.uuid, 1)
    ]


def test_partitions_of_one_gpu_are_not_told_apart(machine: Machine) -> None:
    host = read(machine(HOST | card(1, 0x1B, 0xABC) | card(2, 0x1B, 0xABC)))
    assert len(host.gpus) == 1
    assert any("SPX" in each for each in host.warnings)


def test_a_gpu_without_memory_gets_no_work(machine: Machine) -> None:
    (device,) = devices_of(read(machine(HOST | card(1, 0x1B, 0xABC, memory=0)))).devices
    assert "memory" in device.problem


@pytest.mark.parametrize("text", ["", "unique_id -4", "location_id 99999999999999999999999", "\0"])
def test_garbled_properties_raise_no_error(text: str, machine: Machine) -> None:
    files = HOST | card(1, 0x1B, 0xABC) | {f"{KFD}/1/properties": text}
    assert len(read(machine(files)).gpus) <= 1


def test_a_card_without_its_driver(machine: Machine) -> None:
    files = {name: text for name, text in (HOST | card(1, 0x1B, 1)).items() if KFD not in name}
    host = read(machine(files))
    assert host.gpus == ()
    assert any("modprobe amdgpu" in each for each in host.warnings)
