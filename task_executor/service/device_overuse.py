"""Ends the tasks of slots that use more memory of a GPU than their share: the level "watch".

Nothing refuses the memory, so a slot can be above its share for a moment. One reading above it is
not enough: a task that has just been replaced by another one may be counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from finegrain.devices.device import GPU_MEMORY
from finegrain.devices.levels import WATCH
from finegrain.errors import FinegrainError, Reason
from finegrain.logs import get_logger
from finegrain.units import format_bytes
from finegrain.values.usage import DeviceUsage
from task_executor.engine.slots import Slot, SlotKey
from task_executor.host.helper_messages import TaskFault
from task_executor.service.slot_keeper import SlotKeeper
from task_executor.service.task_runner import TaskRunner

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Overuse:
    """A slot that uses more of a device than it has.

    Attributes:
        key: the slot.
        device: name of the device, such as "gpu3".
        used_bytes: memory of the device that its processes have.
        share_bytes: memory that the slot has.
    """

    key: SlotKey
    device: str
    used_bytes: int
    share_bytes: int


class OveruseWatch:
    """Compares measured use with shares, once for each reading.

    Args:
        keeper: the slots.
        runner: ends tasks.
    """

    def __init__(self, keeper: SlotKeeper, runner: TaskRunner) -> None:
        self._keeper = keeper
        self._runner = runner
        self._above: dict[tuple[SlotKey, str], float] = {}  # since when, by slot and UUID

    async def check(self, usages: Iterable[DeviceUsage], at_s: float) -> None:
        """Ends the tasks of slots that are above their share for the second time in a row.

        Args:
            usages: measured use of devices.
            at_s: when it was measured, in seconds of `time.monotonic`.
        """
        before, self._above = self._above, {}
        for usage in usages:
            for each in usage.slots:
                slot = self._keeper.table.get(SlotKey(each.allocation_id, each.generation))
                over = None if slot is None else _overuse(slot, usage.uuid, each.memory_bytes)
                if over is None:
                    continue
                since_s = before.get((over.key, usage.uuid))
                self._above[over.key, usage.uuid] = at_s if since_s is None else since_s
                if since_s is not None:
                    await self._end_tasks(over, at_s - since_s)

    async def _end_tasks(self, over: Overuse, seconds: float) -> None:
        used, share = format_bytes(over.used_bytes), format_bytes(over.share_bytes)
        fault = TaskFault(
            Reason.GPU_MEMORY_EXCEEDED,
            f"the tasks of the slot used {used} of the memory of {over.device}, and it has {share}",
        )
        for task in [each for each in self._keeper.tasks.of_slot(over.key) if not each.has_ended]:
            if task.ended_for is not None:
                continue
            log.warning(
                "gpu_memory_exceeded",
                task_id=task.task_id,
                allocation_id=over.key.allocation_id,
                device=over.device,
                used_bytes=over.used_bytes,
                share_bytes=over.share_bytes,
                above_share_s=round(seconds, 3),
            )
            try:
                # At once: the memory may belong to a neighbour, and a grace period lets it grow.
                await self._runner.end_for(task, fault)
            except FinegrainError as error:
                log.warning("task_not_ended", task_id=task.task_id, error=str(error))


def _overuse(slot: Slot, uuid: str, used_bytes: int) -> Overuse | None:
    """Returns by how much a slot is above its share of a GPU's memory, if the share is watched."""
    watched = any(
        each.uuid == uuid and dict(each.levels).get(GPU_MEMORY) == WATCH
        for each in slot.isolation.device_levels
    )
    assignment = slot.spec.assignment
    if not watched or assignment is None:
        return None
    for share in assignment.devices:
        # A request that names compute alone has no share of the memory, and may use all of it.
        share_bytes = dict(share.amounts).get(GPU_MEMORY, 0)
        if share.uuid == uuid and 0 < share_bytes < used_bytes:
            return Overuse(slot.key, f"{share.type}{share.minor}", used_bytes, share_bytes)
    return None
