"""Describes how limits are enforced for a slot, or for all slots of a host."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class DeviceIsolation(Value):
    """The level at which a slot's share of one device is enforced.

    Attributes:
        type: type of the device.
        uuid: UUID of the device.
        levels: level by dimension, sorted; see `finegrain/devices/levels.py`.
    """

    type: str
    uuid: str
    levels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Isolation(Value):
    """The enforcement of each dimension.

    "none" means that the dimension is only booked. An empty text means that the executor did not
    report the dimension. IsolationReport (resources.proto) explains the words.
    """

    cpu: str = ""  # "quota" or "cpus" if it is enforced
    cpuset: str = ""  # "cgroup" or "affinity" if it is enforced
    memory: str = ""  # "hard" if it is enforced
    pids: str = ""  # "hard" if it is enforced
    kill: str = ""  # "cgroup.kill", "freezer" or "process tree"
    driver: str = ""  # "v1" or "v2"
    notes: tuple[str, ...] = ()  # a sentence for each dimension that is not enforced, with the fix
    # of a slot: "declared" (only booked), "hard"; empty: the slot has no countable resources
    countable: str = ""
    # the weakest level of each dimension in `device_levels`
    gpu_core: str = ""
    gpu_memory: str = ""
    devices: str = ""  # the weakest level of devices other than GPUs
    # "cgroup": tasks can open only the device files of their slot. "none": tasks can also open
    # other device files. Empty: there are no devices
    device_access: str = ""
    device_levels: tuple[DeviceIsolation, ...] = ()  # the levels of each device of a slot
    ports: tuple[int, ...] = ()  # network ports of the slot, ascending


NOTHING_REPORTED = Isolation()
