"""Ends slots when their time limit is over.

The time counts by the boot clock, from the moment at which the slot was carved or was last reused
(`Slot.limited_since_ms`). This moment is in the checkpoint, so a restart of this process or of the
resource manager does not extend the limit. The executor can end a slot without the resource
manager.

Example: a slot with a limit of 10 minutes was carved at 12:00. The front is down from 12:05 to
12:20. The slot ends shortly after 12:20, when the front has recovered its slots.
"""

from __future__ import annotations

import asyncio

from finegrain.errors import Reason
from finegrain.logs import get_logger
from finegrain.units import format_duration_exactly
from task_executor.engine.slots import Slot
from task_executor.host.helper_messages import TaskFault
from task_executor.service.slot_keeper import SlotKeeper
from task_executor.service.task_runner import TaskRunner

CHECK_S_MAX = 1.0
"""Longest time between two checks, which is also the shortest time limit. So each slot is checked
at least once before its time limit is over.
"""

log = get_logger(__name__)


class TimeLimits:
    """Ends slots whose time limit is over, until it is cancelled.

    Args:
        keeper: the slots.
        runner: the tasks in the slots.
    """

    def __init__(self, keeper: SlotKeeper, runner: TaskRunner) -> None:
        self._keeper = keeper
        self._runner = runner

    async def run(self) -> None:
        """Checks the time limits until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._pause_s())

    async def check(self) -> None:
        """Begins to free all slots whose time limit is over. Their tasks get SIGTERM, and after the
        grace period of the executor SIGKILL.
        """
        now_ms = self._keeper.boot_ms()
        due = [
            slot
            for slot in self._keeper.table
            if slot.ends_at_ms is not None and slot.ends_at_ms <= now_ms
        ]
        if not due:
            return
        for slot in due:
            log.info(
                "time_limit_over",
                allocation_id=slot.key.allocation_id,
                generation=slot.key.generation,
                time_limit_ms=slot.spec.time_limit_ms,
            )
            await self._note_reason(slot)
        await self._keeper.free([(slot.key, None) for slot in due], reason=Reason.TIME_LIMIT.value)

    async def _note_reason(self, slot: Slot) -> None:
        """Records why the tasks of the slot end, before their end."""
        limit = format_duration_exactly(slot.spec.time_limit_ms or 0)
        why = TaskFault(Reason.TIME_LIMIT.value, f"the time limit of its slot ({limit}) was over")
        for task in self._keeper.tasks.of_slot(slot.key):
            await self._runner.note_reason(task, why)

    def _pause_s(self) -> float:
        now_ms = self._keeper.boot_ms()
        ends = [slot.ends_at_ms for slot in self._keeper.table if slot.ends_at_ms is not None]
        left_s = (min(ends) - now_ms) / 1000 if ends else CHECK_S_MAX
        return min(max(left_s, 0.0), CHECK_S_MAX)
