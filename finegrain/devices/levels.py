"""Levels of enforcement: how strictly a host holds slots to their share of a resource.

A request can require the lowest level that it accepts, by dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from finegrain.devices.device import GPU, GPU_CORE, GPU_MEMORY, Device, Labels
from finegrain.errors import InvalidArgument

NONE: Final = "none"
VISIBLE_ONLY: Final = "visible-only"
WATCH: Final = "watch"
MPS: Final = "mps"
KERNEL: Final = "kernel"

LEVELS: Final = (NONE, VISIBLE_ONLY, WATCH, MPS, KERNEL)
"""Levels, weakest first.

none: nothing is enforced.
visible-only: tasks find their devices in environment variables.
watch: use is measured, and the tasks of a slot that uses more than its share are ended.
mps: the driver's MPS service refuses what is above the share.
kernel: the kernel or the driver refuses what is above the share.
"""

WHOLE_DEVICE: Final = "whole"
"""Key of a device's levels: the level for a slot that has the whole device."""

CPU: Final = "cpu"
MEMORY: Final = "memory"
OF_SLOTS: Final = (CPU, MEMORY)
"""Dimensions of every slot. A host enforces them by its kernel or not at all."""

OF_GPUS: Final = (GPU_CORE, GPU_MEMORY)


def is_at_least(level: str, wanted: str) -> bool:
    """Returns True if a level is as strict as `wanted`; an unknown level counts as "none"."""
    return _strictness(level) >= _strictness(wanted)


def weakest(levels: Iterable[str]) -> str:
    """Returns the weakest of some levels; "" if there are none."""
    return min(levels, key=_strictness, default="")


def level_of(device: Device, name: str, *, is_whole: bool) -> str:
    """Returns the level at which a slot is held to its share of a device.

    Args:
        device: the device.
        name: dimension.
        is_whole: the slot has all of the device. That may be enforced better than a share, because
            nothing else can open its files.
    """
    levels = dict(device.levels)
    share = levels.get(name, NONE)
    whole = levels.get(WHOLE_DEVICE, NONE) if is_whole else NONE
    return max(share, whole, key=_strictness)


def dimensions_of(type_: str) -> tuple[str, ...]:
    """Returns the dimensions of devices of a type that have a level."""
    return OF_GPUS if type_ == GPU else (type_,)


def check_required(required: Mapping[str, str], types: Iterable[str], field: str) -> Labels:
    """Checks the levels that a request requires.

    Args:
        required: level by dimension.
        types: types of devices that it requests.
        field: path of `required`, for errors.

    Returns:
        The same, sorted, without what every host meets.

    Raises:
        InvalidArgument: a dimension is not requested, or a level is unknown.
    """
    known = (*OF_SLOTS, *(name for type_ in types for name in dimensions_of(type_)))
    for name, level in required.items():
        if name not in known:
            expected = f"one of {', '.join(known)}: what the request asks for"
            raise InvalidArgument(f"{field} name", name, expected)
        # The kernel is all that limits cpu and memory.
        accepted = (NONE, KERNEL) if name in OF_SLOTS else LEVELS
        if level not in accepted:
            raise InvalidArgument(f"{field}[{name}]", level, f"one of {', '.join(accepted)}")
    return tuple(sorted((name, level) for name, level in required.items() if level != NONE))


def _strictness(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else 0
