"""A real executor parks slots, with a `cuda-checkpoint` and a driver for tests."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import DeviceShare
from finegrain.errors import FailedPrecondition
from finegrain.rpc.wire_cpus import assignment_to_proto
from finegrain.v1 import resources_pb2, slots_pb2
from tests.support.cuda_checkpoint.fake_program import CudaProcesses
from tests.support.nvml.fake_driver import FakeDriver
from tests.task_executor.service.executor_process import QUICK_DEVICES, ExecutorProcess
from tests.task_executor.service.gpu_host import MIB, gpu_slot
from tests.task_executor.service.scripted_rm import JobMaster, ScriptedRM, eventually, free

pytestmark = [pytest.mark.needs("cc", "root")]

GPUS = (
    "gpu 0 GPU-a 00000000:3B:00.0 0 81920 600 NVIDIA A100\nrecovery 0 0\n"
    "gpu 1 GPU-b 00000000:5E:00.0 1 81920 600 NVIDIA A100\nrecovery 1 0\n"
)
WHOLE = (("gpu-core", 100), ("gpu-memory", 81320 * MIB), ("gpu-memory-ratio", 100))
A, B = DeviceShare("gpu", "GPU-a", 0, WHOLE), DeviceShare("gpu", "GPU-b", 1, WHOLE)


class Host:
    """The host of the executor, with one slot that has a GPU and a process that uses it."""

    def __init__(self, process: ExecutorProcess, rm: ScriptedRM, cuda: CudaProcesses) -> None:
        self.process, self.rm, self.cuda = process, rm, cuda
        self.number = 0
        self.message = ""

    async def starts(self) -> JobMaster:
        known = len(self.rm.registrations)
        self.process.start(gpu_parking="any-gpu")
        await eventually(lambda: len(self.rm.registrations) > known, "it registers")
        return self.rm.job_master()

    async def begins_work(self, job_master: JobMaster, used_mib: int = 50) -> int:
        await self.rm.allocate(gpu_slot("slot", "GPU-a", 0, WHOLE))
        task = await job_master.submit("/bin/sleep", "600", task_id="work")
        self.cuda.uses(task.pid)
        self.plays(f"process 0 {task.pid} {used_mib}\n")
        await eventually(lambda: self.used("GPU-a") == used_mib * MIB, "the use is measured")
        return int(task.pid)

    def plays(self, lines: str = "") -> None:
        fresh = self.cuda.folder / "fresh"
        fresh.write_text(GPUS + lines)
        fresh.replace(self.cuda.profile)

    async def orders(
        self, has: tuple[DeviceShare, ...], parked: tuple[DeviceShare, ...], **changes: Any
    ) -> str:
        """Orders a change of the slot, and repeats the order until its outcome is known; returns
        the reason of a failure, or "".
        """
        self.number += 1
        return await self.order_again(has, parked, **changes)

    async def order_again(
        self, has: tuple[DeviceShare, ...], parked: tuple[DeviceShare, ...], **changes: Any
    ) -> str:
        reason = "IN_PROGRESS"
        for _ in range(1_000):
            reason = await self.order_once(has, parked, **changes)
            if reason != "IN_PROGRESS":
                break
            await asyncio.sleep(0.1)
        if not reason:
            await eventually(lambda: self.slot().resize_number == self.number, "it is reported")
        return reason

    async def order_once(
        self, has: tuple[DeviceShare, ...], parked: tuple[DeviceShare, ...], **changes: Any
    ) -> str:
        assignment = assignment_to_proto(CpuAssignment(devices=has, parked_devices=parked))
        profile = resources_pb2.ResourceProfile(devices={"gpu": 100} if has else {})
        answer = await self.rm.resize(
            self.number, assignment=assignment, profile=profile, cpu_milli=100, **changes
        )
        error = answer.result.error if answer.result.HasField("error") else None
        self.message = error.message if error is not None else ""
        return error.reason if error is not None else ""

    def slot(self) -> slots_pb2.SlotStatus:
        """Returns the slot in the last full report."""
        return next(e for e in self.rm.full_reports()[-1].slots if e.allocation_id == "slot")

    def available(self) -> int:
        """Returns the number of available GPUs in the last full report."""
        return int(self.rm.full_reports()[-1].available.devices["gpu-core"]) // 100

    def used(self, uuid: str) -> int:
        """Returns the memory of a GPU that the slot uses, as measured."""
        for report in reversed(self.rm.reports):
            for device in report.usage.devices:
                if device.uuid == uuid:
                    return sum(each.memory_bytes for each in device.slots)
        return 0


def resident(pid: int) -> int:
    """Returns the resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(driver: FakeDriver, process: ExecutorProcess, rm: ScriptedRM) -> Iterator[Host]:
    cuda = CudaProcesses()
    process.intervals |= QUICK_DEVICES
    process.environment |= cuda.environment | {
        "LD_LIBRARY_PATH": str(driver.folder),
        "FAKE_NVML_PROFILE": str(cuda.profile),
    }
    host = Host(process, rm, cuda)
    host.plays()
    yield host
    cuda.clean_up()


