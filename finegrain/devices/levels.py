"""Defines the levels of enforcement: how strictly a host limits a slot to its share of a resource.

A request can require a minimum level for each dimension.
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

none: nothing is enforced. visible-only: tasks find their devices in environment variables. watch:
the executor measures use, and ends the tasks of a slot that uses more than its share. mps: the
driver's MPS service refuses use above the share. kernel: the kernel or the driver refuses use above
the share.
"""

WHOLE_DEVICE: Final = "whole"
"""Key in the levels of a device. Its value is the level for a slot that has the whole device."""

CPU: Final = "cpu"
MEMORY: Final = "memory"
OF_SLOTS: Final = (CPU, MEMORY)
"""Dimensions that every slot has. Either the kernel of the host enforces them, or nothing does."""

OF_GPUS: Final = (GPU_CORE, GPU_MEMORY)


def is_at_least(level: str, wanted: str) -> bool:
    """Returns True if a level is at least as strict as `wanted`. An unknown level counts as
    "none".
    """
    return _strictness(level) >= _strictness(wanted)


def weakest(levels: Iterable[str]) -> str:
    """Returns the weakest of these levels; empty if there is no level."""
    return min(levels, key=_strictness, default="")


def level_of(device: Device, name: str, *, is_whole: bool) -> str:
    """Returns the level at which a slot's share of a device is enforced.

    Args:
        device: the device.
        name: name of the dimension.
        is_whole: True if the slot has the whole device. The level for a whole device can be
            stricter than the level for a share, because no other slot can open the device's files.
    """
    levels = dict(device.levels)
    share = levels.get(name, NONE)
    whole = levels.get(WHOLE_DEVICE, NONE) if is_whole else NONE
    return max(share, whole, key=_strictness)


def dimensions_of(type_: str) -> tuple[str, ...]:
    """Returns the dimensions that have a level, for devices of a type."""
    return OF_GPUS if type_ == GPU else (type_,)


def check_required(required: Mapping[str, str], types: Iterable[str], field: str) -> Labels:
    """Checks the levels that a request requires.

    Args:
        required: required level by dimension.
        types: types of the requested devices.
        field: path of `required`, for errors.

    Returns:
        The required levels, sorted, without levels that every host meets.

    Raises:
        InvalidArgument: a dimension is not requested, or a level is unknown.
    """
    known = (*OF_SLOTS, *(name for type_ in types for name in dimensions_of(type_)))
    for name, level in required.items():
        if name not in known:
            expected = f"one of {', '.join(known)}: the requested resources"
            raise InvalidArgument(f"{field} name", name, expected)
        # Only the kernel can limit cpu and memory.
        accepted = (NONE, KERNEL) if name in OF_SLOTS else LEVELS
        if level not in accepted:
            raise InvalidArgument(f"{field}[{name}]", level, f"one of {', '.join(accepted)}")
    return tuple(sorted((name, level) for name, level in required.items() if level != NONE))


def _strictness(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else 0
