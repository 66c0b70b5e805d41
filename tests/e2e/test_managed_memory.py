"""A task keeps to the managed memory of its slot, while a job master changes the slot's size."""

from __future__ import annotations

import asyncio
import sys

import pytest

import finegrain_client as fg
from tests.e2e.driving import Small
from tests.support.components import REPOSITORY
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

OPERATOR = """
import sys, time
from finegrain_client.managed_memory import MemoryPool, PoolEmpty, SlotSocket
slot = SlotSocket()
slot.register("sort", "1/2")
with MemoryPool.for_operator("sort") as pool:
    pages = []
    for line in sys.stdin:
        while pool.pages != int(line):
            time.sleep(0.005)
        while pool.over_quota:
            pages.pop().release()
        try:
            while True:
                pages.append(pool.allocate())
                pages[-1].memory[:] = b"x" * pool.page_bytes
        except PoolEmpty:
            print(len(pages), flush=True)
"""


async def said(task: fg.Task, text: bytes) -> None:
    """Waits until a task has written this."""
    seen = b""
    async with asyncio.timeout(PATIENCE_S):
        async for chunk in task.output():
            seen += chunk.data
            if seen == text:
                return


@pytest.mark.needs("cgroup-v1")
async def test_an_operator_uses_its_quota_and_no_more_through_resizes(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("sorts") as job:
        (request,) = await job.request_slots(
            fg.SlotSpec(
                cpu_milli=500,
                memory_bytes=64 * fg.MIB,
                managed_memory_bytes=32 * fg.MIB,
            )
        )
        slot = await request.granted(PATIENCE_S)
        task = await slot.run(
            [sys.executable, "-c", OPERATOR],
            env={"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'client'}"},
            stdin="pipe",
        )
        await task.write_input(b"512\n")
        await said(task, b"512\n")
        await slot.resize(managed_memory_bytes=64 * fg.MIB)
        await task.write_input(b"1024\n")
        await said(task, b"512\n1024\n")
        # 1,024 pages are in use. The executor waits a moment for the operator to release some.
        shrinking = asyncio.create_task(slot.resize(managed_memory_bytes=8 * fg.MIB))
        await task.write_input(b"128\n", eof=True)
        await shrinking
        result = (await task.wait(PATIENCE_S)).check()
        assert result.stdout.split() == [b"512", b"1024", b"128"]
        assert slot.profile.managed_memory_bytes == 8 * fg.MIB
