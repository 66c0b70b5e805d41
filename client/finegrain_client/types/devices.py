"""Defines the devices of executors, as administrators see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrain.devices.condition import DeviceCondition
from finegrain.devices.device import Device, DeviceLink
from finegrain.mapping.value import Value
from finegrain.values.usage import DeviceUsage


@dataclass(frozen=True, slots=True)
class DeviceUse(Value):
    """The amounts of a device that one slot has."""

    allocation_id: str
    generation: int
    job_id: str
    amounts: Mapping[str, int]  # amounts by dimension; see docs/devices.md


@dataclass(frozen=True, slots=True)
class DeviceStatus(Value):
    """One device, and the slots that have it."""

    device: Device
    problem: str  # the reason why no new slot gets the device; empty if new slots can get it
    cordoned: bool  # True if an administrator prevents that new slots get the device
    allocated: Mapping[str, int]  # amounts that all slots together have
    available: Mapping[str, int]  # amounts for new slots; empty if no new slot gets the device
    uses: tuple[DeviceUse, ...]
    # None if nothing has changed since the executor registered.
    condition: DeviceCondition | None = None
    usage: DeviceUsage | None = None  # None if the device's driver does not measure its use


@dataclass(frozen=True, slots=True)
class ExecutorDevices(Value):
    """The devices of one executor."""

    executor_id: str
    devices: tuple[DeviceStatus, ...]  # sorted by type and minor number
    links: tuple[DeviceLink, ...]  # pairs of GPUs; a pair that is not listed has no NVLink
    fake: bool  # True if the devices are not real
