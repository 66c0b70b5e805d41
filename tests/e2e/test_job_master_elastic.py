"""A job master with gangs and slots that change their size, over kills of the resource manager."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain.errors import Reason
from tests.e2e.driving import Daemons, Small, eventually, slot_groups, unique
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import eventually as becomes

pytestmark = pytest.mark.slow

HOLDER = """
import sys
held = bytearray(96 << 20)
for i in range(0, len(held), 4096): held[i] = 1
print("holding", flush=True)
sys.stdin.readline()
del held
print("free", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def daemons(home: Path) -> Iterator[Daemons]:
    made = Daemons(home)
    yield made
    made.clean_up()


def started(daemons: Daemons, *names: str) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    for name in names:
        daemons.executor(name).start()
    daemons.await_executors(*names)


async def test_growth_that_waits_outlives_the_resource_manager(daemons: Daemons) -> None:
    started(daemons, unique("e2e-grows"))
    async with daemons.connect() as cluster, cluster.job("grows") as job:
        events = job.events()
        small, other = await job.request_slots(
            [
                fg.SlotSpec(cpu_milli=300, memory_bytes=64 * fg.MIB),
                fg.SlotSpec(cpu_milli=600, memory_bytes=64 * fg.MIB),
            ]
        )
        slot, neighbour = await small.granted(PATIENCE_S), await other.granted(PATIENCE_S)
        task = await slot.run(["sh", "-c", "read line; echo $line"], stdin="pipe")
        growing = asyncio.create_task(slot.resize(cpu_milli=800))
        await becomes(lambda: slot.status.resizes)
        (why,) = (await small.explain()).resizes
        assert neighbour.allocation_id in why.summary
        daemons.manager.kill()
        daemons.manager.start()
        daemons.manager.endpoint()
        assert not growing.done()
        await neighbour.release()
        assert (await asyncio.wait_for(growing, PATIENCE_S)).profile.cpu_milli == 800
        assert slot.profile.task_heap_memory_bytes == 64 * fg.MIB
        await task.write_input(b"still here\n", eof=True)
        assert (await task.wait(PATIENCE_S)).check().stdout == b"still here\n"
        told = [await anext(events) for _ in range(4)]
        assert [each.sequence for each in told] == [1, 2, 3, 4]
        assert (told[-1].reason, told[-1].allocation_id) == ("RESIZED", slot.allocation_id)
    daemons.cli.settle()


@pytest.mark.needs("cgroup-v1")
async def test_memory_in_use_is_not_taken_and_given_back_is(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("shrinks") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=500, memory_bytes=192 * fg.MIB))
        slot = await request.granted(PATIENCE_S)
        said: asyncio.Queue[bytes] = asyncio.Queue()
        task = await slot.run(
            ["python3", "-c", HOLDER],
            stdin="pipe",
            output=lambda chunk: said.put_nowait(chunk.data),
        )
        assert await asyncio.wait_for(said.get(), PATIENCE_S) == b"holding\n"
        with pytest.raises(fg.ResizeRefused) as refused:
            await slot.resize(memory_bytes=48 * fg.MIB, timeout_s=PATIENCE_S)
        assert refused.value.reason is Reason.RESIZE_REFUSED
        assert slot.memory_bytes == 192 * fg.MIB
        shrinking = asyncio.create_task(
            slot.resize(memory_bytes=48 * fg.MIB, wait_for_use=True, timeout_s=PATIENCE_S)
        )
        await becomes(lambda: slot.status.resizes, what="the change waits")
        assert not shrinking.done()
        await task.write_input(b"\n")
        assert (await shrinking).memory_bytes == 48 * fg.MIB
        await task.write_input(b"\n", eof=True)
        (await task.wait(PATIENCE_S)).check()


async def test_two_gangs_never_hold_halves_and_one_gives_up_in_time(daemons: Daemons) -> None:
    started(daemons, unique("e2e-one"), unique("e2e-two"))
    half = fg.SlotSpec(cpu_milli=600, memory_bytes=64 * fg.MIB, count=2)
    async with daemons.connect() as cluster, cluster.job("first") as job:
        mine = await job.request_gang(half, placement="spread")
        assert len({each.executor_id for each in mine}) == 2
        async with cluster.job("second") as rival:
            with pytest.raises(fg.GangTimeout):
                await rival.request_gang(half, placement="spread", timeout_s=0.5)
            waiting = asyncio.create_task(rival.request_gang(half))

            async def waits() -> bool:
                found = await cluster.requests(job_id=rival.job_id)
                return [each.state for each in found] == ["PENDING"] * 2

            await becomes(waits, what="the gang waits")
            daemons.manager.kill()
            daemons.manager.start()
            daemons.manager.endpoint()
            await mine[0].release()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 1)
            books = [each.state for each in await cluster.requests(job_id=rival.job_id)]
            assert books == ["PENDING"] * 2
            await mine[1].release()
            slots = await asyncio.wait_for(waiting, PATIENCE_S)
            results = [
                await (await each.run(["echo", "together"])).wait(PATIENCE_S) for each in slots
            ]
            assert [each.stdout for each in results] == [b"together\n"] * 2
    eventually(
        lambda: (
            not [group for each in daemons.executors for group in slot_groups(each.state_dir.name)]
        ),
        "all slots are gone",
    )
    daemons.cli.settle()


async def test_a_gang_that_is_given_up_leaves_nothing(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("impatient") as job:
        large = fg.SlotSpec(cpu_milli=900, memory_bytes=64 * fg.MIB, count=2)
        (blocker,) = await job.request_slots(fg.SlotSpec(cpu_milli=500, memory_bytes=64 * fg.MIB))
        await blocker.granted(PATIENCE_S)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await job.request_gang(large)

        async def only_the_other_one() -> bool:
            left = await cluster.requests(job_id=job.job_id)
            return [each.allocation_id for each in left] == [blocker.allocation_id]

        await becomes(only_the_other_one)
        assert [each.allocation_id for each in job.requests] == [blocker.allocation_id]
    small.cli.settle()
