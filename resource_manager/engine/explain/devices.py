"""Builds the list of devices. The list shows the capacity of each device and the slots that use the
device. For a device that gets no new slots, the list shows the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from finegrain.devices.condition import DeviceCondition
from finegrain.devices.device import Device, DeviceLink, DeviceShare
from resource_manager.engine.explain.lists import Page
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.known import known_host
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.state import State


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The share of a device that one slot has."""

    slot: Slot
    share: DeviceShare


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device of an executor.

    Attributes:
        problem: the reason why the device gets no new slots. It is empty if the device may get new
            slots.
        allocated: the amounts of the device that slots have, by dimension.
        available: the amounts that new slots could have. It is empty if the device gets no new
            slots.
        uses: the slots that use the device, each with its share.
        condition: the last condition of the device that the executor has reported since its
            registration. None if there was no such report.
    """

    device: Device
    problem: str
    cordoned: bool
    allocated: dict[str, int]
    available: dict[str, int]
    uses: list[DeviceUse]
    condition: DeviceCondition | None = None


@dataclass(frozen=True, slots=True)
class ExecutorDevices:
    """One executor with its devices."""

    executor_id: str
    devices: list[DeviceView] = field(default_factory=list)
    links: tuple[DeviceLink, ...] = ()
    fake: bool = False


def list_devices(
    state: State, *, executor_id: str = "", after: str = "", limit: int
) -> Page[ExecutorDevices, str]:
    """Returns the executors that have devices, in order of id.

    Args:
        state: the engine's state.
        executor_id: the id of the only executor to return. If it is empty, all executors are
            returned.
        after: the id of the last executor of the previous page.
        limit: the largest number of executors to return.

    Raises:
        NotFound: the executor does not exist.
    """
    if executor_id:
        return Page([devices_of(known_host(state.hosts, executor_id))], None)
    names = sorted(name for name in state.hosts if name > after)
    found: list[ExecutorDevices] = []
    for name in names:
        if len(found) == limit:
            return Page(found, found[-1].executor_id)
        its = devices_of(state.hosts[name])
        if its.devices:
            found.append(its)
    return Page(found, None)


def devices_of(host: Host) -> ExecutorDevices:
    """Returns the devices of one executor."""
    if host.cpus is None:
        return ExecutorDevices(host.host_id)
    ledger = host.cpus.devices
    uses: dict[tuple[str, str], list[DeviceUse]] = {}
    for key in sorted(host.slots):
        slot = host.slots[key]
        for share in slot.assignment.devices if slot.assignment is not None else ():
            uses.setdefault((share.type, share.uuid), []).append(DeviceUse(slot, share))
    cordoned = {(each.type, each.uuid) for each in host.cordons}
    conditions = {(each.type, each.uuid): each for each in host.executor.device_conditions}
    views = []
    for at, device in enumerate(ledger.layout.devices):
        key_of_device = (device.type, device.uuid)
        views.append(
            DeviceView(
                device,
                ledger.problem(at),
                key_of_device in cordoned,
                dict(ledger.used.get(key_of_device, {})),
                {name: amount for name, amount in ledger.free(at).items() if amount},
                uses.get(key_of_device, []),
                conditions.get(key_of_device),
            )
        )
    return ExecutorDevices(host.host_id, views, ledger.layout.host.links, ledger.layout.host.fake)
