"""Requests that require a level of enforcement get only hosts and devices that have it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain.devices.device import HostDevices
from finegrain.devices.levels import check_required, is_at_least, weakest
from finegrain.devices.names import device_requests
from finegrain.errors import InvalidArgument
from finegrain.resources import MIB, ResourceProfile
from finegrain.rpc.wire import profile_from_proto, profile_to_proto
from finegrain.values.isolation import Isolation
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import RequestSpec
from tests.support.devices import made_up, with_devices
from tests.support.engine_cluster import EngineCluster, FakeExecutor, numa_host

ENFORCING = Isolation(cpu="quota", memory="hard")


def levels_of(host: HostDevices, *levels: dict[str, str]) -> HostDevices:
    """Returns the devices of a host with these levels, in order."""
    return replace(
        host,
        devices=tuple(
            replace(device, levels=tuple(sorted(level.items())))
            for device, level in zip(host.devices, levels, strict=True)
        ),
    )


def gpus(name: str, *levels: dict[str, str]) -> FakeExecutor:
    return with_devices(numa_host(name), levels_of(made_up(len(levels)), *levels))


def request(name: str, share: int, **required: str) -> RequestSpec:
    levels = tuple(sorted((each.replace("_", "-"), level) for each, level in required.items()))
    [gpu] = device_requests({"gpu": share})
    profile = ResourceProfile(100, 64 * MIB, devices=(replace(gpu, isolation=levels),))
    return RequestSpec(name, profile)


def test_a_share_goes_to_a_gpu_that_enforces_it() -> None:
    cluster = EngineCluster.settled(
        gpus("host-a", {"gpu-memory": "visible-only"}, {"gpu-memory": "mps"}),
    )
    cluster.submit(request("strict", 50, gpu_memory="watch"), request("any", 50))
    assert [each.minor for each in cluster.assignment("strict").devices] == [1]
    # No level is required, so the rest of the used GPU is as good as before.
    assert [each.minor for each in cluster.assignment("any").devices] == [1]


def test_a_whole_gpu_may_be_enforced_better_than_a_share() -> None:
    level = {"gpu-core": "visible-only", "gpu-memory": "visible-only", "whole": "kernel"}
    cluster = EngineCluster.settled(gpus("host-a", level))
    strict = {"gpu_core": "kernel", "gpu_memory": "kernel"}
    [outcome] = cluster.submit(request("share", 50, **strict))
    assert outcome.reason
    assert "others have gpu-core: visible-only, gpu-memory: visible-only" in outcome.message
    cluster.submit(request("whole", 100, **strict))
    assert [each.minor for each in cluster.assignment("whole").devices] == [0]


def test_what_no_host_has_is_refused_with_what_the_hosts_have() -> None:
    cluster = EngineCluster.settled(gpus("host-a", {"gpu-memory": "watch"}))
    wanted = replace(request("strict", 50, gpu_memory="kernel"), allow_pending=True)
    cluster.submit(wanted)
    explained = explain(cluster.state, "strict")
    assert "others have gpu-memory: watch" in explained.executors[0].message
    assert "fits now on host-a without the required level of enforcement of gpu-memory" in [
        each.message for each in explained.would_fit_if
    ]


def test_limits_of_cpu_and_memory_need_a_host_whose_kernel_has_them() -> None:
    cluster = EngineCluster.settled(
        numa_host("host-a", isolation=Isolation(cpu="quota", memory="none")),
        numa_host("host-b", isolation=ENFORCING),
    )
    strict = ResourceProfile(1_000, 64 * MIB, isolation=(("cpu", "kernel"), ("memory", "kernel")))
    cluster.submit(RequestSpec("strict", strict), RequestSpec("any", replace(strict, isolation=())))
    slots = {slot.allocation_id: slot.executor_id for slot in cluster.state.slots.values()}
    assert slots["strict"] == "host-b"


def test_levels_are_ordered() -> None:
    assert is_at_least("kernel", "mps")
    assert not is_at_least("watch", "mps")
    assert is_at_least("visible-only", "none")
    assert not is_at_least("a level of a newer version", "visible-only")
    assert weakest(["mps", "watch", "kernel"]) == "watch"
    assert weakest([]) == ""


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        ({"gpu-memory": "hard"}, "none, visible-only, watch, mps, kernel"),
        ({"memory": "watch"}, "none, kernel"),
        ({"rdma": "kernel"}, "cpu, memory, gpu-core, gpu-memory"),
    ],
)
def test_levels_that_mean_nothing_are_refused(required: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        check_required(required, ["gpu"], "--require-isolation")


def test_required_levels_travel() -> None:
    [gpu] = device_requests({"gpu": 50})
    profile = ResourceProfile(
        1_000,
        64 * MIB,
        devices=(replace(gpu, isolation=(("gpu-memory", "mps"),)),),
        isolation=(("memory", "kernel"),),
    )
    assert profile_from_proto(profile_to_proto(profile), "profile") == profile
    assert ResourceProfile.from_dict(profile.to_dict()) == profile
