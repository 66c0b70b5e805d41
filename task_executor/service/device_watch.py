"""Watches devices while the executor runs: their health, their foreign use, and their measured use.

The watch reads the GPUs about once a second, and the ports of NICs less often. If the state of a
device differs from the registered state, reports contain the difference as a condition. A device
that recovers is probed before slots get it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from finegrain.cpuset import EMPTY
from finegrain.devices.condition import DeviceCondition, DeviceHealth, ForeignUse
from finegrain.devices.device import GPU, RDMA, Device, HostDevices
from finegrain.devices.names import MIG_PREFIX
from finegrain.logs import get_logger
from finegrain.values.usage import DeviceUsage
from task_executor.engine.device_health import WORKS, HealthRecord, Observation
from task_executor.host.detection.pci import read_pci
from task_executor.host.detection.reader import TreeReader
from task_executor.host.gpu_monitor import READ_EVERY_S, GpuMonitor, GpuReading, GpuSample
from task_executor.host.kubelet.state import KubeletState
from task_executor.host.process_owners import ProcessOwners
from task_executor.service.device_probe import DeviceProbe
from task_executor.service.device_use import DeviceUses, ProcessSorter
from task_executor.service.slot_keeper import SlotKeeper

CONFIRM_S: Final = 0.2
"""Seconds until the next reading if a reading has found a slot above its share."""

DOUBTS_MAX: Final = 3
"""If this many consecutive readings contain no process memory, the GPU counts as not measured."""

NICS_EVERY_S: Final = 5.0
XID_WAIT_MS: Final = 60_000
"""Milliseconds for which a GPU is unhealthy after a critical XID (a driver error). This applies if
the driver reports no recovery action.
"""

FOREIGN_AUTO: Final = "auto"
FOREIGN_AVOID: Final = "avoid"
FOREIGN_IGNORE: Final = "ignore"

CRITICAL_XIDS: Final = {
    46: "the GPU has stopped processing",
    48: "an uncorrectable memory error",
    62: "its micro-controller has halted",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error",
    119: "its system processor does not answer",
    120: "an error of its system processor",
    140: "an unrecovered memory error",
}
"""After these XIDs (numbers of NVIDIA driver errors), a GPU is not used if the driver reports no
recovery action. XIDs that a program can cause (13, 31, 43, 45 and others) are not in this table.
"""

DeviceKey = tuple[str, str]

CheckUse = Callable[[Iterable[DeviceUsage], float], bool]

log = get_logger(__name__)


class DeviceWatch:
    """Passes conditions of devices to the slot table, and keeps the measured use of devices.

    Args:
        keeper: the slots of this executor.
        monitor: the monitor that reads the NVIDIA GPUs; None: the host has no NVIDIA GPUs.
        probe: the probe for devices that have recovered.
        kubelet: a function that returns the last known state of a kubelet.
        own_pids: a function that returns the ids of the executor's own processes.
        foreign_use: how foreign uses are handled: "auto", "avoid" or "ignore".
        moved: a function that is called with all devices when a device has a new minor number or
            PCI address.
        check_use: a function that is called with each new measurement of use, and with the time of
            the measurement (of `time.monotonic`). It returns True if the next reading should follow
            soon.
        measured_changed: a function that is called when the set of `measured` GPUs has changed.
        root: the root of the file system, for tests.
    """

    def __init__(
        self,
        keeper: SlotKeeper,
        monitor: GpuMonitor | None,
        probe: DeviceProbe,
        *,
        kubelet: Callable[[], KubeletState | None],
        own_pids: Callable[[], Iterable[int]],
        foreign_use: str = FOREIGN_AUTO,
        moved: Callable[[HostDevices], None] = lambda _host: None,
        check_use: CheckUse = lambda _usages, _at_s: False,
        measured_changed: Callable[[], None] = lambda: None,
        root: Path = Path("/"),
    ) -> None:
        self._keeper = keeper
        self._monitor = monitor
        self._probe = probe
        self._kubelet = kubelet
        self._own_pids = own_pids
        self._moved = moved
        self._check_use = check_use
        self._measured_changed = measured_changed
        self._measures: dict[str, bool] = {}  # by GPU UUID: whether the GPU is in `measured`
        # Consecutive readings without the memory of processes, by GPU UUID.
        self._doubts: dict[str, int] = {}
        self._must_confirm = False
        self._checked = 0  # number of the last reading whose use was checked
        self._root = root
        owners = ProcessOwners(root / "proc")
        # In a container, the same process id can belong to another process than on the host. By the
        # setting "avoid", the administrator declares that the ids are equal. The executor relies on
        # this setting for reports of foreign uses, but not for ending tasks.
        self._sees_host = owners.sees_host
        trusts_pids = foreign_use == FOREIGN_AVOID or self._sees_host
        self._sorter = ProcessSorter(owners, trusts_pids=trusts_pids)
        self._avoid = foreign_use != FOREIGN_IGNORE
        self._announced: Mapping[DeviceKey, str] = {
            (each.type, each.uuid): each.problem for each in self._devices
        }
        self._health = {
            key: HealthRecord(DeviceHealth.UNHEALTHY if problem else DeviceHealth.HEALTHY, problem)
            for key, problem in self._announced.items()
        }
        self._nics: dict[str, str] = {}
        self._nics_at_s = 0.0
        self._uses = DeviceUses()
        self._probing: dict[DeviceKey, asyncio.Task[None]] = {}
        self._silence = ""

    @property
    def has_work(self) -> bool:
        """True if the host has a device whose state can be watched."""
        return any(_is_gpu(each) or each.type == RDMA for each in self._devices)

    @property
    def measured(self) -> frozenset[str]:
        """UUIDs of the GPUs on which the memory use of each slot is measured."""
        return frozenset(uuid for uuid, measures in self._measures.items() if measures)

    @property
    def usages(self) -> tuple[DeviceUsage, ...]:
        """Measured use of devices, from the last reading."""
        return self._uses.usages

    @property
    def measurement(self) -> tuple[int, tuple[DeviceUsage, ...]]:
        """Number of the last reading, and the use of GPUs whose memory is `measured`."""
        return self._checked, tuple(each for each in self.usages if each.uuid in self.measured)

    @property
    def conditions(self) -> tuple[DeviceCondition, ...]:
        """The conditions that reports contain."""
        return self._keeper.table.devices.conditions

    @property
    def _devices(self) -> tuple[Device, ...]:
        return self._keeper.table.devices.host.devices

    async def run(self) -> None:
        """Watches the devices until the task is cancelled."""
        try:
            while True:
                started_s = time.monotonic()
                await self.refresh()
                pause_s = CONFIRM_S if self._must_confirm else READ_EVERY_S
                await asyncio.sleep(max(pause_s - (time.monotonic() - started_s), 0.1))
        finally:
            for task in self._probing.values():
                task.cancel()
            await asyncio.gather(*self._probing.values(), return_exceptions=True)
            if self._monitor is not None:
                self._monitor.close()

    async def find_measured(self) -> None:
        """Reads the GPUs for the first time, after which `measured` is known."""
        if self._monitor is not None:
            self._note_measured(await self._monitor.read())

    async def refresh(self) -> None:
        """Reads all devices once, and passes changes on."""
        reading = await self._monitor.read() if self._monitor is not None else None
        now_ms = time.monotonic_ns() // 1_000_000
        if reading is not None:
            self._log_silence(reading)
            self._follow_moves(reading)
            if not reading.problem:
                self._uses = self._sort(reading)
                if self._note_measured(reading):
                    self._measured_changed()
                if reading.number != self._checked:
                    self._checked = reading.number
                    self._keeper.tasks.measured(self._uses.usages)
                    self._must_confirm = self._check_use(self._uses.usages, reading.at_s)
        if time.monotonic() - self._nics_at_s >= NICS_EVERY_S:
            self._nics_at_s = time.monotonic()
            self._nics = await asyncio.to_thread(self._nic_problems)
        for device in self._devices:
            record = self._health[device.type, device.uuid]
            record.observe(now_ms, self._observed(device, reading))
            if record.must_be_probed(now_ms):
                self._begin_probe(device, record)
        self.pass_on(now_ms)

    def pass_on(self, now_ms: int) -> None:
        """Passes the present conditions to the slot table. If they changed, the slot table reports
        them.
        """
        conditions = tuple(
            condition
            for device in sorted(self._devices, key=lambda each: (each.type, each.uuid))
            if (condition := self._condition(device, now_ms)) is not None
        )
        before = {(each.type, each.uuid): each.health for each in self.conditions}
        if self._keeper.table.update_device_conditions(conditions):
            for each in conditions:
                if each.health is not before.get((each.type, each.uuid), DeviceHealth.HEALTHY):
                    log.warning(
                        "device_condition",
                        type=each.type,
                        uuid=each.uuid,
                        health=each.health.value,
                        problem=each.problem,
                    )
            self._keeper.on_change()

    # -- health ----------------------------------------------------------------------------------

    def _observed(self, device: Device, reading: GpuReading | None) -> Observation:
        if device.type == RDMA and (problem := self._nics.get(device.uuid, "")):
            return Observation(DeviceHealth.UNHEALTHY, problem)
        if reading is None or not _is_gpu(device) or device.vendor not in ("", "nvidia"):
            # The executor does not watch the health of this device, so a problem that was found at
            # the start remains.
            problem = self._announced[device.type, device.uuid]
            is_known = device.type == RDMA or not problem
            return WORKS if is_known else Observation(DeviceHealth.UNHEALTHY, problem)
        if reading.problem:
            return Observation(DeviceHealth.UNKNOWN, reading.problem)
        sample = reading.gpus.get(device.uuid)
        if sample is None:
            problem = "the driver no longer lists it"
            return Observation(DeviceHealth.GONE, problem, work_lost=True)
        if sample.problem:
            return Observation(DeviceHealth.UNHEALTHY, sample.problem, sample.work_lost)
        return _by_xids(sample)

    def _begin_probe(self, device: Device, record: HealthRecord) -> None:
        key = (device.type, device.uuid)
        if key in self._probing:
            return
        # For other devices there is no test, so rely on the driver's report.
        if not _is_gpu(device) or self._monitor is None:
            record.probed(time.monotonic_ns() // 1_000_000, "")
            return
        self._probing[key] = asyncio.create_task(self._run_probe(device, record))

    async def _run_probe(self, device: Device, record: HealthRecord) -> None:
        try:
            problem = await self._probe.run(device)
            now_ms = time.monotonic_ns() // 1_000_000
            record.probed(now_ms, problem)
            self.pass_on(now_ms)
        finally:
            del self._probing[device.type, device.uuid]

    def _condition(self, device: Device, now_ms: int) -> DeviceCondition | None:
        """Returns the condition of a device; None: the device is in its registered state."""
        record = self._health[device.type, device.uuid]
        foreign = self._foreign_uses(device) if self._avoid else ()
        if record.health is DeviceHealth.HEALTHY and not foreign:
            # If a problem in the registration has ended, an empty condition withdraws this problem.
            is_announced = bool(self._announced[device.type, device.uuid])
            return DeviceCondition(device.type, device.uuid) if is_announced else None
        is_healthy = record.health is DeviceHealth.HEALTHY
        return DeviceCondition(
            device.type,
            device.uuid,
            record.health,
            record.problem,
            record.work_is_lost(now_ms),
            0 if is_healthy else record.failures(now_ms),
            foreign,
        )

    def _nic_problems(self) -> dict[str, str]:
        found = read_pci(TreeReader(self._root), EMPTY, ()) or ()
        return {each.bus_id: each.problem for each in found if each.problem}

    def _log_silence(self, reading: GpuReading) -> None:
        if reading.problem != self._silence:
            log.warning("gpu_driver", problem=reading.problem or "it answers again")
        self._silence = reading.problem

    def _follow_moves(self, reading: GpuReading) -> None:
        """Updates the GPUs that have a new minor number or PCI address, for example after a
        reset.
        """
        moved = [_moved(each, reading.gpus.get(each.uuid)) for each in self._devices]
        if tuple(moved) == self._devices:
            return
        host = replace(self._keeper.table.devices.host, devices=tuple(moved))
        log.warning("devices_moved", devices=[each.name for each in moved])
        self._moved(host)

    # -- uses ------------------------------------------------------------------------------------

    def _sort(self, reading: GpuReading) -> DeviceUses:
        table = self._keeper.table
        groups = {f"{slot.key.allocation_id}.{slot.key.generation}": slot.key for slot in table}
        groups |= {f"{key.allocation_id}.{key.generation}": key for key in self._keeper.own_slots}
        tasks = {task.pid: task.key for task in self._keeper.tasks if task.pid}
        gpus = [each for each in self._devices if _is_gpu(each)]
        return self._sorter.sort(
            reading,
            gpus,
            groups=groups,
            tasks=tasks,
            own=self._own_pids(),
            own_slots=self._keeper.own_slots,
        )

    def _note_measured(self, reading: GpuReading) -> bool:
        """Records for which GPUs the driver reports the memory of processes.

        Returns:
            True if the set of GPUs in `measured` has changed.
        """
        before = self.measured
        for device in self._devices if self._sees_host and not reading.problem else ():
            sample = reading.gpus.get(device.uuid)
            # While a GPU does not work, it is not known whether its driver measures processes.
            if device.type != GPU or sample is None or sample.problem:
                continue
            # One reading without process memory is no proof: reading the list of processes can fail
            # while processes start and end.
            doubts = 0 if sample.measures_processes else self._doubts.get(device.uuid, 0) + 1
            self._doubts[device.uuid] = doubts
            if sample.measures_processes or doubts >= DOUBTS_MAX:
                self._measures[device.uuid] = sample.measures_processes
        return self.measured != before

    def _foreign_uses(self, device: Device) -> tuple[ForeignUse, ...]:
        pods = self._pods_with(device)
        return (*pods, *self._uses.foreign.get(device.uuid, ()))

    def _pods_with(self, device: Device) -> tuple[ForeignUse, ...]:
        state = self._kubelet()
        functions = (each.bus_id for each in device.functions)
        ids = {device.uuid, device.pci_address, *functions} - {""}
        return tuple(
            ForeignUse("pod", f"{each.pod_uid}/{each.container}")
            for each in (state.devices if state is not None else ())
            if ids & each.ids
        )


def gpu_monitor(host: HostDevices) -> GpuMonitor | None:
    """Returns a monitor of the host's NVIDIA GPUs; None: the host has no real NVIDIA GPU."""
    has_gpus = any(_is_gpu(each) and each.vendor in ("", "nvidia") for each in host.devices)
    return GpuMonitor() if has_gpus and not host.fake else None


def _by_xids(sample: GpuSample) -> Observation:
    """Returns the health that follows from XIDs, for drivers that report no recovery actions."""
    critical = [each for each in sample.xids if each in CRITICAL_XIDS]
    if sample.recovery_known or not critical:
        return WORKS
    xid = critical[0]
    problem = f"the driver reported XID {xid}: {CRITICAL_XIDS[xid]}"
    return Observation(DeviceHealth.UNHEALTHY, problem, wait_ms=XID_WAIT_MS)


def _moved(device: Device, sample: GpuSample | None) -> Device:
    """Returns the GPU with its present minor number and PCI address."""
    if sample is None or sample.minor is None or device.parent_uuid or device.type != GPU:
        return device
    address = sample.pci_address or device.pci_address
    return replace(device, minor=sample.minor, pci_address=address)


def _is_gpu(device: Device) -> bool:
    return device.type == GPU or device.type.startswith(MIG_PREFIX)
