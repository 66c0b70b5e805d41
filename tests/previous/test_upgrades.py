"""Processes of this version and of the previous one work together, whichever restarts first."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from finegrain.v1 import task_executor_pb2 as te
from tests.e2e.driving import Cli, Daemon, Daemons, finish, unique
from tests.e2e.driving import eventually as eventually_sync
from tests.previous.code import VERSION, PreviousCode
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)
from tests.task_executor.service.test_helper_of_its_own import HelperUnit

PACKAGES = """
import finegrain, finegrain_cli, finegrain_client, resource_manager, task_executor
from importlib.metadata import version
for each in (finegrain, finegrain_cli, finegrain_client, resource_manager, task_executor):
    print(each.__path__[0])
print(version("finegrain"))
"""
PATIENT_TASK = ("sh", "-c", "echo begun; read line; echo $line; exit 7")


def test_the_archive_is_what_runs(previous: PreviousCode, tmp_path: Path) -> None:
    *places, version = previous.run(PACKAGES, tmp_path).split()

    assert version == VERSION
    assert len(places) == 5
    assert {str(Path(each).parent) for each in places} == {str(previous.folder)}


# Managers and executors.


@dataclass
class Mixed:
    """Daemons of which each runs this version or the previous one."""

    daemons: Daemons
    older: PreviousCode

    def as_previous(self, cli: Cli) -> Cli:
        return replace(cli, extra=self.older.environment)

    def start(self, daemon: Daemon, *, previous: bool) -> None:
        """Starts the daemon with the code of one of the versions."""
        bare = replace(daemon.cli, extra={})
        daemon.cli = self.as_previous(bare) if previous else bare
        daemon.start()
        daemon.endpoint()

    def executor(self, *, previous: bool) -> Daemon:
        """An executor that has registered; the resource manager tells which version it is."""
        daemon = self.daemons.executor(unique("mixed"))
        self.start(daemon, previous=previous)
        self.daemons.await_executors(daemon.state_dir.name)
        (row,) = self.daemons.cli.items("executors")
        assert (row["software_version"] == VERSION) is previous
        return daemon

    def check_manager(self, *, previous: bool) -> None:
        """Proves by its own word which version the resource manager is."""
        assert (self.daemons.cli.json("status")["software_version"] == VERSION) is previous


@pytest.fixture
def mixed(previous: PreviousCode) -> Iterator[Mixed]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fg-home-")))
        daemons = Daemons(home)
        daemons.manager.command += ("--lost-timeout", "60s")  # longer than any restart takes
        stack.callback(daemons.clean_up)
        yield Mixed(daemons, previous)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("manager_is_previous", [False, True], ids=["new rm", "previous rm"])
def test_a_manager_serves_an_executor_of_the_other_version(
    mixed: Mixed, manager_is_previous: bool
) -> None:
    cli = mixed.daemons.cli
    mixed.start(mixed.daemons.manager, previous=manager_is_previous)
    mixed.check_manager(previous=manager_is_previous)
    mixed.executor(previous=not manager_is_previous)

    # Command lines of both versions; the previous one always passes standard input.
    for each, passing in ((cli, ("-i",)), (mixed.as_previous(cli), ())):
        done = each.run(*passing, "--", "sh", "-c", "cat; exit 7", stdin=b"through\n")
        assert (done.code, done.stdout) == (7, b"through\n"), done.stderr
        cli.settle()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("new_first", ["manager", "executor"])
def test_a_running_task_survives_the_upgrade_of_both(mixed: Mixed, new_first: str) -> None:
    daemons = mixed.daemons
    mixed.start(daemons.manager, previous=True)
    executor = mixed.executor(previous=True)
    run = mixed.as_previous(daemons.cli).start(
        *("run", "--cpu", "0.1", "--memory", "32M", "--", *PATIENT_TASK), stdin=-1
    )
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == b"begun\n"
    order = [daemons.manager, executor]
    for daemon in order if new_first == "manager" else reversed(order):
        daemon.kill()
        mixed.start(daemon, previous=False)
        daemons.await_executors(executor.state_dir.name)
    mixed.check_manager(previous=False)
    eventually_sync(
        lambda: daemons.cli.items("executors")[0]["software_version"] != VERSION,
        "the new executor has registered",
    )
    (slot,) = daemons.cli.items("slots")
    assert slot["state"] == "ALLOCATED"

    run.stdin.write(b"ended\n")
    run.stdin.flush()
    done = finish(run)
    assert (done.code, done.stdout) == (7, b"ended\n"), done.stderr
    daemons.cli.settle()


# Fronts and helpers.


@dataclass
class Halves:
    """The front and the helper of one executor as two units, each of one of the versions."""

    rm: ScriptedRM
    front: ExecutorProcess
    helper: HelperUnit
    older: PreviousCode

    def start_helper(self, *, previous: bool) -> None:
        """Starts the helper, whose own command line tells whose code it runs."""
        self.helper.environment = self.older.environment if previous else {}
        self.helper.cwd = self.older.folder if previous else HelperUnit.cwd
        assert self.helper.start() == "READY=1"
        assert self.helper.process is not None
        words = Path(f"/proc/{self.helper.process.pid}/cmdline").read_text()
        assert (str(self.older.folder) in words) is previous

    async def start_front(self, *, previous: bool) -> JobMaster:
        """Starts the front and waits for its registration, which tells its version."""
        self.front.environment = self.older.environment if previous else {}
        self.front.cwd = self.older.folder if previous else ExecutorProcess.cwd
        before = len(self.rm.registrations)
        self.front.start()
        await eventually(
            lambda: len(self.rm.registrations) > before or self.front.exit_code is not None,
            "it registers",
        )
        assert self.front.exit_code is None, self.front.log
        assert (self.rm.registered.software_version == VERSION) is previous
        return self.rm.job_master()

    async def begin(self, master: JobMaster) -> te.TaskStatus:
        """A slot with a task that reads a line before it ends."""
        await self.rm.allocate(allocation())
        return await master.submit(*PATIENT_TASK, stdin=True)

    async def end(self, master: JobMaster) -> None:
        """The task reads, writes and exits through the new processes; its slot is freed."""
        await master.write((0, b"ended\n", True))
        seen = await master.watch()
        assert (seen.stdout, seen.exit.exit_code) == (b"begun\nended\n", 7)
        await self.rm.free(free())
        await eventually(lambda: not self.rm.slots(), "the slot is gone")


@pytest.fixture
async def halves(previous: PreviousCode) -> AsyncIterator[Halves]:
    manager = ScriptedRM()
    await manager.start()
    with tempfile.TemporaryDirectory(prefix="fg-") as folder:
        front = ExecutorProcess(Path(folder), manager.address)
        helper = HelperUnit(front.folder, f"test-{front.folder.name}")
        front.options |= {**helper.places, "task_user": "root", "managers": [manager.address]}
        yield Halves(manager, front, helper, previous)
        if helper.process is not None and helper.process.poll() is None:
            helper.end(signal.SIGKILL)
        await asyncio.to_thread(front.clean_up)
    await manager.stop()


def restart(halves: Halves, how: int) -> None:
    """The helper ends; this version's takes its place."""
    halves.helper.end(how)
    halves.start_helper(previous=False)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.needs("root")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_new_front_adopts_the_shims_of_a_previous_helper_and_then_a_new_helper_does(
    halves: Halves, how: int
) -> None:
    halves.start_helper(previous=True)
    task = await halves.begin(await halves.start_front(previous=True))
    halves.front.kill()
    master = await halves.start_front(previous=False)
    (seen,) = await master.tasks()
    assert (seen.pid, seen.state) == (task.pid, te.TASK_STATE_RUNNING)
    assert [slot.allocation_id for slot in halves.rm.registered.report.slots] == ["slot"]
    restart(halves, how)
    await halves.end(master)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.needs("root")
