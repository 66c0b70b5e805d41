"""Defines how slots are parked. A parked slot gives back its GPUs but keeps its processes. Later it
gets GPUs again.

While a slot is parked, the host's memory contains the contents of the GPU's memory. A parked slot
has a profile without GPUs. Its assignment names its previous GPUs (`parked_devices`).
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
"""The ways in which an executor can park slots.

off: no slot can be parked. same-gpu: a parked slot gets its previous GPUs again. any-gpu: a parked
slot that had one GPU may also get another GPU of the same model.
"""


def has_gpus(requests: Iterable[DeviceRequest]) -> bool:
    """Returns True if GPUs are among the requested devices."""
    return any(each.type == GPU for each in requests)


def without_gpus(requests: Iterable[DeviceRequest]) -> tuple[DeviceRequest, ...]:
    """Returns the requests for the devices that a parked slot keeps.

    Requests for devices near to GPUs stay, but no longer refer to the GPUs.
    """
    return tuple(
        replace(each, near="", near_required=False, per_group=False) if each.near == GPU else each
        for each in requests
        if each.type != GPU
    )
