"""Keeps the ledger of the devices of one host: their capacity, the shares of slots, and the free
amounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from finegrain.devices.device import GPU, WHOLE, DeviceShare
from resource_manager.engine.devices.layout import DeviceLayout

DeviceKey = tuple[str, str]
"""Type and UUID of a device."""

_NOTHING: dict[str, int] = {}


class DeviceLedger:
    """The devices of one host, and the shares of the devices that slots have.

    A device that is no longer announced keeps its shares. The shares count again when the device is
    announced again.

    Attributes:
        layout: the layout of the devices.
        unusable: the reason why a device gets no new slots, by type and UUID. Other devices have no
            entry.
        foreign: the unusable devices that work, but that pods or processes outside slots use.
        used: the amounts that slots have, by type and UUID, then by dimension.
        functions: bus ids of the virtual functions that slots have.
        tolerated: devices whose slots have more than the capacity, because the devices became
            smaller.
    """

    __slots__ = (
        "_free",
        "_gpu_parts",
        "foreign",
        "functions",
        "layout",
        "tolerated",
        "unusable",
        "used",
    )

    def __init__(self, layout: DeviceLayout) -> None:
        self.layout = layout
        self.unusable: Mapping[DeviceKey, str] = {}
        self.foreign: frozenset[DeviceKey] = frozenset()
        self.used: dict[DeviceKey, dict[str, int]] = {}
        self.functions: frozenset[str] = frozenset()
        self.tolerated: frozenset[DeviceKey] = frozenset()
        self._free: list[dict[str, int]] = []
        self._gpu_parts: tuple[int, ...] | None = None  # None if the parts must be computed again
        self._derive()

    def set_unusable(
        self, unusable: Mapping[DeviceKey, str], foreign: frozenset[DeviceKey] = frozenset()
    ) -> bool:
        """Sets which devices get no new slots. Slots keep their devices.

        Args:
            unusable: the devices that get no new slots, with the reasons.
            foreign: the unusable devices that work, but that pods or processes outside slots use.

        Returns:
            False if nothing changed.
        """
        if (dict(unusable), foreign) == (self.unusable, self.foreign):
            return False
        self.unusable, self.foreign = dict(unusable), foreign
        self._derive()
        return True

    def free(self, position: int) -> Mapping[str, int]:
        """Returns the free amounts of a device, by dimension. The result is empty if the device
        gets no new slots.
        """
        return self._free[position]

    def left(self, position: int) -> dict[str, int]:
        """Returns the amounts of a device that no slot has. The result is the same for a device
        that gets no new slots.
        """
        device = self.layout.devices[position]
        used = self.used.get((device.type, device.uuid), _NOTHING)
        # `max` keeps the result at 0 or more: if a device has become smaller, its slots can have
        # more than its capacity.
        totals = self.layout.totals[position]
        return {name: max(total - used.get(name, 0), 0) for name, total in totals.items()}

    def gpu_parts(self) -> tuple[int, ...]:
        """Returns the free part of each GPU, in hundredths. Of all dimensions of the GPU, the
        dimension with the smallest free part counts.
        """
        if self._gpu_parts is None:
            totals = self.layout.totals
            self._gpu_parts = tuple(
                min(
                    (
                        free.get(name, 0) * WHOLE // whole
                        for name, whole in totals[at].items()
                        if whole
                    ),
                    default=0,
                )
                for at in self.layout.of_type.get(GPU, ())
                for free in (self._free[at],)
            )
        return self._gpu_parts

    def problem(self, position: int) -> str:
        """Returns the reason why a device gets no new slots. The result is empty if the device may
        get new slots.
        """
        device = self.layout.devices[position]
        return self.unusable.get((device.type, device.uuid), "")

    def is_foreign(self, position: int) -> bool:
        """Returns True if a device gets no new slots only because pods or processes outside slots
        use it.
        """
        device = self.layout.devices[position]
        return (device.type, device.uuid) in self.foreign

    def is_untouched(self, position: int) -> bool:
        """Returns True if no slot has a share of a device."""
        device = self.layout.devices[position]
        return (device.type, device.uuid) not in self.used

    def add(self, shares: Iterable[DeviceShare]) -> None:
        """Adds the shares of a slot."""
        self._change(shares, 1)

    def remove(self, shares: Iterable[DeviceShare]) -> None:
        """Removes the shares of a slot."""
        self._change(shares, -1)

    def scratch(self) -> DeviceLedger:
        """Returns a copy that the caller may change, for example to try a choice."""
        copy = DeviceLedger.__new__(DeviceLedger)
        copy.layout, copy.unusable, copy.functions = self.layout, self.unusable, self.functions
        copy.tolerated, copy.foreign = self.tolerated, self.foreign
        # Amounts of a device are replaced and never changed in place, so they can be shared.
        copy.used, copy._free = dict(self.used), list(self._free)
        copy._gpu_parts = self._gpu_parts
        return copy

    def empty(self) -> DeviceLedger:
        """Returns a ledger of the same devices without slots, in which all devices may get
        slots.
        """
        return DeviceLedger(self.layout)

    def tolerate(self) -> None:
        """Accepts that slots now have more than the capacity of some devices. Slots can have such
        shares if a device has become smaller.
        """
        self.tolerated = self._overcommitted()

    def problems(self) -> list[str]:
        """Returns a sentence for each device of which slots have more than the capacity, except
        tolerated devices.
        """
        return [
            f"slots have {self.used[key]} of {key[0]} {key[1]}"
            f", but it has {self.layout.totals[self.layout.position[key]]}"
            for key in sorted(self._overcommitted() - self.tolerated)
        ]

    def _overcommitted(self) -> frozenset[DeviceKey]:
        return frozenset(
            key
            for key, used in self.used.items()
            if (at := self.layout.position.get(key)) is not None
            and any(amount > self.layout.totals[at].get(name, 0) for name, amount in used.items())
        )

    def _change(self, shares: Iterable[DeviceShare], sign: int) -> None:
        for share in shares:
            key = (share.type, share.uuid)
            used = dict(self.used.get(key, _NOTHING))
            for name, amount in share.amounts:
                used[name] = used.get(name, 0) + sign * amount
            used = {name: amount for name, amount in used.items() if amount}
            if used:
                self.used[key] = used
            else:
                self.used.pop(key, None)
            if share.functions:
                ids = frozenset(share.functions)
                self.functions = self.functions | ids if sign > 0 else self.functions - ids
            position = self.layout.position.get(key)
            # A device that vanished has no position, and no free amounts.
            if position is not None:
                self._free[position] = self._free_now(position)
                self._gpu_parts = None
        if sign < 0 and self.tolerated:
            self.tolerated &= self._overcommitted()

    def _derive(self) -> None:
        self._free = [self._free_now(at) for at in range(len(self.layout.devices))]
        self._gpu_parts = None

    def _free_now(self, position: int) -> dict[str, int]:
        return _NOTHING if self.problem(position) else self.left(position)
