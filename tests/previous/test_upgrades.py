"""This version takes over slots and tasks that run on a host of the previous version.

Peers of the previous version are refused: they know no certificates.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from finegrain.credentials import write_private_file
from finegrain.errors import PermissionDenied
from finegrain.v1 import task_executor_pb2 as te
from tests.previous.code import VERSION, PreviousCode
from tests.previous.plain_rm import CLUSTER_TOKEN, PlainRM
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    OPERATOR,
    OWNER,
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


# Fronts and helpers.


@dataclass
class Halves:
    """The front and the helper of one executor as two units. Each unit has one of the versions."""

    rm: ScriptedRM
    older_rm: PlainRM
    front: ExecutorProcess
    helper: HelperUnit
    older: PreviousCode

    def start_helper(self, *, previous: bool) -> None:
        """Starts the helper. Its command line shows which version of the code it runs."""
        self.helper.environment = self.older.environment if previous else {}
        self.helper.cwd = self.older.folder if previous else HelperUnit.cwd
        assert self.helper.start() == "READY=1"
        assert self.helper.process is not None
        words = Path(f"/proc/{self.helper.process.pid}/cmdline").read_text()
        assert (str(self.older.folder) in words) is previous

    async def start_front(self, *, previous: bool) -> JobMaster:
        """Starts the front and waits for its registration, which contains its version."""
        manager = self.older_rm if previous else self.rm
        before = len(manager.registrations)
        self.launch_front(manager, previous=previous)
        await eventually(
            lambda: len(manager.registrations) > before or self.front.exit_code is not None,
            "it registers",
        )
        assert self.front.exit_code is None, self.front.log
        assert (manager.registered.software_version == VERSION) is previous
        return manager.job_master(OPERATOR)

    def launch_front(self, manager: ScriptedRM, *, previous: bool) -> None:
        self.front.environment = self.older.environment if previous else {}
        self.front.cwd = self.older.folder if previous else ExecutorProcess.cwd
        token = self.front.folder / "cluster.token"
        write_private_file(token, CLUSTER_TOKEN.encode())
        given = {"cluster_token_file": str(token)} if previous else {}
        self.front.start(managers=[manager.address], **given)

    async def end(self, operator: JobMaster, task: te.TaskStatus) -> None:
        """The same process still runs. The job has no owner any more, so an administrator ends
        it.
        """
        (seen,) = await operator.tasks()
        assert (seen.pid, seen.state) == (task.pid, te.TASK_STATE_RUNNING)
        assert [slot.allocation_id for slot in self.rm.registered.report.slots] == ["slot"]
        with pytest.raises(PermissionDenied):
            await replace(operator, who=OWNER).cancel()
        await operator.cancel()
        watched = await operator.watch()
        assert (watched.stdout, watched.exit.cancelled) == (b"begun\n", True)
        await self.rm.free(free())
        await eventually(lambda: not self.rm.slots(), "the slot is gone")


@pytest.fixture
async def halves(previous: PreviousCode) -> AsyncIterator[Halves]:
    manager, older = ScriptedRM(), PlainRM()
    await manager.start()
    await older.start()
    with tempfile.TemporaryDirectory(prefix="fg-") as folder:
        front = ExecutorProcess(Path(folder), manager.address)
        helper = HelperUnit(front.folder, f"test-{front.folder.name}")
        front.options |= {**helper.places, "task_user": "root"}
        yield Halves(manager, older, front, helper, previous)
        if helper.process is not None and helper.process.poll() is None:
            helper.end(signal.SIGKILL)
        await asyncio.to_thread(front.clean_up)
    await manager.stop()
    await older.stop()


def restart(halves: Halves, how: int) -> None:
    """The helper ends, and the helper of this version replaces it."""
    halves.helper.end(how)
    halves.start_helper(previous=False)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.needs("root")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_new_front_adopts_the_supervisors_of_a_previous_helper_and_then_a_new_helper_does(
    halves: Halves, how: int
) -> None:
    halves.start_helper(previous=True)
    await halves.start_front(previous=True)
    task = await halves.older_rm.begin(allocation(), *PATIENT_TASK)
    halves.front.kill()
    operator = await halves.start_front(previous=False)
    restart(halves, how)
    await halves.end(operator, task)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.needs("root")
async def test_a_new_front_works_with_a_previous_helper(halves: Halves) -> None:
    halves.start_helper(previous=True)
    master = replace(await halves.start_front(previous=False), who=OWNER)
    await halves.rm.allocate(allocation())
    await master.submit(*PATIENT_TASK, stdin=True)
    await halves.rm.resize(1, cpu_milli=750)
    await master.write((0, b"ended\n", True))
    seen = await master.watch()
    assert (seen.stdout, seen.exit.exit_code) == (b"begun\nended\n", 7)


@pytest.mark.full
@pytest.mark.slow
async def test_an_executor_started_again_with_new_code_keeps_its_tasks(halves: Halves) -> None:
    """The front starts its helper by itself: the previous helper is replaced, but its supervisors
    are not.
    """
    for name in halves.helper.places:
        del halves.front.options[name]
    await halves.start_front(previous=True)
    task = await halves.older_rm.begin(allocation(), *PATIENT_TASK)
    halves.front.kill()
    await halves.end(await halves.start_front(previous=False), task)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("front_is_previous", [True, False], ids=["executor", "manager"])
async def test_a_peer_of_the_previous_version_is_refused(
    halves: Halves, front_is_previous: bool
) -> None:
    for name in halves.helper.places:
        del halves.front.options[name]
    manager = halves.rm if front_is_previous else halves.older_rm
    halves.launch_front(manager, previous=front_is_previous)
    await eventually(lambda: "manager_not_reached" in halves.front.log, "it has tried")
    assert manager.registrations == []
    if not front_is_previous:
        assert "no finegrain server of version 0.2 or newer" in halves.front.log
