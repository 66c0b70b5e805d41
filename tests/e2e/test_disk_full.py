"""Disks that fill up under real daemons. Data that cannot be stored is not acknowledged, and the
reason is reported. Running work continues, and when there is space again, everything else
continues, too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain.errors import FinegrainError, Reason, StoreError
from tests.e2e.driving import Daemon, Daemons, eventually, helper_pid, unique
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.needs("root")]

SMALL = fg.SlotSpec(cpu_milli=50, memory_bytes=16 * fg.MIB)
SERVING = '"event": "serving"'
TICKER = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 7"
TICKS = b"".join(b"%d\n" % number for number in range(1, 21))


class SmallDisk:
    """A file system of a few MiB that can be filled to the last byte."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # The folder may have certificates already, which the file system would hide.
        kept = folder.with_name(f"{folder.name}-kept")
        shutil.copytree(folder, kept)
        options = f"size={size},mode=0750"
        command = ["mount", "-t", "tmpfs", "-o", options, "finegrain-test", str(folder)]
        subprocess.run(command, check=True)
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        shutil.rmtree(kept)

    def fill(self) -> None:
        """Fills the file system until not one more byte fits."""
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while ballast.write(b"x" * size):
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        """Frees the space again."""
        (self.folder / "ballast").unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)
        shutil.rmtree(self.folder.parent, ignore_errors=True)


@pytest.fixture
def daemons(home: Path) -> Daemons:
    """A resource manager and an executor, not started yet."""
    made = Daemons(home)
    made.executor(unique("e2e-full"))
    return made


@pytest.fixture
def disk_of_manager(daemons: Daemons) -> Iterator[SmallDisk]:
    """The file system with the state of the resource manager."""
    disk = SmallDisk(daemons.manager.state_dir, "8m")
    yield disk
    disk.make_room()
    for daemon in (daemons.manager, *daemons.executors):
        sys.stderr.write(daemon.log[-6000:])  # shown where the test failed
    daemons.clean_up()
    disk.unmount()


@pytest.fixture
def disk_of_executor(daemons: Daemons) -> Iterator[SmallDisk]:
    """The file system with the state of the executor and its helper, and with the output of
    tasks.
    """
    disk = SmallDisk(daemons.executors[0].state_dir, "4m")
    yield disk
    disk.make_room()
    for daemon in (daemons.manager, *daemons.executors):
        sys.stderr.write(daemon.log[-6000:])  # shown where the test failed
    daemons.clean_up()
    disk.unmount()


@pytest.fixture
async def cluster(daemons: Daemons) -> AsyncIterator[fg.Cluster]:
    """A client of daemons that a test has started."""
    await asyncio.to_thread(start, daemons)
    async with daemons.connect() as made:
        yield made


def start(daemons: Daemons) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    (executor,) = daemons.executors
    executor.start()
    daemons.await_executors(executor.state_dir.name)


async def hasty_error(daemons: Daemons) -> FinegrainError:
    """Returns the error of a client that requests much and does not wait."""
    hasty = fg.connect(daemons.address, credentials=daemons.credentials_file, budget_s=2)
    async with hasty:
        with pytest.raises(FinegrainError) as caught:
            async with hasty.job("hasty") as job:
                await much(job)
    return caught.value


async def test_a_resource_manager_without_room_acknowledges_nothing_and_says_why(
    disk_of_manager: SmallDisk, daemons: Daemons, cluster: fg.Cluster
) -> None:
    async with cluster.job("patient", lease_s=60) as job:
        kept = await job.request_slots([SMALL] * 5)
        slot = await kept[0].granted(PATIENCE_S)
        task = await slot.run(["sh", "-c", TICKER])
        disk_of_manager.fill()

        patient = asyncio.create_task(much(job))
        told: list[FinegrainError] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(told) < 4:
                error = await hasty_error(daemons)
                if error.reason is not Reason.UNREACHABLE:  # a busy machine answers too late
                    told.append(error)
        assert {(type(each), each.reason) for each in told} == {(StoreError, Reason.DISK_FULL)}
        assert f"free space on the disk that holds {disk_of_manager.folder}" in told[-1].message
        assert not patient.done()
        result = await task.wait(PATIENCE_S)
        assert (result.stdout, result.exit_code) == (TICKS, 7)
        assert daemons.manager.runs()

        disk_of_manager.make_room()
        kept += await patient
        found = {each.allocation_id for each in await cluster.requests(job_id=job.job_id)}
        assert found == {each.allocation_id for each in kept}
        await slot.release()
    assert daemons.manager.log.count('"database_back"') >= 1


