"""Managed memory with real processes: pools follow the quota, and the kernel limits tasks."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from finegrain.v1 import task_executor_pb2 as te
from finegrain_client.managed_memory import SlotSocket, SlotSocketError
from tests.support.components import REPOSITORY
from tests.support.patience import PATIENCE_S
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import MIB, JobMaster, ScriptedRM, eventually
from tests.task_executor.service.test_operators import managed, resized
from tests.task_executor.service.test_real_restarts import restarted

pytestmark = [pytest.mark.slow, pytest.mark.full]

POOL = """
import sys, time
from finegrain_client.managed_memory import MemoryPool, PoolEmpty
pool = MemoryPool.for_operator("sort")
pages = []
def fill():
    try:
        while True:
            pages.append(pool.allocate())
            pages[-1].memory[:] = b"x" * pool.page_bytes
    except PoolEmpty:
        pass
fill()
print("pages", len(pages), flush=True)
known = pool.pages
while True:
    while pool.over_quota:
        pages.pop().release()
    if pool.pages != known:
        known = pool.pages
        fill()
        print("pages", len(pages), flush=True)
    time.sleep(0.005)
"""
SHARING = """
import sys, time
from finegrain_client.managed_memory import MemoryPool, PoolEmpty
name, wanted = sys.argv[1], int(sys.argv[2])
pool, pages = MemoryPool.for_operator(name, opportunistic=True), []
while True:
    while pool.over_quota:
        pages.pop().release()
    if len(pages) < wanted:
        try:
            pages.append(pool.allocate())
            pages[-1].memory[:] = b"x" * pool.page_bytes
        except PoolEmpty:
            time.sleep(0.01)
        if len(pages) in (700, 1024, 1500):
            print(name, "has", len(pages), flush=True)
    else:
        line = sys.stdin.readline().split()  # how many pages it wants now
        wanted = int(line[0])
        while len(pages) > wanted:
            pages.pop().release()