async def test_a_new_front_works_with_a_previous_helper(halves: Halves) -> None:
    halves.start_helper(previous=True)
    master = await halves.start_front(previous=False)
    await halves.begin(master)
    await halves.rm.resize(1, cpu_milli=750)
    await halves.end(master)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.needs("root")
async def test_a_new_helper_adopts_the_shims_of_a_previous_one_under_a_previous_front(
    halves: Halves,
) -> None:
    halves.start_helper(previous=True)
    master = await halves.start_front(previous=True)
    await halves.begin(master)
    restart(halves, signal.SIGTERM)
    await halves.rm.allocate(allocation("another"))
    await master.submit("sh", "-c", "exit 5", task_id="more", allocation_id="another")
    assert (await master.watch("more")).exit.exit_code == 5
    await halves.rm.resize(1, cpu_milli=750)
    await halves.rm.free(free("another"))
    await halves.end(master)


@pytest.mark.full
@pytest.mark.slow
async def test_an_executor_started_again_with_new_code_keeps_its_tasks(halves: Halves) -> None:
    """The front starts its helper by itself: the previous one is replaced, its shims are not."""
    for name in halves.helper.places:
        del halves.front.options[name]
    master = await halves.start_front(previous=True)
    await halves.begin(master)
    halves.front.kill()
    await halves.end(await halves.start_front(previous=False))
