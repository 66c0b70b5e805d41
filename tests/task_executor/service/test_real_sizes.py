"""Slots of real processes change their size; front and helper are killed at any step.

Afterwards kernel, helper, checkpoint and reports agree, and the task has never stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from dataclasses import dataclass

import pytest

from finegrain.errors import FinegrainError
from finegrain.v1 import task_executor_pb2 as te
from task_executor.service.checkpoint import read_document
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    MIB,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
)

pytestmark = [pytest.mark.slow, pytest.mark.needs("root", "cgroup-v1"), pytest.mark.full]

# Counts forever, holds 20 MiB, and keeps reading a file, so that the kernel must drop page cache.
BUSY = """
import os, sys, time
held = bytearray(20 << 20)
with open("cache", "wb+") as file:
    for _ in range(120):
        file.write(held[: 1 << 20])
    os.fsync(file.fileno())
    tick = 0
    while True:
        tick += 1
        print(tick, flush=True)
        file.seek(0)
        while file.read(1 << 20):
            pass
        time.sleep(0.02)
"""
TURNS = 3
SMALL = {"cpu_milli": 200, "heap_bytes": 48 * MIB}
BIG = {"cpu_milli": 900, "heap_bytes": 256 * MIB}
BELOW_USE = {"cpu_milli": 300, "heap_bytes": 16 * MIB}


@dataclass(frozen=True)
class Size:
    """The amounts that decide the limits of a slot."""

    cpu_milli: int
    memory_bytes: int

    @classmethod
    def of(cls, wanted: dict[str, int]) -> Size:
        return cls(wanted["cpu_milli"], wanted["heap_bytes"])


def in_kernel(process: ExecutorProcess) -> Size:
    """Returns the size in the slot's control groups; checks that every other limit agrees."""
    found: dict[str, int] = {}
    for base in process.groups():
        group = base / "slots" / "slot.1"
        for name in ("cpu.cfs_quota_us", "cpu.shares"):
            if (group / name).exists():
                found[name] = int((group / name).read_text())
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            if (group / name).exists():
                found[name] = int((group / name).read_text())
    cpu_milli = found["cpu.cfs_quota_us"] // 100
    assert found["cpu.shares"] == max(2, cpu_milli * 1024 // 1000)
    assert found["memory.memsw.limit_in_bytes"] == found["memory.limit_in_bytes"]
    return Size(cpu_milli, found["memory.limit_in_bytes"])


def told(rm: ScriptedRM) -> tuple[Size, int] | None:
    """Returns size and resize number in the last report with slots."""
    for slot in rm.full_reports()[-1].slots:
        return Size(slot.profile.cpu_milli, slot.memory_bytes), slot.resize_number
    return None


def on_disk(process: ExecutorProcess) -> tuple[Size, int, bool]:
    """Returns size and resize number in the checkpoint, and whether it has an intent to change the
    size.
    """
    content = read_document(process.state_dir / "state.json")
    assert content is not None
    (slot,) = content["slots"]
    spec = slot["spec"]
    size = Size(spec["profile"]["cpu_milli"], spec["profile"]["task_heap_memory_bytes"])
    return size, spec["resize_number"], slot["becoming"] is not None


async def is_everywhere(rm: ScriptedRM, process: ExecutorProcess, size: Size, number: int) -> None:
    """Checks the size in the kernel, on disk, and in reports."""
    assert in_kernel(process) == size
    assert on_disk(process) == (size, number, False)
    await eventually(lambda: told(rm) == (size, number), "it is told")


async def busy_slot(rm: ScriptedRM, real: JobMaster, process: ExecutorProcess) -> te.TaskStatus:
    """Makes a slot with the busy task."""
    await rm.allocate(allocation(cpu_milli=900, memory_bytes=256 * MIB))
    status = await real.submit(sys.executable, "-I", "-S", "-c", BUSY)
    await eventually(lambda: b"3\n" in process.output("task"), "it ticks")
    return status


async def still_ticks(process: ExecutorProcess, status: te.TaskStatus) -> None:
    os.kill(status.pid, 0)
    before = process.output("task").count(b"\n")
    await eventually(lambda: process.output("task").count(b"\n") > before, "it ticks on")
    ticks = [int(line) for line in process.output("task").split()]
    assert ticks == list(range(1, len(ticks) + 1))  # one life


async def test_sizes_reach_the_kernel_under_a_task_that_ticks_on(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    status = await busy_slot(rm, real, process)
    for number, wanted in enumerate((SMALL, BIG, SMALL), 1):
        answer = await rm.resize(number, **wanted)
        assert not answer.result.HasField("error"), answer.result.error
        await is_everywhere(rm, process, Size.of(wanted), number)
        await still_ticks(process, status)


async def test_below_use_is_refused_with_the_numbers_and_the_task_lives(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    status = await busy_slot(rm, real, process)
    answer = await rm.resize(1, **BELOW_USE)
    error = answer.result.error
    assert error.reason == "BELOW_USE"
    assert int(error.details["asked"]) == 16 * MIB
    # On v1, the task may have filled some page cache again before the use was read.
    assert 20 * MIB <= int(error.details["used"]) <= 256 * MIB
    assert "keeps its size" in error.message
    assert in_kernel(process) == Size.of(BIG)
    assert on_disk(process) == (Size.of(BIG), 0, False)
    await still_ticks(process, status)
    answer = await rm.resize(1, **SMALL)
    assert not answer.result.HasField("error"), answer.result.error


@pytest.mark.parametrize("victims", ["front", "helper", "both"])
async def test_killed_at_any_step_it_ends_with_one_size_everywhere(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess, victims: str
) -> None:
    rng = random.Random(victims)
    status = await busy_slot(rm, real, process)
    number = 0
    for turn in range(TURNS):
        wanted = (SMALL, BIG, BELOW_USE)[turn % 3]
        number += 1
        order = asyncio.create_task(rm.resize(number, **wanted))
        await asyncio.sleep(rng.choice((0.001, 0.004, 0.008, 0.015, 0.03, 0.06)))
        await kill(process, rm, victims)
        with contextlib.suppress(FinegrainError):
            await order
        # A resource manager that does not know the outcome repeats the command, or adopts the
        # reported size.
        answer = await rm.resize(number, **wanted)
        if wanted is BELOW_USE:
            assert answer.result.error.reason == "BELOW_USE"
            wanted, number = BIG, number - 1
        else:
            assert not answer.result.HasField("error"), answer.result.error
        await is_everywhere(rm, process, Size.of(wanted), number)
        await still_ticks(process, status)


async def test_what_was_intended_is_done_although_nobody_asks_again(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    """The helper is stopped, so that the front dies after it has written the intent and before the
    kernel has the new size.
    """
    status = await busy_slot(rm, real, process)
    os.kill(process.helper_pid(), signal.SIGSTOP)
    order = asyncio.create_task(rm.resize(1, **SMALL))
    await eventually(lambda: on_disk(process)[2], "the intent is on disk")
    assert in_kernel(process) == Size.of(BIG)
    process.kill()
    os.kill(process.helper_pid(), signal.SIGKILL)
    with contextlib.suppress(FinegrainError):
        await order
    before = len(rm.registrations)
    process.start()
    await eventually(lambda: len(rm.registrations) > before, "it registers")
    assert told(rm) == (Size.of(SMALL), 1)
    assert in_kernel(process) == Size.of(SMALL)
    assert on_disk(process) == (Size.of(SMALL), 1, False)
    await still_ticks(process, status)


async def kill(process: ExecutorProcess, rm: ScriptedRM, victims: str) -> None:
    """Kills the victims; if the front is one of them, starts a new one and waits until it has
    registered.
    """
    if victims in ("front", "both"):
        process.kill()
    if victims in ("helper", "both"):
        with contextlib.suppress(LookupError, ProcessLookupError):
            os.kill(process.helper_pid(), signal.SIGKILL)
    if victims == "helper":
        return
    before = len(rm.registrations)
    process.start()
    await eventually(
        lambda: len(rm.registrations) > before or process.exit_code is not None, "it registers"
    )
    assert process.exit_code is None, process.log[-3000:]
    await eventually(lambda: rm.reports[-1].registration_number == len(rm.registrations), "reports")
