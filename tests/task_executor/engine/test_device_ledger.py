"""The executor checks the devices that the resource manager has chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import DeviceShare, HostDevices, VirtualFunction
from finegrain.devices.names import device_requests
from finegrain.errors import FinegrainError, InvalidArgument, Reason, ResourceExhausted
from finegrain.resources import ResourceProfile
from task_executor.engine.device_ledger import DeviceLedger
from task_executor.engine.slots import SlotKey
from tests.support.devices import made_up

HALF = ResourceProfile(1_000, devices=device_requests({"gpu": 50}))


def key(name: str) -> SlotKey:
    return SlotKey(name, 1)


def gpu(minor: int, percent: int) -> DeviceShare:
    amounts = (("gpu-core", percent), ("gpu-memory-ratio", percent))
    return DeviceShare("gpu", f"GPU-{minor}", minor, amounts)


def given_(*shares: DeviceShare) -> CpuAssignment:
    return CpuAssignment(devices=shares)


def test_a_device_is_not_given_out_twice() -> None:
    ledger = DeviceLedger(made_up(2))
    for name in ("a", "b"):
        ledger.check(key(name), HALF, given_(gpu(0, 50)))
        ledger.put(key(name), [given_(gpu(0, 50))])
    with pytest.raises(ResourceExhausted, match="gpu0 has 0 gpu-core left") as refused:
        ledger.check(key("c"), HALF, given_(gpu(0, 50)))
    assert refused.value.reason is Reason.DEVICES_UNAVAILABLE
    ledger.remove(key("a"))
    ledger.check(key("c"), HALF, given_(gpu(0, 50)))


def test_a_device_that_vanished_takes_nothing_from_those_that_are_left() -> None:
    first, second = made_up(2).devices
    ledger = DeviceLedger(HostDevices((first, second)))
    ledger.put(key("a"), [given_(gpu(0, 100))])
    ledger.put(key("b"), [given_(gpu(1, 30))])
    assert ledger.left()["device.gpu-core"] == 70
    assert ledger.left({key("a")})["device.gpu-core"] == 100
    ledger.replace_host(HostDevices((second,)))
    assert ledger.left()["device.gpu-core"] == 70


def test_a_repeated_order_does_not_count_against_itself() -> None:
    ledger = DeviceLedger(made_up(1))
    ledger.put(key("a"), [given_(gpu(0, 100))])
    whole = ResourceProfile(1_000, devices=device_requests({"gpu": 100}))
    ledger.check(key("a"), whole, given_(gpu(0, 100)))


@pytest.mark.parametrize(
    ("profile", "assignment", "expected"),
    [
        (HALF, given_(gpu(7, 50)), "a device of this host; this host has gpu0, gpu1"),
        (HALF, given_(), "as in the profile"),
        (HALF, None, "as in the profile"),
        (HALF, given_(gpu(0, 40)), "as in the profile"),
        (ResourceProfile(1_000), given_(gpu(0, 50)), "devices that the profile requests"),
    ],
)
def test_a_choice_that_is_not_what_was_requested_is_refused(
    profile: ResourceProfile, assignment: CpuAssignment | None, expected: str
) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        DeviceLedger(made_up(2)).check(key("a"), profile, assignment)


def test_devices_without_capacity_are_not_given_out() -> None:
    host = made_up(1)
    shown = HostDevices(tuple(replace(each, capacity=()) for each in host.devices))
    with pytest.raises(ResourceExhausted):
        DeviceLedger(shown).check(key("a"), HALF, given_(gpu(0, 50)))


def function(name: str) -> CpuAssignment:
    return given_(DeviceShare("rdma", "mlx5_0", 0, (("rdma", 1),), (name,)))


def test_a_virtual_function_is_not_given_out_twice() -> None:
    nic = replace(made_up(0, nics=1).devices[0], functions=(VirtualFunction("vf0"),))
    ledger = DeviceLedger(HostDevices((nic,)))
    profile = ResourceProfile(1_000, devices=device_requests({"rdma": 1}))
    with pytest.raises(InvalidArgument, match="a virtual function of rdma0; it has vf0"):
        ledger.check(key("a"), profile, function("vf9"))
    ledger.check(key("a"), profile, function("vf0"))
    ledger.put(key("a"), [function("vf0")])
    ledger.check(key("a"), profile, function("vf0"))
    with pytest.raises(ResourceExhausted, match="vf0 of rdma0 belongs to another slot") as refused:
        ledger.check(key("b"), profile, function("vf0"))
    assert refused.value.reason is Reason.DEVICES_UNAVAILABLE
    ledger.remove(key("a"))
    ledger.check(key("b"), profile, function("vf0"))


def test_during_a_resize_the_larger_share_of_a_device_counts() -> None:
    ledger = DeviceLedger(made_up(1))
    ledger.put(key("a"), [given_(gpu(0, 70)), given_(gpu(0, 20))])
    assert ledger.used() == {("gpu", "GPU-0"): {"gpu-core": 70, "gpu-memory-ratio": 70}}
    with pytest.raises(ResourceExhausted):
        ledger.check(key("b"), HALF, given_(gpu(0, 50)))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(1, 100))))
def test_no_device_has_more_than_it_can_give(steps: list[tuple[int, int, int]]) -> None:
    ledger = DeviceLedger(made_up(2))
    for slot, minor, percent in steps:
        name = key(str(slot))
        if slot % 2:
            ledger.remove(name)
            continue
        profile = ResourceProfile(1_000, devices=device_requests({"gpu": percent}))
        try:
            ledger.check(name, profile, given_(gpu(minor, percent)))
        except FinegrainError:
            continue
        ledger.put(name, [given_(gpu(minor, percent))])
        assert all(amount <= 100 for used in ledger.used().values() for amount in used.values())
