"""Records which slots have which devices of this executor.

The resource manager chooses the devices. The executor checks each choice against its own ledger. So
no device is given out twice, even if the resource manager makes a mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.condition import DeviceCondition
from finegrain.devices.device import Device, DeviceShare, HostDevices, shares_together
from finegrain.errors import InvalidArgument, Reason, ResourceExhausted
from finegrain.resources import DEVICE_PREFIX, ResourceProfile
from task_executor.engine.slots import SlotKey

DeviceKey = tuple[str, str]
"""Type and UUID of a device."""


@dataclass
class DeviceLedger:
    """The devices of the host, and the shares of devices that slots have.

    If the condition of a device differs from its registered condition, `conditions` has an entry
    for the device. The executor reports these conditions. But the executor still carves a slot with
    this device if the resource manager orders it: the resource manager decides which slot gets a
    device.
    """

    host: HostDevices
    conditions: tuple[DeviceCondition, ...] = ()
    _slots: dict[SlotKey, tuple[DeviceShare, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._devices = {(each.type, each.uuid): each for each in self.host.devices}

    def replace_host(self, host: HostDevices) -> None:
        """Replaces the devices, for example after a device got another minor number.

        Slots keep their shares, because shares refer to UUIDs.
        """
        self.host = host
        self._devices = {(each.type, each.uuid): each for each in host.devices}

    def slots_with(self, key: DeviceKey) -> tuple[SlotKey, ...]:
        """Returns the slots that have a share of a device."""
        return tuple(
            slot
            for slot, shares in self._slots.items()
            if any((each.type, each.uuid) == key for each in shares)
        )

    def put(self, key: SlotKey, assignments: Iterable[CpuAssignment]) -> None:
        """Sets the devices of a slot. During a resize these are the devices of both sizes."""
        shares: tuple[DeviceShare, ...] = ()
        for each in assignments:
            shares = shares_together(shares, each.devices)
        if shares:
            self._slots[key] = shares
        else:
            self._slots.pop(key, None)

    def remove(self, key: SlotKey) -> None:
        """Removes a slot."""
        self._slots.pop(key, None)

    def used(self) -> dict[DeviceKey, dict[str, int]]:
        """Returns the amounts that slots have booked of each device, by dimension."""
        return _used(self._slots.values())

    def left(self, slots: Collection[SlotKey] | None = None) -> dict[str, int]:
        """Returns the free amounts of all devices together, by dimension of the executor's total.

        The total does not contain a device that has vanished. So shares of this device are not
        deducted.

        Args:
            slots: the slots whose shares are deducted; None: all slots.
        """
        used = _used(shares for key, shares in self._slots.items() if slots is None or key in slots)
        found: dict[str, int] = {}
        for key, device in self._devices.items():
            taken = used.get(key, {})
            for name, amount in device.capacity:
                dimension = DEVICE_PREFIX + name
                left = max(amount - taken.get(name, 0), 0)
                found[dimension] = found.get(dimension, 0) + left
        return found

    def check(
        self, key: SlotKey, profile: ResourceProfile, assignment: CpuAssignment | None
    ) -> None:
        """Checks the devices of a slot: this host must have them, the slot must have requested
        them, and they must be free.

        Args:
            key: the slot. Its present shares count as free.
            profile: the profile that the slot requested.
            assignment: the assignment that the resource manager chose.

        Raises:
            InvalidArgument: this host does not have one of the devices, or the profile does not
                request one of them.
            ResourceExhausted: DEVICES_UNAVAILABLE. Another slot has one of the devices.
        """
        shares = assignment.devices if assignment is not None else ()
        if not shares and not profile.devices:
            return
        _check_as_requested(profile, shares)
        used = _used(each for other, each in self._slots.items() if other != key)
        for share in shares:
            device = self._devices.get((share.type, share.uuid))
            if device is None:
                raise InvalidArgument(
                    "assignment.devices",
                    f"{share.type} {share.uuid}",
                    f"a device of this host; {_names(self.host.devices)}",
                )
            capacity, taken = dict(device.capacity), used.get((share.type, share.uuid), {})
            for name, amount in share.amounts:
                free = capacity.get(name, 0) - taken.get(name, 0)
                if amount > free:
                    raise ResourceExhausted(
                        f"{device.name} has {free} {name} left, but the slot was given {amount};"
                        " place it on another executor or wait",
                        reason=Reason.DEVICES_UNAVAILABLE,
                        details={"device": device.name, f"asked.{name}": amount, "free": free},
                    )
        self._check_functions(key, shares)

    def _check_functions(self, key: SlotKey, shares: Iterable[DeviceShare]) -> None:
        """Checks that this host has the virtual functions of a slot, and that they are free."""
        if not any(share.functions for share in shares):
            return
        taken = {
            function
            for other, its in self._slots.items()
            for share in its
            for function in share.functions
            if other != key
        }
        for share in shares:
            device = self._devices[share.type, share.uuid]
            known = {each.bus_id for each in device.functions}
            for function in share.functions:
                if function not in known:
                    raise InvalidArgument(
                        "assignment.devices.functions",
                        function,
                        f"a virtual function of {device.name}; it has"
                        f" {', '.join(sorted(known)) or 'none'}",
                    )
                if function in taken:
                    raise ResourceExhausted(
                        f"virtual function {function} of {device.name} belongs to another slot;"
                        " place the slot on another executor or wait",
                        reason=Reason.DEVICES_UNAVAILABLE,
                        details={"device": device.name, "function": function},
                    )


def _used(slots: Iterable[Iterable[DeviceShare]]) -> dict[DeviceKey, dict[str, int]]:
    found: dict[DeviceKey, dict[str, int]] = {}
    for shares in slots:
        for share in shares:
            used = found.setdefault((share.type, share.uuid), {})
            for name, amount in share.amounts:
                used[name] = used.get(name, 0) + amount
    return found


def _check_as_requested(profile: ResourceProfile, shares: Iterable[DeviceShare]) -> None:
    """Checks the number and the amounts of devices.

    More devices than requested are allowed, for example a NIC for each of several GPUs.
    """
    given: dict[str, list[dict[str, int]]] = {}
    for share in shares:
        given.setdefault(share.type, []).append(dict(share.amounts))
    for request in profile.devices:
        count = 1 if request.every else request.count
        its = given.pop(request.type, [])
        enough = all(
            each.get(name, 0) >= amount for each in its for name, amount in request.amounts
        )
        if len(its) < count or not enough:
            raise InvalidArgument(
                "assignment.devices",
                f"{len(its)} {request.type}",
                f"{count} with {dict(request.amounts)} each, as in the profile",
            )
    if given:
        raise InvalidArgument(
            "assignment.devices", ", ".join(sorted(given)), "devices that the profile requests"
        )


def _names(devices: Iterable[Device]) -> str:
    return "this host has " + (", ".join(each.name for each in devices) or "none")
