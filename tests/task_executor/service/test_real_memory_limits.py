"""A real executor on cgroup v2 limits its slots' memory of GPUs, with a driver for tests.

The tests read the driver's limits with the real binding of NVML.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import DeviceShare, pairs
from finegrain.rpc.wire_cpus import assignment_to_proto
from finegrain.v1 import resources_pb2
from tests.support.nvml.fake_driver import FakeDriver
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.gpu_host import MIB, A, B, GpuHost
from tests.task_executor.service.scripted_rm import (
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)

pytestmark = [pytest.mark.needs("cc", "root")]

TOTAL_MIB = 81920 - 600
SET, GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"
ONLY_V2 = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'umount -l -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"',
    "sh",
)
"""Starts a process that sees only cgroup v2, as on most hosts."""

READ = """
import json, sys
import pynvml
pynvml.nvmlInit()
found = {}
for at in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(at)
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=sys.argv[1].encode())
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    except pynvml.NVMLError_NotFound:
        continue
    if limits.hardLimit != pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX:
        found[pynvml.nvmlDeviceGetUUID(handle)] = limits.hardLimit >> 20
print(json.dumps(found))
"""


class LimitsHost(GpuHost):
    """A host that has only cgroup v2, and a driver that limits memory by groups."""

    def __init__(self, driver: FakeDriver, process: ExecutorProcess, rm: ScriptedRM) -> None:
        super().__init__(driver, process, rm)
        self.driver, self.process, self.rm = driver, process, rm
        process.begins = ONLY_V2

    def group(self, slot: str) -> Path | None:
        """The group of a slot."""
        found = [each / "slots" / slot for each in self.process.groups()]
        return next((each for each in found if each.is_dir()), None)

    def limits(self, slot: str) -> dict[str, int]:
        """Returns the driver's limits for the group of a slot, in MiB by UUID."""
        group = self.group(f"{slot}.1")
        assert group is not None
        found: dict[str, int] = self.driver.run_with(self.profile, READ, str(group))
        return found

    def forgets_limits(self) -> None:
        """Removes all limits, as if the driver was loaded again."""
        self.profile.with_name("profile.limits").unlink()

    async def starts_again(self) -> JobMaster:
        known = len(self.rm.registrations)
        self.process.start(kubelet_dir=str(self.kubelet))
        await eventually(lambda: len(self.rm.registrations) > known, "it registers again")
        return self.rm.job_master()

    def announced(self, uuid: str) -> str:
        devices = {each.uuid: each for each in self.rm.registrations[-1].topology.devices}
        return str(devices[uuid].levels["gpu-memory"])

    def isolation(self, slot: str) -> resources_pb2.IsolationReport:
        full = [each for each in self.rm.states if not each.unchanged]
        slots = {each.allocation_id: each.isolation for each in full[-1].slots}
        return slots.get(slot, resources_pb2.IsolationReport())

    async def allocates(self, name: str, *, required: str = "", **percents: int) -> Any:
        """Orders a slot with shares of GPUs, in percent: `a` is GPU-a."""
        assignment, profile = shares_of(percents)
        order = allocation(name, cpu_milli=100, assignment=assignment)
        for dimension, amount in profile.items():
            order.slot.profile.devices[dimension] = amount
        if required:
            order.slot.profile.require_isolation["gpu-memory"] = required
        return (await self.rm.allocate(order)).results[0]

    async def resizes(self, name: str, *, required: str = "", **percents: int) -> Any:
        assignment, profile = shares_of(percents)
        wanted = resources_pb2.ResourceProfile(devices=profile)
        if required:
            wanted.require_isolation["gpu-memory"] = required
        answer = await self.rm.resize(
            1, allocation_id=name, assignment=assignment, profile=wanted, cpu_milli=100
        )
        return answer.result


def shares_of(percents: Mapping[str, int]) -> tuple[Any, dict[str, int]]:
    shares = [
        DeviceShare(
            "gpu",
            f"GPU-{letter}",
            1 - at,
            pairs(
                {
                    "gpu-core": percent,
                    "gpu-memory": mib(percent) * MIB,
                    "gpu-memory-ratio": percent,
                }
            ),
        )
        for at, (letter, percent) in enumerate(percents.items())
    ]
    least = min(percents.values())
    profile = {"gpu.shared": len(shares), "gpu-core": least * len(shares)}
    profile["gpu-memory-ratio"] = least * len(shares)
    return assignment_to_proto(CpuAssignment(devices=tuple(shares))), profile


def mib(percent: int) -> int:
    return TOTAL_MIB * percent // 100


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(driver: FakeDriver, process: ExecutorProcess, rm: ScriptedRM) -> LimitsHost:
    return LimitsHost(driver, process, rm)


