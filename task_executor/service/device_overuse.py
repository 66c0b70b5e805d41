"""Ends the tasks of slots that use more memory of a GPU than their share: the level "watch".

At this level the driver does not reject an allocation, so a slot can exceed its share for a moment.
The excess and its duration are logged and counted. `task_executor.engine.memory_watch` decides
which slots exceed their share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from finegrain.devices.device import GPU_MEMORY, GPU_MEMORY_RATIO, WHOLE
from finegrain.devices.levels import KERNEL, MPS, WATCH
from finegrain.errors import FinegrainError, Reason
from finegrain.logs import get_logger
from finegrain.units import format_bytes
from finegrain.values.states import TaskState
from finegrain.values.usage import DeviceUsage
from task_executor.engine.memory_watch import MemoryUse, MemoryWatch, Overuse
from task_executor.engine.slots import CarveState, Slot, SlotKey
from task_executor.host.helper_messages import TaskFault
from task_executor.service.slot_keeper import SlotKeeper
from task_executor.service.task_runner import TaskRunner
from task_executor.service.task_table import Task

ENDED_S: Final = 10.0
"""If killed tasks have not ended after this number of seconds, the executor kills them again."""

# MPS limits each process, by variables that a program can change. NVIDIA's driver does not count
# managed memory in its limits. So the executor also measures the memory of the whole slot.
_MEASURED: Final = (WATCH, MPS)

log = get_logger(__name__)


class OveruseWatch:
    """Ends the tasks of slots that are above their share of a GPU's memory.

    Args:
        keeper: the slots of this executor.
        runner: the runner of tasks, through which tasks are ended.
        ended: a function that is called when all tasks of a slot have ended. It gets two arguments:
            the bytes above the share, and the seconds since the last reading in which the slot was
            within its share.
    """

    def __init__(
        self,
        keeper: SlotKeeper,
        runner: TaskRunner,
        ended: Callable[[int, float], None] = lambda _bytes, _seconds: None,
    ) -> None:
        self._keeper = keeper
        self._runner = runner
        self._ended = ended
        self._watch = MemoryWatch()
        self._ending: set[SlotKey] = set()

    def check(self, usages: Iterable[DeviceUsage], at_s: float) -> bool:
        """Begins to end the tasks of slots that are above their share in two readings in a row.

        Args:
            usages: the measured use of devices.
            at_s: the time of the measurement, in seconds of `time.monotonic`.

        Returns:
            True if the next reading should follow soon.
        """
        by_device = {
            usage.uuid: {
                SlotKey(each.allocation_id, each.generation): each.memory_bytes
                for each in usage.slots
            }
            for usage in usages
        }
        uses = [
            MemoryUse(slot.key, uuid, by_device[uuid].get(slot.key, 0), share_bytes)
            for slot in self._keeper.table
            for uuid, share_bytes in _watched_shares(slot)
            if uuid in by_device
        ]
        for over in self._watch.observe(at_s, uses):
            if over.use.key not in self._ending:
                self._ending.add(over.use.key)
                # End the tasks in the background, because readings must not wait for a busy helper.
                self._keeper.run_in_background(self._end_tasks(over))
        return self._watch.must_confirm

    async def _end_tasks(self, over: Overuse) -> None:
        try:
            # A task that is being started uses no GPU memory yet. If such a task later uses memory,
            # a later reading ends it.
            tasks = [
                task
                for task in self._keeper.tasks.of_slot(over.use.key)
                if task.state is TaskState.RUNNING
            ]
            if not tasks:
                return  # all tasks have ended, and the driver is freeing their memory
            log.warning("gpu_memory_exceeded", tasks=len(tasks), **_ids(over))
            why = TaskFault(Reason.GPU_MEMORY_EXCEEDED.value, self._sentence(over))
            async with asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(self._end(task, why))
            seconds = time.monotonic() - over.within_at_s
            if all(task.has_ended for task in tasks):
                log.warning("gpu_memory_tasks_ended", reaction_s=round(seconds, 3), **_ids(over))
                self._ended(over.use.excess_bytes, seconds)
        finally:
            self._ending.discard(over.use.key)

    async def _end(self, task: Task, why: TaskFault) -> None:
        """Kills a task and waits for its end. If this fails, a later reading tries again."""
        try:
            with task.watched() as changed:
                # Give no grace period, because the task could take even more memory of other slots.
                await self._runner.end_for(task, why)
                async with asyncio.timeout(ENDED_S):
                    while not task.has_ended:
                        changed.clear()
                        await changed.wait()
        except (FinegrainError, TimeoutError) as error:
            log.error("task_not_ended", task_id=task.task_id, error=str(error))

    def _sentence(self, over: Overuse) -> str:
        names = (e.name for e in self._keeper.table.devices.host.devices if e.uuid == over.use.uuid)
        device = next(names, over.use.uuid)
        used, excess = format_bytes(over.use.used_bytes), format_bytes(over.use.excess_bytes)
        return f"its slot used {used} of the memory of {device}, {excess} more than its share"


def _watched_shares(slot: Slot) -> Iterator[tuple[str, int]]:
    """Yields, for each GPU whose memory is watched for a slot, the UUID and the bytes of the slot's
    share.
    """
    assignment = slot.spec.assignment
    if slot.state is not CarveState.ALLOCATED or assignment is None:
        return
    levels = {
        each.uuid: dict(each.levels).get(GPU_MEMORY, "") for each in slot.isolation.device_levels
    }
    for share in assignment.devices:
        amounts = dict(share.amounts)
        # A slot with all memory of a GPU cannot be above its share.
        is_limited = levels.get(share.uuid) == KERNEL and amounts.get(GPU_MEMORY_RATIO) != WHOLE
        # A request that names only a compute share may use all memory of the GPU.
        share_bytes = amounts.get(GPU_MEMORY, 0)
        if share_bytes and (is_limited or levels.get(share.uuid) in _MEASURED):
            yield share.uuid, share_bytes


def _ids(over: Overuse) -> dict[str, object]:
    use = over.use
    return {
        "allocation_id": use.key.allocation_id,
        "generation": use.key.generation,
        "gpu": use.uuid,
        "used_bytes": use.used_bytes,
        "share_bytes": use.share_bytes,
    }
