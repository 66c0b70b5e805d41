"""The devices of executors, as operators see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrain.devices.condition import DeviceCondition
from finegrain.devices.device import Device, DeviceLink
from finegrain.mapping.value import Value
from finegrain.values.usage import DeviceUsage


@dataclass(frozen=True, slots=True)
class DeviceUse(Value):
    """What one slot has of a device."""

    allocation_id: str
    generation: int
    job_id: str
    amounts: Mapping[str, int]  # by dimension; see docs/devices.md


@dataclass(frozen=True, slots=True)
class DeviceStatus(Value):
    """One device, and who has it."""

    device: Device
    problem: str  # why it gets no new work; empty: it does
    cordoned: bool  # an operator has stopped new work on it
    allocated: Mapping[str, int]  # what slots have of it
    available: Mapping[str, int]  # what further slots could have; empty if it gets no new work
    uses: tuple[DeviceUse, ...]
    condition: DeviceCondition | None = None  # None: as the executor announced it
    usage: DeviceUsage | None = None  # None: its driver reports none


@dataclass(frozen=True, slots=True)
class ExecutorDevices(Value):
    """The devices of one executor."""

    executor_id: str
    devices: tuple[DeviceStatus, ...]  # by type and minor
    links: tuple[DeviceLink, ...]  # pairs of GPUs; those that are not listed have no NVLink
    fake: bool  # no real devices are behind them
