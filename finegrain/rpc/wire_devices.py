"""Converts devices, device requests and device shares from and to messages (devices.proto). Also
checks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from finegrain.devices.condition import DeviceCondition, DeviceHealth, ForeignUse
from finegrain.devices.device import (
    GPU,
    WHOLE,
    Device,
    DeviceLink,
    DeviceShare,
    HostDevices,
    Labels,
    Pairs,
    Partition,
    VirtualFunction,
    pairs,
)
from finegrain.devices.levels import OF_SLOTS, check_required, dimensions_of
from finegrain.devices.names import GPU_SHARED, NPU_CPU, device_requests
from finegrain.devices.request import DeviceRequest, LabelRule
from finegrain.errors import InvalidArgument
from finegrain.ids import LABEL_KEY_PATTERN, check_text
from finegrain.v1 import devices_pb2 as pb
from finegrain.v1 import resources_pb2
from finegrain.values.bounds import AMOUNT_MAX
from finegrain.values.isolation import DeviceIsolation
from finegrain.values.usage import DeviceUsage, SlotDeviceUsage

SCOPES = ("numa", "pcie")

_DIMENSION = re.compile(
    r"[a-z0-9][A-Za-z0-9_.-]{0,62}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,62})?", re.ASCII
)
_ITEMS_MAX = 1_024  # maximum number of devices, functions or partitions of one host
_LINKS_MAX = 65_536
_RULES_MAX = 32
_VALUES_MAX = 256  # maximum number of values of one rule about a label
_TEXT_LENGTH_MAX = 256
_LONG_TEXT = 1_000
_DIMENSIONS_MAX = 64


def requests_from_proto(
    message: resources_pb2.ResourceProfile, field: str
) -> tuple[tuple[DeviceRequest, ...], Labels]:
    """Reads the device requests of a profile, and the isolation levels that the profile requires.

    Returns:
        The device requests, with the levels required for their devices, and the levels required for
        cpu and memory.

    Raises:
        InvalidArgument: a name, amount, hint or level is not allowed. Or no host could ever serve
            the request.
    """
    found = _device_requests(message, field)
    if not message.require_isolation:
        return found, ()
    where = f"{field}.require_isolation"
    check_count(where, message.require_isolation, _RULES_MAX)
    levels = check_required(message.require_isolation, [each.type for each in found], where)
    devices = tuple(
        replace(each, isolation=_part(levels, dimensions_of(each.type))) for each in found
    )
    return devices, _part(levels, OF_SLOTS)


def _part(levels: Labels, names: tuple[str, ...]) -> Labels:
    return tuple(each for each in levels if each[0] in names)


def _device_requests(
    message: resources_pb2.ResourceProfile, field: str
) -> tuple[DeviceRequest, ...]:
    if not message.devices and not message.device_hints:
        return ()
    named = dimensions_from_proto(message.devices, f"{field}.devices")
    found = {each.type: each for each in device_requests(named, f"{field}.devices")}
    hinted: set[str] = set()
    for at, hint in enumerate(message.device_hints):
        where = f"{field}.device_hints[{at}]"
        if hint.type not in found:
            types = ", ".join(sorted(found)) or "none: the request has no devices"
            raise InvalidArgument(f"{where}.type", hint.type, f"a type that is requested ({types})")
        if hint.type in hinted:
            raise InvalidArgument(f"{where}.type", hint.type, "one hint for each type")
        hinted.add(hint.type)
        found[hint.type] = _hinted(found[hint.type], hint, found.keys(), where)
    return tuple(found[type_] for type_ in sorted(found))


def requests_to_proto(
    requests: Iterable[DeviceRequest], message: resources_pb2.ResourceProfile
) -> None:
    """Writes device requests into a profile; the inverse of `requests_from_proto`."""
    for request in requests:
        for name, amount in request.totals:
            message.devices[name] = amount
        amounts = dict(request.amounts)
        # Without GPU_SHARED, a reader would compute another number of GPUs from the amounts.
        is_spread = request.count > 1 and any(each != WHOLE for each in amounts.values())
        if request.type == GPU and (is_spread or NPU_CPU in amounts):
            message.devices[GPU_SHARED] = request.count
        hint = pb.DeviceHint(
            type=request.type,
            vendor=request.vendor,
            model=request.model,
            selector=_rules_to_proto(request.selector),
            virtual_function=request.functions is not None,
            functions=_rules_to_proto(request.functions or ()),
            every=request.every,
            as_count=request.type != GPU and is_spread,
            near=request.near,
            near_required=request.near_required,
            per_group=request.per_group,
            scope=request.scope,
            best_partition=request.best_partition,
            bandwidth=request.bandwidth,
        )
        if hint != pb.DeviceHint(type=request.type):
            message.device_hints.append(hint)


def shares_from_proto(messages: Sequence[pb.DeviceShare], field: str) -> tuple[DeviceShare, ...]:
    """Reads the devices of a slot.

    Raises:
        InvalidArgument: a name or amount is malformed, or a device occurs twice.
    """
    check_count(field, messages)
    found = []
    for at, message in enumerate(messages):
        where = f"{field}[{at}]"
        check_count(f"{where}.functions", message.functions)
        amounts = dimensions_from_proto(message.amounts, f"{where}.amounts")
        found.append(
            DeviceShare(
                _name(message.type, f"{where}.type"),
                _text(message.uuid, f"{where}.uuid"),
                message.minor,
                pairs(amounts),
                tuple(
                    _text(each, f"{where}.functions[{number}]")
                    for number, each in enumerate(message.functions)
                ),
            )
        )
    if len({(each.type, each.uuid) for each in found}) != len(found):
        raise InvalidArgument(field, f"{len(found)} devices", "each of them only once")
    return tuple(found)


def devices_to_topology(host: HostDevices, message: resources_pb2.HostTopology) -> None:
    """Writes a host's devices into its topology, and replaces the devices that the message already
    has.
    """
    del message.devices[:]
    message.devices.extend(device_to_proto(each) for each in host.devices)
    message.device_links.extend(link_to_proto(each) for each in host.links)
    message.device_partitions.extend(
        pb.DevicePartition(minors=each.minors, score=each.score, bandwidth=each.bandwidth)
        for each in host.partitions
    )
    message.device_partitions_only = host.partitions_only
    message.fake_devices = host.fake


def device_to_proto(device: Device) -> resources_pb2.Device:
    """Writes one device."""
    return resources_pb2.Device(
        kind=device.type,
        uuid=device.uuid,
        minor=device.minor,
        pci_address=device.pci_address,
        model=device.model,
        memory_bytes=device.memory_bytes,
        numa_node_id=-1 if device.numa_node is None else device.numa_node,
        local_cpus=device.local_cpus,
        unavailable_reason=device.problem,
        capacity=dict(device.capacity),
        vendor=device.vendor,
        pcie_group=device.pcie_group,
        labels=dict(device.labels),
        functions=[
            pb.VirtualFunction(bus_id=each.bus_id, labels=dict(each.labels))
            for each in device.functions
        ],
        parent_uuid=device.parent_uuid,
        whole_only=device.whole_only,
        driver_bytes=device.driver_bytes,
        levels=dict(device.levels),
        parking=device.parking,
    )


def condition_to_proto(condition: DeviceCondition) -> pb.DeviceCondition:
    """Writes the condition of a device."""
    return pb.DeviceCondition(
        type=condition.type,
        uuid=condition.uuid,
        health=condition.health,
        problem=condition.problem,
        work_lost=condition.work_lost,
        failures=condition.failures,
        foreign_uses=[
            pb.ForeignUse(
                kind=each.kind,
                name=each.name,
                pid=each.pid,
                user=each.user,
                memory_bytes=each.memory_bytes,
            )
            for each in condition.foreign_uses
        ],
    )


def condition_from_proto(message: pb.DeviceCondition, field: str) -> DeviceCondition:
    """Reads the condition of a device. If this version does not know the health, the result has
    `DeviceHealth.UNKNOWN`.

    Raises:
        InvalidArgument: a name, amount or text is malformed.
    """
    check_count(f"{field}.foreign_uses", message.foreign_uses)
    known = {each.value: each for each in DeviceHealth}
    return DeviceCondition(
        type=_name(message.type, f"{field}.type"),
        uuid=_text(message.uuid, f"{field}.uuid"),
        # A later version can send a health that this version does not know. Such a device must get
        # no work.
        health=known.get(message.health, DeviceHealth.UNKNOWN),
        problem=check_text(f"{field}.problem", message.problem, longest=_LONG_TEXT, empty_ok=True),
        work_lost=message.work_lost,
        failures=_amount(message.failures, f"{field}.failures"),
        foreign_uses=tuple(
            ForeignUse(
                kind=_text(each.kind, f"{field}.foreign_uses[{at}].kind"),
                name=_text(each.name, f"{field}.foreign_uses[{at}].name", empty_ok=True),
                pid=_amount(each.pid, f"{field}.foreign_uses[{at}].pid"),
                user=_text(each.user, f"{field}.foreign_uses[{at}].user", empty_ok=True),
                memory_bytes=_amount(each.memory_bytes, f"{field}.foreign_uses[{at}].memory_bytes"),
            )
            for at, each in enumerate(message.foreign_uses)
        ),
    )


def conditions_from_proto(
    messages: Sequence[pb.DeviceCondition], field: str
) -> tuple[DeviceCondition, ...]:
    """Reads the conditions of a host's devices. Returns them sorted by type and UUID.

    Raises:
        InvalidArgument: a name, amount or text is malformed, or a device occurs twice.
    """
    if not messages:
        return ()
    check_count(field, messages)
    found = {
        (each.type, each.uuid): condition_from_proto(each, f"{field}[{at}]")
        for at, each in enumerate(messages)
    }
    if len(found) != len(messages):
        raise InvalidArgument(field, f"{len(messages)} devices", "each of them only once")
    return tuple(found[key] for key in sorted(found))


def usages_to_proto(usages: Iterable[DeviceUsage]) -> list[pb.DeviceUsage]:
    """Writes the measured use of devices."""
    return [
        pb.DeviceUsage(
            type=each.type,
            uuid=each.uuid,
            memory_bytes=each.memory_bytes,
            busy_percent=each.busy_percent,
            slots=[
                pb.SlotDeviceUsage(
                    allocation_id=slot.allocation_id,
                    generation=slot.generation,
                    memory_bytes=slot.memory_bytes,
                    processes=slot.processes,
                )
                for slot in each.slots
            ],
        )
        for each in usages
    ]


def usages_from_proto(messages: Sequence[pb.DeviceUsage], field: str) -> tuple[DeviceUsage, ...]:
    """Reads the measured use of devices.

    Raises:
        InvalidArgument: a name, amount or text is malformed.
    """
    check_count(field, messages)
    return tuple(
        DeviceUsage(
            type=_name(each.type, f"{field}[{at}].type"),
            uuid=_text(each.uuid, f"{field}[{at}].uuid"),
            memory_bytes=_amount(each.memory_bytes, f"{field}[{at}].memory_bytes"),
            busy_percent=_amount(each.busy_percent, f"{field}[{at}].busy_percent"),
            slots=tuple(
                SlotDeviceUsage(
                    _text(slot.allocation_id, f"{field}[{at}].slots[{n}].allocation_id"),
                    _amount(slot.generation, f"{field}[{at}].slots[{n}].generation"),
                    _amount(slot.memory_bytes, f"{field}[{at}].slots[{n}].memory_bytes"),
                    _amount(slot.processes, f"{field}[{at}].slots[{n}].processes"),
                )
                for n, slot in enumerate(each.slots)
            ),
        )
        for at, each in enumerate(messages)
    )


def link_to_proto(link: DeviceLink) -> pb.DeviceLink:
    """Writes the link between two GPUs."""
    return pb.DeviceLink(
        first_uuid=link.first_uuid,
        second_uuid=link.second_uuid,
        lanes=link.lanes,
        path=link.path,
    )


def device_isolation_from_proto(
    message: resources_pb2.DeviceIsolation, field: str
) -> DeviceIsolation:
    """Reads the isolation levels of one device of a slot.

    Raises:
        InvalidArgument: a name or text is malformed.
    """
    return DeviceIsolation(
        _name(message.type, f"{field}.type"),
        _text(message.uuid, f"{field}.uuid"),
        _labels(message.levels, f"{field}.levels"),
    )


def devices_from_topology(message: resources_pb2.HostTopology, field: str) -> HostDevices:
    """Reads and checks the devices of a topology.

    Raises:
        InvalidArgument: a name, amount or text is malformed, or a device occurs twice.
    """
    check_count(f"{field}.devices", message.devices)
    devices = tuple(
        device_from_proto(each, f"{field}.devices[{at}]") for at, each in enumerate(message.devices)
    )
    if len({(each.type, each.uuid) for each in devices}) != len(devices):
        raise InvalidArgument(f"{field}.devices", f"{len(devices)} devices", "each of them once")
    check_count(f"{field}.device_links", message.device_links, _LINKS_MAX)
    check_count(f"{field}.device_partitions", message.device_partitions)
    return HostDevices(
        devices,
        tuple(
            DeviceLink(
                _text(each.first_uuid, f"{field}.device_links[{at}].first_uuid"),
                _text(each.second_uuid, f"{field}.device_links[{at}].second_uuid"),
                _amount(each.lanes, f"{field}.device_links[{at}].lanes"),
                _text(each.path, f"{field}.device_links[{at}].path", empty_ok=True),
            )
            for at, each in enumerate(message.device_links)
        ),
        tuple(
            _partition(each, f"{field}.device_partitions[{at}]")
            for at, each in enumerate(message.device_partitions)
        ),
        message.device_partitions_only,
        message.fake_devices,
    )


def _partition(message: pb.DevicePartition, field: str) -> Partition:
    check_count(f"{field}.minors", message.minors)
    return Partition(tuple(message.minors), message.score, message.bandwidth)


def dimensions_from_proto(amounts: Mapping[str, int], field: str) -> dict[str, int]:
    """Returns device amounts by dimension or resource name.

    Raises:
        InvalidArgument: there are too many amounts, a name is malformed, or an amount is negative
            or too large.
    """
    if len(amounts) > _DIMENSIONS_MAX:
        raise InvalidArgument(field, f"{len(amounts)} names", f"at most {_DIMENSIONS_MAX}")
    for name, amount in amounts.items():
        _name(name, f"{field} key")
        _amount(amount, f"{field}[{name}]")
    return dict(amounts)


def _hinted(
    request: DeviceRequest, hint: pb.DeviceHint, types: Iterable[str], field: str
) -> DeviceRequest:
    """Returns the request with the settings of the hint."""
    vendor = _text(hint.vendor, f"{field}.vendor", empty_ok=True)
    if request.vendor and vendor not in ("", request.vendor):
        expected = f"{request.vendor}, whose devices are requested, or nothing"
        raise InvalidArgument(f"{field}.vendor", vendor, expected)
    if hint.near and (hint.near == hint.type or hint.near not in types):
        raise InvalidArgument(f"{field}.near", hint.near, "another type that is requested")
    if (hint.near_required or hint.per_group) and not hint.near:
        name = "near_required" if hint.near_required else "per_group"
        raise InvalidArgument(f"{field}.{name}", True, "a type in near as well")
    if hint.scope not in ("", *SCOPES):
        raise InvalidArgument(f"{field}.scope", hint.scope, f"{' or '.join(SCOPES)}, or nothing")
    if (hint.scope or hint.best_partition or hint.bandwidth) and (
        request.type != GPU or (request.is_shared and request.count > 1)
    ):
        name = "scope" if hint.scope else "best_partition" if hint.best_partition else "bandwidth"
        raise InvalidArgument(f"{field}.{name}", getattr(hint, name), "nothing, or whole GPUs")
    if hint.every and hint.as_count:
        raise InvalidArgument(f"{field}.as_count", True, "false with every")
    if hint.functions and not hint.virtual_function:
        raise InvalidArgument(f"{field}.virtual_function", False, "true with functions")
    count, amounts = request.count, request.amounts
    if hint.as_count:
        if request.type == GPU:
            raise InvalidArgument(f"{field}.as_count", True, "false for GPUs")
        count, amounts = dict(request.totals)[request.type], ((request.type, 1),)
    if hint.every and request.count > 1:
        total = dict(request.totals).get(request.type, request.count * WHOLE)
        expected = f"at most {WHOLE} with every: the share of each device"
        raise InvalidArgument(f"{field}.every with an amount of", total, expected)
    return replace(
        request,
        count=count,
        amounts=amounts,
        every=hint.every,
        vendor=vendor or request.vendor,
        model=_text(hint.model, f"{field}.model", empty_ok=True),
        selector=_rules(hint.selector, f"{field}.selector"),
        functions=(_rules(hint.functions, f"{field}.functions") if hint.virtual_function else None),
        near=hint.near,
        near_required=hint.near_required,
        # A required `near` implies `per_group`: one device in each PCIe group of the other type.
        per_group=hint.per_group or hint.near_required,
        scope=hint.scope,
        best_partition=hint.best_partition,
        bandwidth=_amount(hint.bandwidth, f"{field}.bandwidth"),
    )


def device_from_proto(message: resources_pb2.Device, field: str) -> Device:
    """Reads one device.

    Raises:
        InvalidArgument: a name, amount or text is malformed.
    """
    return Device(
        type=_name(message.kind, f"{field}.kind"),
        uuid=_text(message.uuid, f"{field}.uuid"),
        minor=message.minor,
        capacity=_capacity(message.capacity, f"{field}.capacity"),
        vendor=_text(message.vendor, f"{field}.vendor", empty_ok=True),
        model=_text(message.model, f"{field}.model", empty_ok=True),
        numa_node=None if message.numa_node_id < 0 else message.numa_node_id,
        pcie_group=_text(message.pcie_group, f"{field}.pcie_group", empty_ok=True),
        pci_address=message.pci_address,
        labels=_labels(message.labels, f"{field}.labels"),
        functions=tuple(
            VirtualFunction(
                _text(each.bus_id, f"{field}.functions[{at}].bus_id"),
                _labels(each.labels, f"{field}.functions[{at}].labels"),
            )
            for at, each in enumerate(message.functions)
        ),
        parent_uuid=message.parent_uuid,
        whole_only=message.whole_only,
        problem=message.unavailable_reason,
        memory_bytes=message.memory_bytes,
        driver_bytes=_amount(message.driver_bytes, f"{field}.driver_bytes"),
        local_cpus=message.local_cpus,
        levels=_labels(message.levels, f"{field}.levels"),
        parking=_text(message.parking, f"{field}.parking", empty_ok=True),
    )


def _capacity(amounts: Mapping[str, int], field: str) -> Pairs:
    return pairs(dimensions_from_proto(amounts, field))


def _labels(labels: Mapping[str, str], field: str) -> Labels:
    check_count(field, labels, _RULES_MAX)
    for name, value in labels.items():
        _label_name(name, f"{field} key")
        _text(value, f"{field}[{name}]", empty_ok=True)
    return tuple(sorted(labels.items()))


def _rules(messages: Any, field: str) -> tuple[LabelRule, ...]:
    check_count(field, messages, _RULES_MAX)
    for at, each in enumerate(messages):
        check_count(f"{field}[{at}].values", each.values, _VALUES_MAX)
    return tuple(
        LabelRule(
            _label_name(each.name, f"{field}[{at}].name"),
            tuple(
                _text(value, f"{field}[{at}].values[{number}]", empty_ok=True)
                for number, value in enumerate(each.values)
            ),
            each.excluded,
        )
        for at, each in enumerate(messages)
    )


def _rules_to_proto(rules: Iterable[LabelRule]) -> list[pb.LabelRule]:
    return [
        pb.LabelRule(name=each.name, values=each.values, excluded=each.excluded) for each in rules
    ]


def _label_name(name: str, field: str) -> str:
    if not LABEL_KEY_PATTERN.fullmatch(name):
        raise InvalidArgument(field, name, "1 to 63 characters out of A-Z a-z 0-9 . _ / -")
    return name


def _name(name: str, field: str) -> str:
    if not _DIMENSION.fullmatch(name):
        raise InvalidArgument(field, name, "a name that matches " + _DIMENSION.pattern)
    return name


def _amount(amount: int, field: str) -> int:
    if not 0 <= amount <= AMOUNT_MAX:
        raise InvalidArgument(field, amount, f"an amount from 0 to {AMOUNT_MAX}")
    return amount


def _text(text: str, field: str, *, empty_ok: bool = False) -> str:
    return check_text(field, text, longest=_TEXT_LENGTH_MAX, empty_ok=empty_ok)


def check_count(field: str, items: Any, most: int = _ITEMS_MAX) -> None:
    """Checks the number of items in a list of a message.

    Call this before the items are decoded: a message of 4 MiB can have two million items, which
    would take seconds.

    Raises:
        InvalidArgument: there are more than `most` items.
    """
    if len(items) > most:
        raise InvalidArgument(field, f"{len(items)} items", f"at most {most}")
