"""Computes the devices of a slot after it was parked or unparked (`finegrain/devices/parking.py`).

Example: a slot has half of GPU 2. While the slot is parked, it has no GPU, and its assignment
stores the half of GPU 2. When the slot is unparked, it gets half of GPU 2 again if this half is
free. Otherwise it gets half of another GPU of the same model, if the host lets slots return to any
GPU.
"""

from __future__ import annotations

from dataclasses import replace

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import GPU, DeviceShare
from finegrain.devices.parking import ANY_GPU
from finegrain.devices.request import DeviceRequest
from finegrain.resources import ResourceProfile, fits
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.devices.refusals import DeviceBlocker
from resource_manager.engine.model.host_refusal import HostRefusal


def with_devices_of(
    assignment: CpuAssignment, profile: ResourceProfile, ledger: DeviceLedger
) -> CpuAssignment | HostRefusal:
    """Returns the assignment of a slot after a resize to a profile that may park or unpark the
    slot.

    Args:
        assignment: the assignment after the resize, with the slot's present devices.
        profile: the new profile.
        ledger: the device ledger of the slot's host.
    """
    request = next((each for each in profile.devices if each.type == GPU), None)
    if request is None:
        return _parked(assignment)
    if not assignment.parked_devices:
        return assignment
    found = _regained(assignment.parked_devices, request, ledger)
    if isinstance(found, HostRefusal):
        return found
    devices = sorted((*assignment.devices, *found), key=lambda each: (each.type, each.minor))
    return replace(assignment, devices=tuple(devices), parked_devices=())


def _parked(assignment: CpuAssignment) -> CpuAssignment:
    gpus = tuple(each for each in assignment.devices if each.type == GPU)
    if not gpus:
        return assignment
    others = tuple(each for each in assignment.devices if each.type != GPU)
    return replace(assignment, devices=others, parked_devices=gpus)


def _regained(
    parked: tuple[DeviceShare, ...], request: DeviceRequest, ledger: DeviceLedger
) -> tuple[DeviceShare, ...] | HostRefusal:
    """Returns the shares that a slot gets back, in the order of `parked`."""
    refusal = None
    for share in parked:
        refusal = refusal or _obstacle(share, ledger)
    if refusal is None:
        return tuple(
            _moved(share, ledger.layout.position[share.type, share.uuid], ledger)
            for share in parked
        )
    # Several GPUs were chosen as a well connected set, so they are not replaced one by one.
    other = _another(parked[0], request, ledger) if len(parked) == 1 else None
    return refusal if other is None else (_moved(parked[0], other, ledger),)


def _obstacle(share: DeviceShare, ledger: DeviceLedger) -> HostRefusal | None:
    """Returns why a slot cannot have its share of a GPU again; None: the slot can have it."""
    at = ledger.layout.position.get((share.type, share.uuid))
    if at is None:
        return HostRefusal(
            DeviceBlocker.NO_SUCH_DEVICE, f"its GPU {share.uuid} is no longer announced"
        )
    name, problem = ledger.layout.devices[at].name, ledger.problem(at)
    if problem:
        blocker = DeviceBlocker.DEVICE_UNUSABLE
        if ledger.is_foreign(at):
            blocker = DeviceBlocker.FOREIGN_USE
        return HostRefusal(blocker, f"its GPU {name} gets no new slots ({problem})")
    if not fits(dict(share.amounts), ledger.free(at)):
        return HostRefusal(
            DeviceBlocker.DEVICE_NOT_ENOUGH, f"other slots have its former share of {name}"
        )
    return None


def _another(share: DeviceShare, request: DeviceRequest, ledger: DeviceLedger) -> int | None:
    """Returns the position of the fullest other GPU of the same model with room for a share. None:
    there is no such GPU, or the slot may not move to another GPU.
    """
    layout = ledger.layout
    at = layout.position.get((share.type, share.uuid))
    if at is None or layout.devices[at].parking != ANY_GPU:
        return None
    old, amounts = layout.devices[at], dict(share.amounts)
    suited = [
        each
        for each in layout.accepted(request)
        if (layout.devices[each].vendor, layout.devices[each].model) == (old.vendor, old.model)
        and layout.devices[each].parking == ANY_GPU
        and layout.totals[each] == layout.totals[at]
        and fits(amounts, ledger.free(each))
    ]
    return min(suited, key=lambda each: (sum(ledger.free(each).values()), each), default=None)


def _moved(share: DeviceShare, at: int, ledger: DeviceLedger) -> DeviceShare:
    device = ledger.layout.devices[at]
    return replace(share, uuid=device.uuid, minor=device.minor)
