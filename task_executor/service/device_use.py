"""Decides for each process on a GPU whether the process belongs to a slot or is a foreign process.

A foreign process belongs to no slot of this executor. Processes that only draw graphics, and
processes of the executor itself, do not count. A foreign process counts only when a second reading
shows it again. At the first reading, the process possibly belongs to a task that has just ended, or
that has not entered its slot yet.
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
"""Seconds for which the reported memory of a foreign process stays the same.

Each change causes a full report, so the reported memory must not change often.
"""

STRANGERS_MAX: Final = 32
"""Maximum number of foreign processes that are reported for one device."""

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
    """Finds the owners of the processes in each reading.

    Args:
        owners: finds the slot or the user of a process.
        trusts_pids: True if process ids in the driver's reports are valid in this process's PID
            namespace. If False, all processes are ignored.
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
        """Returns the foreign uses of devices, and the measured uses by slots.

        Args:
            reading: the driver's data about all GPUs.
            devices: the devices that slots can have.
            groups: the slot of each control group, as for `ProcessOwners.find`.
            tasks: the slot of each process that was started as a task.
            own: the ids of the executor's own processes.
            own_slots: the slots that the executor itself uses. `groups` also contains the control
                groups of these slots.
        """
        own = tuple(own)
        # A process can use many GPUs, so its owner is found only once for each reading.
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
                # The executor's own slots run tests of devices and MPS daemons.
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
        # A new process can have the id of a process that has ended.
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
