"""Which files belong to a device, and which files a slot can open because of its devices."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from finegrain.devices.device import GPU, RDMA, Device, DeviceShare, HostDevices
from finegrain.errors import InvalidArgument
from finegrain.topology import Gpu, HostTopology, MigInstance
from task_executor.host.configured_devices import discover
from task_executor.host.detection import detect
from task_executor.host.device_nodes import (
    NO_NODES,
    DeviceNodes,
    DeviceRules,
    Node,
    read_device_nodes,
)
from task_executor.host.devices import devices_of
from task_executor.host.nvml import NoNvml
from task_executor.options import DeviceType
from task_executor.service.host_plan import plan_host
from tests.task_executor.host.detection.test_amd_gpus import HOST, card
from tests.task_executor.host.detection.test_nics_and_fpgas import NIC
from tests.task_executor.service.test_start import options

Machine = Callable[[Mapping[str, str]], Path]
PCI = "sys/bus/pci/devices"
GIB = 1024**3
NUMBERS = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
226 drm
234 nvidia-nvswitch
235 nvidia-caps
236 nvidia-caps-imex-channels
511 nvidia-uvm

Block devices:
  8 sd
"""
ALL_OF_NVIDIA = {f"c {major}": "" for major in (195, 226, 234, 235, 236, 511)}


def nodes_of(root: Path, topology: HostTopology) -> tuple[HostDevices, DeviceNodes]:
    devices = devices_of(topology)
    return devices, read_device_nodes(topology, devices, {}, root)


def shares(devices: HostDevices, *names: str) -> list[DeviceShare]:
    found = {each.name: each for each in devices.devices}
    return [
        DeviceShare(found[name].type, found[name].uuid, found[name].minor, found[name].capacity)
        for name in names
    ]


def nvidia(root: Path, *gpus: Gpu) -> HostTopology:
    return replace(detect(root), gpus=gpus, fpgas=())


