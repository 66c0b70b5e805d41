"""Defines the request of a slot for devices of one type: number, amounts and conditions."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from finegrain.devices.device import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    WHOLE,
    Device,
    Labels,
    Pairs,
    VirtualFunction,
)
from finegrain.devices.levels import MPS, VISIBLE_ONLY, is_at_least, level_of

_WORD: Final = re.compile(r"[0-9A-Za-z]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class LabelRule:
    """A condition on a label of a device or of a virtual function."""

    name: str
    values: tuple[str, ...]
    excluded: bool = False  # True if the label must have none of the values

    def accepts(self, labels: Labels) -> bool:
        """Returns True if a device with these labels meets the condition."""
        return (dict(labels).get(self.name) in self.values) is not self.excluded


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """The devices of one type that a slot needs.

    Attributes:
        type: type of the devices.
        count: number of devices.
        amounts: amounts that the slot needs of each device, by dimension.
        every: True if the slot needs all devices that meet the conditions, instead of `count`
            devices.
        vendor: vendor of the devices; empty: any vendor.
        model: words that the model's name must contain; empty: any model.
        selector: conditions on the labels of the devices.
        functions: conditions on a virtual function of each device; None: the slot needs no virtual
            function.
        near: type of other devices of the slot to which the requested devices should be near;
            empty: no condition.
        near_required: True if the requested devices must be in the PCIe groups of the devices of
            type `near`.
        per_group: True if the slot should get one device in each PCIe group of the devices of type
            `near`, as far as possible.
        scope: property that all devices must share: "numa" (the NUMA node) or "pcie" (the PCIe
            group); empty: no condition.
        best_partition: True if only partitions with the highest score are accepted.
        bandwidth: smallest accepted bandwidth of a partition, in GB/s.
        isolation: lowest accepted level of enforcement, by dimension.
    """

    type: str
    count: int
    amounts: Pairs
    every: bool = False
    vendor: str = ""
    model: str = ""
    selector: tuple[LabelRule, ...] = ()
    functions: tuple[LabelRule, ...] | None = None
    near: str = ""
    near_required: bool = False
    per_group: bool = False
    scope: str = ""
    best_partition: bool = False
    bandwidth: int = 0
    isolation: Labels = ()

    @property
    def is_shared(self) -> bool:
        """True if other slots can have a part of the same devices."""
        amounts = dict(self.amounts)
        if self.type != GPU:
            return amounts.get(self.type, 0) < WHOLE
        return amounts.get(GPU_MEMORY_RATIO, amounts.get(GPU_CORE, 0)) < WHOLE or (
            GPU_MEMORY in amounts and GPU_MEMORY_RATIO not in amounts
        )

    @property
    def totals(self) -> Pairs:
        """The amounts that the slot needs of all devices together."""
        # If `every` is set, the slot needs at least one device.
        count = 1 if self.every else self.count
        return tuple((name, amount * count) for name, amount in self.amounts)

    def is_resized(self, other: DeviceRequest) -> bool:
        """Returns True if another request is equal to this request, apart from the amounts."""
        return replace(self, amounts=other.amounts) == other

    def accepts(self, device: Device) -> bool:
        """Returns True if a device meets the conditions. Ignores the free capacity of the
        device.
        """
        return (
            (not self.vendor or device.vendor == self.vendor)
            and (not self.model or has_words(device.model, self.model))
            and all(rule.accepts(device.labels) for rule in self.selector)
            and all(
                is_at_least(self.level_on(device, name), wanted) for name, wanted in self.isolation
            )
        )

    def level_on(self, device: Device, name: str) -> str:
        """Returns the level at which a dimension of a device would be enforced for this slot."""
        level = level_of(device, name, is_whole=not self.is_shared)
        # A process can be a client of only one MPS daemon, but each GPU has a separate daemon.
        is_spread = self.is_shared and (self.count > 1 or self.every)
        return VISIBLE_ONLY if is_spread and level == MPS else level

    def accepts_function(self, function: VirtualFunction) -> bool:
        """Returns True if a virtual function meets the conditions."""
        return all(rule.accepts(function.labels) for rule in self.functions or ())


def has_words(model: str, requested: str) -> bool:
    """Returns True if a model's name contains all requested words. Case does not matter. Example:
    "H100" is in "NVIDIA H100 80GB HBM3".
    """
    words = {word.lower() for word in _WORD.findall(model)}
    return all(word.lower() in words for word in _WORD.findall(requested))
