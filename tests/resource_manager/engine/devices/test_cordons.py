"""Devices that administrators cordon, and devices that vanish and return."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain.devices.device import HostDevices
from finegrain.devices.names import device_requests
from finegrain.errors import NotFound
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain.devices import list_devices
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import DeviceCordoned, DeviceUncordoned, ResizeRequested
from tests.support.devices import gpu_host, made_up, with_devices
from tests.support.engine_cluster import EngineCluster


def request(name: str, **resources: int) -> RequestSpec:
    named = {key.replace("_", "-"): amount for key, amount in resources.items()}
    profile = ResourceProfile(1_000, 64 * MIB, devices=device_requests(named))
    return RequestSpec(name, profile)


def gpus_of(cluster: EngineCluster, name: str) -> list[str]:
    return [each.uuid for each in cluster.assignment(name).devices]


def cordon(cluster: EngineCluster, device: str, reason: str = "XID 79") -> None:
    cluster.apply(DeviceCordoned(cluster.at, "host-a", device, reason))


def uncordon(cluster: EngineCluster, device: str) -> None:
    cluster.apply(DeviceUncordoned(cluster.at, "host-a", device))


def returning(cluster: EngineCluster, host: HostDevices) -> None:
    """Registers the host again with these devices."""
    cluster.register(with_devices(cluster.executors["host-a"], host))
    cluster.settle()
    cluster.check()


def test_a_cordoned_device_gets_no_new_work_and_keeps_its_slots() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    cluster.submit(request("first", gpu=50))
    assert gpus_of(cluster, "first") == ["GPU-0"]
    cordon(cluster, "gpu0")
    cluster.submit(request("second", gpu=50), request("third", gpu=50))
    assert gpus_of(cluster, "second") == gpus_of(cluster, "third") == ["GPU-1"]
    assert cluster.is_granted("first")
    cluster.submit(request("waits", gpu=50))
    message = explain(cluster.state, "waits").executors[0].message
    assert "gpu0: cordoned: XID 79" in message or "gpu1 is nearest" in message
    uncordon(cluster, "gpu0")
    assert gpus_of(cluster, "waits") == ["GPU-0"]


def test_a_request_is_not_refused_because_its_only_device_is_cordoned() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    cordon(cluster, "GPU-0", "")
    cluster.submit(request("waits", gpu=100))
    message = explain(cluster.state, "waits").executors[0].message
    assert "gpu0: cordoned: no reason given" in message
    uncordon(cluster, "GPU-0")
    assert cluster.is_granted("waits")


def test_a_cordon_survives_restarts_and_another_minor_number() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    cordon(cluster, "gpu1")
    cluster.restart()
    first, second = made_up(2, nodes=2).devices
    # The same devices, numbered the other way round.
    returning(cluster, HostDevices((replace(first, minor=1), replace(second, minor=0))))
    cluster.submit(request("one", gpu=100), request("two", gpu=100))
    assert gpus_of(cluster, "one") == ["GPU-0"]
    assert cluster.waiting() == {"two"}
    [shown] = list_devices(cluster.state, limit=10).items
    assert [(each.device.name, each.cordoned) for each in shown.devices] == [
        ("gpu0", True),
        ("gpu1", False),
    ]
    uncordon(cluster, "gpu0")
    assert gpus_of(cluster, "two") == ["GPU-1"]


def test_a_device_that_vanishes_keeps_its_bookings_until_it_returns() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    cluster.submit(request("half", gpu=50), request("whole", gpu=100))
    first, second = made_up(2, nodes=2).devices
    returning(cluster, HostDevices((second,)))
    cluster.submit(request("more", gpu=50))
    assert cluster.waiting() == {"more"}
    # In another slot of the bus, under another minor number.
    returning(cluster, HostDevices((replace(first, minor=5, pci_address="0000:99:00.0"), second)))
    assert gpus_of(cluster, "more") == ["GPU-0"]
    cluster.submit(request("none", gpu=50))
    assert cluster.waiting() == {"none"}


def test_a_device_that_vanished_does_not_count_against_those_that_are_left() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=3, nodes=1))
    cluster.submit(request("pair", gpu=200))
    first, _, third = made_up(3).devices
    assert gpus_of(cluster, "pair") == ["GPU-0", "GPU-1"]
    # Of the pair, GPU 1 is gone; GPU 2 is free.
    returning(cluster, HostDevices((first, third)))
    cluster.submit(request("whole", gpu=100))
    assert gpus_of(cluster, "whole") == ["GPU-2"]
    cluster.submit(request("more", gpu=50))
    assert cluster.waiting() == {"more"}
    cluster.restart()
    cluster.check()
    returning(cluster, made_up(3))
    cluster.check()
    assert cluster.waiting() == {"more"}
    cluster.release("pair")
    assert cluster.is_granted("more")


def test_a_device_that_became_smaller_is_tolerated_until_its_slots_end() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1, nodes=1))
    cluster.submit(request("all", gpu_memory=80 << 30))
    returning(cluster, made_up(1, memory_bytes=40 << 30))
    cluster.release("all")
    cluster.check()
    cluster.submit(request("half", gpu_memory=40 << 30))
    assert cluster.is_granted("half")


def resize(cluster: EngineCluster, name: str, **resources: int) -> None:
    profile = request(name, **resources).profile
    assert profile is not None
    profile = replace(profile, cpu_milli=500)
    cluster.apply(ResizeRequested(cluster.at, None, name, 0, 0, profile, 0, wait_for_use=False))
    cluster.settle()
    cluster.check()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"gpu_memory_ratio": 50}, {"gpu_core": 100}),
        ({"gpu_core": 50}, {"gpu_memory_ratio": 100}),
        ({"gpu_core": 50}, {"gpu_core": 50, "gpu_memory_ratio": 100}),
    ],
)
def test_a_dimension_that_others_left_free_is_found(
    first: dict[str, int], second: dict[str, int]
) -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1, nodes=1))
    cluster.submit(request("first", **first), request("second", **second))
    assert cluster.is_granted("second")
    cluster.submit(request("third", gpu=100))
    assert cluster.waiting() == {"third"}


def test_what_is_not_there_cannot_be_cordoned() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    with pytest.raises(NotFound, match="no device gpu7; it has gpu0"):
        cordon(cluster, "gpu7")
    with pytest.raises(NotFound):
        cluster.apply(DeviceCordoned(cluster.at, "elsewhere", "gpu0", ""))
    uncordon(cluster, "gpu0")  # it is not cordoned, so nothing happens
    assert cluster.history("device_uncordoned") == []


def test_a_cordon_of_a_device_that_is_gone_can_be_taken_back() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    cordon(cluster, "gpu1")
    returning(cluster, made_up(1, nodes=2))
    uncordon(cluster, "GPU-1")
    returning(cluster, made_up(2, nodes=2))
    cluster.submit(request("both", gpu=200))
    assert cluster.is_granted("both")
