"""This version's front and helper read the files that the front and helper of the previous version
have left on disk.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from finegrain.v1 import task_executor_pb2 as te
from finegrain.v1.slots_pb2 import SLOT_STATE_ALLOCATED, SLOT_STATE_FREEING
from task_executor.helper.launch import HelperConfig, start_helper
from task_executor.helper.paths import boot_id, start_ticks, write_json
from task_executor.host.helper_client import HelperClient
from task_executor.host.helper_messages import SlotLimits, TaskSpec
from task_executor.service.checkpoint import StateDirectory
from tests.previous.code import EVIDENCE
from tests.task_executor.helper.conftest import Host
from tests.task_executor.service.conftest import Executor, executor_at
from tests.task_executor.service.scripted_rm import OPERATOR, ScriptedRM, eventually

KINDS = ("executor-v1", "executor-none")
LIVING = ("t-running", "t-freeing")


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An executor's folder; its state directory is a copy of the evidence."""
    shutil.copytree(EVIDENCE / request.param, tmp_path / "state")
    return tmp_path


def document(path: Path) -> Any:
    """A document of the helper."""
    return json.loads(path.read_text())


def test_the_front_reads_its_checkpoint(folder: Path) -> None:
    directory = StateDirectory.open(folder / "state")
    saved = directory.load("host-a")
    tasks = directory.tasks.saved()
    directory.close()

    assert directory.damage == []
    assert (saved.executor_id, saved.rm_epoch, saved.starts) == ("host-a", 7, 1)
    assert saved.boot_id == document(folder / "state/helper/helper.json")["boot_id"]
    assert len(saved.slots) == 3
    assert sorted(tasks) == ["t-ended", "t-freeing", "t-running"]


@pytest.fixture
async def rm() -> AsyncIterator[ScriptedRM]:
    """A resource manager of the epoch that the checkpoint names."""
    manager = ScriptedRM(rm_epoch=7)
    await manager.start()
    yield manager
    await manager.stop()


@pytest.fixture
async def front(folder: Path, rm: ScriptedRM) -> AsyncIterator[Executor]:
    """This version's front on the state directory. Its helper has all slots and tasks of the stored
    data.
    """
    async with executor_at(folder, rm.address) as executor:
        helper, kept = executor.helper, folder / "state/helper"
        helper.task_root = kept / "tasks"
        helper.boot_id = document(kept / "helper.json")["boot_id"]
        for path in sorted(kept.glob("slots/*.json")):
            limits = document(path)["limits"]
            helper.slots[limits["allocation_id"], limits["generation"]] = SlotLimits(**limits)
        for path in sorted(kept.glob("tasks/*/task.json")):
            record = document(path)
            spec = TaskSpec(
                record["task_id"], record["allocation_id"], record["generation"], record["argv"]
            )
            helper.specs[spec.task_id] = spec
        helper.destroy_gate.clear()  # it takes some time to remove a slot
        await executor.start()
        await eventually(lambda: rm.reports, "it reports")
        yield executor


async def test_a_front_goes_on_with_the_slots(rm: ScriptedRM, front: Executor) -> None:
    first = rm.registrations[0]
    saved = json.loads(document(front.folder / "state/state.json")["content"])
    assert first.instance_id == saved["instance_id"]
    assert first.report.rm_epoch == 7
    slots = {each.allocation_id: each for each in first.report.slots}
    assert {name: slot.state for name, slot in slots.items()} == {
        "running": SLOT_STATE_ALLOCATED,
        "ended": SLOT_STATE_ALLOCATED,
        "freeing": SLOT_STATE_FREEING,
    }
    resized = slots["running"]
    assert (resized.resize_number, resized.profile.cpu_milli) == (1, 750)
    assert not rm.ended()