"""
"""The program of a pool that lends and borrows: it takes as many pages as it wants, and then reads
a number.
"""
HOG = "x = bytearray({mib} << 20); print('fits', flush=True); import time; time.sleep(600)"


async def submit(
    master: JobMaster,
    task_id: str,
    code: str,
    *,
    limit: int = 0,
    argv: tuple[str, ...] = (sys.executable, "-c"),
    **fractions: str,
) -> te.TaskStatus:
    path = f"{REPOSITORY}:{REPOSITORY / 'client'}"
    request = te.SubmitTaskRequest(
        task_id=task_id,
        allocation_id="slot",
        generation=1,
        spec=te.TaskSpec(argv=[*argv, code], env={"PYTHONPATH": path}),
        operator_task=te.OperatorTask(
            operators=[te.TaskOperator(operator_id=n, fraction=f) for n, f in fractions.items()],
            parallelism=1,
        ),
        memory_limit_bytes=limit,
    )
    answer: te.SubmitTaskResponse = await master.call("SubmitTask", request)
    assert answer.task.state == te.TASK_STATE_RUNNING, answer.task
    return answer.task


async def printed(process: ExecutorProcess, task_id: str, text: str) -> None:
    await eventually(lambda: text.encode() in process.output(task_id), f"{task_id} prints {text}")


async def test_a_pool_follows_its_quota_through_resizes_and_a_crash_of_the_front(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(managed(32))
    await submit(real, "task", POOL, sort="1/2")
    await printed(process, "task", "pages 512\n")
    await resized(rm, 1, managed_mib=64)
    await printed(process, "task", "pages 1024\n")
    await resized(rm, 2, managed_mib=8)
    await printed(process, "task", "pages 128\n")
    process.kill()
    master = await restarted(process, rm)
    await resized(rm, 3, managed_mib=16)
    await printed(process, "task", "pages 256\n")
    operator = (await master.tasks())[0].operators[0]
    assert operator.enforcement == te.QUOTA_ENFORCEMENT_POOL
    assert (operator.quota_bytes, operator.quota_pages) == (8 * MIB, 256)


async def test_pools_lend_each_other_what_they_do_not_use(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess, tmp_path: Path
) -> None:
    """Each pool has a quota of 1,024 pages. The borrower takes all pages that it can get, and gives
    them back, also after a restart of the front, which then does not know of the loan.
    """
    await rm.allocate(managed(64))
    (tmp_path / "pool.py").write_text(SHARING)
    os.mkfifo(fifo := tmp_path / "orders")
    run = f"exec {sys.executable} {tmp_path / 'pool.py'}"
    shell = ("sh", "-c")
    await submit(real, "owner", f"{run} owner 0 <> {fifo}", argv=shell, owner="1/2")
    await submit(real, "borrower", f"{run} borrower 3000", argv=shell, borrower="1/2")
    await printed(process, "borrower", "borrower has 1500")
    process.kill()
    real = await restarted(process, rm)
    fifo.write_text("700\n")
    await printed(process, "owner", "owner has 700")

    async def operators() -> dict[str, te.OperatorStatus]:
        return {each.operator_id: each for t in await real.tasks() for each in t.operators}

    found = await operators()
    for _ in range(round(PATIENCE_S * 20)):
        if sum(each.used_bytes for each in found.values()) <= 64 * MIB:
            break
        await asyncio.sleep(0.05)
        found = await operators()
    assert sum(each.limit_bytes for each in found.values()) <= 64 * MIB
    assert found["owner"].limit_bytes >= 700 * (32 << 10)
    assert {each.state for each in await real.tasks()} == {te.TASK_STATE_RUNNING}


@pytest.mark.needs("root", "cgroup-v1")
async def test_an_operator_that_takes_more_is_held_and_its_neighbour_notices_nothing(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(managed(128))
    await submit(real, "modest", HOG.format(mib=60), limit=96 * MIB, join="1/2")
    await printed(process, "modest", "fits")
    await submit(real, "greedy", HOG.format(mib=120), limit=80 * MIB, sort="1/2")
    assert (await real.watch("greedy")).exit.oom_killed
    by_id = {task.task_id: task for task in await real.tasks()}
    assert by_id["modest"].state == te.TASK_STATE_RUNNING
    assert by_id["greedy"].exit.peak_memory_bytes <= 80 * MIB

    async def status() -> te.OperatorStatus:
        return next(t for t in await real.tasks() if t.task_id == "modest").operators[0]

    for _ in range(round(PATIENCE_S * 20)):  # measured with the next report
        if (operator := await status()).used_bytes:
            break
        await asyncio.sleep(0.05)
    assert operator.enforcement == te.QUOTA_ENFORCEMENT_CGROUP
    assert 60 * MIB <= operator.used_bytes <= 96 * MIB


@pytest.mark.needs("root", "cgroup-v1")
async def test_a_resize_below_what_a_limited_task_uses_is_refused_and_changes_nothing(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(managed(128))
    status = await submit(real, "task", HOG.format(mib=80), limit=128 * MIB, sort="1")
    await printed(process, "task", "fits")
    lines = Path(f"/proc/{status.pid}/cgroup").read_text().splitlines()
    group = next(line.rpartition(":")[2] for line in lines if ":memory:" in line)
    limit = Path(f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes")
    assert int(limit.read_text()) == 128 * MIB
    with pytest.raises(AssertionError, match="BELOW_USE"):
        await resized(rm, 1, managed_mib=16)
    assert int(limit.read_text()) == 128 * MIB
    await resized(rm, 2, managed_mib=160)
    assert int(limit.read_text()) == 160 * MIB


async def test_a_task_registers_operators_at_the_socket_of_its_slot(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(managed(16))
    ask = "from finegrain_client.managed_memory import SlotSocket; slot = SlotSocket(); "
    code = ask + "print(slot.register('late', '1/4'), slot.peers(), flush=True)"
    await submit(real, "task", code, sort="1/2")
    await printed(process, "task", "'memory_bytes': 4194304")
    assert (await real.watch("task")).exit.exit_code == 0


@pytest.mark.needs("root")
async def test_only_the_user_of_the_slot_may_open_its_socket_and_only_its_tasks_are_served(
    rm: ScriptedRM, process: ExecutorProcess
) -> None:
    process.start(task_user="nobody", allow_root_tasks=False)
    await eventually(lambda: rm.reports or process.exit_code is not None, "it reports")
    master = rm.job_master()
    await rm.allocate(managed(16))
    code = "while ! test -S $FINEGRAIN_SLOT_SOCKET; do sleep 0.1; done; echo seen; sleep 600"
    await submit(master, "task", code, argv=("sh", "-c"), sort="1/2")
    await printed(process, "task", "seen")
    path = next((process.folder / "run").glob("slots-*/*.sock"))
    assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o600, 65534)
    stranger = SlotSocket(str(path))  # root may open it, but is no task of the slot
    with pytest.raises(SlotSocketError):
        await asyncio.to_thread(stranger.call, "GetPeers", timeout_s=0.5)
    stranger.close()
