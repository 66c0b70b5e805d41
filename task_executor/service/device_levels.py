"""Determines how strictly this executor can enforce device shares: the levels of enforcement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from finegrain.devices.device import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    Device,
    DeviceShare,
    HostDevices,
    Labels,
)
from finegrain.devices.levels import (
    KERNEL,
    NONE,
    VISIBLE_ONLY,
    WATCH,
    WHOLE_DEVICE,
    dimensions_of,
    is_at_least,
    level_of,
    weakest,
)
from finegrain.resources import ResourceProfile
from finegrain.values.isolation import DeviceIsolation, Isolation
from task_executor.engine.slots import SlotKey
from task_executor.host.device_nodes import NO_NODES, DeviceNodes
from task_executor.host.helper_messages import IsolationReport

FILES_CLOSED = "cgroup"
"""A task can open only the device files of its slot."""


@dataclass(frozen=True, slots=True)
class DeviceEnforcement:
    """The limits on the use of devices that this executor can enforce.

    Attributes:
        nodes: the files of the devices. A slot can open only the files of its own devices.
        watched: UUIDs of the GPUs on which the memory use of each slot is measured.
        under_mps: the levels of GPUs that slots share under MPS, by UUID and dimension.
        limited: UUIDs of the GPUs whose memory the kernel or the driver can limit for each slot.
        obstacles: the reason why a GPU is not in `limited`, by UUID.
        unlimited: the reason why the memory of a GPU was not limited for a slot, by slot and UUID.
    """

    nodes: DeviceNodes = NO_NODES
    watched: frozenset[str] = frozenset()
    under_mps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    limited: frozenset[str] = frozenset()
    obstacles: Mapping[str, str] = field(default_factory=dict)
    unlimited: Mapping[SlotKey, Mapping[str, str]] = field(default_factory=dict)

    def announced(self, host: HostDevices, report: IsolationReport) -> HostDevices:
        """Returns the devices of a host with their levels, for the resource manager.

        Args:
            host: the devices of the host.
            report: the helper's isolation report.
        """
        return replace(
            host,
            devices=tuple(
                replace(each, levels=self._levels(host, each, report)) for each in host.devices
            ),
        )

    def is_closed(self, device: DeviceShare, report: IsolationReport) -> bool:
        """Returns True if no other slot can open the files of a device."""
        is_guarded = device.type not in self.nodes.open_types and bool(self.nodes.of(device))
        return report.devices == FILES_CLOSED and is_guarded

    def of_slot(
        self,
        host: HostDevices,
        shares: Iterable[DeviceShare],
        report: IsolationReport,
        key: SlotKey | None = None,
    ) -> tuple[DeviceIsolation, ...]:
        """Returns the levels of each device of a slot.

        Args:
            host: the devices of the host.
            shares: the slot's shares of devices.
            report: the helper's isolation report.
            key: the slot; None: the slot does not exist yet.
        """
        shares = tuple(shares)
        # Each GPU has its own MPS daemon, and a process can be the client of only one daemon.
        has_many = sum(each.type == GPU for each in shares) > 1
        usual = replace(self, under_mps={}) if has_many else self
        failed = self.not_limited(key)
        known = {(each.type, each.uuid): each for each in host.devices}
        found = []
        for share in shares:
            device = known.get((share.type, share.uuid))
            levels = dict.fromkeys(dimensions_of(share.type), NONE)
            if device is not None:
                # Without a share of the memory there is nothing to limit.
                is_limited = share.uuid not in failed and bool(dict(share.amounts).get(GPU_MEMORY))
                enforcing = usual if is_limited else replace(usual, limited=frozenset())
                is_whole = share.amounts == device.capacity
                device = replace(device, levels=enforcing._levels(host, device, report))
                levels = {name: level_of(device, name, is_whole=is_whole) for name in levels}
            found.append(DeviceIsolation(share.type, share.uuid, tuple(sorted(levels.items()))))
        return tuple(found)

    def not_limited(self, key: SlotKey | None = None) -> Mapping[str, str]:
        """Returns the reason why the memory of GPUs is not limited for a slot, by UUID.

        Args:
            key: the slot; None: all slots.
        """
        return {**self.obstacles, **(self.unlimited.get(key, {}) if key is not None else {})}

    def _levels(self, host: HostDevices, device: Device, report: IsolationReport) -> Labels:
        if host.fake:
            return ()
        levels = dict.fromkeys(dimensions_of(device.type), VISIBLE_ONLY)
        if device.uuid in self.watched:
            levels[GPU_MEMORY] = WATCH
        levels |= self.under_mps.get(device.uuid, {})
        if device.uuid in self.limited:
            levels[GPU_MEMORY] = KERNEL
        # If only one slot can open a device, no other slot can use it.
        share = DeviceShare(device.type, device.uuid, device.minor, device.capacity)
        levels[WHOLE_DEVICE] = KERNEL if self.is_closed(share, report) else VISIBLE_ONLY
        return tuple(sorted(levels.items()))


def unmet_levels(profile: ResourceProfile, isolation: Isolation, reasons: Mapping[str, str]) -> str:
    """Compares the levels of enforcement with the levels that the request requires. Returns the
    levels that are too weak as text; empty: no level is too weak.

    The resource manager chose the devices by the levels that the executor had registered. Since
    then, the levels have possibly changed.

    Args:
        profile: the requested profile.
        isolation: the isolation of the slot.
        reasons: the reason why the memory of devices is not limited, by UUID.
    """
    unmet = [
        f"{name} of {device.uuid} is enforced by {dict(device.levels).get(name, NONE)},"
        f" and {wanted} is required"
        + (f" ({reasons[device.uuid]})" if name == GPU_MEMORY and device.uuid in reasons else "")
        for request in profile.devices
        for name, wanted in request.isolation
        for device in isolation.device_levels
        if device.type == request.type
        and not is_at_least(dict(device.levels).get(name, NONE), wanted)
    ]
    return "; ".join(unmet)


NO_ENFORCEMENT = DeviceEnforcement()


def words_of(levels: Iterable[DeviceIsolation]) -> dict[str, str]:
    """Returns the weakest levels of a slot's devices, by attribute of `Isolation`."""
    levels = tuple(levels)
    gpus = [dict(each.levels) for each in levels if each.type == GPU]
    others = [level for each in levels if each.type != GPU for _, level in each.levels]
    return {
        "gpu_core": weakest(each[GPU_CORE] for each in gpus),
        "gpu_memory": weakest(each[GPU_MEMORY] for each in gpus),
        "devices": weakest(others),
    }
