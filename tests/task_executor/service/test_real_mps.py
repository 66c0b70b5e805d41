"""A real executor runs MPS daemons, with a control program and a driver for tests."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import DeviceShare
from finegrain.rpc.wire_cpus import assignment_to_proto
from finegrain.v1 import resources_pb2
from tests.support.nvml.fake_driver import FakeDriver
from tests.task_executor.service.executor_process import QUICK_DEVICES, ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)

pytestmark = [pytest.mark.needs("cc", "root")]

MIB = 1 << 20
GPUS = (
    "gpu 0 GPU-a 00000000:3B:00.0 0 81920 600 NVIDIA A100\n"
    "gpu 1 GPU-b 00000000:5E:00.0 1 81920 600 NVIDIA A100\n"
)
CONTROL = """\
#!{python} -I
import os, signal, socket, sys
assert sys.argv[1:] == ["-f"]
with open("{log}", "a") as log:
    print(os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], file=log)
if os.path.exists("{broken}"):
    sys.exit("cannot start")
server = socket.socket(socket.AF_UNIX)
server.bind(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control")
signal.pause()
"""


class MpsHost:
    def __init__(self, driver: FakeDriver, process: ExecutorProcess, rm: ScriptedRM) -> None:
        self.rm, self.process = rm, process
        self.asked = 0  # number of tasks that have printed their environment
        # A short path that every user can enter, for the sockets and the control program.
        self.folder = Path(tempfile.mkdtemp(prefix="mps-"))
        self.folder.chmod(0o755)
        self.log, self.broken = self.folder / "log", self.folder / "broken"
        self.log.touch()
        self.log.chmod(0o666)
        control = self.folder / "nvidia-cuda-mps-control"
        control.write_text(CONTROL.format(python=sys.executable, log=self.log, broken=self.broken))
        control.chmod(0o755)
        self.profile = process.folder / "profile"
        self.profile.write_text(GPUS)
        process.intervals |= QUICK_DEVICES
        process.environment |= {
            "LD_LIBRARY_PATH": str(driver.folder),
            "FAKE_NVML_PROFILE": str(self.profile),
            "PATH": f"{self.folder}:{os.environ['PATH']}",
        }

    @property
    def started(self) -> list[tuple[int, str]]:
        """Returns pid and GPU of each daemon that was started."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(int(pid), uuid) for pid, uuid in lines]

    def running(self) -> list[str]:
        """Returns the GPUs whose daemons run."""
        return [uuid for pid, uuid in self.started if Path(f"/proc/{pid}").exists()]

    async def starts(self) -> JobMaster:
        known = len(self.rm.registrations)
        self.process.start(mps=True)
        await eventually(lambda: len(self.rm.registrations) > known, "it registers")
        return self.rm.job_master()

    def levels(self, uuid: str) -> dict[str, str]:
        """Returns the levels of a GPU that were announced last."""
        devices = self.rm.registrations[-1].topology.devices
        return {each.uuid: dict(each.levels) for each in devices}[uuid]

    async def allocates(self, name: str, uuid: str, percent: int, **required: str) -> Any:
        order = allocation(name, cpu_milli=100, assignment=share_of(uuid, percent))
        order.slot.profile.devices["gpu"] = percent
        for dimension, level in required.items():
            order.slot.profile.require_isolation[dimension.replace("_", "-")] = level
        answer = await self.rm.allocate(order)
        return answer.results[0]

    async def resizes(self, name: str, number: int, uuid: str, percent: int) -> Any:
        profile = resources_pb2.ResourceProfile(devices={"gpu": percent})
        answer = await self.rm.resize(
            number,
            allocation_id=name,
            assignment=share_of(uuid, percent),
            profile=profile,
            cpu_milli=100,
        )
        return answer.result

    async def environment(self, job_master: JobMaster, name: str) -> dict[str, str]:
        """Returns the variables about MPS in the environment of a slot's task."""
        self.asked += 1
        task_id = f"env-{name}-{self.asked}"
        await job_master.submit("/usr/bin/env", allocation_id=name, task_id=task_id)
        seen = await job_master.watch(task_id=task_id)
        lines = [line.split("=", 1) for line in seen.stdout.decode().splitlines()]
        return {name: value for name, value in lines if name.startswith("CUDA_MPS")}

    def isolation(self, name: str) -> resources_pb2.IsolationReport:
        """Returns the last reported isolation of a slot."""
        full = [each for each in self.rm.states if not each.unchanged]
        slots = {each.allocation_id: each.isolation for each in full[-1].slots}
        return slots.get(name, resources_pb2.IsolationReport())


def share_of(uuid: str, percent: int) -> Any:
    memory = 81320 * MIB * percent // 100
    amounts = {"gpu-core": percent, "gpu-memory": memory, "gpu-memory-ratio": percent}
    share = DeviceShare("gpu", uuid, 0, tuple(sorted(amounts.items())))
    return assignment_to_proto(CpuAssignment(devices=(share,)))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(driver: FakeDriver, process: ExecutorProcess, rm: ScriptedRM) -> Iterator[MpsHost]:
    host = MpsHost(driver, process, rm)
    yield host
    shutil.rmtree(host.folder)


async def test_shares_of_a_gpu_are_limited_by_a_daemon_of_their_own(host: MpsHost) -> None:
    job_master = await host.starts()
    assert host.levels("GPU-a")["gpu-memory"] == "mps"
    assert host.started == []  # nothing needs it yet
    assert not (await host.allocates("half", "GPU-a", 50)).HasField("error")
    await host.allocates("quarter", "GPU-a", 25, gpu_memory="mps")
    assert host.running() == ["GPU-a"]
    half, quarter = [await host.environment(job_master, each) for each in ("half", "quarter")]
    # The report states what MPS does not enforce.
    [note] = [each for each in host.isolation("half").notes if "MPS limits each process" in each]
    assert "can use more than its share of gpu-core and gpu-memory; the memory is measured" in note
    assert half["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert half["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=40660M"
    assert quarter["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert half["CUDA_MPS_PIPE_DIRECTORY"] == quarter["CUDA_MPS_PIPE_DIRECTORY"]
    # A whole GPU has no daemon, and another GPU has its own.
    await host.allocates("whole", "GPU-b", 100)
    assert await host.environment(job_master, "whole") == {}
    assert host.running() == ["GPU-a"]


async def test_a_daemon_survives_the_front_and_ends_with_the_last_share(host: MpsHost) -> None:
    await host.starts()
    await host.allocates("half", "GPU-a", 50)
    host.process.kill()
    await host.starts()
    await eventually(lambda: "half" in host.rm.slots(), "the slot is adopted")
    assert len(host.started) == 1
    assert host.running() == ["GPU-a"]
    await host.rm.free(free("half"))
    await eventually(lambda: host.running() == [], "the daemon has ended")
    # A slot can now have the whole GPU, and later slots can share it again.
    assert not (await host.allocates("whole", "GPU-a", 100)).HasField("error")
    assert host.running() == []


@pytest.mark.slow
async def test_a_daemon_that_dies_is_started_again(host: MpsHost) -> None:
    await host.starts()
    await host.allocates("half", "GPU-a", 50)
    ((pid, _),) = host.started
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: len(host.started) == 2, "it is started again")
    await eventually(lambda: host.running() == ["GPU-a"], "it runs")


@pytest.mark.slow
async def test_without_its_daemon_a_gpu_has_a_lower_level(host: MpsHost) -> None:
    job_master = await host.starts()
    host.broken.touch()
    refused = await host.allocates("strict", "GPU-a", 50, gpu_memory="mps")
    assert refused.error.reason == "CARVE_FAILED"
    assert "gpu-memory of GPU-a is enforced by watch, and mps is required" in refused.error.message
    await eventually(lambda: host.levels("GPU-a")["gpu-memory"] == "watch", "it is announced")
    # A slot that requires nothing does not wait for MPS.
    assert not (await host.allocates("half", "GPU-a", 50)).HasField("error")
    assert await host.environment(job_master, "half") == {}
    await eventually(lambda: host.isolation("half").gpu_memory == "watch", "the slot says so")
    host.broken.unlink()
    await eventually(lambda: host.levels("GPU-a")["gpu-memory"] == "mps", "it is announced again")


async def test_a_share_under_mps_changes_only_while_no_task_runs(host: MpsHost) -> None:
    """Clients keep the limits with which they started."""
    job_master = await host.starts()
    await host.allocates("half", "GPU-a", 50)
    await job_master.submit("/bin/sleep", "600", allocation_id="half", task_id="work")
    refused = await host.resizes("half", 1, "GPU-a", 20)
    assert "gpu0 is shared under MPS" in refused.error.message
    assert "end the tasks of the slot first (work)" in refused.error.message
    await job_master.cancel("work")
    await job_master.watch(task_id="work")
    assert not (await host.resizes("half", 2, "GPU-a", 20)).HasField("error")
    found = await host.environment(job_master, "half")
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=16264M"
    # With the whole GPU, the slot uses no daemon; with a share, it uses one again.
    for number, percent, running in ((3, 100, []), (4, 60, ["GPU-a"])):
        assert not (await host.resizes("half", number, "GPU-a", percent)).HasField("error")
        assert host.running() == running
