"""Decides whether a running slot can get another share of its devices.

The limits of the kernel and the watch of GPU memory apply to running tasks at once. Clients of MPS
keep the limits with which they started. So under MPS, a slot can change its share only while no
task runs in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from finegrain.devices.device import GPU_MEMORY, DeviceShare
from finegrain.errors import FailedPrecondition, FinegrainError, Reason
from finegrain.units import format_bytes
from finegrain.values.usage import DeviceUsage
from task_executor.engine.slots import SlotKey, SlotSpec
from task_executor.service.slot_keeper import SlotKeeper

Measurement = tuple[int, Iterable[DeviceUsage]]
"""The number of a reading of GPUs, and the use of those GPUs whose memory is measured for each
slot.
"""


def shares_of(spec: SlotSpec) -> tuple[DeviceShare, ...]:
    """Returns the shares of devices that a slot with this spec has."""
    return spec.assignment.devices if spec.assignment is not None else ()


class ShareChanges:
    """Checks changes of shares.

    Args:
        keeper: the slots.
        measurement: a function that returns the last reading of GPUs.
    """

    def __init__(self, keeper: SlotKeeper, measurement: Callable[[], Measurement]) -> None:
        self._keeper = keeper
        self._measurement = measurement

    def refusal(self, current: SlotSpec, wanted: SlotSpec) -> FinegrainError | None:
        """Returns the reason why the slot must keep its shares; None: the shares can change, or do
        not change.
        """
        before = {each.uuid: each for each in shares_of(current)}
        changed = [
            (before[each.uuid], each)
            for each in shares_of(wanted)
            if each.uuid in before and before[each.uuid].amounts != each.amounts
        ]
        return self._under_mps(current.key, changed) or self._in_use(current.key, changed)

    def _under_mps(
        self, key: SlotKey, changed: Iterable[tuple[DeviceShare, DeviceShare]]
    ) -> FinegrainError | None:
        offered = self._keeper.enforcement.under_mps
        running = [task for task in self._keeper.tasks.of_slot(key) if not task.has_ended]
        for _, share in changed if running else ():
            if share.uuid in offered:
                return FailedPrecondition(
                    f"{self._name(share)} is shared under MPS, and tasks keep the limits of MPS"
                    f" with which they started; end the tasks of the slot first"
                    f" ({running[0].task_id})"
                )
        return None

    def _in_use(
        self, key: SlotKey, changed: Iterable[tuple[DeviceShare, DeviceShare]]
    ) -> FinegrainError | None:
        _, usages = self._measurement()
        used = {
            usage.uuid: each.memory_bytes
            for usage in usages
            for each in usage.slots
            if (each.allocation_id, each.generation) == key
        }
        for old, new in changed:
            share_bytes, before = (dict(each.amounts).get(GPU_MEMORY, 0) for each in (new, old))
            # A slot without a share of the memory may use all memory of the GPU, so any share
            # shrinks its limit.
            shrinks = share_bytes and (not before or share_bytes < before)
            if shrinks and used.get(new.uuid, 0) > share_bytes:
                return FailedPrecondition(
                    f"its tasks use {format_bytes(used[new.uuid])} of the memory of"
                    f" {self._name(new)}, more than the {format_bytes(share_bytes)} of its new"
                    " share",
                    reason=Reason.BELOW_USE,
                    details={"asked": share_bytes, "used": used[new.uuid], "device": new.uuid},
                )
        return None

    def _name(self, share: DeviceShare) -> str:
        devices = self._keeper.table.devices.host.devices
        return next((each.name for each in devices if each.uuid == share.uuid), share.uuid)
