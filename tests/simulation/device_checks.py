"""Checks the devices of slots. No slot gets more of a device than there is, no device is given out
twice, and no slot gets a device that is out of use.

It uses only the assignments of slots and the hardware, not the ledgers of devices of engine or
executor.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.condition import DeviceHealth
from finegrain.devices.device import Device, DeviceShare, HostDevices
from finegrain.devices.parking import has_gpus
from finegrain.errors import Reason
from finegrain.resources import fits
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import Resize, Slot
from resource_manager.engine.state import State
from task_executor.engine.slots import Slot as ExecutorSlot
from task_executor.engine.slots import SlotKey, SlotSpec

if TYPE_CHECKING:
    from tests.simulation.executor import Executor
    from tests.simulation.slot_host import SlotHost

Key = tuple[str, int]


@dataclass
class DeviceChecks:
    """The hardware, and the administrators' changes to it.

    Attributes:
        given: number of slots with devices.
        ended: number of slots that ended because a device failed.
        cordoned: UUIDs of devices whose cordon was acknowledged.
        uncordons: for each device (by UUID), how often an administrator has uncordoned it.
    """

    given: int = 0
    ended: int = 0
    cordoned: set[str] = field(default_factory=set)
    uncordons: Counter[str] = field(default_factory=Counter)
    _hardware: dict[str, Device] = field(default_factory=dict)  # the devices by UUID
    _seen: set[Key] = field(default_factory=set)

    def adds(self, host: HostDevices) -> None:
        """A host with these devices exists."""
        self._hardware |= {each.uuid: each for each in host.devices}

    def uncordon(self, uuid: str) -> None:
        """An administrator is about to uncordon a device."""
        self.cordoned.discard(uuid)
        self.uncordons[uuid] += 1

    def restored(self) -> None:
        """A backup replaced the database, so the checks forget later cordons."""
        self.cordoned.clear()

    def decided(self, state: State, changes: Changes) -> Iterator[str]:
        """Checks a batch of the manager that leads; yields problems."""
        for slot in changes.slots:
            key = slot.allocation_id, slot.generation
            if key not in self._seen and slot.assignment is not None:
                self._seen.add(key)
                yield from self._new(state, slot, slot.assignment)
        if not self._hardware:
            return
        for host in state.hosts.values():
            yield from self._given_out(
                f"by the books of {host.host_id}",
                (
                    (key, _both(slot.assignment, slot.ordered))
                    for key, slot in host.slots.items()
                    if not slot.revoked_for  # other slots start after its end
                ),
            )

    def lost_work(self, state: State, changes: Changes) -> Iterator[str]:
        """Checks that a failed device has ended exactly those slots whose requests wanted this."""
        for event in changes.job_events:
            if event.reason != Reason.DEVICE_LOST:
                continue
            self.ended += 1
            request = state.requests.named(event.allocation_id)
            if request is not None and not (
                request.spec.restart_on_device_loss or request.spec.gang_id
            ):
                yield f"{event.allocation_id} was ended, and did not ask for it"
            if request is not None and request.state is RequestState.LOST:
                yield f"{event.allocation_id} has ended with its device, and must wait again"
        for host in state.hosts.values():
            lost = {each.uuid for each in host.executor.device_conditions if each.work_lost}
            for key, slot in host.slots.items() if lost else ():
                request = state.requests.served_by(slot)
                if request is None or not request.spec.restart_on_device_loss:
                    continue
                its = {each.uuid for each in _both(slot.assignment, slot.ordered)}
                # A slot that is not confirmed yet is ended later, when the next report shows it.
                if its & lost and slot.state is SlotState.ALLOCATED and not slot.ordered:
                    yield f"slot {key} goes on with {its & lost}, which no work can use"

    def _new(self, state: State, slot: Slot, assignment: CpuAssignment) -> Iterator[str]:
        key = slot.allocation_id, slot.generation
        shares, wanted = assignment.devices, slot.profile.devices
        self.given += bool(shares)
        host = state.hosts.get(slot.executor_id)
        usable = dict(_announced(host.executor.registration.topology)) if host is not None else {}
        now = {each.uuid: each for each in host.executor.device_conditions} if host else {}
        for share in shares:
            if (seen := now.get(share.uuid)) is not None:
                usable[share.uuid] = seen.health is DeviceHealth.HEALTHY and not seen.foreign_uses
            if share.uuid in self.cordoned:
                yield f"slot {key} was given {share.uuid}, which is cordoned"
            if not usable.get(share.uuid):
                yield f"slot {key} was given {share.uuid}, which is not there or has a problem"
        for request in wanted:
            its = [dict(each.amounts) for each in shares if each.type == request.type]
            enough = all(each.get(n, 0) >= amount for each in its for n, amount in request.amounts)
            if len(its) < request.count or not enough:
                yield f"slot {key} requested {request}, and was given {shares}"
            if request.functions is not None and any(
                not each.functions for each in shares if each.type == request.type
            ):
                yield f"slot {key} requested virtual functions, and was given {shares}"

    def _given_out(
        self, where: str, slots: Iterable[tuple[object, Iterable[DeviceShare]]]
    ) -> Iterator[str]:
        """Yields devices whose shares exceed the device, or of which a slot has two shares."""
        used: dict[str, dict[str, int]] = {}
        owners: dict[str, object] = {}
        for key, shares in slots:
            uuids = [share.uuid for share in shares]
            if len(set(uuids)) < len(uuids):
                yield f"slot {key} has a device twice {where}: {uuids}"
            for share in shares:
                sums = used.setdefault(share.uuid, {})
                for name, amount in share.amounts:
                    sums[name] = sums.get(name, 0) + amount
                for bus_id in share.functions:
                    if owners.setdefault(bus_id, key) != key:
                        yield f"function {bus_id} is {owners[bus_id]}'s and {key}'s {where}"
        for uuid, sums in used.items():
            most = dict(self._hardware[uuid].capacity)
            if any(amount > most.get(name, 0) for name, amount in sums.items()):
                yield f"slots have {sums} of {uuid} {where}, and it has {most}"

    def on_host(self, executor: SlotHost) -> Iterator[str]:
        """Checks the devices that slots really have on a host, and the executor's ledger."""
        yield from self._given_out(
            f"on {executor.name}",
            (
                (key, spec.assignment.devices if spec.assignment is not None else ())
                for key, spec in executor.on_host.items()
            ),
        )
        table = executor.table
        yield from self._given_out(
            f"in the table of {executor.name}",
            ((slot.key, _both(slot.spec.assignment, slot.becoming)) for slot in table),
        )
        recounted: dict[tuple[str, str], dict[str, int]] = {}
        for slot in table:
            for share in _both(slot.spec.assignment, slot.becoming):
                sums = recounted.setdefault((share.type, share.uuid), {})
                for name, amount in share.amounts:
                    sums[name] = sums.get(name, 0) + amount
        if recounted != table.devices.used():
            used = table.devices.used()
            yield f"slots of {executor.name} have devices {recounted}, its ledger says {used}"

    def healed(self, state: State, executor: Executor) -> Iterator[str]:
        """Checks that the engine and a healed executor agree, and that all devices are usable."""
        host = state.hosts[executor.executor_id]
        ledger = host.cpus.devices if host.cpus is not None else None
        used = executor.table.devices.used()
        if (ledger.used if ledger is not None else {}) != used:
            yield f"slots have devices {used} on {executor.name}, the books say {ledger}"
        if ledger is None:
            return
        for key, slot in host.slots.items():
            yield from _parked(state, executor, slot, executor.table.get(SlotKey(*key)))
        mine = {(each.type, each.uuid) for each in executor.hardware.devices}
        announced = {(each.type, each.uuid) for each in ledger.layout.devices}
        if mine != announced:
            yield f"{executor.name} has devices {mine}, the books say {announced}"
        if ledger.unusable:
            yield f"devices of {executor.name} get no work, and all are fine: {ledger.unusable}"