def gpu(minor: int, bus: int = 0, **changes: object) -> Gpu:
    plain = Gpu(
        f"GPU-{minor}", minor, minor, f"0000:{bus or minor:02x}:00.0", memory_bytes=80 * GIB
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_slot_opens_its_gpus_and_what_all_gpus_share(machine: Machine) -> None:
    root = machine(
        HOST
        | {"proc/devices": NUMBERS, "dev/nvidia-caps-imex-channels/channel0": ""}
        | {f"{PCI}/0000:07:00.0/drm/card2/dev": "226:2\n"}
        | {f"{PCI}/0000:07:00.0/drm/renderD130/dev": "226:130\n"}
    )
    devices, nodes = nodes_of(root, nvidia(root, gpu(0), gpu(1, bus=7)))
    mine = nodes.rules(shares(devices, "gpu1"))
    assert mine.closed == {}
    assert mine.open == ALL_OF_NVIDIA | {
        "c 195": "1,254-255",
        "c 226": "2,130",
        "c 236": "0",
        "c 511": "0-1",
    }
    assert nodes.rules(shares(devices, "gpu0", "gpu1")).open["c 195"] == "0-1,254-255"
    assert nodes.rules([]) == DeviceRules(ALL_OF_NVIDIA, {})


def test_a_gpu_that_returned_under_another_minor_is_found_by_its_address(machine: Machine) -> None:
    information = "Model: \t NVIDIA H100\nDevice Minor: \t 5\nGPU UUID: GPU-1\n"
    files = {"proc/driver/nvidia/gpus/0000:09:00.0/information": information}
    root = machine(HOST | {"proc/devices": NUMBERS} | files)
    topology = nvidia(root, gpu(0), gpu(1))
    devices = devices_of(topology)
    moved = tuple(
        replace(each, minor=5, pci_address="0000:09:00.0") if each.uuid == "GPU-1" else each
        for each in devices.devices
    )
    nodes = read_device_nodes(topology, HostDevices(moved), {}, root)
    assert nodes.rules(shares(devices, "gpu1")).open["c 195"] == "5,254-255"


def test_a_slot_of_a_mig_instance_opens_its_capabilities_and_no_other(machine: Machine) -> None:
    instances = tuple(
        MigInstance(f"MIG-{at}", "1g.10gb", 10 * GIB, 14, gpu_instance=7 + at, compute_instance=0)
        for at in range(2)
    )
    mig = "proc/driver/nvidia/capabilities/gpu0/mig"
    files = {
        f"{mig}/gi{7 + at}/{place}access": f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n"
        for at, place, minor in ((0, "", 66), (0, "ci0/", 67), (1, "", 75), (1, "ci0/", 76))
    }
    root = machine(HOST | {"proc/devices": NUMBERS} | files)
    topology = nvidia(root, gpu(0, mig_enabled=True, mig_instances=instances))
    devices, nodes = nodes_of(root, topology)
    first = nodes.rules(shares(devices, "mig-1g.10gb0")).open
    assert (first["c 195"], first["c 235"]) == ("0,254-255", "66-67")
    assert nodes.rules(shares(devices, "mig-1g.10gb1")).open["c 235"] == "75-76"
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    _, nodes = nodes_of(root, topology)  # a driver older than MIG has no such files
    assert nodes.rules(shares(devices, "mig-1g.10gb0")).open == {"c 195": "0,254-255", "c 226": ""}


def test_amd_gpus_share_kfd(machine: Machine) -> None:
    files = HOST | card(1, 0x1B, 1) | card(2, 0x3D, 2) | {"sys/class/kfd/kfd/dev": "238:0\n"}
    for bus, minor in ((0x1B, 128), (0x3D, 129)):
        files[f"{PCI}/0000:{bus:02x}:00.0/drm/renderD{minor}/dev"] = f"226:{minor}"
    root = machine(files)
    devices, nodes = nodes_of(root, detect(root, NoNvml("no library")))
    assert nodes.rules(shares(devices, "gpu1")) == DeviceRules({"c 226": "129", "c 238": "0"}, {})
    assert nodes.rules([]) == DeviceRules({"c 226": "", "c 238": ""}, {})


def test_a_slot_with_a_virtual_function_does_not_open_the_card(machine: Machine) -> None:
    part = f"{PCI}/0000:5e:00.1"
    root = machine(
        HOST
        | NIC
        | {f"{part}/class": "0x020700", f"{part}/vendor": "0x15b3"}
        | {f"{part}/infiniband/mlx5_1/name": "mlx5_1"}
        | {f"{PCI}/0000:5e:00.0/infiniband_verbs/uverbs0/dev": "231:192"}
        | {f"{PCI}/0000:5e:00.0/infiniband_mad/umad0/dev": "231:0"}
        | {f"{PCI}/0000:5e:00.0/infiniband_mad/issm0/dev": "231:64"}
        | {f"{part}/infiniband_verbs/uverbs1/dev": "231:193"}
        | {"sys/class/misc/rdma_cm/dev": "10:58"}
    )
    (root / part / "physfn").symlink_to("../0000:5e:00.0")
    devices, nodes = nodes_of(root, detect(root))
    (card_share,) = shares(devices, "rdma0")
    assert nodes.rules([card_share]) == DeviceRules({"c 231": "0,192"}, {})
    part_share = replace(card_share, functions=("0000:5e:00.1",))
    assert nodes.rules([part_share]) == DeviceRules({"c 231": "193"}, {})
    # The file for connections has the same major as other devices, so only this file is closed.
    assert nodes.rules([]) == DeviceRules({"c 231": ""}, {"c 10": "58"})


def test_the_ports_of_an_fpga(machine: Machine) -> None:
    region = "sys/class/fpga_region/region0"
    root = machine(
        HOST
        | {f"{region}/dfl-fme.0/dev": "240:0", f"{region}/dfl-port.0/dev": "241:0"}
        | {f"{region}/compat_id": "1"}
    )
    devices, nodes = nodes_of(root, detect(root))
    assert nodes.rules(shares(devices, "fpga0")).open == {"c 240": "0", "c 241": "0"}
    # A device of another type with the same number does not have the files of the FPGA.
    other = Device("other", "one", 0, (("other", 100),))
    with_other = HostDevices((*devices.devices, other))
    known = read_device_nodes(detect(root), with_other, {}, root)
    assert not known.of(*shares(with_other, "other0"))


@pytest.mark.needs("root")
def test_of_configured_devices_only_the_files_themselves_are_closed(machine: Machine) -> None:
    root = machine(HOST | {"dev/plain": ""})
    for name, kind, numbers in (
        ("npu0", stat.S_IFCHR, (240, 0)),
        ("npu1", stat.S_IFCHR, (240, 1)),
        ("disk", stat.S_IFBLK, (259, 3)),
    ):
        os.mknod(root / "dev" / name, kind, os.makedev(*numbers))
    topology = detect(root)
    types = [
        DeviceType("npu", paths=("/dev/npu*",)),
        DeviceType("disk", command="""echo '[{"uuid": "d", "files": ["/dev/disk"]}]'"""),
        DeviceType("other", command="echo one"),
        DeviceType("plain", paths=("/dev/plain",)),
    ]
    configured = discover(types, topology.numa_nodes, root)
    assert configured.warnings == ()
    devices = devices_of(topology, configured=configured.devices)
    nodes = read_device_nodes(topology, devices, configured.files, root)
    assert nodes.rules([]) == DeviceRules({}, {"b 259": "3", "c 240": "0-1"})
    assert nodes.rules(shares(devices, "npu1", "disk0")) == DeviceRules({}, {"c 240": "0"})
    without = [each.name for each in devices.devices if not nodes.of(*shares(devices, each.name))]
    assert without == ["other0", "plain0"]


def test_the_rules_of_hundreds_of_devices_are_short() -> None:
    """A message has the rules of up to 400 slots, and may be 1 MiB long."""
    own = {("npu", str(at)): frozenset({Node("c", 240, at)}) for at in range(512)}
    nodes = DeviceNodes(own)
    shares = [DeviceShare("npu", str(at), at, ()) for at in (0, 7, 8, 511)]
    assert nodes.rules(shares).closed == {"c 240": "1-6,9-510"}


def test_devices_that_are_not_given_out_stay_open(machine: Machine) -> None:
    root = machine(HOST | {"proc/devices": NUMBERS})
    topology = nvidia(root, gpu(0))
    offered = devices_of(topology)
    kept = HostDevices(tuple(replace(each, capacity=()) for each in offered.devices))
    assert not read_device_nodes(topology, kept, {}, root).are_known
    fake = replace(offered, fake=True)
    assert read_device_nodes(topology, fake, {}, root) == NO_NODES


def test_types_that_the_operator_leaves_open(machine: Machine) -> None:
    root = machine(
        HOST
        | NIC
        | {"proc/devices": NUMBERS}
        | {f"{PCI}/0000:5e:00.0/infiniband_verbs/uverbs0/dev": "231:192"}
    )
    topology = nvidia(root, gpu(0))
    devices = devices_of(topology)
    nodes = read_device_nodes(topology, devices, {}, root, open_types=["rdma"])
    assert nodes.rules([]) == DeviceRules(ALL_OF_NVIDIA, {})
    assert nodes.open_types == {"rdma"}


def test_a_type_that_no_host_can_have_is_refused_as_open(machine: Machine) -> None:
    topology = detect(machine(HOST))
    told = options(open_devices=("rdma", "mig-1g.10gb", "npu"))
    with pytest.raises(InvalidArgument, match=r"open_devices is 'npu'; expected gpu, rdma, fpga"):
        plan_host(told, topology)
    plan_host(replace(told, device_types=(DeviceType("npu", ("/dev/npu0",)),)), topology)


@pytest.mark.parametrize("text", ["", "x:1", "226", "226:-1", "226:" + "9" * 30])
def test_what_the_kernel_never_writes_is_no_file(text: str, machine: Machine) -> None:
    root = machine(HOST | NIC | {f"{PCI}/0000:5e:00.0/infiniband_verbs/uverbs0/dev": text})
    _, nodes = nodes_of(root, detect(root))
    assert not nodes.are_known
    assert nodes.rules(
        [DeviceShare(RDMA, "0000:5e:00.0", 0, ()), DeviceShare(GPU, "x", 0, ())]
    ) == (DeviceRules())
