"""What a slot was given is what its tasks can use, as a job master sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import finegrain_client as fg
from tests.e2e.driving import Small, python, slot_groups, small_cluster
from tests.support.control_groups import groups_called

pytestmark = pytest.mark.needs("cgroup-v1")

SPIN = "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
HOG = "held = []\nwhile True: held.append(bytearray(1 << 20))"
FORK = """
import os, time
made = 0
try:
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except OSError as error:
    print(made, error.strerror)
"""


@pytest.fixture(scope="module")
def shared(home: Path) -> Iterator[Small]:
    """One executor with a core and 512 MiB."""
    with small_cluster(home, executors=1) as small:
        yield small


async def test_who_eats_memory_dies_alone(small: Small) -> None:
    spec = fg.SlotSpec(cpu_milli=200, memory_bytes=48 * fg.MIB, count=2)
    async with small.connect() as cluster, cluster.job("hog and neighbour") as job:
        first, second = [await each.granted(30) for each in await job.request_slots(spec)]
        neighbour = await first.run(["cat"], stdin="pipe")
        hog = await (await second.run(python(HOG))).wait(60)
        assert hog.oom_killed
        assert not hog.ok
        assert 40 * fg.MIB < hog.peak_memory_bytes <= 48 * fg.MIB
        await neighbour.write_input(b"still here")
        await neighbour.close_input()
        assert (await neighbour.wait(60)).check().stdout == b"still here"
        again = await (await second.run(["echo", "the slot lives on"])).wait(60)
        assert again.check().stdout == b"the slot lives on\n"


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("cpu_milli", [100, 500])
async def test_who_spins_gets_its_quota(small: Small, cpu_milli: int) -> None:
    spec = fg.SlotSpec(cpu_milli=cpu_milli, memory_bytes=48 * fg.MIB)
    async with small.connect() as cluster, cluster.job("spinner") as job:
        (request,) = await job.request_slots(spec)
        result = await (await (await request.granted(30)).run(python(SPIN))).wait(60)
        assert result.check().cpu_time_s == pytest.approx(3 * cpu_milli / 1000, rel=0.15)


async def test_two_spinners_in_one_slot_share_its_quota(small: Small) -> None:
    """Measured against the slot, so that a busy machine can only make it less."""
    spec = fg.SlotSpec(cpu_milli=200, memory_bytes=48 * fg.MIB)
    async with small.connect() as cluster, cluster.job("two spinners") as job:
        (request,) = await job.request_slots(spec)
        slot = await request.granted(30)
        tasks = [await slot.run(python(SPIN)) for _ in range(2)]
        used_s = sum([(await each.wait(60)).check().cpu_time_s for each in tasks])
        assert used_s < 1.15 * 4 * 0.2  # they start a little apart


async def test_processes_are_counted(small: Small) -> None:
    spec = fg.SlotSpec(cpu_milli=200, memory_bytes=64 * fg.MIB, pids_max=10)
    async with small.connect() as cluster, cluster.job("forks") as job:
        (request,) = await job.request_slots(spec)
        slot = await request.granted(30)
        result = await (await slot.run(python(FORK))).wait(60)
        made, *why = result.stdout.decode().split(maxsplit=1)
        assert 7 <= int(made) <= 9
        assert why == ["Resource temporarily unavailable\n"]


async def test_a_slot_says_what_is_enforced(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("isolation") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=200))
        slot = await request.granted(30)
        assert slot.isolation is not None
        assert (slot.isolation.cpu, slot.isolation.memory) == ("quota", "hard")
        assert (slot.isolation.pids, slot.isolation.driver) == ("hard", "v1")


def test_nothing_is_left_in_the_kernel(home: Path) -> None:
    with small_cluster(home, executors=1) as small:
        (name,) = small.names
        outcome = small.cli.run("--", "sh", "-c", "sleep 1000 & echo up")
        assert outcome.code == 0
        small.cli.settle()
        assert not slot_groups(name)
    assert not groups_called(name) + groups_called(f"finegrain/{name}")
