"""A real executor whose GPUs fail, return and are used by others, by a driver for tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import DeviceShare
from finegrain.rpc.wire_cpus import assignment_to_proto
from finegrain.v1 import devices_pb2
from tests.support.nvml.fake_driver import FakeDriver
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
)

pytestmark = [pytest.mark.needs("cc", "root")]

A = "gpu 0 GPU-a 00000000:3B:00.0 1 81920 600 NVIDIA A100\nrecovery 0 0\n"
B = "gpu 1 GPU-b 00000000:5E:00.0 0 81920 600 NVIDIA A100\nrecovery 1 0\n"
MIB = 1 << 20


class Host:
    """The executor's host: its driver, and a kubelet's folder."""

    def __init__(self, driver: FakeDriver, process: ExecutorProcess, rm: ScriptedRM) -> None:
        self.profile = process.folder / "profile"
        self.kubelet = process.folder / "kubelet"
        self._process, self._rm = process, rm
        (self.kubelet / "device-plugins").mkdir(parents=True)
        self.plays(A + B)
        process.environment |= {
            "LD_LIBRARY_PATH": str(driver.folder),
            "FAKE_NVML_PROFILE": str(self.profile),
        }

    def plays(self, lines: str) -> None:
        fresh = self.profile.with_name("fresh")
        fresh.write_text(lines)
        fresh.replace(self.profile)

    def gives_to_pods(self, *uuids: str) -> None:
        entry = {
            "PodUID": "pod-1",
            "ContainerName": "train",
            "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": {"-1": list(uuids)},
        }
        content = {"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}
        path = self.kubelet / "device-plugins/kubelet_internal_checkpoint"
        path.with_name("fresh").write_text(json.dumps(content))
        path.with_name("fresh").replace(path)

    async def starts(self) -> JobMaster:
        self._process.start(kubelet_dir=str(self.kubelet))
        await eventually(
            lambda: self._rm.reports or self._process.exit_code is not None, "it reports"
        )
        assert self._process.exit_code is None, self._process.log
        return JobMaster(self._rm.executor_address)

    def condition(self, uuid: str) -> devices_pb2.DeviceCondition | None:
        """Returns the last reported condition of a device."""
        full = [each for each in self._rm.states if not each.unchanged]
        found = {each.uuid: each for each in full[-1].device_conditions}
        return found.get(uuid)

    async def reports(self, uuid: str, health: str) -> devices_pb2.DeviceCondition:
        """Waits until the device is reported in this state."""

        def seen() -> Any:
            condition = self.condition(uuid)
            return condition if condition is not None and condition.health == health else None

        found: devices_pb2.DeviceCondition = await eventually(seen, f"{uuid} is {health}")
        return found

    async def reports_nothing(self, uuid: str) -> None:
        await eventually(lambda: self.condition(uuid) is None, f"{uuid} is as announced")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(driver: FakeDriver, process: ExecutorProcess, rm: ScriptedRM) -> Host:
    return Host(driver, process, rm)


@pytest.fixture
def stranger() -> Iterator[int]:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process.pid
        process.kill()


async def test_a_gpu_fails_recovers_vanishes_and_returns(
    host: Host, rm: ScriptedRM, process: ExecutorProcess
) -> None:
    await host.starts()
    registrations = len(rm.registrations)
    host.plays(A.replace("recovery 0 0", "recovery 0 1") + B)
    found = await host.reports("GPU-a", "unhealthy")
    assert "nvidia-smi --gpu-reset -i GPU-a" in found.problem
    assert found.failures == 1
    assert host.condition("GPU-b") is None
    # It is used again after a probe, which finds no CUDA here: the driver's word is enough then.
    host.plays(A + B)
    await host.reports_nothing("GPU-a")
    await eventually(lambda: "device_not_probed" in process.log, "a probe was made")
    assert "no CUDA driver" in process.log
    # It vanishes, and returns under another minor number and PCI address.
    moved = "gpu 0 GPU-a 00000000:AF:00.0 7 81920 600 NVIDIA A100\nrecovery 0 0\n"
    host.plays(B.replace("1 GPU-b", "0 GPU-b").replace("recovery 1", "recovery 0"))
    await host.reports("GPU-a", "gone")
    assert len(rm.registrations) == registrations
    host.plays(moved + B)
    await host.reports_nothing("GPU-a")
    await eventually(lambda: len(rm.registrations) > registrations, "it registers again")
    devices = {each.uuid: each for each in rm.registrations[-1].topology.devices}
    assert (devices["GPU-a"].minor, devices["GPU-a"].pci_address) == (7, "0000:af:00.0")
    assert devices["GPU-b"].minor == 0


async def test_a_driver_that_hangs_does_not_stall_the_executor(
    host: Host, rm: ScriptedRM, process: ExecutorProcess
) -> None:
    job_master = await host.starts()
    host.plays(A + B + "hang nvmlDeviceGetMemoryInfo 600\n")
    found = await host.reports("GPU-b", "unknown")
    assert "has not answered since" in found.problem
    assert not found.work_lost
    await rm.allocate(allocation("slot", cpu_milli=100))
    task = await job_master.submit("/bin/true", allocation_id="slot")
    assert task.pid
    assert await process.stop() == 0


async def test_uses_by_strangers_and_slots(host: Host, rm: ScriptedRM, stranger: int) -> None:
    job_master = await host.starts()
    amounts = (("gpu-core", 100), ("gpu-memory-ratio", 100))
    share = assignment_to_proto(CpuAssignment(devices=(DeviceShare("gpu", "GPU-b", 0, amounts),)))
    order = allocation("slot", cpu_milli=100, assignment=share)
    order.slot.profile.devices["gpu"] = 100
    answer = await rm.allocate(order)
    assert not answer.results[0].HasField("error"), answer
    task = await job_master.submit("/bin/sleep", "600", allocation_id="slot")
    uses = f"process 0 {stranger} 3000\nprocess 1 {task.pid} 1500\nused 1 1600 55\n"
    # This process only draws on the other GPU.
    host.plays(A + B + uses + f"process 1 {stranger} 9 graphics\n")
    found = await host.reports("GPU-a", "healthy")
    [use] = found.foreign_uses
    assert (use.kind, use.pid, use.name) == ("process", stranger, "sleep")
    assert use.memory_bytes == 3000 * MIB
    assert use.user == "root"
    assert host.condition("GPU-b") is None

    def measured() -> Any:
        return {each.uuid: each for each in rm.reports[-1].usage.devices}.get("GPU-b")

    await eventually(lambda: measured() and measured().slots, "the use of the slot is measured")
    [of_slot] = measured().slots
    assert (of_slot.allocation_id, of_slot.memory_bytes) == ("slot", 1500 * MIB)
    assert (measured().memory_bytes, measured().busy_percent) == (1600 * MIB, 55)
    # Both come back by themselves.
    host.plays(A + B)
    await host.reports_nothing("GPU-a")


async def test_a_gpu_of_a_pod_is_left_to_it(host: Host) -> None:
    host.gives_to_pods("GPU-b")
    await host.starts()
    found = await host.reports("GPU-b", "healthy")
    assert [(each.kind, each.name) for each in found.foreign_uses] == [("pod", "pod-1/train")]
    assert host.condition("GPU-a") is None
    host.gives_to_pods()
    await host.reports_nothing("GPU-b")


async def test_a_slot_that_uses_more_memory_of_a_gpu_than_it_has_is_ended(
    host: Host, rm: ScriptedRM
) -> None:
    job_master = await host.starts()
    levels = {each.uuid: each.levels for each in rm.registrations[-1].topology.devices}
    assert levels["GPU-b"]["gpu-memory"] == "watch"
    assert levels["GPU-b"]["gpu-core"] == "visible-only"
    order = _half_of("GPU-b", "greedy"), _half_of("GPU-b", "neighbour")
    answer = await rm.allocate(*order)
    assert not any(result.HasField("error") for result in answer.results), answer
    for slot in answer.report.slots:
        [device] = slot.isolation.device_levels
        assert device.levels["gpu-memory"] == "watch"
    pids = {}
    for name in ("greedy", "neighbour"):
        task = await job_master.submit("/bin/sleep", "600", allocation_id=name, task_id=name)
        pids[name] = task.pid
    host.plays(A + B + f"process 1 {pids['neighbour']} 40000\nprocess 1 {pids['greedy']} 41500\n")
    found = (await job_master.watch(task_id="greedy")).exit
    assert (found.signal, found.end_reason) == (9, "GPU_MEMORY_EXCEEDED")
    assert "used 40.5Gi of the memory of gpu0, and it has 39.7Gi" in found.end_message
    states = {each.task_id: each.HasField("exit") for each in await job_master.tasks()}
    assert states == {"greedy": True, "neighbour": False}


def _half_of(uuid: str, name: str) -> Any:
    amounts = (("gpu-core", 50), ("gpu-memory", 40660 * MIB), ("gpu-memory-ratio", 50))
    shares = (DeviceShare("gpu", uuid, 0, amounts),)
    order = allocation(
        name, cpu_milli=100, assignment=assignment_to_proto(CpuAssignment(devices=shares))
    )
    order.slot.profile.devices["gpu"] = 50
    return order
