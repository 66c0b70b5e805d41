"""Parks and unparks slots: moves their processes off the GPUs and back.

A resize to a size with parked devices parks the slot, and a resize from such a size unparks it.
Like every resize, such a resize is saved before it begins. It can take minutes, so it runs in the
background while other commands are executed. The caller reads the outcome later.

Parking: the helper moves the processes off the GPUs. Then the helper closes the device files, and
moves processes again, because a process has possibly forked. The capacity becomes free only when
the driver reports no memory of the slot on the GPUs.

Unparking: the helper opens the files and moves the processes back. After a failure of parking or
unparking, all steps are undone. Both sizes stay booked until the undo has succeeded.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from finegrain.devices.device import GPU, GPU_MEMORY, Device, DeviceShare, HostDevices
from finegrain.devices.levels import MPS
from finegrain.devices.parking import OFF
from finegrain.errors import FailedPrecondition, FinegrainError, Reason
from finegrain.logs import get_logger
from finegrain.units import format_bytes
from finegrain.values.usage import DeviceUsage
from task_executor.engine.slots import CarveState, Slot, SlotKey
from task_executor.parking_agent import PROGRAM
from task_executor.service.failures import not_moved, still_moving
from task_executor.service.resizing import finish_resize, keep_size
from task_executor.service.slot_keeper import SlotKeeper

Measurement = tuple[int, Iterable[DeviceUsage]]
"""The number of a reading of GPUs, and the use of those GPUs whose memory is measured for each
slot.
"""

GONE_S: Final = 15.0
"""After a slot has left its GPUs, the driver can still report memory of the slot for this time, in
seconds.
"""

FIRST_READING_S: Final = 10.0
"""Time for which parking waits for the first reading of GPUs. Without a reading, whole shares count
as used.
"""

_LOOK_EVERY_S: Final = 0.2
_UNDO_S: Final = (1.0, 5.0, 30.0)
"""Pauses before a failed undo is repeated. The last pause applies to all further attempts."""

log = get_logger(__name__)


@dataclass(slots=True)
class _Move:
    """A slot that is being parked or unparked."""

    number: int  # the number of this resize
    trouble: str = ""  # the failures until now, as text


class Parking:
    """Parks and unparks slots, each in the background.

    Args:
        keeper: the slots.
        measurement: a function that returns the number of the last reading of GPUs. It also returns
            the use of those GPUs whose memory is measured by slot.
    """

    def __init__(self, keeper: SlotKeeper, measurement: Callable[[], Measurement]) -> None:
        self._keeper = keeper
        self._measurement = measurement
        self._moves: dict[SlotKey, _Move] = {}
        self._failures: dict[
            SlotKey, tuple[int, FinegrainError]
        ] = {}  # for each slot, the number and the failure of its last resize

    def begin(self, slot: Slot) -> FinegrainError:
        """Begins to park or unpark a slot. Returns IN_PROGRESS.

        Args:
            slot: the slot. Its new size (`becoming`) must already be saved.

        Raises:
            ValueError: the slot has no resize in progress.
        """
        if slot.becoming is None:
            raise ValueError(f"slot {slot.key} has no resize in progress")
        move = self._moves.get(slot.key)
        if move is None:
            move = self._moves[slot.key] = _Move(slot.becoming.resize_number)
            self._failures.pop(slot.key, None)
            self._keeper.run_in_background(self._run(slot.key))
        return still_moving(slot.becoming, move.trouble)

    def outcome(self, key: SlotKey, number: int) -> FinegrainError | None:
        """Returns IN_PROGRESS while this resize, which parks or unparks the slot, runs. If the
        resize has failed, returns the failure, but only once. Returns None in all other cases.
        """
        move = self._moves.get(key)
        slot = self._keeper.table.get(key)
        if move is not None and move.number == number and slot is not None:
            return still_moving(slot.becoming or slot.spec, move.trouble)
        failed, failure = self._failures.get(key, (0, None))
        if failure is None or failed != number:
            return None
        del self._failures[key]
        return failure

    async def _run(self, key: SlotKey) -> None:
        try:
            slot = self._slot(key)
            if slot is None or slot.becoming is None:
                return
            wanted = slot.becoming
            try:
                await (self._park(slot) if wanted.is_parked else self._unpark(slot))
            except (FinegrainError, OSError) as error:
                await self._undo(slot, error)
                return
            outcome = await finish_resize(self._keeper, key)
            if outcome.error is None:
                kind = "slot_parked" if wanted.is_parked else "slot_unparked"
                log.info(kind, allocation_id=key.allocation_id, resize_number=wanted.resize_number)
            # If the helper was not reached, it is not known whether the new limits are set. The
            # next comparison with the host then repeats the resize. After any other failure, undo
            # the move, because both sizes are still booked.
            elif outcome.error.reason is not Reason.UNREACHABLE:
                await self._undo(slot, outcome.error)
        finally:
            del self._moves[key]

    def _slot(self, key: SlotKey) -> Slot | None:
        """Returns a slot that can be parked or unparked; None: the slot does not exist, or is being
        freed.
        """
        slot = self._keeper.table.get(key)
        return slot if slot is not None and slot.state is CarveState.ALLOCATED else None

    # -- parking and unparking -------------------------------------------------------------------

    async def _park(self, slot: Slot) -> None:
        wanted, helper = slot.becoming, self._keeper.helper
        if wanted is None or wanted.assignment is None:
            return
        if MPS in {word for each in slot.isolation.device_levels for _, word in each.levels}:
            raise FailedPrecondition(
                "it shares its GPU under MPS, whose clients cannot leave a GPU",
                reason=Reason.PARK_FAILED,
            )
        gpus = {each.uuid for each in wanted.assignment.parked_devices}
        await self._wait_measured()
        await helper.park_slot(*slot.key, memory_bytes=self._memory_needed(slot, gpus))
        await self._open(slot, wanted.assignment.devices)
        await helper.park_slot(*slot.key, memory_bytes=0)
        await self._wait_gone(slot.key, gpus)

    async def _unpark(self, slot: Slot) -> None:
        wanted = slot.becoming
        if wanted is None or wanted.assignment is None or slot.spec.assignment is None:
            return
        await self._keeper.prepare_devices([wanted])
        await self._open(slot, wanted.assignment.devices)
        await self._keeper.limit_devices([wanted])  # the slot has possibly got other GPUs
        old = [each.uuid for each in slot.spec.assignment.parked_devices]
        new = [each.uuid for each in wanted.assignment.devices if each.type == GPU]
        pairs = zip(old, new, strict=False) if set(old) != set(new) else ()
        device_map = ",".join(f"{one}={other}" for one, other in pairs)
        await self._keeper.helper.unpark_slot(*slot.key, device_map=device_map)

    async def _undo(self, slot: Slot, error: Exception) -> None:
        """Restores the previous state of a slot, without a time limit, and records the failure."""
        wanted, keeper = slot.becoming, self._keeper
        if wanted is None:
            return
        failure = not_moved(wanted, error)
        log.warning("slot_not_moved", allocation_id=wanted.allocation_id, error=failure.message)
        has = slot.spec.assignment.devices if slot.spec.assignment is not None else ()
        for attempt in range(1 << 30):
            if self._slot(slot.key) is None:
                return  # the executor is ending the processes of the slot
            try:
                if wanted.is_parked:
                    await self._open(slot, has)
                    await keeper.helper.unpark_slot(*slot.key, device_map="")
                else:
                    await keeper.helper.park_slot(*slot.key, memory_bytes=0)
                    await self._open(slot, has)
                break
            except (FinegrainError, OSError) as again:
                trouble = f"{failure.message}; the undo has failed until now: {again}"
                self._moves[slot.key].trouble = trouble
                log.error("slot_not_restored", allocation_id=wanted.allocation_id, error=str(again))
            await asyncio.sleep(_UNDO_S[min(attempt, len(_UNDO_S) - 1)])
        self._failures[slot.key] = (wanted.resize_number, failure)
        await keep_size(keeper, slot.key, wanted, failure)

    # -- device files and measured use -----------------------------------------------------------

    async def _open(self, slot: Slot, shares: Iterable[DeviceShare]) -> None:
        """Lets a slot open only the files of these devices."""
        keeper = self._keeper
        async with keeper.cpu_bindings.lock:
            now = self._slot(slot.key)
            if now is None:
                return
            binding = keeper.table.cpus.binding_of(now.spec)
            limits = keeper.with_devices(keeper.limits_of(now.spec, binding), shares)
            await keeper.helper.resize_slot(limits)
            keeper.cpu_bindings.applied(slot.key, binding)

    async def _wait_measured(self) -> None:
        """Waits for the first reading of GPUs after a start."""
        for _ in range(int(FIRST_READING_S / _LOOK_EVERY_S)):
            if self._measurement()[0] or self._keeper.table.devices.host.fake:
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    def _memory_needed(self, slot: Slot, gpus: Collection[str]) -> int:
        """Returns the bytes of the host's memory that the contents of a slot's GPUs need: the
        measured use, or the share on GPUs without a measurement.
        """
        measured = self._used(slot.key, gpus)
        shares = slot.spec.assignment.devices if slot.spec.assignment is not None else ()
        if self._keeper.table.devices.host.fake:
            return 0
        return sum(
            measured.get(each.uuid, dict(each.amounts).get(GPU_MEMORY, 0))
            for each in shares
            if each.uuid in gpus
        )

    def _used(self, key: SlotKey, gpus: Collection[str]) -> dict[str, int]:
        """Returns the measured memory of a slot on these GPUs. GPUs without a measurement are left
        out.
        """
        _, usages = self._measurement()
        return {
            usage.uuid: sum(
                each.memory_bytes
                for each in usage.slots
                if (each.allocation_id, each.generation) == key
            )
            for usage in usages
            if usage.uuid in gpus
        }

    async def _wait_gone(self, key: SlotKey, gpus: Collection[str]) -> None:
        """Waits until the driver reports no memory of a slot on the measured GPUs among `gpus`.

        Raises:
            FailedPrecondition: PARK_FAILED. The driver still reports memory.
        """
        number, _ = self._measurement()
        now = asyncio.get_running_loop().time
        end = now() + GONE_S
        while used := self._used(key, gpus):
            # The next reading has possibly begun before the processes left, so wait for the second
            # reading.
            if self._measurement()[0] > number + 1 and not any(used.values()):
                return
            if now() > end:
                raise FailedPrecondition(
                    f"its processes have left its GPUs, but {GONE_S:.0f} s later the driver still"
                    f" reports {format_bytes(sum(used.values()))} of their memory there",
                    reason=Reason.PARK_FAILED,
                )
            await asyncio.sleep(_LOOK_EVERY_S)


def parking_problem(host: HostDevices, mode: str) -> str:
    """Returns the reason why slots cannot be parked although the configuration allows parking;
    empty: they can be parked.
    """
    if mode == OFF:
        return ""
    if not any(map(_can_be_left, host.devices)):
        return "there is no NVIDIA GPU that slots can have"
    return "" if shutil.which(PROGRAM) else f"{PROGRAM} is not installed"


def with_parking(host: HostDevices, mode: str) -> HostDevices:
    """Returns the devices of a host. For each GPU that slots can leave, the function sets the field
    `parking` to `mode`.

    Args:
        host: the devices.
        mode: one of `finegrain.devices.parking.MODES`.
    """
    if mode == OFF or parking_problem(host, mode):
        return host
    devices = tuple(
        replace(each, parking=mode) if _can_be_left(each) else each for each in host.devices
    )
    return replace(host, devices=devices)


def _can_be_left(device: Device) -> bool:
    return device.type == GPU and device.vendor == "nvidia"
