"""A task can use exactly the amounts of its slot, as a job master sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import finegrain_client as fg
from tests.e2e.driving import Small, python, slot_groups, small_cluster
from tests.support.control_groups import ROOT, groups_called
from tests.support.cpu_quota import SMALL_QUOTAS_MILLI, assert_quota_holds
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.needs("cgroup-v1")

SPIN = "while True: pass"
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
        first, second = [await each.granted(PATIENCE_S) for each in await job.request_slots(spec)]
        neighbour = await first.run(["cat"], stdin="pipe")
        hog = await (await second.run(python(HOG))).wait(PATIENCE_S)
        assert hog.oom_killed
        assert not hog.ok
        assert 40 * fg.MIB < hog.peak_memory_bytes <= 48 * fg.MIB
        await neighbour.write_input(b"still here")
        await neighbour.close_input()
        assert (await neighbour.wait(PATIENCE_S)).check().stdout == b"still here"
        again = await (await second.run(["echo", "the slot lives on"])).wait(PATIENCE_S)
        assert again.check().stdout == b"the slot lives on\n"


@pytest.mark.slow
@pytest.mark.parametrize("cpu_milli", SMALL_QUOTAS_MILLI)
async def test_who_spins_gets_its_quota(small: Small, cpu_milli: int) -> None:
    spec = fg.SlotSpec(cpu_milli=cpu_milli, memory_bytes=48 * fg.MIB)
    async with small.connect() as cluster, cluster.job("spinner") as job:
        (request,) = await job.request_slots(spec)
        spinner = await (await request.granted(PATIENCE_S)).run(python(SPIN))
        await assert_quota_holds(cpu_group(small), cpu_milli)
        await spinner.cancel(grace_s=0)
        result = await spinner.wait(PATIENCE_S)
        assert result.cpu_time_s > 0


@pytest.mark.slow
async def test_two_spinners_in_one_slot_share_its_quota(small: Small) -> None:
    cpu_milli = SMALL_QUOTAS_MILLI[1]
    spec = fg.SlotSpec(cpu_milli=cpu_milli, memory_bytes=48 * fg.MIB)
    async with small.connect() as cluster, cluster.job("two spinners") as job:
        (request,) = await job.request_slots(spec)
        slot = await request.granted(PATIENCE_S)
        for _ in range(2):
            await slot.run(python(SPIN))
        await assert_quota_holds(cpu_group(small), cpu_milli)


def cpu_group(small: Small) -> Path:
    """Of the only slot."""
    (group,) = [each for each in small.slot_groups() if each.is_relative_to(f"{ROOT}/cpu")]
    return group


async def test_processes_are_counted(small: Small) -> None:
    spec = fg.SlotSpec(cpu_milli=200, memory_bytes=64 * fg.MIB, pids_max=10)
    async with small.connect() as cluster, cluster.job("forks") as job:
        (request,) = await job.request_slots(spec)
        slot = await request.granted(PATIENCE_S)
        result = await (await slot.run(python(FORK))).wait(PATIENCE_S)
        made, *why = result.stdout.decode().split(maxsplit=1)
        assert 7 <= int(made) <= 9
        assert why == ["Resource temporarily unavailable\n"]


async def test_a_slot_says_what_is_enforced(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("isolation") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=200))
        slot = await request.granted(PATIENCE_S)
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
