"""The meaning of requests for devices, from the request to the slot (docs/clauses/devices.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain.devices.device import RDMA, HostDevices
from finegrain.devices.names import device_requests
from finegrain.resources import GIB, MIB, ResourceProfile, total_of_devices
from finegrain.values.states import GangPlacement
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from resource_manager.engine.model.events import DeviceCordoned
from resource_manager.engine.placement.index import CapacityIndex
from tests.support.devices import gpu_host, made_up, with_devices
from tests.support.engine_cluster import EngineCluster


def request(name: str, gang_id: str = "", /, **more: int) -> RequestSpec:
    named = {
        key.replace("_", "-").replace("nvidia", "nvidia.com/gpu"): n for key, n in more.items()
    }
    profile = ResourceProfile(100, 64 * MIB, devices=device_requests(named))
    return RequestSpec(name, profile, allow_pending=True, gang_id=gang_id)


def given(cluster: EngineCluster, name: str) -> list[tuple[int, dict[str, int]]]:
    return [(each.minor, dict(each.amounts)) for each in cluster.assignment(name).devices]


def amounts(core: int, gib: int, ratio: int) -> dict[str, int]:
    all_ = {"gpu-core": core, "gpu-memory": gib * GIB, "gpu-memory-ratio": ratio}
    return {name: amount for name, amount in all_.items() if amount}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"nvidia": 2}, [amounts(100, 8, 100)] * 2),
        ({"gpu": 200}, [amounts(100, 8, 100)] * 2),
        ({"gpu": 50}, [amounts(50, 4, 50)]),
        ({"gpu_core": 50, "gpu_memory_ratio": 50}, [amounts(50, 4, 50)]),
        ({"gpu_core": 50, "gpu_memory_ratio": 75}, [amounts(50, 6, 75)]),
        ({"gpu_core": 60, "gpu_memory": 4 * GIB}, [amounts(60, 4, 50)]),
        ({"rdma": 100}, [{"rdma": 100}]),
    ],
)
def test_a_request_becomes_amounts_of_single_devices(
    asked: dict[str, int], expected: list[dict[str, int]]
) -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=4, memory_bytes=8 * GIB, nics=1))
    cluster.submit(request("one", **asked))
    assert [its for _, its in given(cluster, "one")] == expected


def test_a_host_offers_the_sums_of_its_gpus() -> None:
    assert total_of_devices(made_up(4, memory_bytes=8 * GIB).devices) == {
        "device.gpu-core": 400,
        "device.gpu-memory": 32 * GIB,
        "device.gpu-memory-ratio": 400,
    }


def test_what_is_left_counts_by_device_and_not_by_sum() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    cluster.submit(request("one", gpu=60), request("two", gpu=60))
    cluster.submit(request("waits", gpu=50))
    assert [at for name in ("one", "two") for at, _ in given(cluster, name)] == [0, 1]
    assert cluster.waiting() == {"waits"}
    message = explain(cluster.state, "waits").executors[0].message
    assert "short by 10 gpu-core (free 40, total 100)" in message


@pytest.mark.parametrize("placement", [GangPlacement.SAME_EXECUTOR, GangPlacement.ANYWHERE])
@pytest.mark.parametrize("sizes", [(60, 40, 70, 30), (30, 40, 60, 70), (50, 50, 50, 50)])
def test_a_gang_over_parts_of_devices_fits_if_there_is_a_way(
    sizes: tuple[int, ...], placement: GangPlacement
) -> None:
    """Kubernetes #138765: such a gang was never placed."""
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    gang = [request(f"g{at}", "gang", gpu=size) for at, size in enumerate(sizes)]
    cluster.submit(*gang, GangSpec("gang", placement))
    used: dict[int, int] = {}
    for at in range(len(sizes)):
        [(minor, its)] = given(cluster, f"g{at}")
        used[minor] = used.get(minor, 0) + its["gpu-core"]
    assert used == {0: 100, 1: 100}


def test_a_rack_has_room_for_as_many_shares_as_its_gpus_have_together() -> None:
    """Three shares of 60 need three GPUs; each GPU has room for one of them."""
    cluster = EngineCluster.settled(
        *(
            gpu_host(name, gpus, labels=(("rack", "r1"),))
            for name, gpus in (("host-a", 1), ("host-b", 4))
        )
    )
    gang = [request(f"g{at}", "gang", gpu=60) for at in range(3)]
    cluster.submit(*gang, GangSpec("gang", GangPlacement.SAME_LABEL, "rack"))
    assert all(cluster.is_granted(f"g{at}") for at in range(3))


def test_a_gang_gets_the_best_gpus_of_one_host_together() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=8, in_pairs=True))
    members = [request(f"m{at}", "gang", gpu=200) for at in range(4)]
    cluster.submit(*members, GangSpec("gang", GangPlacement.SAME_EXECUTOR))
    pairs = [tuple(minor for minor, _ in given(cluster, f"m{at}")) for at in range(4)]
    assert sorted(pairs) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_many_equal_slots_of_one_decision_share_no_device() -> None:
    """Kubernetes #136269: a device was allocated twice when many pods were scheduled at once."""
    cluster = EngineCluster.settled(gpu_host("host-a", 8), gpu_host("host-b", 8))
    cluster.submit(*(request(f"slot-{at}", gpu=100) for at in range(20)))
    granted = [f"slot-{at}" for at in range(20) if cluster.is_granted(f"slot-{at}")]
    devices = [
        (cluster.where(name), minor) for name in granted for minor, _ in given(cluster, name)
    ]
    assert len(devices) == len(set(devices)) == 16
    cluster.restart()
    cluster.release(granted[0])
    assert len([name for name in cluster.waiting() if name]) == 3


