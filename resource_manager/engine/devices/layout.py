"""Describes the devices of a host in the form that placement uses. A layout never changes.

Each device has a position; positions are in the order of type and minor. A set of GPUs is an
integer whose bit n stands for the device at position n.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Any, Final

from finegrain.devices.device import (
    GPU,
    Device,
    DeviceLink,
    HostDevices,
    Partition,
    VirtualFunction,
    pairs,
)
from finegrain.devices.request import DeviceRequest

Quality = tuple[int, int]
"""Two numbers that say how well a set of GPUs is connected: the value of the worst pair of GPUs,
and the sum of the values of all pairs.
"""

SETS_COMPARED_MAX: Final = 2_000
"""If at most this many sets of GPUs are possible, all sets are compared. Otherwise one set is built
for each GPU. The set starts with this GPU, and each step adds the GPU that is best connected to the
set.
"""

_LANE: Final = 1_000  # one NVLink counts more than any path without NVLink
_PATHS: Final = {"PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
_SIZES_KEPT: Final = (8, 4, 2)  # sizes of sets that should remain well connected for later requests
_LAYOUTS_KNOWN: Final = 1_024
_REQUESTS_KNOWN: Final = 64  # cached requests per host


class DeviceLayout:
    """The devices of one host.

    Attributes:
        host: the devices as the executor announced them.
        devices: the devices by position.
        of_type: the positions of the devices of each type, in order of minors.
        position: the position of a device, by type and UUID.
        totals: the capacity of each device, by position and dimension.
    """

    def __init__(self, host: HostDevices) -> None:
        self.host = host
        self.devices: tuple[Device, ...] = tuple(
            sorted(host.devices, key=lambda each: (each.type, each.minor, each.uuid))
        )
        self.of_type: dict[str, tuple[int, ...]] = {}
        for at, device in enumerate(self.devices):
            self.of_type[device.type] = (*self.of_type.get(device.type, ()), at)
        self.position = {(each.type, each.uuid): at for at, each in enumerate(self.devices)}
        self.totals = tuple(dict(device.capacity) for device in self.devices)
        self._pair_values = self._values_of_pairs()
        self._chosen: dict[tuple[int, int, tuple[int, ...]], tuple[int, ...]] = {}
        self._qualities: dict[tuple[int, int], Quality] = {}
        self._accepted: dict[DeviceRequest, tuple[int, ...]] = {}

    def accepted(self, request: DeviceRequest) -> tuple[int, ...]:
        """Returns the positions of the devices that meet the conditions of a request."""
        found = self._accepted.get(request)
        if found is None:
            if len(self._accepted) >= _REQUESTS_KNOWN:
                self._accepted.clear()
            positions = self.of_type.get(request.type, ())
            found = tuple(at for at in positions if request.accepts(self.devices[at]))
            self._accepted[request] = found
        return found

    def best_set(
        self, free: int, count: int, groups: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Returns the positions of the `count` best connected GPUs. The result is empty if
        none of the `groups` has enough GPUs.

        If several sets are equally well connected, the remaining GPUs decide: the method compares
        the best connected set of 8 GPUs that would remain, then of 4, then of 2. On a tie, it takes
        the set with the lowest minors. So a single GPU is usually taken near GPUs that are already
        in use.

        Example: GPUs 0 to 3 are on one NUMA node, GPUs 4 to 7 on another node, and GPU 1 is in use.
        A request for one GPU gets GPU 0, so that GPUs 4 to 7 stay together. A request for two GPUs
        gets GPUs 2 and 3.

        Args:
            free: the GPUs that can be chosen.
            count: number of GPUs.
            groups: parts of `free`. All GPUs must come from one of these parts. If it is None, all
                GPUs of `free` are one part.
        """
        if groups is None:
            groups = (free,)
        key = (free, count, groups)
        known = self._chosen.get(key)
        if known is None:
            known = self._chosen[key] = min(
                (positions_in(each) for each in self._best_sets(groups, count)),
                key=lambda each: (self.loss(free & ~bits_of(each)), each),
                default=(),
            )
        return known

    def best_sets(self, free: int, count: int) -> list[int]:
        """Returns all best connected sets of `count` GPUs."""
        return self._best_sets((free,), count)

    def _best_sets(self, groups: tuple[int, ...], count: int) -> list[int]:
        sets = [each for group in groups for each in self._sets(group, count)]
        qualities = [self.quality(each) for each in sets]
        best = max(qualities, default=(0, 0))
        return [each for each, quality in zip(sets, qualities, strict=True) if quality == best]

    def quality(self, gpus: int) -> Quality:
        """Returns how well a set of GPUs is connected."""
        worst, total = 0, 0
        for number, (one, other) in enumerate(combinations(positions_in(gpus), 2)):
            value = self._pair_values.get((one, other), 0)
            worst = value if number == 0 else min(worst, value)
            total += value
        return worst, total

    def _sets(self, gpus: int, count: int) -> list[int]:
        positions = positions_in(gpus)
        if len(positions) < count:
            return []
        if comb(len(positions), count) <= SETS_COMPARED_MAX:
            return [bits_of(each) for each in combinations(positions, count)]
        return sorted({self._grown(start, positions, count) for start in positions})

    def _grown(self, start: int, positions: tuple[int, ...], count: int) -> int:
        """Returns a set of GPUs. The set starts with one GPU, and each step adds the GPU that is
        best connected to the set.
        """
        chosen = [start]
        while len(chosen) < count:
            # GPUs are compared in the same way as whole sets: first the worst pair, then the sum.
            values = [(self._connection(chosen, at), -at) for at in positions if at not in chosen]
            chosen.append(-max(values)[1])
        return bits_of(chosen)

    def _connection(self, chosen: list[int], at: int) -> Quality:
        values = [self._pair_values.get((min(at, each), max(at, each)), 0) for each in chosen]
        return min(values), sum(values)

    def loss(self, left: int) -> tuple[tuple[int, int], ...]:
        """Returns how badly the best sets among the remaining GPUs are connected. A lower result is
        better.
        """
        count = left.bit_count()
        found = []
        for size in _SIZES_KEPT:
            if size > count:
                found.append((1, 0))  # worse than any set
                continue
            worst, total = self._best_quality(left, size)
            found.append((-worst, -total))
        return tuple(found)

    def _best_quality(self, gpus: int, count: int) -> Quality:
        """Returns how well the best connected set of `count` GPUs is connected."""
        key = (gpus, count)
        known = self._qualities.get(key)
        if known is None:
            known = self._qualities[key] = max(map(self.quality, self._sets(gpus, count)))
        return known

    def _values_of_pairs(self) -> dict[tuple[int, int], int]:
        """Returns the value of each pair of GPUs. The key has the positions of the two GPUs in
        ascending order.
        """
        gpus = self.of_type.get(GPU, ())
        links = {}
        for link in self.host.links:
            ends = [self.position.get((GPU, each)) for each in (link.first_uuid, link.second_uuid)]
            if None not in ends:
                links[tuple(sorted(at for at in ends if at is not None))] = link
        values = {}
        for pair in combinations(gpus, 2):
            joined = links.get(pair)
            path = _PATHS.get(joined.path, 0) if joined is not None else 0
            lanes = joined.lanes if joined is not None else 0
            values[pair] = lanes * _LANE + (path or self._nearness(*pair))
        return values

    def _nearness(self, one: int, other: int) -> int:
        """Returns the value of the path between two GPUs, computed from their PCIe groups and NUMA
        nodes.
        """
        first, second = self.devices[one], self.devices[other]
        if first.pcie_group and first.pcie_group == second.pcie_group:
            return _PATHS["PIX"]
        if first.numa_node is None or second.numa_node is None:
            return 0
        return _PATHS["NODE" if first.numa_node == second.numa_node else "SYS"]


