"""The isolation that the kernel enforces for a slot, or for all slots of a host."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class DeviceIsolation(Value):
    """How strictly a slot is held to its share of one device.

    Attributes:
        type: of the device.
        uuid: of the device.
        levels: level by dimension, sorted; see `finegrain/devices/levels.py`.
    """

    type: str
    uuid: str
    levels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Isolation(Value):
    """The enforcement of each dimension.

    "none" means that it is only booked; an empty text means that the executor did not report it.
    The words are those of IsolationReport (resources.proto).
    """

    cpu: str = ""  # "quota", "cpus"
    cpuset: str = ""  # "cgroup", "affinity"
    memory: str = ""  # "hard"
    pids: str = ""  # "hard"
    kill: str = ""  # "cgroup.kill", "freezer", "process tree"
    driver: str = ""  # "v1", "v2"
    notes: tuple[str, ...] = ()  # a sentence for each dimension that is not enforced, with the fix
    countable: str = ""  # of a slot: "declared" (booked only: no device is given), "hard"; "": none
    # the weakest of `device_levels`
    gpu_core: str = ""
    gpu_memory: str = ""
    devices: str = ""  # of other types than GPUs
    # "cgroup": only the device files of the slot can be opened, "none"; "": there are none
    device_access: str = ""
    device_levels: tuple[DeviceIsolation, ...] = ()  # of a slot
    ports: tuple[int, ...] = ()  # network ports that the slot has been given, ascending


NOTHING_REPORTED = Isolation()
