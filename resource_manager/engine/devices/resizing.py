"""Computes the devices of a slot after a resize.

A resize does not move a slot. The slot keeps its devices, and only its share of each device
changes. Only parking and unparking change the devices themselves (`parking.py`).

Example: a slot has half of GPU 0, and another slot has a quarter of GPU 0. The first slot can grow
to three quarters. For a larger share, the first slot has to wait, even if GPU 1 is free.
"""

from __future__ import annotations

from dataclasses import replace

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import GPU, DeviceShare, pairs
from finegrain.devices.request import DeviceRequest
from finegrain.resources import DEVICE_PREFIX, ResourceProfile, shortfall
from resource_manager.engine.devices.choose import completed
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.devices.parking import obstacle, parked, regained
from resource_manager.engine.devices.refusals import DeviceBlocker
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.texts import number_text


def with_devices_of(
    assignment: CpuAssignment,
    before: ResourceProfile,
    profile: ResourceProfile,
    ledger: DeviceLedger,
) -> CpuAssignment | HostRefusal:
    """Returns the assignment of a slot after a resize, or why the slot cannot have it. The function
    does not change the ledger.

    Args:
        assignment: the present assignment of the slot.
        before: the present profile.
        profile: the new profile. A profile without GPUs parks a slot that has GPUs, and a profile
            with GPUs unparks a parked slot.
        ledger: the device ledger of the slot's host, including the present shares of the slot.
    """
    requests = {each.type: each for each in profile.devices}
    if GPU not in requests:
        assignment = parked(assignment)
    elif assignment.parked_devices:
        wanted = tuple(_sized(e, requests[GPU], ledger) for e in assignment.parked_devices)
        found = regained(wanted, requests[GPU], ledger)
        if isinstance(found, HostRefusal):
            return found
        devices = sorted((*assignment.devices, *found), key=lambda each: (each.type, each.minor))
        assignment = replace(assignment, devices=tuple(devices), parked_devices=())
        del requests[GPU]
    # Only shares of changed requests are computed again. Other shares must stay the same, even if a
    # device has become smaller since the placement.
    same = {each.type for each in before.devices if requests.get(each.type) == each}
    return _resized(assignment, {k: each for k, each in requests.items() if k not in same}, ledger)


def _resized(
    assignment: CpuAssignment, requests: dict[str, DeviceRequest], ledger: DeviceLedger
) -> CpuAssignment | HostRefusal:
    """Returns the assignment with new shares of the devices for which `requests` has a request of
    the same type.
    """
    devices = []
    for share in assignment.devices:
        request = requests.get(share.type)
        if request is None:
            devices.append(share)
            continue
        wanted = _sized(share, request, ledger)
        if (refusal := _refusal(share, wanted, ledger)) is not None:
            return refusal
        devices.append(wanted)
    return replace(assignment, devices=tuple(devices))


def _sized(share: DeviceShare, request: DeviceRequest, ledger: DeviceLedger) -> DeviceShare:
    """Returns the share of a device for a request, with the memory both in bytes and as a ratio."""
    at = ledger.layout.position.get((share.type, share.uuid))
    total = ledger.layout.totals[at] if at is not None else {}
    return replace(share, amounts=pairs(completed(dict(request.amounts), total)))


def _refusal(share: DeviceShare, wanted: DeviceShare, ledger: DeviceLedger) -> HostRefusal | None:
    """Returns the reason why a slot cannot have another share of its device now. The result is None
    if the slot can have the share.
    """
    growth = shortfall(dict(wanted.amounts), dict(share.amounts))
    at = ledger.layout.position.get((share.type, share.uuid))
    if at is not None and not growth:
        return None
    refusal = obstacle(replace(share, amounts=pairs(growth)), ledger)
    if refusal is None or refusal.blocker is not DeviceBlocker.DEVICE_NOT_ENOUGH or at is None:
        return refusal
    free, name = ledger.free(at), ledger.layout.devices[at].name
    lacks = ", ".join(
        f"{_text(each, more)} more {each} (free {_text(each, free.get(each, 0))})"
        for each, more in growth.items()
        if more > free.get(each, 0)
    )
    return HostRefusal(DeviceBlocker.DEVICE_NOT_ENOUGH, f"it needs {lacks} of its {name}")


def _text(name: str, amount: int) -> str:
    return number_text(DEVICE_PREFIX + name, amount)