def positions_in(devices: int) -> tuple[int, ...]:
    """Returns the positions in a set, in ascending order."""
    found = []
    while devices:
        lowest = devices & -devices
        found.append(lowest.bit_length() - 1)
        devices ^= lowest
    return tuple(found)


@lru_cache(_LAYOUTS_KNOWN)
def layout_of(topology: str) -> DeviceLayout:
    """Returns the layout of the devices that slots can have on a host. Equal hosts share one
    object.

    Args:
        topology: HostTopology of the registration, as JSON text. Devices without capacity are left
            out: executors of earlier versions report GPUs in this way, and cannot give these GPUs
            to slots.
    """
    # Most hosts have no devices with a capacity. The topology of such a host does not have to be
    # parsed.
    if '"capacity"' not in topology:
        return NO_LAYOUT
    data = json.loads(topology)
    devices = tuple(_device(each) for each in data.get("devices", ()) if each.get("capacity"))
    return _layout_of_host(
        HostDevices(
            devices,
            tuple(
                DeviceLink(
                    each["first_uuid"],
                    each["second_uuid"],
                    each.get("lanes", 0),
                    each.get("path", ""),
                )
                for each in data.get("device_links", ())
            ),
            tuple(
                Partition(
                    tuple(each.get("minors", ())),
                    each.get("score", 0),
                    int(each.get("bandwidth", 0)),
                )
                for each in data.get("device_partitions", ())
            ),
            data.get("device_partitions_only", False),
            data.get("fake_devices", False),
        )
    )


@lru_cache(_LAYOUTS_KNOWN)
def _layout_of_host(host: HostDevices) -> DeviceLayout:
    return DeviceLayout(host)


def _device(data: Mapping[str, Any]) -> Device:
    """Reads one device. In the JSON form of messages, 64-bit numbers are strings, and zeros are
    left out.
    """
    node = data.get("numa_node_id", 0)
    return Device(
        type=data["kind"],
        uuid=data["uuid"],
        minor=data.get("minor", 0),
        capacity=pairs({name: int(each) for name, each in data["capacity"].items()}),
        vendor=data.get("vendor", ""),
        model=data.get("model", ""),
        numa_node=None if node < 0 else node,
        pcie_group=data.get("pcie_group", ""),
        pci_address=data.get("pci_address", ""),
        labels=tuple(sorted(data.get("labels", {}).items())),
        functions=tuple(
            VirtualFunction(each["bus_id"], tuple(sorted(each.get("labels", {}).items())))
            for each in data.get("functions", ())
        ),
        parent_uuid=data.get("parent_uuid", ""),
        whole_only=data.get("whole_only", False),
        problem=data.get("unavailable_reason", ""),
        memory_bytes=int(data.get("memory_bytes", 0)),
        driver_bytes=int(data.get("driver_bytes", 0)),
        local_cpus=data.get("local_cpus", ""),
        levels=tuple(sorted(data.get("levels", {}).items())),
        parking=data.get("parking", ""),
    )


NO_LAYOUT = DeviceLayout(HostDevices())


def bits_of(positions: Iterable[int]) -> int:
    """Returns the set of these positions."""
    found = 0
    for at in positions:
        found |= 1 << at
    return found