async def test_a_slot_leaves_its_gpu_and_returns_to_another_one(host: Host) -> None:
    job_master = await host.starts()
    assert [e.parking for e in host.rm.registrations[-1].topology.devices] == ["any-gpu"] * 2
    pid = await host.begins_work(job_master)
    assert await host.orders((), (A,)) == ""
    assert host.cuda.state(pid) == "checkpointed"
    assert [each.uuid for each in host.slot().assignment.parked_devices] == ["GPU-a"]
    assert host.slot().resize_number == 1
    await eventually(lambda: host.available() == 2, "its GPU is free")
    # Another slot can have its GPU, and the parked slot accepts no tasks.
    other = await host.rm.allocate(gpu_slot("other", "GPU-a", 0, WHOLE))
    assert not other.results[0].HasField("error")
    with pytest.raises(FailedPrecondition, match="unpark it before it gets tasks"):
        await job_master.submit("/bin/true", task_id="late")
    assert await host.orders((B,), ()) == ""
    assert host.cuda.state(pid) == "running"
    assert [each.uuid for each in host.slot().assignment.devices] == ["GPU-b"]
    assert f"restore {pid} GPU-a=GPU-b" in host.cuda.log
    await eventually(lambda: host.used("GPU-b") == 50 * MIB, "it uses the other GPU")
    await job_master.submit("/bin/true", task_id="again")


@pytest.mark.slow
async def test_crashes_of_front_and_helper_lose_nothing(host: Host) -> None:
    pid = await host.begins_work(await host.starts())
    host.number += 1
    with host.cuda.holding("checkpoint"):
        assert await host.order_once((), (A,)) == "IN_PROGRESS"
        await eventually(lambda: f"checkpoint {pid}" in host.cuda.log, "it is being parked")
        # Until the slot is parked, it keeps its GPU.
        assert not host.slot().assignment.parked_devices
        os.kill(host.process.helper_pid(), signal.SIGKILL)
        host.process.kill()
    await host.starts()
    # No order is repeated: the executor has recorded what it was doing.
    await eventually(lambda: bool(host.slot().assignment.parked_devices), "it is parked")
    assert host.cuda.state(pid) == "checkpointed"
    assert await host.order_again((), (A,)) == ""
    with host.cuda.holding("restore"):
        host.number += 1
        assert await host.order_once((A,), ()) == "IN_PROGRESS"
        await eventually(lambda: f"restore {pid}" in host.cuda.log, "it returns")
        host.process.kill()
    await host.starts()
    await eventually(lambda: not host.slot().assignment.parked_devices, "it is unparked")
    assert host.cuda.state(pid) == "running"


async def test_a_failure_leaves_the_slot_as_it_was(host: Host) -> None:
    pid = await host.begins_work(await host.starts())
    with host.cuda.failing("checkpoint"):
        assert await host.orders((), (A,)) == "PARK_FAILED"
    assert "operation not supported" in host.message
    assert host.cuda.state(pid) == "running"
    assert host.slot().resize_number == 0
    assert await host.orders((), (A,)) == ""
    with host.cuda.failing("restore"):
        assert await host.orders((A,), ()) == "PARK_FAILED"
    assert host.cuda.state(pid) == "checkpointed"
    assert host.slot().assignment.parked_devices
    await eventually(lambda: host.available() == 2, "its GPU is free")


async def test_a_slot_that_must_leave_its_gpu_again_keeps_it_until_it_has(host: Host) -> None:
    """The slot is unparked with too little memory for its use, and cannot be parked again at
    once.
    """
    job_master = await host.starts()
    pid = await host.begins_work(job_master, used_mib=4)
    fill = "x = b'x' * (40 << 20); import time; time.sleep(600)"
    other = await job_master.submit(sys.executable, "-c", fill, task_id="fill")
    await eventually(lambda: resident(other.pid) > 40 * MIB, "the slot uses memory")
    assert await host.orders((), (A,)) == ""
    await eventually(lambda: host.available() == 2, "its GPU is free")
    with host.cuda.failing("checkpoint"):
        host.number += 1
        while "the undo has failed until now" not in host.message:
            reason = await host.order_once((A,), (), heap_bytes=16 * MIB)
            assert reason == "IN_PROGRESS"
            await asyncio.sleep(0.1)
        assert host.cuda.state(pid) != "checkpointed"
        refused = await host.rm.allocate(gpu_slot("other", "GPU-a", 0, WHOLE))
        assert refused.results[0].error.reason == "DEVICES_UNAVAILABLE"
    assert await host.order_again((A,), (), heap_bytes=16 * MIB) == "BELOW_USE"
    assert host.cuda.state(pid) == "checkpointed"
    await eventually(lambda: host.available() == 2, "its GPU is free again")


async def test_what_is_on_the_gpu_must_fit_into_the_slots_memory(host: Host) -> None:
    pid = await host.begins_work(await host.starts(), used_mib=100)
    assert await host.orders((), (A,)) == "BELOW_USE"
    assert "do not fit into its memory" in host.message
    assert host.cuda.state(pid) == "running"
    assert host.cuda.log == []
    # With more memory in the same change, it fits: the memory of the slot is set first.
    assert (
        await host.rm.resize(
            2,
            heap_bytes=256 * MIB,
            assignment=None,
            cpu_milli=100,
            profile=resources_pb2.ResourceProfile(devices={"gpu": 100}),
        )
    ).result.error.reason == ""
    host.number = 2
    assert await host.orders((), (A,), heap_bytes=256 * MIB) == ""


@pytest.mark.full
async def test_memory_that_stays_on_the_gpu_is_not_given_to_others(host: Host) -> None:
    pid = await host.begins_work(await host.starts())
    # The program does not know this process, but the driver shows it in the slot.
    (host.cuda.folder / "processes" / str(pid)).unlink()
    assert await host.orders((), (A,)) == "PARK_FAILED"
    assert "the driver still reports 50Mi of their memory there" in host.message
    assert host.available() == 1


async def test_a_parked_slot_is_freed_like_any_other(host: Host) -> None:
    pid = await host.begins_work(await host.starts())
    assert await host.orders((), (A,)) == ""
    await host.rm.free(free("slot"))
    await eventually(lambda: "slot" not in host.rm.slots(), "it is gone")
    assert not Path(f"/proc/{pid}").exists()