def test_bytes_are_never_given_out_beyond_what_a_gpu_has() -> None:
    """KAI-Scheduler #416: fractions of bytes were over-committed."""
    odd = 80 * GIB - 1
    cluster = EngineCluster.settled(gpu_host(gpus=1, memory_bytes=odd))
    cluster.submit(*(request(f"r{at}", gpu_memory_ratio=33) for at in range(3)))
    cluster.submit(request("rest", gpu_memory=odd // 100))
    cluster.submit(request("more", gpu_memory=2 * GIB))
    used = cluster.cpu_ledger().devices.used["gpu", "GPU-0"]
    assert used["gpu-memory"] <= odd
    assert cluster.waiting() == {"more"}


def test_the_account_is_rebuilt_at_a_start() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=4, nics=2))
    cluster.submit(request("one", gpu=50), request("two", gpu=200, rdma=100))
    before = cluster.cpu_ledger().devices.used
    cluster.restart()
    assert cluster.cpu_ledger().devices.used == before
    cluster.check()


def test_an_unhealthy_device_gets_no_new_work_until_it_is_healthy() -> None:
    """The health changes again and again: slots on the device stay, and each report counts."""
    healthy = made_up(1, nodes=1)
    broken = HostDevices((replace(healthy.devices[0], problem="XID 79"),))
    cluster = EngineCluster.settled(gpu_host(gpus=1, nodes=1))
    cluster.submit(request("one", gpu=30))
    for at in range(3):
        cluster.register(with_devices(cluster.executors["host-a"], broken))
        cluster.settle()
        cluster.submit(request(f"more-{at}", gpu=20))
        assert cluster.waiting() == {f"more-{at}"}
        assert cluster.is_granted("one")
        cluster.register(with_devices(cluster.executors["host-a"], healthy))
        cluster.settle()
        assert cluster.is_granted(f"more-{at}")
        cluster.check()


def test_an_executor_that_gives_out_no_devices_gets_no_slots_with_devices() -> None:
    """As executors of earlier versions do: they report GPUs, but cannot give them to slots."""
    only_reported = tuple(replace(each, capacity=()) for each in made_up(2).devices)
    older = with_devices(gpu_host("older", gpus=2), HostDevices(only_reported))
    cluster = EngineCluster.settled(older)
    cluster.submit(request("one", gpu=50))
    assert cluster.waiting() == {"one"}
    cluster.register(gpu_host("newer", gpus=2))
    cluster.settle()
    assert cluster.where("one") == "newer"


@pytest.mark.parametrize("type_", ["tpu", "example.com/tpu"])
def test_a_type_that_no_code_knows_is_given_out_like_others(type_: str) -> None:
    device = replace(
        made_up(0, nics=1).devices[0], type=type_, uuid="TPU-0", capacity=((type_, 100),)
    )
    executor = with_devices(gpu_host(gpus=1), HostDevices((device,)))
    cluster = EngineCluster.settled(executor)
    cluster.submit(request("half", **{type_: 50}))
    cluster.submit(request("whole", **{type_: 100}))
    assert given(cluster, "half") == [(0, {type_: 50})]
    assert cluster.waiting() == {"whole"}
    cluster.release("half")
    assert given(cluster, "whole") == [(0, {type_: 100})]


def test_an_extended_resource_may_have_a_domain() -> None:
    name = "example.com/queue"
    host = gpu_host(gpus=1)
    host.total = {**host.total, f"extended.{name}": 4}
    cluster = EngineCluster.settled(host)

    def queues(allocation_id: str, count: int) -> RequestSpec:
        profile = ResourceProfile(100, 64 * MIB, extended=((name, count),))
        return RequestSpec(allocation_id, profile, allow_pending=True)

    cluster.submit(queues("three", 3))
    cluster.submit(queues("two", 2))
    assert cluster.waiting() == {"two"}
    cluster.release("three")
    assert cluster.is_granted("two")
    cluster.submit(*(queues(f"more-{at}", 1) for at in range(3)))
    assert len(cluster.waiting()) == 1
    cluster.check()


def test_more_of_a_resource_with_a_domain_wakes_those_who_wait_for_it() -> None:
    """Earlier, the index took such names for columns of empty hosts, which do not wake any
    request.
    """
    name = "extended.example.com/queue"
    columns = CapacityIndex()
    columns.put("host-a", {"cpu_milli": 1, name: 0, f"known/{name}": 4})
    columns.freshen()
    assert columns.put("host-a", {"cpu_milli": 1, name: 1, f"known/{name}": 4})
    assert not columns.put("host-a", {"cpu_milli": 1, name: 1, f"known/{name}": 5})


def test_gpus_come_from_where_the_nics_are_that_must_be_near_to_them() -> None:
    """By minor, GPU 0 comes first; its PCIe group has no NIC, or its NIC is taken."""
    near = tuple(
        replace(each, near="gpu", near_required=True, per_group=True) if each.type == RDMA else each
        for each in device_requests({"gpu": 100, "rdma": 100})
    )
    cluster = EngineCluster.settled(with_devices(gpu_host(gpus=4), made_up(4, nics=2)))
    cluster.apply(DeviceCordoned(cluster.at, "host-a", "mlx5_0", "its port is down"))
    cluster.submit(RequestSpec("train", ResourceProfile(1_000, 64 * MIB, devices=near)))
    assert [each.uuid for each in cluster.assignment("train").devices] == ["GPU-2", "mlx5_1"]
    # No NIC is left: the refusal says so.
    cluster.submit(RequestSpec("second", ResourceProfile(1_000, 64 * MIB, devices=near)))
    [verdict] = explain(cluster.state, "second").executors
    assert "needs 1 rdma" in verdict.message
    cluster.check()