async def test_a_front_goes_on_with_the_tasks(rm: ScriptedRM, front: Executor) -> None:
    master = rm.job_master(OPERATOR)  # no owners were saved
    states = {each.task_id: each.state for each in await master.tasks()}
    assert states["t-running"] == te.TASK_STATE_RUNNING
    front.helper.end("t-running", 7)
    seen = await master.watch("t-running")
    assert (seen.stdout, seen.exit.exit_code) == (b"begun\n", 7)


@pytest.fixture
def stand_ins(folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Starts processes that replace the stored supervisors and tasks, as if this host had stored
    the data.
    """
    living: dict[str, subprocess.Popen[bytes]] = {}
    for path in (folder / "state/helper").glob("slots/*.json"):
        write_json(path, document(path) | {"boot_id": boot_id()})
    for task_id in LIVING:
        path = folder / "state/helper/tasks" / task_id / "task.json"
        supervisor, task = (
            subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)
        )
        living |= {task_id: task, f"supervisor of {task_id}": supervisor}
        record = document(path) | {
            "boot_id": boot_id(),
            "shim_pid": supervisor.pid,
            "shim_start_ticks": start_ticks(supervisor.pid),
            "pid": task.pid,
            "start_time_ticks": start_ticks(task.pid),
        }
        write_json(path, record)
    yield living
    for process in living.values():
        process.kill()
        process.wait()


@asynccontextmanager
async def helped(folder: Path) -> AsyncIterator[Host]:
    """This version's helper on the stored directory of the helper, without control groups."""
    config = HelperConfig(
        state_dir=str(folder / "state/helper"),
        socket_path=str(folder / "socket"),
        executor_id=f"test-{uuid.uuid4().hex[:8]}",
        front_uid=os.getuid(),
        front_gid=os.getgid(),
        scratch_root=str(folder),
        allow_root_tasks=True,
        isolation="none",
    )
    host = Host(config, start_helper(config), await HelperClient.connect(config.socket_path))
    try:
        yield host
        left = await host.clean_up()
        assert (left.slots, left.tasks) == ([], [])
    finally:
        await host.client.close()
        with suppress(ProcessLookupError):
            os.kill(host.pid, signal.SIGKILL)


@pytest.fixture
async def adopting(
    folder: Path, stand_ins: dict[str, subprocess.Popen[bytes]]
) -> AsyncIterator[Host]:
    """A helper that finds all stored supervisors running."""
    async with helped(folder) as host:
        yield host
        for process in stand_ins.values():
            process.kill()
            process.wait()


@pytest.fixture
async def rebooted(folder: Path) -> AsyncIterator[Host]:
    """A helper after a reboot of the host."""
    async with helped(folder) as host:
        yield host


async def test_a_helper_adopts_slots_and_supervisors(
    adopting: Host, stand_ins: dict[str, subprocess.Popen[bytes]]
) -> None:
    state = await adopting.client.inspect()
    slots = {each.limits.allocation_id: each.limits.cpu_milli for each in state.slots}
    assert slots == {"running": 750, "ended": 500, "freeing": 500}
    tasks = {each.task_id: each for each in state.tasks}
    assert {name: each.state for name, each in tasks.items()} == {
        "t-running": "running",
        "t-freeing": "running",
        "t-ended": "exited",
    }
    assert tasks["t-running"].pid == stand_ins["t-running"].pid
    ended = tasks["t-ended"].exit
    assert ended is not None
    assert (ended.exit_code, ended.stdout_bytes) == (3, 5)

    stand_ins["supervisor of t-running"].kill()
    record = await adopting.next_exit("t-running")
    assert record.error is not None
    assert "supervisor was killed" in record.error.message
    assert stand_ins["t-running"].wait(30) == -signal.SIGKILL


async def test_after_a_reboot_a_helper_tells_which_tasks_were_lost(rebooted: Host) -> None:
    for task_id in LIVING:
        record = await rebooted.exit_of(task_id)
        assert record.error is not None
        assert "host was restarted" in record.error.message
    assert (await rebooted.exit_of("t-ended")).exit_code == 3
    assert (await rebooted.client.inspect()).slots == []
