"""A real executor whose GPUs fail, return and are used by others; a driver for tests simulates
them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.nvml.fake_driver import FakeDriver
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.gpu_host import MIB, A, B, GpuHost, gpu_slot
from tests.task_executor.service.scripted_rm import (
    ScriptedRM,
    allocation,
    eventually,
)

pytestmark = [pytest.mark.needs("cc", "root")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(driver: FakeDriver, process: ExecutorProcess, rm: ScriptedRM) -> GpuHost:
    return GpuHost(driver, process, rm)


@pytest.fixture
def stranger() -> Iterator[int]:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process.pid
        process.kill()


async def test_a_gpu_fails_recovers_vanishes_and_returns(
    host: GpuHost, rm: ScriptedRM, process: ExecutorProcess
) -> None:
    await host.starts()
    registrations = len(rm.registrations)
    host.plays(A.replace("recovery 0 0", "recovery 0 1") + B)
    found = await host.reports("GPU-a", "unhealthy")
    assert "nvidia-smi --gpu-reset -i GPU-a" in found.problem
    assert found.failures == 1
    assert host.condition("GPU-b") is None
    # It is used again after a probe: the probe finds no CUDA on this machine, so the driver's data
    # decide.
    host.plays(A + B)
    await host.reports_nothing("GPU-a")
    await eventually(lambda: "device_not_probed" in process.log, "a probe was made")
    assert "no CUDA driver" in process.log
    # The GPU vanishes, and returns with another minor number and PCI address.
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
    host: GpuHost, rm: ScriptedRM, process: ExecutorProcess
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


async def test_uses_by_strangers_and_slots(host: GpuHost, rm: ScriptedRM, stranger: int) -> None:
    job_master = await host.starts()
    amounts = (("gpu-core", 100), ("gpu-memory-ratio", 100))
    answer = await rm.allocate(gpu_slot("slot", "GPU-b", 0, amounts))
    assert not answer.results[0].HasField("error"), answer
    task = await job_master.submit("/bin/sleep", "600", allocation_id="slot")
    uses = f"process 0 {stranger} 3000\nprocess 1 {task.pid} 1500\nused 1 1600 55\n"
    # On the other GPU, this process only draws.
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
    # Both conditions end without an action of an administrator.
    host.plays(A + B)
    await host.reports_nothing("GPU-a")


async def test_a_gpu_of_a_pod_is_left_to_it(host: GpuHost) -> None:
    host.gives_to_pods("GPU-b")
    await host.starts()
    found = await host.reports("GPU-b", "healthy")
    assert [(each.kind, each.name) for each in found.foreign_uses] == [("pod", "pod-1/train")]
    assert host.condition("GPU-a") is None
    host.gives_to_pods()
    await host.reports_nothing("GPU-b")