async def test_each_gpu_of_a_slot_has_its_limit_and_the_task_knows(host: LimitsHost) -> None:
    job_master = await host.starts()
    assert host.announced("GPU-a") == "kernel"
    assert not (await host.allocates("half", a=50, required="kernel")).HasField("error")
    assert not (await host.allocates("two", a=20, b=30)).HasField("error")
    assert host.limits("half") == {"GPU-a": mib(50)}
    assert host.limits("two") == {"GPU-a": mib(20), "GPU-b": mib(30)}
    await job_master.submit("/bin/sh", "-c", 'echo "$FINEGRAIN_DEVICES"', allocation_id="half")
    [device] = json.loads((await job_master.watch()).stdout)
    assert device["levels"] == {"gpu-core": "visible-only", "gpu-memory": "kernel"}
    # The report states which memory the driver does not count.
    await eventually(lambda: host.isolation("half").gpu_memory == "kernel", "the slot says so")
    assert any("cudaMallocManaged" in note for note in host.isolation("half").notes)
    # The limits end with the group; a later slot of the same name does not have them.
    group = host.group("half.1")
    assert group is not None
    await host.rm.free(free("half"))
    await eventually(lambda: not group.exists(), "the group is gone")
    group.mkdir()
    assert host.limits("half") == {}
    group.rmdir()


async def test_limits_are_set_again_after_front_and_helper_were_killed(host: LimitsHost) -> None:
    await host.starts()
    await host.allocates("half", a=50)
    await host.allocates("other", b=25)
    for kill_front in (True, False):
        host.forgets_limits()
        if not kill_front:
            os.kill(host.process.helper_pid(), signal.SIGKILL)
        host.process.kill()
        await host.starts_again()
        assert host.limits("half") == {"GPU-a": mib(50)}
        assert host.limits("other") == {"GPU-b": mib(25)}
        await eventually(lambda: host.isolation("half").gpu_memory == "kernel", "it says so")


async def test_limits_are_set_again_after_the_helper_alone_was_killed(host: LimitsHost) -> None:
    """The front goes on, starts another helper, and lets it set the limits."""
    await host.starts()
    await host.allocates("half", a=50)
    known, before = len(host.rm.registrations), host.process.helper_pid()
    host.forgets_limits()
    assert host.limits("half") == {}
    os.kill(before, signal.SIGKILL)
    await eventually(lambda: host.limits("half") == {"GPU-a": mib(50)}, "the limit is set again")
    assert host.process.helper_pid() != before
    assert len(host.rm.registrations) == known  # by the same front


async def test_a_resize_changes_the_limits_of_a_running_slot(host: LimitsHost) -> None:
    await host.starts()
    await host.allocates("slot", a=20, b=30)
    result = await host.resizes("slot", a=50, b=10)
    assert not result.HasField("error"), result
    assert host.limits("slot") == {"GPU-a": mib(50), "GPU-b": mib(10)}
    # If the driver refuses a resize, a slot that requires this level stays unchanged.
    await host.allocates("strict", a=20, required="kernel")
    host.plays(A + B + f"error {SET} 0 999\n")
    result = await host.resizes("strict", required="kernel", a=10)
    assert f"{SET} failed with code 999" in result.error.message
    host.plays(A + B)
    assert host.limits("strict") == {"GPU-a": mib(20)}


async def test_what_cannot_be_limited_has_the_next_level(host: LimitsHost) -> None:
    await host.starts()
    host.plays(f"{A}{B}error {SET} 0 4\n")
    refused = await host.allocates("strict", a=50, required="kernel")
    assert refused.error.reason == "CARVE_FAILED"
    offers = "gpu-memory of GPU-a is enforced by watch, and kernel is required"
    reason = f"{SET} failed with code 4"
    assert f"{offers} ({reason}" in refused.error.message
    assert not (await host.allocates("half", a=50)).HasField("error")
    await eventually(lambda: host.isolation("half").gpu_memory == "watch", "it says so")
    assert any(reason in note for note in host.isolation("half").notes)
    # The other GPU is not affected.
    assert not (await host.allocates("other", b=50, required="kernel")).HasField("error")
    # After a restart, the executor announces the level that the GPU can do.
    host.process.kill()
    await host.starts_again()
    assert (host.announced("GPU-a"), host.announced("GPU-b")) == ("watch", "kernel")
    host.plays(A + B)
    host.process.kill()
    await host.starts_again()
    assert host.announced("GPU-a") == "kernel"
    assert host.limits("half") == {"GPU-a": mib(50)}


@pytest.mark.slow
async def test_a_driver_without_the_calls(
    tmp_path: Path, process: ExecutorProcess, rm: ScriptedRM
) -> None:
    host = LimitsHost(FakeDriver(tmp_path, is_old=True), process, rm)
    await host.starts()
    assert host.announced("GPU-a") == "watch"
    assert not (await host.allocates("half", a=50)).HasField("error")
    await eventually(lambda: host.isolation("half").gpu_memory == "watch", "it says so")
    notes = host.isolation("half").notes
    assert any("update it to version 615 or later" in each for each in notes)


@pytest.mark.full  # the helper waits 10 s for the driver
async def test_a_driver_that_hangs_does_not_keep_the_executor(host: LimitsHost) -> None:
    host.plays(A + B + f"hang {SET} 100\n")
    await host.starts()
    assert host.announced("GPU-a") == "watch"
    assert not (await host.allocates("half", a=50)).HasField("error")
