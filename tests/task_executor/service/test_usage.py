"""What an executor reports about the use of its slots and of its host."""

from __future__ import annotations

from pathlib import Path

from task_executor.host.host_use import HostMeter
from task_executor.service.usage import SEND_S_MIN, Meter
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import ScriptedRM, allocation


async def test_reports_have_each_slot_and_the_host(
    rm: ScriptedRM, executor: Executor, tmp_path: Path
) -> None:
    await rm.allocate(allocation())
    now = [1_000.0]
    keeper = executor.front.keeper
    meter = Meter(keeper, HostMeter(tmp_path), clock=lambda: now[0])

    first = await meter.report()
    now[0] += SEND_S_MIN / 2
    too_soon = await meter.report()
    now[0] += SEND_S_MIN / 2
    second = await meter.report()

    assert first is not None
    assert too_soon is None
    assert second is not None
    (slot,) = second.slots
    assert (slot.allocation_id, slot.memory_bytes, slot.pids) == ("slot", 1000, 1)
    assert slot.cpu_milli == 0  # the helper's counter has not moved since the first report
    assert second.memory_bytes == 1000
    assert second.host.memory_total_bytes > second.host.memory_used_bytes > 0
