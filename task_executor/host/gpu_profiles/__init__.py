"""Profiles of machines, for fake GPUs: `finegrain up --fake-gpus dgx-a100`.

Each file has the schema `gpu_topology/1`. It contains the link matrix that the owner of the machine
has published, and the memory of each GPU. A profile can be used without the machine and without a
driver.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from finegrain.errors import InvalidArgument
from finegrain.resources import GIB
from finegrain.topology import PciDevice
from task_executor.host.nvml import NvmlSource, PynvmlSource
from task_executor.host.nvml_fake import FakeNvml, inventory_from_profile, nics_from_profile

_SUFFIX = ".json"


def profile_names() -> list[str]:
    """Returns the names of all profiles, sorted."""
    found = (each.name for each in files(__package__).iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))


@cache
def profile(name: str) -> dict[str, Any]:
    """Returns the content of a profile.

    Raises:
        InvalidArgument: there is no profile of this name.
    """
    if name not in profile_names():
        raise InvalidArgument("fake_gpus", name, "one of " + ", ".join(profile_names()))
    data: dict[str, Any] = json.loads((files(__package__) / f"{name}{_SUFFIX}").read_text())
    return data


def nics(fake_gpus: str) -> tuple[PciDevice, ...]:
    """Returns the NICs of a profile.

    Raises:
        InvalidArgument: there is no profile of this name.
    """
    return nics_from_profile(profile(fake_gpus))


def gpu_source(fake_gpus: str) -> NvmlSource:
    """Returns the source of an executor's GPUs: the profile that `fake_gpus` names, or the driver
    if `fake_gpus` is empty.

    Raises:
        InvalidArgument: there is no profile of this name.
    """
    if not fake_gpus:
        return PynvmlSource()
    data = profile(fake_gpus)
    inventory = inventory_from_profile(data, data.get("memory_bytes", 80 * GIB))
    return FakeNvml(replace(inventory, complete=True))