async def much(job: fg.Job) -> list[fg.Request]:
    """This is more than the space that may be left within the database's files."""
    return await job.request_slots([SMALL] * 2_000)


async def test_a_resource_manager_killed_on_a_full_disk_comes_back_when_there_is_room(
    disk_of_manager: SmallDisk, daemons: Daemons, cluster: fg.Cluster
) -> None:
    async with cluster.job("detached", detached=True) as job:
        kept = await job.request_slots([SMALL] * 3)
        disk_of_manager.fill()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await much(job)
        daemons.manager.kill()
        before = daemons.manager.log.count(SERVING)
        daemons.manager.start()
        # The daemon serves, or it reports why it cannot serve and ends, so that a service manager
        # would start it again.
        if not await asyncio.to_thread(serves, daemons.manager, before + 1):
            assert await asyncio.to_thread(daemons.manager.end) == 1
            assert '"cannot_serve"' in daemons.manager.log
            assert '"DISK_FULL"' in daemons.manager.log
            disk_of_manager.make_room()
            daemons.manager.start()
        disk_of_manager.make_room()
        await asyncio.to_thread(daemons.manager.endpoint)
        found = {each.allocation_id for each in await cluster.requests(job_id=job.job_id)}
        assert found >= {each.allocation_id for each in kept}
        await job.end()


def serves(daemon: Daemon, times: int) -> bool:
    """Waits until the daemon serves for the `times`-th time, or ends; returns True if it serves."""
    eventually(
        lambda: not daemon.runs() or daemon.log.count(SERVING) == times, "it serves, or ends"
    )
    return daemon.runs()


async def test_an_executor_without_room_says_so_keeps_its_tasks_and_recovers(
    disk_of_executor: SmallDisk, daemons: Daemons, cluster: fg.Cluster
) -> None:
    (executor,) = daemons.executors
    hasty = fg.connect(daemons.address, credentials=daemons.credentials_file, budget_s=1)
    async with cluster, hasty, hasty.job("patient") as job:
        (first,) = await job.request_slots(SMALL)
        slot = await first.granted(PATIENCE_S)
        task = await slot.run(["sh", "-c", "read go; echo lost; exit 5"], stdin="pipe")
        disk_of_executor.fill()

        (second,) = await job.request_slots(SMALL)
        with pytest.raises(TimeoutError):
            await second.granted(1)
        assert "No space left" in executor.log
        with pytest.raises(FinegrainError, match="No space left"):
            await slot.run(["true"])
        await task.write_input(b"go\n")
        result = await task.wait(PATIENCE_S)
        assert result.exit_code == 5

        disk_of_executor.make_room()
        other = await second.granted(PATIENCE_S)
        assert (await (await other.run(["true"])).wait(PATIENCE_S)).exit_code == 0
        assert executor.runs()


async def test_an_executor_killed_on_a_full_disk_takes_its_tasks_back(
    disk_of_executor: SmallDisk, daemons: Daemons, cluster: fg.Cluster
) -> None:
    (executor,) = daemons.executors
    async with cluster.job("patient") as job:
        (request,) = await job.request_slots(SMALL)
        slot = await request.granted(PATIENCE_S)
        task = await slot.run(["sh", "-c", "sleep 3; exit 5"])
        disk_of_executor.fill()
        helper = helper_pid(executor)
        executor.kill()
        os.kill(helper, signal.SIGKILL)
        executor.start()
        result = await task.wait(PATIENCE_S)
        assert result.exit_code == 5
        await slot.release()
        assert executor.runs()
        assert "checkpoint_not_written" in executor.log
        disk_of_executor.make_room()
        (again,) = await job.request_slots(SMALL)
        await again.granted(PATIENCE_S)
        executor.kill()
        executor.start()  # its address is in the file system again
        await asyncio.to_thread(executor.endpoint)


async def test_an_executor_never_begins_where_it_cannot_keep_who_it_is(
    disk_of_executor: SmallDisk, daemons: Daemons
) -> None:
    (executor,) = daemons.executors
    daemons.manager.start()
    await asyncio.to_thread(daemons.manager.endpoint)
    disk_of_executor.fill()
    executor.start()
    assert await asyncio.to_thread(executor.end) == 1
    assert "No space left on device" in executor.log
    assert "Traceback" not in executor.log
