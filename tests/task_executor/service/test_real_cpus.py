"""Slots of real processes leave a cpu that is dedicated to another slot, and get it back. Front and
helper are killed at any step. The tests compare reports with the kernel, and no task stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from functools import partial
from pathlib import Path

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import QosClass
from finegrain.cpuset import CpuSet
from finegrain.errors import FinegrainError
from finegrain.rpc.wire_cpus import assignment_to_proto
from finegrain.v1 import task_executor_pb2 as te
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)
from tests.task_executor.service.test_real_sizes import kill

pytestmark = [
    pytest.mark.needs("root", "cgroup-v1", "two-cpus"),
    pytest.mark.full,
]

ALL = CpuSet(os.sched_getaffinity(0))
OWN = CpuSet.of(ALL.max())
LEFT = ALL - OWN

# The program spins in two threads and a child, and counts.
SPINNER = """
import os, threading, time
def spin():
    while True:
        pass
if os.fork() == 0:
    spin()
threading.Thread(target=spin, daemon=True).start()
tick = 0
while True:
    tick += 1
    print(tick, flush=True)
    time.sleep(0.02)
"""


def pinned(qos: QosClass = QosClass.LSE) -> te.SlotAllocation:
    wanted = assignment_to_proto(CpuAssignment(qos, OWN))
    return allocation("own", cpu_milli=1000 * len(OWN), assignment=wanted)


def where(pid: int) -> CpuSet:
    """Returns the cpus on which the threads of a task may run, according to the kernel."""
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    threads = [task for each in pids for task in Path(f"/proc/{each}/task").iterdir()]
    assert len(threads) == 3
    found = set()
    for thread in threads:
        lines = (thread / "status").read_text().splitlines()
        found.add(next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")))
    assert len(found) == 1, found
    return CpuSet.parse(found.pop())


def group(process: ExecutorProcess, slot: str, file: str) -> str:
    """Returns the content of a file of a slot's control group; empty: there is no file."""
    paths = [base / "slots" / f"{slot}.1" / file for base in process.groups()]
    return next((path.read_text().strip() for path in paths if path.exists()), "")


async def spinners(rm: ScriptedRM, real: JobMaster, process: ExecutorProcess) -> dict[str, int]:
    """Starts a task in the shared pool and a task in the best-effort pool; returns pids by name."""
    idle = assignment_to_proto(CpuAssignment(QosClass.BE))
    answer = await rm.allocate(
        allocation("plain", cpu_milli=100), allocation("idle", cpu_milli=100, assignment=idle)
    )
    assert not any(each.HasField("error") for each in answer.results), answer.results
    pids = {}
    for name in ("plain", "idle"):
        task = [sys.executable, "-I", "-S", "-c", SPINNER]
        pids[name] = (await real.submit(*task, task_id=name, allocation_id=name)).pid
    await eventually(lambda: all(b"3\n" in process.output(name) for name in pids), "they tick")
    return pids


def _differs(process: ExecutorProcess, name: str, before: bytes) -> bool:
    return process.output(name) != before


async def all_tick_on(process: ExecutorProcess, pids: dict[str, int]) -> None:
    for name, pid in pids.items():
        os.kill(pid, 0)
        before = process.output(name)
        await eventually(partial(_differs, process, name, before), "it ticks on")
        ticks = [int(line) for line in process.output(name).split()]
        assert ticks == list(range(1, len(ticks) + 1))  # one life


async def test_spinning_tasks_make_room_and_get_it_back(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    pids = await spinners(rm, real, process)
    assert {name: where(pid) for name, pid in pids.items()} == {"plain": ALL, "idle": ALL}
    for qos, idle in ((QosClass.LSE, LEFT), (QosClass.LSR, ALL)):
        answer = await rm.allocate(pinned(qos))
        assert not answer.results[0].HasField("error"), answer.results
        assert {name: where(pid) for name, pid in pids.items()} == {"plain": LEFT, "idle": idle}
        assert CpuSet.parse(group(process, "own", "cpuset.cpus")) == OWN
        assert group(process, "own", "cpu.cfs_quota_us") == "-1"
        assert group(process, "idle", "cpu.shares") == "2"
        task = await real.submit("sleep", "60", task_id=str(qos), allocation_id="own")
        status = Path(f"/proc/{task.pid}/status").read_text()
        assert f"Cpus_allowed_list:\t{OWN}\n" in status
        await rm.free(free("own"))
        await eventually(lambda: where(pids["plain"]) == ALL, "its cpu is shared again")
        assert where(pids["idle"]) == ALL
    await all_tick_on(process, pids)


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["front", "helper", "both"])
async def test_killed_at_any_step_the_pools_are_right_in_the_end(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess, victims: str
) -> None:
    rng = random.Random(victims)
    pids = await spinners(rm, real, process)
    for generation in range(1, 3):
        wanted = pinned()
        wanted.slot.generation = generation
        order = asyncio.create_task(rm.allocate(wanted))
        await asyncio.sleep(rng.choice((0.001, 0.004, 0.008, 0.015, 0.03)))
        await kill(process, rm, victims)
        with contextlib.suppress(FinegrainError):
            await order
        answer = await rm.allocate(wanted)
        assert not answer.results[0].HasField("error"), answer.results
        assert {name: where(pid) for name, pid in pids.items()} == {"plain": LEFT, "idle": LEFT}
        release = asyncio.create_task(rm.free(free("own", generation)))
        await asyncio.sleep(rng.choice((0.001, 0.004, 0.008, 0.015)))
        await kill(process, rm, victims)
        with contextlib.suppress(FinegrainError):
            await release
        await rm.free(free("own", generation))
        await eventually(lambda: where(pids["plain"]) == ALL, "its cpu is shared again")
        await eventually(lambda: where(pids["idle"]) == ALL, "by all")
        await all_tick_on(process, pids)
