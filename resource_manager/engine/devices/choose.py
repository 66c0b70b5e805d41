"""Chooses the devices of a slot on one host, or explains why the slot cannot get them.

Devices are chosen type by type. If devices of type a must be near devices of type b, type b is
chosen first.

- For several whole GPUs, the best connected set is taken (`DeviceLayout.best_set`). On hosts with
  partitions, a partition is taken.
- For shares of GPUs, and for devices of other types, the fullest devices with enough free capacity
  are taken. So other devices keep large free parts.
- If devices must be near other devices, they are taken from the PCIe groups of those other devices,
  as evenly as possible.

Example: a host has GPUs 0 to 3, and a slot has half of GPU 2. A request for a quarter of a GPU gets
it from GPU 2. A request for two whole GPUs gets GPUs 0 and 1 if these two GPUs are connected by
more NVLinks than any other pair of free GPUs.

Source: the allocators of Koordinator's deviceshare. `docs/devices.md` lists the differences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from finegrain.devices.device import (
    GPU,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    DeviceShare,
    Partition,
    bytes_to_ratio,
    pairs,
    ratio_to_bytes,
)
from finegrain.devices.request import DeviceRequest
from finegrain.resources import Amounts, fits
from resource_manager.engine.devices.layout import bits_of
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.devices.refusals import DeviceBlocker, shortage
from resource_manager.engine.model.host_refusal import HostRefusal

EQUAL_WEIGHTS: Mapping[str, int] = {}
"""All dimensions have the same weight."""


def device_score(
    asked: Amounts,
    total: Amounts,
    free: Amounts,
    *,
    pack: bool = True,
    weights: Mapping[str, int] = EQUAL_WEIGHTS,
) -> int:
    """Returns a number from 0 to 100 that says how well a device suits a slot; a higher number is
    better. The score depends on how full the device would be with the slot. Source:
    `resourceAllocationScorer` of Koordinator's deviceshare.

    Args:
        asked: the amounts that the slot needs of the device.
        total: the capacity of the device.
        free: the free amounts of the device.
        pack: if True, the fullest device is best. If False, the emptiest device is best.
        weights: the weights of the dimensions that count. If it is empty, all dimensions of the
            device have the same weight.
    """
    scores = []
    for name, whole in total.items():
        weight = weights.get(name, 0) if weights else 1
        if not weight or not whole:
            continue
        # `free` can exceed the capacity if bookings were given back twice.
        taken = min(whole - free.get(name, 0) + asked.get(name, 0), whole)
        if free.get(name, 0) > whole:
            taken = whole
        over = whole - free.get(name, 0) + asked.get(name, 0) > whole
        part = taken if pack else (0 if over else whole - taken)
        scores.append((part * 100 // whole * weight, weight))
    heaviness = sum(weight for _, weight in scores)
    return sum(score for score, _ in scores) // heaviness if heaviness else 0


_PACK_WEIGHTS = {8: 10_000, 4: 100, 2: 1}
"""The weight of an untouched partition, by its number of GPUs. Large partitions have large weights,
because it is most important to keep them free.
"""


@dataclass(frozen=True, slots=True)
class Preference:
    """The order of devices with enough free capacity; see `device_score`."""

    pack: bool = True
    weights: tuple[tuple[str, int], ...] = ()


FULLEST_FIRST = Preference()

Given = list[tuple[int, tuple[str, ...]]]
"""Positions of the devices that a slot gets, each with the bus ids of the slot's virtual functions
on this device.
"""


def choose_devices(
    ledger: DeviceLedger,
    requests: Sequence[DeviceRequest],
    nodes: Collection[int] | None = None,
    preference: Preference = FULLEST_FIRST,
    *,
    among: int | None = None,
) -> tuple[DeviceShare, ...] | HostRefusal:
    """Returns the devices for one more slot, or why the slot cannot get them. The function does not
    change the ledger.

    Args:
        ledger: the device ledger of the host.
        requests: the device requests of the slot, at most one for each type.
        nodes: ids of the NUMA nodes where the devices must be. None allows any nodes. A device
            whose node is unknown counts as if it were on each of these nodes.
        preference: the order of the devices with enough free capacity.
        among: the set of GPUs that whole GPUs must come from. None allows any GPUs.
    """
    given: dict[str, Given] = {}
    # If another request has a rule that its devices must be near devices of a type, this type comes
    # first.
    for request in sorted(requests, key=lambda each: (bool(each.near), each.type)):
        choice = _Choice(
            ledger,
            request,
            nodes=nodes,
            preference=preference,
            near=given.get(request.near, []),
            among=among,
        )
        beside = [each for each in requests if each.near_required and each.near == request.type]
        found = choice.devices_beside(beside) if beside else choice.devices()
        if isinstance(found, HostRefusal):
            return found
        given[request.type] = found
    by_type = {request.type: request for request in requests}
    return tuple(
        _share(ledger, by_type[type_], at, functions)
        for type_ in sorted(given)
        for at, functions in sorted(given[type_])
    )


def suited_devices(ledger: DeviceLedger, request: DeviceRequest) -> list[int]:
    """Returns the positions of the devices with enough free capacity for a request."""
    return _Choice(ledger, request).suited()


def best_partition(ledger: DeviceLedger, request: DeviceRequest) -> list[int] | None:
    """Returns the best partition for a request for whole GPUs. All GPUs of the partition are free.
    The result is None if there is no such partition.
    """
    choice = _Choice(ledger, request)
    return choice.partition(choice.suited())


class _Choice:
    """One request for devices of one type on one host."""

    def __init__(
        self,
        ledger: DeviceLedger,
        request: DeviceRequest,
        *,
        nodes: Collection[int] | None = None,
        preference: Preference = FULLEST_FIRST,
        near: Sequence[tuple[int, tuple[str, ...]]] = (),
        among: int | None = None,
    ) -> None:
        self._ledger = ledger
        self._layout = ledger.layout
        self._request = request
        self._preference = preference
        self._nodes = nodes
        devices = self._layout.devices
        self._allowed = [
            at
            for at in self._layout.accepted(request)
            if nodes is None or devices[at].numa_node is None or devices[at].numa_node in nodes
        ]
        # The devices must come from these PCIe groups; None allows any PCIe groups.
        self._within: set[str] | None = None
        if among is not None and request.type == GPU and not request.is_shared:
            self._allowed = [at for at in self._allowed if among >> at & 1]
        # PCIe groups of the devices near which the new devices should be, in the order of these
        # devices.
        self._groups = list(dict.fromkeys(devices[at].pcie_group for at, _ in near))

    def devices_beside(self, others: Iterable[DeviceRequest]) -> Given | HostRefusal:
        """Returns the devices for a slot whose other requests are for devices of other types near
        these devices.

        If possible, the devices are taken from PCIe groups where each of the other types has a free
        device. Otherwise the devices are taken from any PCIe groups. The later choice of devices of
        the other types then fails, and its refusal says which devices are missing.
        """
        self._within = set.intersection(
            *({self._layout.devices[at].pcie_group for at in self._free(each)} for each in others)
        )
        found = self.devices()
        if not isinstance(found, HostRefusal):
            return found
        self._within = None
        return self.devices()

    def _free(self, request: DeviceRequest) -> list[int]:
        """Returns the devices that a request for another type could get."""
        other = _Choice(self._ledger, request, nodes=self._nodes)
        suited = other.suited()
        return [at for at, _ in other.with_functions(suited, len(suited))]

    def devices(self) -> Given | HostRefusal:
        """Returns the devices that the slot gets."""
        request = self._request
        if request.every:
            return self._all()
        suited = self.suited()
        if request.type == GPU and not request.is_shared and not request.near:
            return self._whole_gpus(suited)
        want, most = request.count, request.count
        # With `per_group`, the slot gets a device of each group if possible. With `near_required`,
        # the slot must get a device of each group.
        if request.per_group:
            most = max(most, len(self._groups))
        if request.near_required:
            want = max(want, len(self._groups))
        chosen = self.with_functions(self._by_nearness(suited), most)
        if len(chosen) < want:
            return self._short(suited)
        if request.near_required:
            reached = {self._layout.devices[at].pcie_group for at, _ in chosen}
            if reached != set(self._groups):
                return self._not_near(reached)
        return chosen

    def _all(self) -> Given | HostRefusal:
        """Returns all devices that meet the conditions. If one of these devices has too little free
        capacity, the result is a refusal.
        """
        chosen = self.with_functions(self._allowed, len(self._allowed))
        short = len(chosen) < len(self._allowed) or not chosen
        if short or not all(self._suits(at) for at in self._allowed):
            return self._short(self.suited())
        return chosen

    def suited(self) -> list[int]:
        """Returns the positions of the devices with enough free capacity."""
        devices, within = self._layout.devices, self._within
        return [
            at
            for at in self._allowed
            if (within is None or devices[at].pcie_group in within) and self._suits(at)
        ]

    def _suits(self, position: int) -> bool:
        # If the device lacks a dimension, its free amount counts as 0.
        if not fits(dict(self._request.amounts), self._ledger.free(position)):
            return False
        device = self._layout.devices[position]
        return not (device.whole_only and self._request.is_shared)

    def _whole_gpus(self, suited: list[int]) -> Given | HostRefusal:
        request, host = self._request, self._layout.host
        if len(suited) < request.count:
            return self._short(suited)
        if host.partitions:
            partition = self.partition(suited)
            if partition is not None:
                return [(at, ()) for at in partition]
            if host.partitions_only or request.best_partition:
                return self._no_partition()
        elif request.best_partition or request.bandwidth:
            return self._no_partition()
        chosen = self._layout.best_set(bits_of(suited), request.count, self._scopes(suited))
        return [(at, ()) for at in chosen] if chosen else self._out_of_scope(suited)

    def _scopes(self, suited: Iterable[int]) -> tuple[int, ...]:
        """Returns sets of GPUs. All GPUs of the slot must come from one of these sets."""
        scope = self._request.scope
        if not scope:
            return (bits_of(suited),)
        groups: dict[tuple[str, int | None], int] = {}
        for at in suited:
            device = self._layout.devices[at]
            node = device.numa_node
            key = ("", node) if scope == "numa" else (device.pcie_group, node)
            # GPUs with an unknown place belong to no set.
            if node is not None and (scope == "numa" or device.pcie_group):
                groups[key] = groups.get(key, 0) | 1 << at
        return tuple(groups[key] for key in sorted(groups, key=str))

    def partition(self, suited: list[int]) -> list[int] | None:
        """Returns the best partition of which all GPUs are free. The result is None if there is no
        such partition.
        """
        request, layout = self._request, self._layout
        gpus = {layout.devices[at].minor: at for at in layout.of_type.get(GPU, ())}
        free = {layout.devices[at].minor for at in suited}
        tier: int | None = None
        feasible: list[Partition] = []
        size = sorted(
            (each for each in layout.host.partitions if len(each.minors) == request.count),
            key=lambda each: -each.score,
        )
        for partition in size:
            # If a partition with a higher score is free, partitions with lower scores are ignored.
            if feasible and partition.score != tier:
                break
            if request.best_partition and partition.score != size[0].score:
                break
            if free.issuperset(partition.minors) and partition.bandwidth >= request.bandwidth:
                feasible.append(partition)
                tier = partition.score
        if not feasible:
            return None
        untouched = {minor for minor, at in gpus.items() if self._ledger.is_untouched(at)}
        best = max(feasible, key=lambda each: self._left_over(untouched - set(each.minors)))
        return [gpus[minor] for minor in best.minors]

    def _left_over(self, untouched: set[int]) -> int:
        """Returns the total weight of the partitions whose GPUs are all in `untouched`. Partitions
        with fewer GPUs than requested do not count.
        """
        score = 0
        for size, weight in _PACK_WEIGHTS.items():
            of_size = [each for each in self._layout.host.partitions if len(each.minors) == size]
            top = max((each.score for each in of_size), default=0)
            if size >= self._request.count:
                score += weight * sum(
                    each.score
                    for each in of_size
                    if each.score == top and untouched.issuperset(each.minors)
                )
        return score

    def _by_nearness(self, suited: list[int]) -> list[int]:
        """Returns the devices in the order in which they are tried."""
        devices = self._layout.devices
        ordered = sorted(suited, key=lambda at: (-self._score(at), self._loss(at), at))
        if not self._groups:
            return ordered
        # The best device of each group comes first, then the second best of each group, and so on.
        # All other devices follow.
        in_group: dict[str, int] = {}
        rank_in_group = {}
        for at in ordered:
            group = devices[at].pcie_group
            rank_in_group[at] = in_group[group] = in_group.get(group, 0) + 1
        near = [at for at in ordered if devices[at].pcie_group in self._groups]
        near.sort(key=lambda at: (rank_in_group[at], -self._score(at), at))
        return near + [at for at in ordered if devices[at].pcie_group not in self._groups]

    def _score(self, position: int) -> int:
        preference = self._preference
        return device_score(
            dict(self._request.amounts),
            self._layout.totals[position],
            self._ledger.free(position),
            pack=preference.pack,
            weights=dict(preference.weights) or EQUAL_WEIGHTS,
        )

    def _loss(self, position: int) -> int:
        """Returns how many other untouched GPUs are on the NUMA node of this untouched GPU. Using
        this GPU makes the set of untouched GPUs on the node smaller.
        """
        devices = self._layout.devices
        if self._request.type != GPU or not self._ledger.is_untouched(position):
            return 0
        mine = devices[position]
        return sum(
            1
            for at in self._layout.of_type[GPU]
            if at != position
            and self._ledger.is_untouched(at)
            and devices[at].numa_node == mine.numa_node
        )

    def with_functions(self, positions: Iterable[int], most: int) -> Given:
        """Returns the first `most` devices. If the request needs virtual functions, each device
        comes with a free function, and devices without a free function are skipped.
        """
        chosen: Given = []
        for at in positions:
            if len(chosen) == most:
                break
            if self._request.functions is None:
                chosen.append((at, ()))
            elif function := self._free_function(at):
                chosen.append((at, (function,)))
        return chosen

    def _free_function(self, position: int) -> str:
        """Returns the free virtual function with the lowest bus id. The result is empty if no
        function is free.
        """
        free = (
            each.bus_id
            for each in self._layout.devices[position].functions
            if self._request.accepts_function(each) and each.bus_id not in self._ledger.functions
        )
        return min(free, default="")

    def _short(self, suited: Sequence[int]) -> HostRefusal:
        return shortage(self._ledger, self._request, self._allowed, suited)

    def _not_near(self, reached: set[str]) -> HostRefusal:
        request = self._request
        missing = len(set(self._groups) - reached)
        return HostRefusal(
            DeviceBlocker.DEVICES_NOT_NEAR,
            f"the request requires {request.type} devices at the PCIe groups of its {request.near}"
            f" devices, but {missing} of {len(self._groups)} groups have no free device",
            (("groups", len(self._groups)), ("missing", missing)),
        )

    def _no_partition(self) -> HostRefusal:
        count = self._request.count
        sizes = sorted({len(each.minors) for each in self._layout.host.partitions})
        if not sizes:
            text = "the request requires a partition of GPUs, but the host reports none"
            return HostRefusal(DeviceBlocker.PARTITION_UNSUPPORTED, text)
        if count not in sizes:
            shown = ", ".join(map(str, sizes))
            return HostRefusal(
                DeviceBlocker.PARTITION_UNSUPPORTED,
                f"the host has partitions of {shown} GPUs, but not of {count}",
                (("asked", count),),
            )
        return HostRefusal(
            DeviceBlocker.PARTITION_IN_USE,
            f"no partition of {count} GPUs is completely free",
            (("asked", count),),
        )

    def _out_of_scope(self, suited: Sequence[int]) -> HostRefusal:
        request = self._request
        place = "NUMA node" if request.scope == "numa" else "PCIe group"
        most = max((group.bit_count() for group in self._scopes(suited)), default=0)
        return HostRefusal(
            DeviceBlocker.DEVICES_SPREAD,
            f"the request requires {request.count} GPUs at one {place}, but at most {most} of the"
            f" {len(suited)} free GPUs are at the same {place}",
            (("asked", request.count), ("most", most)),
        )


def completed(amounts: Amounts, total: Amounts) -> dict[str, int]:
    """Returns amounts of a GPU, with the memory both in bytes and as a ratio. If `amounts` already
    contains both forms of the memory, the result is equal to `amounts`.
    """
    found, whole = dict(amounts), total.get(GPU_MEMORY, 0)
    if whole and GPU_MEMORY_RATIO in found and GPU_MEMORY not in found:
        found[GPU_MEMORY] = ratio_to_bytes(found[GPU_MEMORY_RATIO], whole)
    elif whole and GPU_MEMORY in found and GPU_MEMORY_RATIO not in found:
        found[GPU_MEMORY_RATIO] = bytes_to_ratio(found[GPU_MEMORY], whole)
    return found


def _share(
    ledger: DeviceLedger, request: DeviceRequest, position: int, functions: tuple[str, ...]
) -> DeviceShare:
    device, total = ledger.layout.devices[position], ledger.layout.totals[position]
    amounts = completed(dict(request.amounts), total)
    return DeviceShare(device.type, device.uuid, device.minor, pairs(amounts), functions)