def _parked(
    state: State, executor: Executor, slot: Slot, listed: ExecutorSlot | None
) -> Iterator[str]:
    """Checks that engine, executor and kernel agree whether a slot is parked.

    If a slot wants its GPUs back and could have them, it must not wait.
    """
    name = f"slot {slot.allocation_id} of {executor.name}"
    if listed is None or slot.assignment is None or listed.spec.assignment is None:
        return
    ones, others = slot.assignment, listed.spec.assignment
    if (ones.devices, ones.parked_devices) != (others.devices, others.parked_devices):
        yield f"{name} has {others}, and by the books {ones}"
    request = state.requests.served_by(slot)
    if request is None or request.spec.profile is None or request.state is not RequestState.GRANTED:
        return
    wanted = has_gpus(request.spec.profile.devices) and not has_gpus(slot.profile.devices)
    if wanted != slot.is_parked:
        yield f"{name} has {slot.profile}, and gave up {ones.parked_devices}"
    if slot.wanted is None and slot.is_parked:
        yield f"{name} stays parked, and an operator has unparked it"
    host = state.hosts[executor.executor_id]
    if slot.wanted is None or not slot.is_parked or host.reserved is not None:
        return
    growth = {
        name: more
        for name, amount in host.booking_of(slot.wanted.profile).items()
        if (more := amount - slot.booked.get(name, 0)) > 0
    }
    used = executor.table.devices.used()
    capacity = {(each.type, each.uuid): dict(each.capacity) for each in executor.hardware.devices}
    keys = [(share.type, share.uuid) for share in ones.parked_devices]
    # A slot can get another size while it is parked.
    needed = {each.type: each.amounts for each in slot.wanted.profile.devices}
    is_free = all(
        used.get(key, {}).get(name, 0) + amount <= capacity[key].get(name, 0)
        for key in keys
        for name, amount in needed[key[0]]
    )
    if is_free and fits(growth, host.free()):
        yield f"{name} waits for its GPUs {keys}, which are free"


def _both(one: CpuAssignment | None, size: Resize | SlotSpec | None) -> tuple[DeviceShare, ...]:
    """Returns the devices of a slot during a resize: those of either size, with the larger
    amounts.
    """
    other = size.assignment if size is not None else None
    found = list(one.devices) if one is not None else []
    for share in other.devices if other is not None else ():
        same = next((each for each in found if each.uuid == share.uuid), None)
        if same is None:
            found.append(share)
            continue
        most = dict(same.amounts)
        for name, amount in share.amounts:
            most[name] = max(amount, most.get(name, 0))
        functions = tuple(dict.fromkeys((*same.functions, *share.functions)))
        found[found.index(same)] = DeviceShare(
            same.type, same.uuid, same.minor, tuple(sorted(most.items())), functions
        )
    return tuple(found)


@lru_cache(256)
def _announced(topology: str) -> dict[str, bool]:
    """Returns by UUID whether a device may get new work, as its executor announced."""
    devices = json.loads(topology).get("devices", ())
    return {each["uuid"]: not each.get("unavailable_reason") for each in devices}
