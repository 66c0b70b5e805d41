"""Parking: a slot gives up its GPUs while its processes stay, and gets GPUs again later.

The contents of the GPU's memory lie in the memory of the host meanwhile. A parked slot has a
profile without GPUs, and an assignment that names those that it had (`parked_devices`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from finegrain.devices.device import GPU
from finegrain.devices.request import DeviceRequest

OFF: Final = "off"
SAME_GPU: Final = "same-gpu"
ANY_GPU: Final = "any-gpu"

MODES: Final = (OFF, SAME_GPU, ANY_GPU)
"""How an executor parks slots.

off: not at all.
same-gpu: a slot returns to the GPUs that it had.
any-gpu: a slot with one GPU may also return to another one of the same model.
"""


def has_gpus(requests: Iterable[DeviceRequest]) -> bool:
    """Returns True if GPUs are among the requested devices."""
    return any(each.type == GPU for each in requests)


def without_gpus(requests: Iterable[DeviceRequest]) -> tuple[DeviceRequest, ...]:
    """Returns what a parked slot keeps of its devices.

    Devices that were chosen near to GPUs stay, and no longer refer to them.
    """
    return tuple(
        replace(each, near="", near_required=False, per_group=False) if each.near == GPU else each
        for each in requests
        if each.type != GPU
    )
