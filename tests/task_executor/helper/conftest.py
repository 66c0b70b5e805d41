"""A real helper with real tasks in a separate directory; afterwards, checks that nothing of it is
left.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.errors import FinegrainError
from task_executor.helper.launch import HelperConfig, start_helper
from task_executor.host.helper_client import (
    ExitRecord,
    HelperClient,
    HelperState,
    SlotLimits,
    TaskExited,
    TaskSpec,
)
from task_executor.host.task_log import Stream, read_output
from tests.support import patience
from tests.support.control_groups import groups_called
from tests.support.journals import record_of
from tests.support.patience import PATIENCE_S

eventually = patience.eventually_async

MIB = 1 << 20


def leftover_groups(executor_id: str) -> list[Path]:
    return groups_called(f"finegrain/{executor_id}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Host:
    """One helper, and a client of it as the front has. Tasks run as the user who runs the tests."""

    config: HelperConfig
    pid: int
    client: HelperClient
    exits: dict[str, ExitRecord] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return Path(self.config.state_dir)

    def directory(self, task_id: str) -> Path:
        return self.state / "tasks" / task_id

    def record(self, task_id: str = "task") -> dict[str, Any]:
        """Returns the record of a task in the helper's files."""
        record = record_of(self.state, task_id)
        assert record is not None
        return record

    async def slot(self, allocation_id: str = "slot", **changes: Any) -> SlotLimits:
        usual = SlotLimits(allocation_id, 1, cpu_milli=1000, memory_bytes=256 * MIB)
        limits = replace(usual, **changes)
        await self.client.create_slot(limits)
        return limits

    async def start(self, script: str, task_id: str = "task", **changes: Any) -> int:
        """Runs a shell script in `slot`; returns the pid of the shell."""
        own = {"uid": os.getuid(), "gid": os.getgid(), "env": {"PATH": os.environ["PATH"]}}
        usual: dict[str, Any] = {"allocation_id": "slot", "generation": 1, "task_id": task_id}
        spec = usual | own | {"argv": ["/bin/sh", "-c", script]} | changes
        return (await self.client.start_task(TaskSpec(**spec))).pid

    async def exit_of(self, task_id: str = "task") -> ExitRecord:
        """Waits for the end of a task, also across restarts of front and helper; returns the
        helper's record.
        """
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            known = {task.task_id: task.exit for task in (await self.client.inspect()).tasks}
            if (record := known[task_id]) is not None:
                return record
            await asyncio.sleep(0.02)
        raise AssertionError(f"task {task_id} did not end")

    async def run(self, script: str, task_id: str = "task", **changes: Any) -> ExitRecord:
        await self.start(script, task_id, **changes)
        return await self.exit_of(task_id)

    def output(self, task_id: str = "task", stream: Stream = "stdout") -> str:
        return read_output(self.directory(task_id), stream, 0, 1 << 20).decode()

    async def next_exit(self, task_id: str) -> ExitRecord:
        async with asyncio.timeout(PATIENCE_S):
            async for event in self.client.events():
                if isinstance(event, TaskExited) and event.task_id == task_id:
                    return event.record
        raise AssertionError("events() ended")

    def kill_helper(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while alive(self.pid):
            assert time.monotonic() < end
            time.sleep(0.005)

    def restart_helper(self) -> None:
        self.pid = start_helper(self.config)

    async def clean_up(self) -> HelperState:
        self.restart_helper()  # or find the running helper
        for slot in (await self.client.inspect()).slots:
            await self.client.destroy_slot(slot.limits.allocation_id, slot.limits.generation)
        for task in (await self.client.inspect()).tasks:
            if task.exit is None:
                await self.client.kill_task(task.task_id)
                await self.exit_of(task.task_id)
            await self.client.forget_task(task.task_id)
        left = await self.client.inspect()
        with suppress(FinegrainError):
            await self.client.stop()
        await eventually(lambda: not alive(self.pid), "the helper has gone")
        return left


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that tasks of other users could reach, too."""
    path = Path(tempfile.mkdtemp(prefix="fg-helper-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def config(place: Path) -> HelperConfig:
    return HelperConfig(
        state_dir=str(place / "state"),
        socket_path=str(place / "helper.sock"),
        executor_id=f"test-{uuid.uuid4().hex[:8]}",
        front_uid=os.getuid(),
        front_gid=os.getgid(),
        scratch_root=str(place),
        allow_root_tasks=True,
    )


@pytest.fixture
async def host(config: HelperConfig) -> AsyncIterator[Host]:
    """Runs a helper with the isolation that this machine allows, and checks afterwards that nothing
    of it is left.
    """
    pid = start_helper(config)
    host = Host(config, pid, await HelperClient.connect(config.socket_path))
    yield host
    left = await host.clean_up()
    await host.client.close()
    assert (left.slots, left.tasks) == ([], [])
    assert leftover_groups(config.executor_id) == []
    assert list((host.state / "tasks").iterdir()) == []
    assert not list(Path(str(config.scratch_root)).glob("finegrain-task-*"))


@pytest.fixture
async def plain_host(config: HelperConfig) -> AsyncIterator[Host]:
    """The same without cgroups."""
    config = replace(config, isolation="none")
    host = Host(config, start_helper(config), await HelperClient.connect(config.socket_path))
    yield host
    left = await host.clean_up()
    await host.client.close()
    assert (left.slots, left.tasks) == ([], [])


@pytest.fixture(
    params=[
        pytest.param("host", id="with cgroups"),
        pytest.param("plain_host", id="without cgroups", marks=pytest.mark.full),
    ]
)
def any_host(request: pytest.FixtureRequest) -> Host:
    value: Host = request.getfixturevalue(request.param)
    return value
