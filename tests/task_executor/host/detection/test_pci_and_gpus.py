"""The NUMA nodes of devices, and how data of the GPU driver and of the PCI bus are combined."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpuset import CpuSet
from finegrain.topology import Gpu, HostTopology, PciKind
from task_executor.host.detection import detect
from task_executor.host.nvml import GpuInventory, NoNvml
from task_executor.host.nvml_fake import FakeNvml

Machine = Callable[[Mapping[str, str]], Path]
TWO_NODES = {
    "sys/devices/system/cpu/online": "0-7",
    "sys/devices/system/node/node0/cpulist": "0-3",
    "sys/devices/system/node/node1/cpulist": "4-7",
    "sys/devices/system/node/node2/cpulist": "",  # the memory of a GPU
    "sys/devices/system/node/node2/meminfo": "Node 2 MemTotal: 1000 kB",
}
BRIDGE = "sys/devices/pci0000:3a/0000:3a:00.0"
CARD = f"{BRIDGE}/0000:3b:00.0"
BUS_ID = "0000:3b:00.0"


@pytest.fixture
def with_card(machine: Machine) -> Callable[..., Path]:
    """Makes a host of two nodes with one NVIDIA card below a bridge."""

    def build(card: Mapping[str, str] = {}, bridge: Mapping[str, str] = {}) -> Path:
        told = {"class": "0x030200", "vendor": "0x10de", "numa_node": "-1"} | dict(card)
        files = {f"{CARD}/{name}": text for name, text in told.items()}
        root = machine(TWO_NODES | files | {f"{BRIDGE}/{name}": t for name, t in bridge.items()})
        devices = root / "sys/bus/pci/devices"
        devices.mkdir(parents=True)
        (devices / BUS_ID).symlink_to(f"../../../../{CARD}")
        return root

    return build


WithCard = Callable[..., Path]


@pytest.mark.parametrize(
    ("card", "bridge", "want"),
    [
        pytest.param({"numa_node": "1"}, {}, 1, id="its own file"),
        pytest.param({"numa_node": "5"}, {}, None, id="a node that does not exist"),
        pytest.param({"local_cpulist": "4-7"}, {}, 1, id="local CPUs narrower than all"),
        pytest.param({"local_cpus": "0000000f"}, {}, 0, id="only the mask of local CPUs"),
        pytest.param({"local_cpulist": "0-7"}, {"numa_node": "1"}, 1, id="the bridge above"),
        pytest.param({"local_cpulist": "2-5"}, {}, None, id="local CPUs of two nodes"),
        pytest.param({}, {}, None, id="nothing tells, so not node 0"),
    ],
)
def test_nearest_node(
    card: dict[str, str], bridge: dict[str, str], want: int | None, with_card: WithCard
) -> None:
    (device,) = detect(with_card(card, bridge)).pci_devices
    assert device.numa_node == want
    assert device.kind is PciKind.GPU


def test_virtual_functions_are_no_extra_cards(with_card: WithCard) -> None:
    root = with_card({"physfn": ""})
    host = detect(root, NoNvml("asked for by a test"))
    assert host.pci_devices[0].is_virtual_function
    assert host.warnings == detect(root).warnings  # no warning about a card that is not offered


@pytest.mark.parametrize(
    ("vendor", "nvidia", "kind"),
    [
        ("0x10de", False, PciKind.GPU),
        ("0x1a03", False, PciKind.DISPLAY),
        ("0x1a03", True, PciKind.GPU),
    ],
    ids=["vendor of GPUs", "graphics of a board", "claimed by the NVIDIA driver"],
)
def test_vga_controllers(vendor: str, nvidia: bool, kind: PciKind, with_card: WithCard) -> None:
    root = with_card({"class": "0x030000", "vendor": vendor})
    if nvidia:
        (root / "proc/driver/nvidia/gpus" / BUS_ID).mkdir(parents=True)
    assert detect(root).pci_devices[0].kind is kind


def gpu(**facts: Any) -> FakeNvml:
    return FakeNvml(GpuInventory((Gpu("GPU-a", 0, pci_bus_id=BUS_ID, memory_bytes=1, **facts),)))


def only_gpu(host: HostTopology) -> Gpu:
    (found,) = host.gpus
    return found


def test_gpu_takes_the_node_of_its_pci_device(with_card: WithCard) -> None:
    """The driver's affinity contains only cpus of our cpuset, so it may name another node, or
    none.
    """
    host = detect(with_card({"numa_node": "1"}), gpu(cpus=CpuSet.parse("0-3")))
    assert only_gpu(host).numa_node == 1
    assert host.gpu_absence_reason is None


def test_gpu_without_pci_node_is_near_its_cpus(with_card: WithCard) -> None:
    host = detect(with_card(), gpu(cpus=CpuSet.parse("4-7,100")))
    assert only_gpu(host).numa_node == 1
    assert only_gpu(host).cpus == CpuSet.parse("4-7")


def test_gpu_is_never_bound_to_its_own_memory_node(with_card: WithCard) -> None:
    host = detect(with_card({"numa_node": "2"}), gpu(memory_numa_node=2))
    assert only_gpu(host).numa_node is None
    assert only_gpu(host).memory_numa_node == 2


def test_gpu_takes_its_cpus_from_pci_where_the_driver_tells_none(with_card: WithCard) -> None:
    host = detect(with_card({"local_cpulist": "4-7"}), gpu())
    assert str(only_gpu(host).cpus) == "4-7"


def test_cards_without_a_driver_are_reported_with_the_reason(with_card: WithCard) -> None:
    host = detect(with_card(), NoNvml("no driver here"))
    assert host.gpus == ()
    assert host.gpu_absence_reason == "no driver here"
    assert any(BUS_ID in warning and "no driver here" in warning for warning in host.warnings)


def test_what_the_driver_warns_of_is_reported(with_card: WithCard) -> None:
    source = FakeNvml(GpuInventory(warnings=("GPU 1 cannot be opened",)))
    assert "GPU 1 cannot be opened" in detect(with_card(), source).warnings


def test_on_a_host_of_one_node_every_gpu_is_on_it(machine: Machine) -> None:
    root = machine({"sys/devices/system/cpu/online": "0-7"})
    assert only_gpu(detect(root, gpu())).numa_node == 0


def test_without_a_source_gpus_are_not_looked_for(with_card: WithCard) -> None:
    assert detect(with_card()).gpu_absence_reason == "there was no search for GPUs"
