"""Compares the choice of devices with Koordinator (tests/data/vectors).

Amounts that a reservation or a preempted slot would give back are subtracted from what is used, and
devices outside a reservation count as unusable: finegrain reserves hosts, not devices.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.devices.device import (
    Device,
    DeviceShare,
    HostDevices,
    Partition,
    VirtualFunction,
    bytes_to_ratio,
    pairs,
    ratio_to_bytes,
)
from finegrain.devices.names import device_requests
from finegrain.devices.request import DeviceRequest, LabelRule
from finegrain.resources import total_of
from resource_manager.engine.devices.choose import (
    Preference,
    choose_devices,
    completed,
    device_score,
)
from resource_manager.engine.devices.layout import DeviceLayout
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.devices.refusals import DeviceBlocker
from resource_manager.engine.model.host_refusal import HostRefusal

VECTORS = Path(__file__).parents[3] / "data" / "vectors"


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
    return data


ALLOCATOR = recorded("koordinator_device_allocator")
SCORING = recorded("koordinator_device_scoring")
VALIDATION = recorded("koordinator_device_request_validation")

RETRY, REJECT = "retry", "reject"

PLACED_HERE = {"dalloc-049"}
"""Koordinator refuses this case, because it chooses GPUs without regard to the NICs that must be
near them.
"""

REASONS = {
    "insufficient:gpu": {DeviceBlocker.DEVICE_NOT_ENOUGH, DeviceBlocker.NO_SUCH_DEVICE},
    "insufficient:gpu-topology": {DeviceBlocker.NO_SUCH_DEVICE, DeviceBlocker.DEVICE_NOT_ENOUGH},
    "insufficient:gpu-topology-scope": {DeviceBlocker.DEVICES_SPREAD},
    "insufficient:rdma": {DeviceBlocker.DEVICE_UNUSABLE, DeviceBlocker.DEVICE_NOT_ENOUGH},
    "insufficient:rdma-vf": {DeviceBlocker.DEVICE_NOT_ENOUGH, DeviceBlocker.NO_SUCH_DEVICE},
    "insufficient:fpga": {DeviceBlocker.NO_SUCH_DEVICE},
    "unsupported_gpu_count": {DeviceBlocker.PARTITION_UNSUPPORTED},
    "joint_allocate_violation": {DeviceBlocker.DEVICES_NOT_NEAR, DeviceBlocker.DEVICE_NOT_ENOUGH},
}


def cases(group: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in group])


def short(resources: Mapping[str, int]) -> dict[str, int]:
    return {name.removeprefix("koordinator.sh/"): each for name, each in resources.items()}


def host(inventory: Mapping[str, Any]) -> HostDevices:
    labels = inventory["labels"]
    devices = [
        Device(
            type=type_,
            uuid=f"{type_}-{each['minor']}",
            minor=each["minor"],
            capacity=pairs(each["resources"]),
            numa_node=each.get("numa"),
            pcie_group=each.get("pcie") or "",
            labels=tuple(sorted((each.get("labels") or {}).items())),
            functions=tuple(
                VirtualFunction(function["bus_id"], tuple(sorted(group["labels"].items())))
                for group in each.get("vf_groups") or []
                for function in group["vfs"]
            ),
            problem="" if each.get("health", True) else "unhealthy",
        )
        for type_, many in inventory["devices"].items()
        for each in many
    ]
    partitions = [
        Partition(tuple(each["minors"]), each["score"])
        for size in inventory.get("partition_table") or []
        for group in size["groups"]
        for each in group["partitions"]
    ]
    # The built-in table of boards with an NVSwitch.
    if labels.get("node.koordinator.sh/gpu-model") in ("H100", "H800", "H20") and not partitions:
        partitions = [
            Partition(tuple(range(start, start + size)))
            for size in (1, 2, 4, 8)
            for start in range(0, 8, size)
        ]
    policy = labels.get("node.koordinator.sh/gpu-partition-policy")
    return HostDevices(tuple(devices), (), tuple(partitions), policy == "Honor")


def rules(selector: Mapping[str, Any]) -> tuple[LabelRule, ...]:
    equal = [LabelRule(name, (value,)) for name, value in selector.get("matchLabels", {}).items()]
    listed = [
        LabelRule(each["key"], tuple(each["values"]), each["operator"] == "NotIn")
        for each in selector.get("matchExpressions", [])
    ]
    return (*equal, *listed)


def hinted(request: DeviceRequest, hint: Mapping[str, Any] | None) -> DeviceRequest:
    if hint is None:
        return request
    request = replace(request, selector=rules(hint.get("selector") or {}))
    if hint.get("vfSelector") is not None:
        request = replace(request, functions=rules(hint["vfSelector"]))
    match hint.get("allocateStrategy"):
        case "ApplyForAll":
            request = replace(request, every=True)
        case "RequestsAsCount":
            total = dict(request.totals)[request.type]
            share = 100 if hint.get("exclusivePolicy") == "DeviceLevel" else 1
            request = replace(request, count=total, amounts=((request.type, share),))
    scope = {"PCIe": "pcie", "NUMANode": "numa"}.get(hint.get("requiredTopologyScope", ""), "")
    return replace(request, scope=scope)


def requests_of(case: Mapping[str, Any]) -> list[DeviceRequest]:
    hints = case.get("hints") or {}
    named = {name: each for its in case["requests"].values() for name, each in its.items()}
    # After memory was completed, both dimensions are there, which no request may name.
    if {"gpu-memory", "gpu-memory-ratio"} <= named.keys():
        del named["gpu-memory"]
    found = [hinted(each, hints.get(each.type)) for each in device_requests(named)]
    joint = case.get("joint_allocate") or {}
    types = joint.get("deviceTypes", [])
    same = joint.get("requiredScope") == "SamePCIe"
    return [
        replace(each, near=types[0], near_required=same, per_group=True)
        if each.type in types[1:]
        else each
        for each in found
    ]


def ledger_of(case: Mapping[str, Any]) -> DeviceLedger:
    layout = DeviceLayout(host(ALLOCATOR["inventories"][case["inventory"]]))
    ledger = DeviceLedger(layout)
    functions = {
        (type_, each["minor"]): tuple(each["bus_ids"])
        for type_, many in (case.get("vf_allocated") or {}).items()
        for each in many
    }
    # Both are amounts by device.
    given_back = amounts_by_device(case.get("preemptible"))
    limits = amounts_by_device(case.get("required_resources"))
    used = amounts_by_device(case.get("used"))
    for at, device in enumerate(layout.devices):
        key = (device.type, device.minor)
        amounts = dict(used.get(key, {}))
        for name, amount in given_back.get(key, {}).items():
            amounts[name] = max(amounts.get(name, 0) - amount, 0)
        for name, most in limits.get(key, {}).items():
            left = layout.totals[at].get(name, 0) - amounts.get(name, 0)
            amounts[name] = amounts.get(name, 0) + max(left - most, 0)
        share = DeviceShare(*key[:1], device.uuid, key[1], pairs(amounts), functions.get(key, ()))
        ledger.add([share])
    unusable = {(each.type, each.uuid): each.problem for each in layout.devices if each.problem}
    allowed = amounts_by_device(case.get("designated"))
    for type_, minors in (case.get("required_minors") or {}).items():
        allowed.update({(type_, minor): {} for minor in minors})
    if allowed:
        types = {type_ for type_, _ in allowed}
        unusable |= {
            (each.type, each.uuid): "not designated"
            for each in layout.devices
            if each.type in types and (each.type, each.minor) not in allowed
        }
    ledger.set_unusable(unusable)
    return ledger


def amounts_by_device(data: Mapping[str, Any] | None) -> dict[tuple[str, int], dict[str, int]]:
    return {
        (type_, each["minor"]): short(each["resources"])
        for type_, many in (data or {}).items()
        for each in many
    }


def preference(case: Mapping[str, Any]) -> Preference:
    scorer = case.get("scorer")
    if scorer is None:
        return Preference()
    return Preference(scorer["strategy"] == "MostAllocated", tuple(scorer["weights"].items()))


@cases(ALLOCATOR["allocate"])
def test_devices_are_chosen_as_recorded(case: dict[str, Any]) -> None:
    found = choose_devices(
        ledger_of(case), requests_of(case), case.get("numa_affinity"), preference(case)
    )
    expected = case["expect"]
    if case["id"] in PLACED_HERE:
        assert not isinstance(found, HostRefusal), found.text
        group = {
            (type_, each["minor"]): each["pcie"]
            for type_, many in ALLOCATOR["inventories"][case["inventory"]]["devices"].items()
            for each in many
        }
        groups = [{group[e.type, e.minor] for e in found if e.type == t} for t in ("gpu", "rdma")]
        assert groups[0] == groups[1]
        return
    if "allocations" not in expected:
        assert isinstance(found, HostRefusal), found
        assert all(found.blocker in REASONS[reason] for reason in expected["reasons"])
        return
    assert not isinstance(found, HostRefusal), found.text
    assert [
        (each.type, each.minor, comparable(dict(each.amounts)), each.functions) for each in found
    ] == sorted(
        (
            type_,
            each["minor"],
            comparable(short(each["resources"])),
            tuple(vf["bus_id"] for vf in each.get("vfs", ())),
        )
        for type_, many in expected["allocations"].items()
        for each in many
    )


def comparable(amounts: dict[str, int]) -> dict[str, int]:
    """Upstream completes memory later for some cases."""
    return {name: each for name, each in amounts.items() if name != "gpu-memory"}


@cases(SCORING["score_device"])
def test_devices_have_the_recorded_score(case: dict[str, Any]) -> None:
    scorer = case["scorer"]
    found = device_score(
        case["request"],
        case["total"],
        case["free"],
        pack=scorer["strategy"] == "MostAllocated",
        weights=scorer["weights"],
    )
    assert found == case["expect"]


@cases(SCORING["score_node"])
def test_the_sums_of_a_host_have_the_recorded_score(case: dict[str, Any]) -> None:
    scorer = case["scorer"]
    total, free = (total_of(each["resources"] for each in case[name]) for name in ("total", "free"))
    pack = scorer["strategy"] == "MostAllocated"
    found = device_score(case["request"], total, free, pack=pack, weights=scorer["weights"])
    assert found == case["expect"]


@cases(VALIDATION["fill_memory"])
def test_memory_is_completed_as_recorded(case: dict[str, Any]) -> None:
    totals = {each["minor"]: each["resources"] for each in case["total"]}
    for at, each in enumerate(case["allocations"]):
        found = completed(each["resources"], totals[each["minor"]])
        if "error" in case["expect"]:
            # A device without capacity is never chosen, so nothing is completed.
            assert found == each["resources"]
        else:
            assert found == case["expect"]["gpu"][at]["resources"]


@cases(VALIDATION["memory_conversion"])
def test_bytes_and_ratios_convert_as_recorded(case: dict[str, Any]) -> None:
    convert = ratio_to_bytes if case["op"] == "ratio_to_bytes" else bytes_to_ratio
    assert convert(case["value"], case["total"]) == case["expect"]


@cases(VALIDATION["device_count"])
def test_hints_give_the_recorded_number_of_devices(case: dict[str, Any]) -> None:
    capacity = {each["minor"]: pairs(each["resources"]) for each in case["total"]}
    devices = tuple(
        Device(
            case["device_type"],
            f"device-{each['minor']}",
            each["minor"],
            capacity.get(each["minor"], ()),
            # Some cases leave out the labels, because upstream ignores labels if a number is
            # requested.
            labels=tuple(sorted((each.get("labels") or {"type": "fakeW"}).items())),
            # This function has every label value that the cases ask for.
            functions=tuple(
                VirtualFunction(f"{each['minor']}-{value}", (("type", value),))
                for value in ("fakeC", "fakeG", "vf_cpu")
            ),
        )
        for each in case["devices"]
    )
    request = hinted(device_requests(case["request"])[0], case["hint"])
    found = choose_devices(DeviceLedger(DeviceLayout(HostDevices(devices))), [request])
    if "error" in case["expect"]:
        assert isinstance(found, HostRefusal)
        return
    assert not isinstance(found, HostRefusal), found.text
    assert len(found) == case["expect"]["count"]
    assert all(dict(each.amounts) == case["expect"]["per_instance"] for each in found)


@cases(SCORING["order_by_pcie"])
def test_equal_devices_come_in_the_order_of_their_minors(case: dict[str, Any]) -> None:
    devices = tuple(
        Device("fpga", str(each["minor"]), each["minor"], (("fpga", 100),))
        for each in case["devices"]
    )
    found = choose_devices(
        DeviceLedger(DeviceLayout(HostDevices(devices))),
        [replace(device_requests({"fpga": 100})[0], count=len(devices))],
    )
    assert not isinstance(found, HostRefusal)
    assert [each.minor for each in found] == case["expect"]


@cases(SCORING["partition_index"])
def test_the_partitions_of_a_tier_are_those_recorded(case: dict[str, Any]) -> None:
    """Each partition of the best tier is chosen if it is the only free one."""
    partitions = tuple(
        Partition(tuple(each["minors"]), each["allocationScore"])
        for of_size in case["table"].values()
        for each in of_size
    )
    whole = (("gpu-core", 100), ("gpu-memory-ratio", 100))
    gpus = tuple(Device("gpu", f"GPU-{at}", at, whole) for at in range(8))
    layout = DeviceLayout(HostDevices(gpus, (), partitions, partitions_only=True))
    for of_size in case["expect"]:
        count = of_size["num_gpus"]
        for expected in of_size["groups"][0]["partitions"]:
            ledger = DeviceLedger(layout)
            ledger.add(
                DeviceShare("gpu", each.uuid, each.minor, whole)
                for each in gpus
                if each.minor not in expected["minors"]
            )
            found = choose_devices(ledger, device_requests({"gpu": 100 * count}))
            assert not isinstance(found, HostRefusal)
            assert [each.minor for each in found] == expected["minors"]
    assert {of_size["num_gpus"] for of_size in case["expect"]} == set(map(int, case["table"]))
