"""A real executor watches the memory of its GPUs, which a driver for tests simulates."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request

import pytest

from finegrain.v1 import task_executor_pb2 as te
from tests.support.nvml.fake_driver import FakeDriver
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.gpu_host import A, B, GpuHost, gpu_slot
from tests.task_executor.service.scripted_rm import JobMaster, ScriptedRM, eventually

pytestmark = [pytest.mark.needs("cc", "root")]

HALF_MIB = (81920 - 600) // 2
HALF = (("gpu-core", 50), ("gpu-memory", HALF_MIB << 20), ("gpu-memory-ratio", 50))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(driver: FakeDriver, process: ExecutorProcess, rm: ScriptedRM) -> GpuHost:
    return GpuHost(driver, process, rm)


async def allocate(rm: ScriptedRM, *names: str) -> None:
    answer = await rm.allocate(*(gpu_slot(name, "GPU-a", 1, HALF) for name in names))
    assert not any(each.HasField("error") for each in answer.results), answer


async def sleeps(job_master: JobMaster, slot: str, task_id: str) -> int:
    task = await job_master.submit("/bin/sleep", "600", task_id=task_id, allocation_id=slot)
    return int(task.pid)


def announced(rm: ScriptedRM, dimension: str = "gpu-memory") -> str:
    devices = {each.uuid: each for each in rm.registrations[-1].topology.devices}
    return str(devices["GPU-a"].levels[dimension])


def stated(rm: ScriptedRM, name: str) -> str:
    """Returns the isolation level of a slot's GPU memory in the last full report."""
    full = [each for each in rm.states if not each.unchanged]
    slots = {each.allocation_id: each for each in full[-1].slots}
    return str(slots[name].isolation.gpu_memory) if name in slots else ""


def metric(process: ExecutorProcess, name: str) -> float:
    address = process.endpoint()["metrics_address"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        found = re.search(rf"^finegrain_executor_{name} (\S+)$", page.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


async def test_the_tasks_of_a_slot_above_its_share_end_and_its_neighbour_goes_on(
    host: GpuHost, rm: ScriptedRM, process: ExecutorProcess
) -> None:
    job_master = await host.starts()
    assert announced(rm) == "watch"
    assert announced(rm, "gpu-core") == "visible-only"
    await allocate(rm, "greedy", "modest")
    await eventually(lambda: stated(rm, "greedy") == "watch", "the slot says so")
    pid = await sleeps(job_master, "greedy", "large")
    await sleeps(job_master, "greedy", "aside")
    modest = await sleeps(job_master, "modest", "fits")
    # The neighbor has exactly its share, which is no excess.
    other = f"process 0 {modest} {HALF_MIB}\n"
    host.plays(A + B + other + f"process 0 {pid} {HALF_MIB + 1024}\n")
    for task_id in ("large", "aside"):
        end = (await job_master.watch(task_id)).exit
        assert (end.signal, end.end_reason) == (9, "GPU_MEMORY_EXCEEDED")
        assert end.peak_gpu_memory_bytes == (HALF_MIB + 1024) << 20
        assert "memory of gpu1, 1Gi more than its share" in end.end_message
        assert not end.cancelled
    host.plays(A + B + other)
    # The slot remains, and accepts tasks. After front and helper were killed, the slot is watched
    # again, and the reason is still known.
    again = await sleeps(job_master, "greedy", "again")
    os.kill(process.helper_pid(), signal.SIGKILL)
    process.kill()
    process.start(kubelet_dir=str(host.kubelet))
    await eventually(lambda: len(rm.registrations) > 1, "it registers again")
    job_master = rm.job_master()
    assert (await job_master.watch("large")).exit.end_reason == "GPU_MEMORY_EXCEEDED"
    host.plays(A + B + other + f"process 0 {again} {HALF_MIB + 1}\n")
    assert (await job_master.watch("again")).exit.end_reason == "GPU_MEMORY_EXCEEDED"
    tasks = {each.task_id: each for each in await job_master.tasks()}
    assert tasks["fits"].state == te.TASK_STATE_RUNNING
    await eventually(
        lambda: metric(process, "gpu_memory_reaction_seconds_count") == 1, "it is counted"
    )
    assert metric(process, "gpu_memory_overshoot_bytes_sum") == 1 << 20
    assert process.log.count('"gpu_memory_exceeded"') == 2


async def test_a_task_finds_the_level_in_its_environment(host: GpuHost, rm: ScriptedRM) -> None:
    job_master = await host.starts()
    await allocate(rm, "slot")
    await job_master.submit("/bin/sh", "-c", 'echo "$FINEGRAIN_DEVICES"', allocation_id="slot")
    [device] = json.loads((await job_master.watch()).stdout)
    assert device["levels"] == {"gpu-core": "visible-only", "gpu-memory": "watch"}


async def test_a_driver_that_does_not_tell_the_memory_of_processes(
    host: GpuHost, rm: ScriptedRM
) -> None:
    host.plays(A + B + "error nvmlDeviceGetComputeRunningProcesses_v3 -1 3\n")
    job_master = await host.starts()
    assert announced(rm) == "visible-only"
    await allocate(rm, "slot")
    pid = await sleeps(job_master, "slot", "task")
    host.plays(A + B + f"process 0 {pid} 10\n")
    await eventually(lambda: announced(rm) == "watch", "it measures now")
    await eventually(lambda: stated(rm, "slot") == "watch", "the slot says so")
    # The driver lists the process without its memory.
    host.plays(A + B + f"process 0 {pid} -1\n")
    await eventually(lambda: announced(rm) == "visible-only", "it does not measure")
    await eventually(lambda: stated(rm, "slot") == "visible-only", "the slot says so")
    [task] = await job_master.tasks()
    assert task.state == te.TASK_STATE_RUNNING
