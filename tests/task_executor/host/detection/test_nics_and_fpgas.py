"""Finds NICs with RDMA, their ports and virtual functions, and FPGAs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from finegrain.devices.device import Device
from task_executor.host.detection import detect
from task_executor.host.devices import devices_of

Machine = Callable[[Mapping[str, str]], Path]
HOST = {
    "sys/devices/system/cpu/online": "0-7",
    "sys/devices/system/node/node0/cpulist": "0-3",
    "sys/devices/system/node/node1/cpulist": "4-7",
}
PCI = "sys/bus/pci/devices"
NIC = {
    f"{PCI}/0000:5e:00.0/class": "0x020700",
    f"{PCI}/0000:5e:00.0/vendor": "0x15b3",
    f"{PCI}/0000:5e:00.0/numa_node": "1",
    f"{PCI}/0000:5e:00.0/infiniband/mlx5_0/name": "mlx5_0",
}
PORT = "sys/class/infiniband/mlx5_0/ports"
FPGA = "sys/devices/pci0000:3a/0000:3b:00.0"


def found(root: Path) -> tuple[Device, ...]:
    return devices_of(detect(root)).devices


@pytest.mark.parametrize(
    ("ports", "problem"),
    [
        pytest.param({}, "", id="unknown"),
        pytest.param({"1/state": "4: ACTIVE"}, "", id="active"),
        pytest.param({"1/state": "1: DOWN", "2/state": "4: ACTIVE"}, "", id="one of two"),
        pytest.param({"1/state": "1: DOWN"}, "mlx5_0 port 1 is DOWN", id="down"),
    ],
)
def test_a_nic_needs_an_active_port(ports: dict[str, str], problem: str, machine: Machine) -> None:
    files = HOST | NIC | {f"{PORT}/{name}": text for name, text in ports.items()}
    (nic,) = found(machine(files))
    assert (nic.name, nic.numa_node, nic.model) == ("rdma0", 1, "mlx5_0")
    assert (problem in nic.problem) if problem else nic.problem == ""


def test_virtual_functions_belong_to_their_card(machine: Machine) -> None:
    part = f"{PCI}/0000:5e:00.1"
    root = machine(
        HOST
        | NIC
        | {
            f"{part}/class": "0x020700",
            f"{part}/vendor": "0x15b3",
            f"{part}/infiniband/mlx5_1/name": "mlx5_1",
        }
    )
    (root / part / "physfn").symlink_to("../0000:5e:00.0")
    (nic,) = found(root)
    assert [each.bus_id for each in nic.functions] == ["0000:5e:00.1"]


@pytest.mark.parametrize(
    ("state", "problem"),
    [("operating", ""), ("unknown", ""), ("write error", "write error")],
)
def test_fpgas(state: str, problem: str, machine: Machine) -> None:
    region = f"{FPGA}/fpga_region/region0"
    root = machine(
        HOST
        | {
            f"{region}/compat_id": "1",
            f"{region}/fpga_region/region1/compat_id": "2",
            f"{FPGA}/numa_node": "1",
            f"{FPGA}/fpga_manager/fpga0/name": "Intel FPGA Manager",
            f"{FPGA}/fpga_manager/fpga0/state": state,
        }
    )
    regions = root / "sys/class/fpga_region"
    regions.mkdir(parents=True)
    (regions / "region0").symlink_to(root / region)
    (regions / "region1").symlink_to(root / region / "fpga_region/region1")
    (device,) = found(root)
    assert (device.name, device.uuid) == ("fpga0", "0000:3b:00.0/region0")
    assert (device.model, device.numa_node) == ("Intel FPGA Manager", 1)
    assert (problem in device.problem) if problem else device.problem == ""
