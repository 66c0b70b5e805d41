"""Planted bugs in devices, on either side, and across restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.condition import DeviceCondition
from finegrain.devices.device import DeviceShare
from finegrain.errors import FinegrainError
from resource_manager.engine import restoring
from resource_manager.engine.cpus import resizing
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.devices import parking
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.executors import device_cordons
from resource_manager.engine.executors.cpu_states import adopt_settings
from resource_manager.engine.executors.device_states import DeviceReporter
from resource_manager.engine.hosts import cpu_allocator
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import NOTHING_SET, Cordon, HostSetting, Slot
from resource_manager.engine.state import State
from task_executor.engine import device_ledger as executor_side
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import Slot as ExecutorSlot
from task_executor.engine.slots import SlotKey
from tests.simulation.parking_host import ParkingHost
from tests.simulation.resizing_host import Resized

Patch = pytest.MonkeyPatch


def devices_of_slots_are_forgotten_at_a_start(patch: Patch) -> None:
    """A new manager assumes that all devices are free."""
    real = restoring._restore_slot

    def restore_slot(state: State, slot: Slot) -> None:
        if slot.assignment is not None:
            slot.assignment = replace(slot.assignment, devices=())
        real(state, slot)

    patch.setattr(restoring, "_restore_slot", restore_slot)


def executor_forgets_devices_of_slots_when_it_starts(patch: Patch) -> None:
    """A new front assumes that all devices are free."""
    real = SlotTable.adopt

    def adopt(table: SlotTable, slot: ExecutorSlot) -> None:
        real(table, slot)
        table.devices.remove(slot.key)

    patch.setattr(SlotTable, "adopt", adopt)


def devices_with_problems_get_new_work(patch: Patch) -> None:
    """The engine ignores the health of devices that an executor announces."""
    real = CpuLedger.set_unusable_devices

    def set_unusable(ledger: CpuLedger, unusable: dict[Any, str], foreign: frozenset[Any]) -> None:
        cordoned = {key: why for key, why in unusable.items() if why.startswith("cordoned")}
        real(ledger, cordoned, foreign)

    patch.setattr(CpuLedger, "set_unusable_devices", set_unusable)


def cordons_are_not_durable(patch: Patch) -> None:
    """With a new manager, slots get devices that an administrator has cordoned."""

    def store(state: State, its_host: Host, cordons: tuple[Cordon, ...]) -> None:
        settings, name = state.host_settings, its_host.host_id
        before = settings.get(name) or HostSetting(name, NOTHING_SET, 0, state.journal.at.time_ms)
        settings[name] = replace(before, cordons=cordons)
        adopt_settings(state, its_host)

    patch.setattr(device_cordons, "_store", store)


def cordons_are_forgotten_when_an_executor_registers(patch: Patch) -> None:
    """A cordon ends when the executor registers again."""
    real = cpu_allocator.CpuAllocator.adopt_topology

    def adopt_topology(allocator: cpu_allocator.CpuAllocator) -> None:
        allocator.cordons = ()
        real(allocator)

    patch.setattr(cpu_allocator.CpuAllocator, "adopt_topology", adopt_topology)


def cached_choices_outlive_a_cordon(patch: Patch) -> None:
    """A cached choice of devices for a class stays valid when a device is cordoned."""
    patch.setattr(
        CpuLedger,
        "set_unusable_devices",
        lambda ledger, unusable, foreign: ledger.devices.set_unusable(unusable, foreign),
    )


def slots_of_one_decision_get_the_same_device(patch: Patch) -> None:
    """The engine chooses the same devices for slots that it places together."""
    real = CpuLedger._add_devices

    def add_devices(ledger: CpuLedger, assignment: CpuAssignment | None) -> None:
        if any(not name for name, _ in ledger.holdings):  # a copy for trying things out
            return
        real(ledger, assignment)

    patch.setattr(CpuLedger, "_add_devices", add_devices)


def virtual_functions_are_given_twice(patch: Patch) -> None:
    """The engine books only the amounts of a NIC, not its virtual functions."""
    real = DeviceLedger._change

    def change(ledger: DeviceLedger, shares: Iterable[DeviceShare], sign: int) -> None:
        real(ledger, [replace(each, functions=()) for each in shares], sign)

    patch.setattr(DeviceLedger, "_change", change)


def devices_are_free_before_the_processes_are_gone(patch: Patch) -> None:
    """An executor gives slots devices that ending tasks still use."""
    real = SlotTable.begin_free

    def begin_free(table: SlotTable, key: SlotKey, *, end_reason: str = "") -> Any:
        slot = real(table, key, end_reason=end_reason)
        table.devices.remove(key)
        return slot

    patch.setattr(SlotTable, "begin_free", begin_free)


def vanished_device_keeps_nothing(patch: Patch) -> None:
    """Slots lose a device that is absent. So the device is free when it returns."""
    real = executor_side.DeviceLedger.put

    def put(
        ledger: executor_side.DeviceLedger, key: SlotKey, assignments: Iterable[CpuAssignment]
    ) -> None:
        here = {(each.type, each.uuid) for each in ledger.host.devices}
        real(
            ledger,
            key,
            [
                replace(
                    each,
                    devices=tuple(s for s in each.devices if (s.type, s.uuid) in here),
                )
                for each in assignments
            ],
        )

    patch.setattr(executor_side.DeviceLedger, "put", put)


def conditions_of_devices_are_ignored(patch: Patch) -> None:
    """New slots get two kinds of bad devices: those that fail while the executor runs, and those
    with foreign uses.
    """
    real = CpuLedger.set_unusable_devices

    def set_unusable(ledger: CpuLedger, unusable: dict[Any, str], foreign: frozenset[Any]) -> None:
        announced = {
            key: why
            for key, why in unusable.items()
            if why.startswith(("cordoned", "XID")) or why == "a probe"
        }
        real(ledger, announced, frozenset())

    patch.setattr(CpuLedger, "set_unusable_devices", set_unusable)


def work_that_a_device_has_lost_goes_on(patch: Patch) -> None:
    """No slot is ended when a device fails."""
    patch.setattr(DeviceReporter, "_end_lost_work", lambda _reporter, _host: None)


def slot_that_is_confirmed_on_a_failed_device_goes_on(patch: Patch) -> None:
    """When a device fails, only slots end that were confirmed before the failure."""

    def report(reporter: DeviceReporter, host: Host, before: tuple[DeviceCondition, ...]) -> None:
        if host.executor.device_conditions != before:
            reporter._report_changes(host, before)
            reporter._end_lost_work(host)

    patch.setattr(DeviceReporter, "report", report)


def every_slot_of_a_lost_device_is_ended(patch: Patch) -> None:
    """Slots end even if their requests do not have `restart_on_device_loss`."""
    real = DeviceReporter._end_lost_work

    def end_lost_work(reporter: DeviceReporter, host: Host) -> None:
        requests = [reporter.requests.served_by(slot) for slot in host.slots.values()]
        asked = {each.allocation_id: each.spec for each in requests if each is not None}
        for each in requests:
            if each is not None:
                each.spec = replace(each.spec, restart_on_device_loss=True)
        real(reporter, host)
        for each in requests:
            if each is not None:
                each.spec = asked[each.allocation_id]

    patch.setattr(DeviceReporter, "_end_lost_work", end_lost_work)


def gpus_of_a_slot_that_parks_are_given_at_once(patch: Patch) -> None:
    """Other slots get the GPUs before the processes have left them."""
    real = resizing.together

    def together(before: CpuAssignment, after: CpuAssignment) -> CpuAssignment:
        both = real(before, after)
        parks = bool(after.parked_devices) and not before.parked_devices
        return replace(both, devices=after.devices) if parks else both

    patch.setattr(cpu_allocator, "together", together)


def slot_is_parked_before_its_processes_have_left(patch: Patch) -> None:
    """An executor confirms a parked slot as soon as it gets the command."""

    def enforce_size(host: ParkingHost, key: SlotKey, then: Resized) -> None:
        slot = host.table.get(key)
        wanted = slot.becoming if slot is not None else None
        if wanted is None or not wanted.is_parked or key in host._moves:
            return real(host, key, then)
        host.table.resized(key)
        host._change()
        host.after(500, lambda: host.on_host.update({key: wanted} if key in host.on_host else {}))
        return then(None)

    real = ParkingHost._enforce_size
    patch.setattr(ParkingHost, "_enforce_size", enforce_size)


def slot_comes_back_to_a_gpu_that_others_have(patch: Patch) -> None:
    """The engine does not check whether other slots have the GPUs now."""
    patch.setattr(parking, "obstacle", lambda _share, _ledger: None)


def parked_gpus_are_forgotten_at_a_start(patch: Patch) -> None:
    """A new manager does not know the GPUs that a parked slot had."""
    real = restoring._restore_slot

    def restore_slot(state: State, slot: Slot) -> None:
        if slot.assignment is not None:
            slot.assignment = replace(slot.assignment, parked_devices=())
        real(state, slot)

    patch.setattr(restoring, "_restore_slot", restore_slot)


def capacity_is_free_before_the_processes_are_back(patch: Patch) -> None:
    """An executor that fails to unpark a slot gives other slots the GPUs, and tries again later."""
    real = ParkingHost._undo

    def undo(host: ParkingHost, slot: ExecutorSlot, error: FinegrainError) -> None:
        now = host.table.get(slot.key)
        if now is not None and now.becoming is not None and not now.becoming.is_parked:
            host.table.resize_failed(slot.key)
            host.checks.host(host)
        real(host, slot, error)

    patch.setattr(ParkingHost, "_undo", undo)


DEVICES_MISHANDLED: tuple[Callable[[Patch], None], ...] = (
    devices_of_slots_are_forgotten_at_a_start,
    executor_forgets_devices_of_slots_when_it_starts,
    devices_with_problems_get_new_work,
    conditions_of_devices_are_ignored,
    cordons_are_not_durable,
    cordons_are_forgotten_when_an_executor_registers,
    cached_choices_outlive_a_cordon,
    virtual_functions_are_given_twice,
    vanished_device_keeps_nothing,
    slots_of_one_decision_get_the_same_device,
    devices_are_free_before_the_processes_are_gone,
)

DEVICES_IN_A_STORM: tuple[Callable[[Patch], None], ...] = (
    slot_that_is_confirmed_on_a_failed_device_goes_on,
    every_slot_of_a_lost_device_is_ended,
    gpus_of_a_slot_that_parks_are_given_at_once,
    slot_comes_back_to_a_gpu_that_others_have,
    parked_gpus_are_forgotten_at_a_start,
    capacity_is_free_before_the_processes_are_back,
    work_that_a_device_has_lost_goes_on,
    slot_is_parked_before_its_processes_have_left,
)
"""Bugs in what follows the failure of a device, and in parking."""
