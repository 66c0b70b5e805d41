"""A slot uses more memory of a GPU than it has; tested with a fake helper."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from finegrain.devices.device import Device, HostDevices, Pairs
from finegrain.errors import Unavailable
from finegrain.v1 import task_executor_pb2 as te
from finegrain.values.usage import DeviceUsage, SlotDeviceUsage
from task_executor.service import device_overuse
from task_executor.service.device_overuse import OveruseWatch
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.gpu_host import gpu_slot
from tests.task_executor.service.scripted_rm import ScriptedRM, eventually

WHOLE = (("gpu-core", 100), ("gpu-memory", 80), ("gpu-memory-ratio", 100))
HALF = (("gpu-core", 50), ("gpu-memory", 40), ("gpu-memory-ratio", 50))


class Host:
    """An executor with a GPU whose memory is watched."""

    def __init__(self, executor: Executor, rm: ScriptedRM) -> None:
        self._rm = rm
        self.executor, self.helper, self.keeper = executor, executor.helper, executor.front.keeper
        self.keeper.table.devices.replace_host(
            HostDevices((Device("gpu", "GPU-a", 1, WHOLE, vendor="nvidia"),))
        )
        total = {f"device.{name}": amount for name, amount in WHOLE}
        share = self.keeper.table.share
        self.keeper.table.share = replace(share, total={**share.total, **total})
        self.is_watched()
        self.overshoots: list[int] = []
        self.watch = OveruseWatch(
            self.keeper, executor.front.runner, lambda over, _seconds: self.overshoots.append(over)
        )

    def is_watched(self, *uuids: str) -> None:
        watched = frozenset(uuids or ("GPU-a",))
        self.keeper.enforcement = replace(self.keeper.enforcement, watched=watched)

    async def has_slot(self, amounts: Pairs = HALF) -> None:
        order = gpu_slot("slot", "GPU-a", 1, amounts)
        if amounts == (("gpu-core", 50),):
            order.slot.profile.devices.clear()
            order.slot.profile.devices["gpu-core"] = 50
        answer = await self._rm.allocate(order)
        assert not answer.results[0].HasField("error"), answer

    async def runs(self, *task_ids: str) -> None:
        for each in task_ids:
            await self.executor.job_master.submit("/bin/sleep", task_id=each)

    def reading(self, used: int) -> bool:
        of_slot = SlotDeviceUsage("slot", 1, used, 1)
        return self.watch.check([DeviceUsage("gpu", "GPU-a", used, 0, (of_slot,))], 0.0)

    async def reads(self, *used_bytes: int) -> bool:
        """Makes one reading for each amount; returns True if another reading should follow soon."""
        soon = False
        for used in used_bytes:
            soon = self.reading(used)
            await eventually(lambda: not self.watch._ending, "what it began has ended")
        return soon

    async def exits(self) -> dict[str, te.TaskExit]:
        tasks: Iterable[Any] = await self.executor.job_master.tasks()
        return {each.task_id: each.exit for each in tasks if each.HasField("exit")}


@pytest.fixture
async def host(executor: Executor, rm: ScriptedRM) -> Host:
    return Host(executor, rm)


async def test_all_tasks_of_the_slot_end_with_the_reason(host: Host) -> None:
    await host.has_slot()
    await host.runs("one", "two")
    assert not await host.reads(40)
    assert await host.reads(41)
    assert not host.helper.said("kill")
    assert not await host.reads(50)
    ends = await host.exits()
    assert {each.end_reason for each in ends.values()} == {"GPU_MEMORY_EXCEEDED"}
    assert ends["one"].end_message == (
        "its slot used 50 of the memory of gpu1, 10 more than its share"
    )
    assert sorted(host.helper.said("kill")) == ["kill one 0", "kill two 0"]
    assert host.keeper.tasks.outcomes == {"over_share": 2}
    # The memory of ended tasks is still counted for a moment, and new tasks may start meanwhile.
    await host.reads(50)
    assert host.overshoots == [10]
    # A new task that runs while the slot is above its share is ended as well.
    await host.runs("three")
    await host.reads(45)
    assert "three" in await host.exits()
    assert host.overshoots == [10, 5]


async def test_a_kill_that_fails_is_repeated(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    await host.has_slot()
    await host.runs("task")
    kill, failures = host.helper.kill_task, [Unavailable("no helper"), Unavailable("no helper")]

    async def unreliable(task_id: str, grace_ms: int = 0) -> None:
        if failures:
            raise failures.pop()
        await kill(task_id, grace_ms)

    monkeypatch.setattr(host.helper, "kill_task", unreliable)
    await host.reads(50, 50, 50)
    assert await host.exits() == {}
    assert host.overshoots == []
    await host.reads(50)
    assert (await host.exits())["task"].end_reason == "GPU_MEMORY_EXCEEDED"


async def test_a_task_that_succeeds_before_the_kill_keeps_its_success(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.has_slot()
    await host.runs("quick", "slow")

    async def too_late(task_id: str, grace_ms: int = 0) -> None:
        host.helper.end(task_id, 0 if task_id == "quick" else 1)

    monkeypatch.setattr(host.helper, "kill_task", too_late)
    await host.reads(50, 50)
    ends = await host.exits()
    assert (ends["quick"].end_reason, ends["quick"].exit_code) == ("", 0)
    assert ends["slow"].end_reason == "GPU_MEMORY_EXCEEDED"


async def test_a_task_that_does_not_end_is_killed_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.has_slot()
    await host.runs("stuck")
    kills = []

    async def ignored(task_id: str, grace_ms: int = 0) -> None:
        kills.append(task_id)

    monkeypatch.setattr(host.helper, "kill_task", ignored)
    monkeypatch.setattr(device_overuse, "ENDED_S", 0.01)
    await host.reads(50, 50, 50)
    assert kills == ["stuck", "stuck"]
    assert host.overshoots == []


async def test_readings_go_on_while_a_kill_takes_long(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.has_slot()
    await host.runs("task")
    kill, gate, kills = host.helper.kill_task, asyncio.Event(), []

    async def slow(task_id: str, grace_ms: int = 0) -> None:
        kills.append(task_id)
        await gate.wait()
        await kill(task_id, grace_ms)

    monkeypatch.setattr(host.helper, "kill_task", slow)
    for _ in range(4):
        host.reading(50)
        await asyncio.sleep(0.01)
    assert kills == ["task"]
    gate.set()
    await eventually(lambda: host.overshoots, "the task has ended")
    assert kills == ["task"]


@pytest.mark.parametrize(
    ("amounts", "watched"),
    [
        pytest.param(WHOLE, "GPU-other", id="the GPU is not watched"),
        pytest.param((("gpu-core", 50),), "GPU-a", id="compute alone: its memory is not limited"),
    ],
)
async def test_what_is_not_watched_may_use_everything(
    amounts: Pairs, watched: str, host: Host
) -> None:
    host.is_watched(watched)
    await host.has_slot(amounts)
    await host.runs("task")
    assert not await host.reads(90, 90, 90)
    assert await host.exits() == {}
