"""Finds GPUs with the real binding of NVML and a driver that the tests compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from finegrain.topology import Gpu, GpuHealth, GpuProcess, HostTopology
from task_executor.host.devices import devices_of
from tests.support.nvml.fake_driver import FakeDriver

GIB = 1024**3
MIB = 1024**2
TWO = """
gpu 0 GPU-a 00000000:3B:00.0 1 81920 600 NVIDIA A100-SXM4-80GB
gpu 1 GPU-b 00000000:5E:00.0 0 81920 600 NVIDIA A100-SXM4-80GB
cpus 0 0f
cpus 1 f0
"""
HOST = {
    "sys/devices/system/cpu/online": "0-7",
    "sys/devices/system/node/node0/cpulist": "0-3",
    "sys/devices/system/node/node1/cpulist": "4-7",
}
Detect = Callable[[str], HostTopology]

pytestmark = pytest.mark.needs("cc")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def detect(driver: FakeDriver, machine: Callable[[Mapping[str, str]], Path]) -> Detect:
    root = machine(HOST)
    return lambda profile: driver.detect(profile, root)


def the_gpus(host: HostTopology) -> dict[str, Gpu]:
    return {gpu.uuid: gpu for gpu in host.gpus}


def test_everything_about_healthy_gpus(detect: Detect) -> None:
    host = detect(TWO + "recovery 0 0\n")
    gpus = the_gpus(host)
    first = gpus["GPU-a"]
    assert (first.index, first.minor, first.pci_bus_id) == (0, 1, "0000:3b:00.0")
    assert (first.name, first.numa_node, str(first.cpus)) == ("NVIDIA A100-SXM4-80GB", 0, "0-3")
    assert (first.memory_bytes, first.driver_bytes) == (80 * GIB - 600 * MIB, 600 * MIB)
    assert gpus["GPU-b"].numa_node == 1
    assert {gpu.health for gpu in host.gpus} == {GpuHealth.OK}
    devices = {each.uuid: each for each in devices_of(host).devices}
    assert dict(devices["GPU-a"].capacity)["gpu-memory"] == 80 * GIB - 600 * MIB
    assert devices["GPU-a"].memory_bytes == 80 * GIB
    assert devices["GPU-b"].name == "gpu0"


@pytest.mark.parametrize(
    ("lines", "lanes", "path"),
    [
        pytest.param(
            "link 0 0 00000000:5E:00.0\nlink 0 3 00000000:5E:00.0\nlevel 0 1 50", 2, "SYS", id="dir"
        ),
        pytest.param(
            "link 0 0 switch\nlink 0 1 switch\nlink 1 0 switch\nlevel 0 1 30", 1, "PHB", id="switch"
        ),
        pytest.param("level 0 1 0", 0, "PIX", id="one board"),
        pytest.param("error nvmlDeviceGetTopologyCommonAncestor -1 3", 0, "", id="unknown"),
    ],
)
def test_links(lines: str, lanes: int, path: str, detect: Detect) -> None:
    (link,) = devices_of(detect(TWO + lines)).links
    assert (link.first_uuid, link.second_uuid) == ("GPU-a", "GPU-b")
    assert (link.lanes, link.path) == (lanes, path)


def test_a_gpu_in_mig_mode_is_announced_by_its_instances_only(detect: Detect) -> None:
    name = "NVIDIA A100-SXM4-80GB MIG"
    host = detect(
        TWO
        + f"mig 0 1 1\npart 0 MIG-x 9728 14 {name} 1g.10gb\npart 0 MIG-y 9728 14 {name} 1g.10gb\n"
        + f"part 0 MIG-z 40192 42 {name} 3g.40gb\n"
    )
    devices = devices_of(host).devices
    assert [(each.type, each.minor, each.uuid, each.parent_uuid) for each in devices] == [
        ("mig-1g.10gb", 0, "MIG-x", "GPU-a"),
        ("mig-1g.10gb", 1, "MIG-y", "GPU-a"),
        ("mig-3g.40gb", 0, "MIG-z", "GPU-a"),
        ("gpu", 0, "GPU-b", ""),
    ]
    assert devices[0].memory_bytes == 9728 * MIB
    assert devices[0].whole_only
    parts = host.gpus[0].mig_instances
    assert [(each.gpu_instance, each.compute_instance) for each in parts] == [
        (1, 0),
        (2, 0),
        (3, 0),
    ]


@pytest.mark.parametrize(
    ("action", "repair"),
    [
        (1, "nvidia-smi --gpu-reset -i GPU-a"),
        (2, "reboot of the host"),
        (4, "let its tasks end"),
        (99, "recovery action 99"),
    ],
)
def test_a_gpu_that_needs_a_repair_gets_no_work(action: int, repair: str, detect: Detect) -> None:
    host = detect(f"{TWO}recovery 0 {action}\nrecovery 1 0\n")
    assert the_gpus(host)["GPU-a"].health is GpuHealth.FAULTY
    problems = {each.uuid: each.problem for each in devices_of(host).devices}
    assert repair in problems["GPU-a"]
    assert problems["GPU-b"] == ""
    assert any(repair in each for each in host.warnings)


def test_the_instances_of_a_gpu_that_needs_a_repair_get_no_work(detect: Detect) -> None:
    lines = "mig 0 1 1\nrecovery 0 1\npart 0 MIG-x 9728 14 NVIDIA MIG 1g.10gb\n"
    devices = {each.uuid: each for each in devices_of(detect(TWO + lines)).devices}
    assert "reset" in devices["MIG-x"].problem


def test_processes(detect: Detect) -> None:
    host = detect(TWO + "process 1 4711 300\nprocess 1 42 1000\n")
    gpus = the_gpus(host)
    assert gpus["GPU-a"].processes == ()
    assert gpus["GPU-b"].processes == (GpuProcess(42, 1000 * MIB), GpuProcess(4711, 300 * MIB))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("nvmlInitWithFlags -1 18", "LibRmVersionMismatch"),
        ("nvmlInitWithFlags -1 9", "DriverNotLoaded"),
        ("nvmlDeviceGetCount_v2 -1 999", "Unknown"),
    ],
)
def test_a_driver_that_does_not_answer(error: str, reason: str, detect: Detect) -> None:
    host = detect(f"{TWO}error {error}\n")
    assert host.gpus == ()
    assert reason in (host.gpu_absence_reason or "")


def test_a_gpu_that_is_lost_does_not_hide_the_other(detect: Detect) -> None:
    calls = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
    host = detect(TWO + "".join(f"error {call} 0 15\n" for call in calls))
    devices = {each.uuid: each for each in devices_of(host).devices}
    assert "fallen off the bus" in devices["GPU-a"].problem
    assert devices["GPU-b"].problem == ""


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetName",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetCpuAffinityWithinScope",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    ],
)
def test_a_query_that_is_not_supported_leaves_the_gpu_usable(call: str, detect: Detect) -> None:
    host = detect(f"{TWO}error {call} -1 3\n")
    assert [gpu.schedulable_as for gpu in host.gpus] == ["gpu", "gpu"]
