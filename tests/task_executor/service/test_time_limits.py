"""Time limits of slots: they start with the carve, continue across restarts, and are enforced
without a resource manager.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finegrain.rpc.wire import duration_ms_to_proto
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import task_executor_pb2
from task_executor.service import slot_keeper
from task_executor.service.time_limits import TimeLimits
from tests.task_executor.service.conftest import Executor, executor_at
from tests.task_executor.service.scripted_rm import ScriptedRM, allocation, eventually

START_MS = 5_000_000
HOUR_MS = 3_600_000


class BootClock:
    """The boot clock of the host, which a test sets."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> BootClock:
    clock = BootClock()
    init = slot_keeper.SlotKeeper.__init__

    def with_clock(keeper: Any, *arguments: Any, **options: Any) -> None:
        init(keeper, *arguments, **options)
        keeper.boot_ms = clock

    monkeypatch.setattr(slot_keeper.SlotKeeper, "__init__", with_clock)
    return clock


@pytest.fixture
async def executor(rm: ScriptedRM, tmp_path: Path, clock: BootClock) -> Any:
    async with executor_at(tmp_path, rm.address) as made:
        await made.start()
        await eventually(lambda: rm.reports, "it reports")
        yield made


def limited(name: str = "slot", **changes: Any) -> task_executor_pb2.SlotAllocation:
    return allocation(name, time_limit=duration_ms_to_proto(HOUR_MS), **changes)


async def check(executor: Executor) -> None:
    await TimeLimits(executor.front.keeper, executor.front.runner).check()


async def test_a_slot_ends_after_its_limit_and_its_task_says_why(
    rm: ScriptedRM, executor: Executor, clock: BootClock
) -> None:
    await rm.allocate(limited(), allocation("without"))
    job_master = rm.job_master()
    await job_master.submit("sleep", "7200")
    clock.now_ms += HOUR_MS - 1
    await check(executor)
    assert "slot" in {slot.key.allocation_id for slot in executor.front.keeper.table}
    assert not executor.helper.said("destroy")
    clock.now_ms += 1
    await eventually(lambda: rm.ended() == {"slot": "TIME_LIMIT"}, "the end is reported")
    (task,) = executor.front.keeper.tasks
    assert task.ended_for is not None
    assert (task.ended_for.reason, task.ended_for.message) == (
        "TIME_LIMIT",
        "the time limit of its slot (1h) was over",
    )
    assert set(rm.slots()) == {"without"}


async def test_the_limit_holds_while_the_rm_is_away_and_for_a_restarted_front(
    rm: ScriptedRM, tmp_path: Path, clock: BootClock
) -> None:
    async with executor_at(tmp_path, rm.address) as executor:
        await executor.start()
        await eventually(lambda: rm.reports, "it reports")
        await rm.allocate(limited())
        await rm.stop()
        clock.now_ms += HOUR_MS // 2
        await executor.crash()
        await executor.start()
        assert executor.helper.slots
        clock.now_ms += HOUR_MS // 2
        await eventually(lambda: not executor.helper.slots, "the slot ends on time")
        await executor.crash()
        await rm.start(rm.address)
        await executor.start()
        await eventually(lambda: rm.ended() == {"slot": "TIME_LIMIT"}, "the end is reported later")


async def test_a_resize_does_not_change_the_limit(
    rm: ScriptedRM, executor: Executor, clock: BootClock
) -> None:
    await rm.allocate(limited())
    clock.now_ms += HOUR_MS // 2
    answer = await rm.resize(1, cpu_milli=600)
    assert not answer.result.HasField("error")
    clock.now_ms += HOUR_MS // 2
    await eventually(lambda: rm.ended() == {"slot": "TIME_LIMIT"}, "the slot ends on time")


async def test_a_reuse_starts_the_limit_again_but_only_once(
    rm: ScriptedRM, executor: Executor, clock: BootClock
) -> None:
    await rm.allocate(limited())
    clock.now_ms += HOUR_MS // 2
    rm.reused = [rm_pb2.SlotReuseNumber(allocation_id="slot", generation=1, reuse_number=3)]
    await eventually(lambda: reuse_number(rm) == 3, "the report confirms it")
    clock.now_ms += HOUR_MS - 1
    seen = len(rm.reports)
    await eventually(lambda: len(rm.reports) > seen + 1, "it is told again")
    await check(executor)
    assert executor.helper.slots
    clock.now_ms += 1
    await eventually(lambda: rm.ended() == {"slot": "TIME_LIMIT"}, "the slot ends")


def reuse_number(rm: ScriptedRM) -> int:
    return max((slot.reuse_number for slot in rm.full_reports()[-1].slots), default=0)


async def test_a_repeated_order_with_another_limit_is_another_order(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(limited())
    answer = await rm.allocate(allocation())
    assert answer.results[0].error.reason == "ALREADY_EXISTS"


async def test_limits_that_nobody_can_keep_are_refused(rm: ScriptedRM, executor: Executor) -> None:
    answer = await rm.allocate(allocation(time_limit=duration_ms_to_proto(500)))
    (result,) = answer.results
    assert (result.error.reason, result.error.message) == (
        "INVALID_ARGUMENT",
        "allocations[0].slot.time_limit is '0.5 s'; expected 1 s to 3.1536e+08 s",
    )
