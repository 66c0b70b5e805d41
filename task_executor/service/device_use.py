"""Sorts the processes on GPUs: those of slots, and strangers'.

Strangers are processes of no slot of this executor. Those that only draw do not count, and neither
do the executor's own. A process counts from the second reading on, because it may have just ended,
or may be on its way into its slot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from finegrain.devices.condition import ForeignUse
from finegrain.devices.device import Device
from finegrain.values.usage import DeviceUsage, SlotDeviceUsage
from task_executor.engine.slots import SlotKey
from task_executor.host.gpu_monitor import GpuReading, GpuSample, ProcessKind
from task_executor.host.process_owners import ProcessOwner, ProcessOwners

MEMORY_SHOWN_S: Final = 30.0
"""How long a reported amount of a stranger's memory stays: each change makes a full report."""

STRANGERS_MAX: Final = 32
"""Most strangers of one device that are reported."""

_MemoryAndCount = tuple[int, int]


@dataclass
class _Stranger:
    use: ForeignUse
    shown_at_s: float
    readings: int = 1


@dataclass(frozen=True, slots=True)
class DeviceUses:
    """All uses of devices at one moment, by UUID."""

    foreign: Mapping[str, tuple[ForeignUse, ...]] = field(default_factory=dict)
    usages: tuple[DeviceUsage, ...] = ()


class ProcessSorter:
    """Sorts the processes of each reading.

    Args:
        owners: looks up processes.
        trusts_pids: process ids that drivers report are those that are seen here. Otherwise no
            process is recognized.
    """

    def __init__(self, owners: ProcessOwners, *, trusts_pids: bool) -> None:
        self._owners = owners
        self._trusts_pids = trusts_pids
        self._strangers: dict[tuple[str, int], _Stranger] = {}

    def sort(
        self,
        reading: GpuReading,
        devices: Iterable[Device],
        *,
        groups: Mapping[str, SlotKey],
        tasks: Mapping[int, SlotKey],
        own: Iterable[int],
        own_slots: Collection[SlotKey] = (),
    ) -> DeviceUses:
        """Returns the uses of devices by strangers, and measured uses of slots.

        Args:
            reading: the GPUs.
            devices: that slots can have.
            groups: control groups of slots, as for `ProcessOwners.find`.
            tasks: processes of tasks.
            own: the executor's own processes.
            own_slots: slots of the executor itself; `groups` has theirs as well.
        """
        own = tuple(own)
        # A process may use many GPUs; each is looked up once for each reading.
        known: dict[int, ProcessOwner | None] = {}
        before, self._strangers = self._strangers, {}
        foreign: dict[str, tuple[ForeignUse, ...]] = {}
        usages = []
        for device in devices:
            sample = reading.gpus.get(device.uuid)
            if sample is None:
                continue
            of_slots: dict[SlotKey, _MemoryAndCount] = {}
            for process in sample.processes if self._trusts_pids else ():
                pid = process.pid
                if pid not in known:
                    known[pid] = self._owners.find(pid, groups=groups, tasks=tasks, own=own)
                owner = known[pid]
                # The executor's own slots test devices, and have MPS daemons.
                if owner is None or owner.slot in own_slots:
                    continue
                memory = process.memory_bytes or 0
                if owner.slot is not None:
                    used, count = of_slots.get(owner.slot, (0, 0))
                    of_slots[owner.slot] = used + memory, count + 1
                elif not owner.is_own and process.kind is not ProcessKind.GRAPHICS:
                    use = ForeignUse("process", owner.command, pid, owner.user, memory)
                    self._note((device.uuid, pid), use, before, reading.at_s)
            foreign[device.uuid] = self._confirmed(device.uuid)
            usages.append(_usage(device, sample, of_slots))
        return DeviceUses(foreign, tuple(usages))

    def _note(
        self,
        key: tuple[str, int],
        use: ForeignUse,
        before: Mapping[tuple[str, int], _Stranger],
        now_s: float,
    ) -> None:
        known = before.get(key)
        # Another process may have got the number of one that has ended.
        if known is None or (known.use.name, known.use.user) != (use.name, use.user):
            self._strangers[key] = _Stranger(use, now_s)
            return
        if now_s - known.shown_at_s < MEMORY_SHOWN_S:
            use = replace(use, memory_bytes=known.use.memory_bytes)
            now_s = known.shown_at_s
        self._strangers[key] = _Stranger(use, now_s, known.readings + 1)

    def _confirmed(self, uuid: str) -> tuple[ForeignUse, ...]:
        found = [
            each.use
            for (at, _), each in self._strangers.items()
            if at == uuid and each.readings > 1
        ]
        return tuple(sorted(found, key=lambda each: each.pid)[:STRANGERS_MAX])


def _usage(
    device: Device, sample: GpuSample, of_slots: Mapping[SlotKey, _MemoryAndCount]
) -> DeviceUsage:
    return DeviceUsage(
        device.type,
        device.uuid,
        sample.memory_used_bytes or 0,
        sample.busy_percent or 0,
        tuple(
            SlotDeviceUsage(key.allocation_id, key.generation, memory, count)
            for key, (memory, count) in sorted(of_slots.items())
        ),
    )
