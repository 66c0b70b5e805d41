"""Finds the names under which the memory of GPUs can be limited.

NVIDIA's driver limits the memory of a GPU by its UUID, on every kernel. Other drivers register the
memory of their GPUs with the kernel's dmem controller. The controller names a region by its PCI
address, such as "drm/0000:03:00.0/vram0".
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from finegrain.devices.device import GPU, Device, HostDevices

NVIDIA: Final = "nvidia"
CAPACITY_FILE: Final = "sys/fs/cgroup/dmem.capacity"  # only the top group has this file
V2_FILE: Final = "sys/fs/cgroup/cgroup.controllers"
NO_CONTROLLER: Final = (
    "the kernel has no dmem controller in the tree of cgroup v2 at /sys/fs/cgroup (Linux 6.14 or"
    " later with CONFIG_CGROUP_DMEM)"
)
NO_V2: Final = "slots are not in groups of cgroup v2 here"
_MEMORY: Final = re.compile(r"vram\d*")


def limited_as(host: HostDevices, root: Path = Path("/")) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the names under which the memory of GPUs can be limited, and the reasons for GPUs
    without such a name.

    Args:
        host: the devices.
        root: replaces "/" in tests.

    Returns:
        Two mappings by UUID.
    """
    names: dict[str, str] = {}
    problems: dict[str, str] = {}
    if host.fake:
        return names, problems
    gpus = [each for each in host.devices if each.type == GPU]
    names = {each.uuid: each.uuid for each in gpus if each.vendor == NVIDIA}
    others = [each for each in gpus if each.vendor != NVIDIA]
    regions = _regions(root) if others else None
    for each in others:
        found = _of_device(regions or (), each)
        if len(found) == 1:
            names[each.uuid] = found[0]
        elif regions is None:
            problems[each.uuid] = NO_CONTROLLER
        elif found:
            problems[each.uuid] = f"its memories ({', '.join(found)}) have separate limits"
        else:
            problems[each.uuid] = "its kernel driver does not register its memory with dmem"
    return names, problems


def limit_problems(
    host: HostDevices, root: Path = Path("/"), driver_problem: Callable[[], str] | None = None
) -> dict[str, str]:
    """Returns, for each GPU (by UUID), the reason why its memory cannot be limited on this host;
    empty if it can be limited.

    This function sets no limit. If the helper of a running executor is root, the executor also sets
    a limit as a probe.

    Args:
        host: the devices.
        root: replaces "/" in tests.
        driver_problem: a function that returns the reason why NVIDIA's driver cannot limit memory;
            None: load the driver's library to find out.
    """
    names, problems = limited_as(host, root)
    found = problems | dict.fromkeys(names, "")
    if not (root / V2_FILE).exists():
        return dict.fromkeys(found, NO_V2)
    if any(name == uuid for uuid, name in names.items()):
        problem = (driver_problem or _driver_problem)()
        found |= {uuid: problem for uuid, name in names.items() if name == uuid}
    return found


def _driver_problem() -> str:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return str(error)
    has_limits = hasattr(library, "nvmlDeviceSetMemoryLimits_v1")
    return "" if has_limits else "the driver is older than version 615"


def _regions(root: Path) -> list[str] | None:
    """Returns the regions of the dmem controller; None if the kernel has no such controller."""
    try:
        lines = (root / CAPACITY_FILE).read_text().splitlines()
    except OSError:
        return None
    return [line.rpartition(" ")[0] for line in lines]


def _of_device(regions: Iterable[str], device: Device) -> list[str]:
    """Returns the regions that are memory on the device itself, and not memory of the host."""
    prefix = f"drm/{device.pci_address}/"
    return [
        each
        for each in regions
        if device.pci_address and each.startswith(prefix) and _MEMORY.fullmatch(each[len(prefix) :])
    ]
