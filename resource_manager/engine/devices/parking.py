"""Computes the devices of a slot after it was parked or unparked (`finegrain/devices/parking.py`).

Example: a slot has half of GPU 2. While the slot is parked, it has no GPU, and its assignment
stores the half of GPU 2. If half of GPU 2 is free when the slot is unparked, the slot gets this
half again. Otherwise, if the host lets slots return to any GPU, the slot gets half of another GPU
of the same model.
"""

from __future__ import annotations

from dataclasses import replace

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import GPU, DeviceShare
from finegrain.devices.parking import ANY_GPU
from finegrain.devices.request import DeviceRequest
from finegrain.resources import fits
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.devices.refusals import DeviceBlocker
from resource_manager.engine.model.host_refusal import HostRefusal


def parked(assignment: CpuAssignment) -> CpuAssignment:
    """Returns the assignment of a slot while it is parked: without its GPUs."""
    gpus = tuple(each for each in assignment.devices if each.type == GPU)
    if not gpus:
        return assignment
    others = tuple(each for each in assignment.devices if each.type != GPU)
    return replace(assignment, devices=others, parked_devices=gpus)


def regained(
    wanted: tuple[DeviceShare, ...], request: DeviceRequest, ledger: DeviceLedger
) -> tuple[DeviceShare, ...] | HostRefusal:
    """Returns the shares that a parked slot gets when it is unparked, in the order of `wanted`.

    Args:
        wanted: the shares that the slot had before it was parked, with the amounts that it needs
            now.
        request: the GPUs that the slot requests.
        ledger: the device ledger of the slot's host.
    """
    refusal = None
    for share in wanted:
        refusal = refusal or obstacle(share, ledger)
    if refusal is None:
        return tuple(
            _moved(share, ledger.layout.position[share.type, share.uuid], ledger)
            for share in wanted
        )
    # Several GPUs of a slot were chosen together as a well connected set. So they are not replaced
    # one by one.
    other = _another(wanted[0], request, ledger) if len(wanted) == 1 else None
    return refusal if other is None else (_moved(wanted[0], other, ledger),)


def obstacle(share: DeviceShare, ledger: DeviceLedger) -> HostRefusal | None:
    """Returns the reason why a slot cannot have a share of its device in addition to the shares in
    the ledger. The result is None if the slot can have the share.
    """
    at = ledger.layout.position.get((share.type, share.uuid))
    if at is None:
        return HostRefusal(
            DeviceBlocker.NO_SUCH_DEVICE, f"its {_kind(share)} {share.uuid} is no longer announced"
        )
    name, problem = ledger.layout.devices[at].name, ledger.problem(at)
    if problem:
        blocker = DeviceBlocker.DEVICE_UNUSABLE
        if ledger.is_foreign(at):
            blocker = DeviceBlocker.FOREIGN_USE
        return HostRefusal(blocker, f"its {_kind(share)} {name} gets no new slots ({problem})")
    if not fits(dict(share.amounts), ledger.free(at)):
        return HostRefusal(
            DeviceBlocker.DEVICE_NOT_ENOUGH, f"other slots have its former share of {name}"
        )
    return None


def _kind(share: DeviceShare) -> str:
    return "GPU" if share.type == GPU else "device"


def _another(share: DeviceShare, request: DeviceRequest, ledger: DeviceLedger) -> int | None:
    """Returns the position of another GPU of the same model with room for the share. If there are
    several such GPUs, the GPU with the least free capacity is taken. The result is None if there is
    no such GPU, or if the slot must not move to another GPU.
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
