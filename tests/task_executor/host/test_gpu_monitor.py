"""Watches GPUs with the real binding of NVML and a driver that the tests compile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nvml.fake_driver import FakeDriver

TWO = """
gpu 0 GPU-a 00000000:3B:00.0 1 81920 600 NVIDIA A100-SXM4-80GB
gpu 1 GPU-b 00000000:5E:00.0 0 81920 600 NVIDIA A100-SXM4-80GB
recovery 0 0
recovery 1 0
"""
MIB = 1024**2

_PROGRAM = """
import asyncio, json, os, sys
from dataclasses import asdict
from pathlib import Path
from task_executor.host.gpu_monitor import GpuMonitor

async def main():
    monitor = GpuMonitor(answer_s=float(sys.argv[1]))
    readings = []
    for profile in ["", *sys.argv[2:]]:
        if profile == "wait":
            await asyncio.sleep(0.8)
        elif profile:
            Path(os.environ["FAKE_NVML_PROFILE"]).write_text(profile)
        reading = await monitor.read()
        gpus = {uuid: asdict(gpu) for uuid, gpu in reading.gpus.items()}
        readings.append({**asdict(reading), "gpus": gpus})
    print(json.dumps(readings))

asyncio.run(main())
"""

pytestmark = pytest.mark.needs("cc")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


def readings_of(driver: FakeDriver, *profiles: str, answer_s: float = 20) -> list[dict[str, Any]]:
    """Returns a reading of each profile; the profile changes while NVML stays open."""
    found: list[dict[str, Any]] = driver.run(profiles[0], _PROGRAM, str(answer_s), *profiles[1:])
    return found


def test_use_and_processes(driver: FakeDriver) -> None:
    lines = "used 0 1500 40\nprocess 0 42 1000\nprocess 0 43 400 mps\nprocess 0 44 9 graphics\n"
    first, second = readings_of(driver, TWO, TWO + lines)
    assert first["gpus"]["GPU-a"]["processes"] == []
    gpu = second["gpus"]["GPU-a"]
    assert (gpu["memory_used_bytes"], gpu["busy_percent"]) == (1500 * MIB, 40)
    assert [(each["pid"], each["kind"], each["memory_bytes"]) for each in gpu["processes"]] == [
        (42, "compute", 1000 * MIB),
        (43, "mps", 400 * MIB),
        (44, "graphics", 9 * MIB),
    ]
    assert (gpu["minor"], gpu["pci_address"], gpu["problem"]) == (1, "0000:3b:00.0", "")
    assert second["number"] == first["number"] + 1


@pytest.mark.parametrize(("action", "work_lost"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_recovery_action_appears_and_ends(
    action: int, work_lost: bool, driver: FakeDriver
) -> None:
    bad = TWO.replace("recovery 0 0", f"recovery 0 {action}")
    before, during, after = readings_of(driver, TWO, bad, TWO)
    assert [each["gpus"]["GPU-a"]["problem"] == "" for each in (before, during, after)] == [
        True,
        False,
        True,
    ]
    assert during["gpus"]["GPU-a"]["work_lost"] is work_lost
    assert during["gpus"]["GPU-b"]["problem"] == ""


def test_a_gpu_vanishes_and_returns_under_another_minor_and_address(driver: FakeDriver) -> None:
    alone = "gpu 0 GPU-b 00000000:5E:00.0 0 81920 600 NVIDIA A100\nrecovery 0 0\n"
    back = alone + "gpu 1 GPU-a 00000000:AF:00.0 7 81920 600 NVIDIA A100\nrecovery 1 0\n"
    _, lost, gone, returned = readings_of(driver, TWO, alone, alone + "# gone\n", back)
    # The open session still lists the GPU; the next session does not.
    assert "fallen off the bus" in lost["gpus"]["GPU-a"]["problem"]
    assert list(gone["gpus"]) == ["GPU-b"]
    gpu = returned["gpus"]["GPU-a"]
    assert (gpu["problem"], gpu["minor"], gpu["pci_address"]) == ("", 7, "0000:af:00.0")


def test_a_storm_of_events_is_read_in_bounded_portions(driver: FakeDriver) -> None:
    storm = TWO + "xid 0 31 10000\nxid 1 13 1\n"
    _, first, second = readings_of(driver, TWO, storm, "wait")
    gpu = first["gpus"]["GPU-a"]
    assert (gpu["xids"], gpu["xid_count"]) == ([31], 256)
    assert second["gpus"]["GPU-a"]["xid_count"] == 256
    # The driver's statement about the GPU is decisive, and not the number of events.
    assert gpu["problem"] == ""
    assert gpu["recovery_known"]


def test_a_driver_that_hangs_is_unknown_and_answers_later(driver: FakeDriver) -> None:
    hung = TWO + "used 0 7 1\nhang nvmlDeviceGetMemoryInfo 0.4\n"
    before, silent, later = readings_of(driver, TWO, hung, "wait", answer_s=0.2)[0:3]
    assert before["problem"] == ""
    assert "has not answered" in silent["problem"]
    assert silent["number"] == before["number"]  # the last answer is kept
    assert list(silent["gpus"]) == ["GPU-a", "GPU-b"]
    assert later["number"] >= silent["number"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [("nvmlInitWithFlags -1 18", "LibRmVersionMismatch"), ("nvmlDeviceGetCount_v2 -1 999", "Unkn")],
)
def test_a_driver_that_refuses_is_unknown_with_a_reason(
    error: str, reason: str, driver: FakeDriver
) -> None:
    (reading,) = readings_of(driver, f"{TWO}error {error}\n")
    assert reason in reading["problem"]
    assert reading["gpus"] == {}


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceRegisterEvents",
        "nvmlEventSetCreate",
        "nvmlEventSetWait_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
    ],
)
def test_a_query_that_fails_is_no_problem_of_the_gpu(call: str, driver: FakeDriver) -> None:
    (reading,) = readings_of(driver, f"{TWO}xid 0 31 1\nprocess 0 7 1\nerror {call} -1 3\n")
    assert [gpu["problem"] for gpu in reading["gpus"].values()] == ["", ""]
    assert reading["problem"] == ""


def test_instances_have_the_problem_of_their_gpu(driver: FakeDriver) -> None:
    lines = "mig 0 1 1\nrecovery 0 1\npart 0 MIG-x 9728 14 NVIDIA MIG 1g.10gb\n"
    (reading,) = readings_of(driver, TWO + lines)
    gpu, instance = reading["gpus"]["GPU-a"], reading["gpus"]["MIG-x"]
    assert instance["problem"] == gpu["problem"] != ""
    assert (instance["parent_uuid"], instance["memory_total_bytes"]) == ("GPU-a", 9728 * MIB)
