"""Slots that get another share of their devices while they run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from finegrain.devices.device import HostDevices
from finegrain.devices.levels import KERNEL, VISIBLE_ONLY, WHOLE_DEVICE
from finegrain.devices.names import device_requests
from finegrain.devices.parking import SAME_GPU, without_gpus
from finegrain.errors import FailedPrecondition, InvalidArgument
from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import DeviceCordoned, DeviceUncordoned
from tests.support.devices import gpu_host, made_up, with_devices
from tests.support.engine_cluster import EngineCluster


def profile(cpu_milli: int = 1_000, **resources: int) -> ResourceProfile:
    named = {key.replace("__", ".").replace("_", "-"): each for key, each in resources.items()}
    return ResourceProfile(cpu_milli, 64 * MIB, devices=device_requests(named))


def submit(cluster: EngineCluster, name: str, **resources: int) -> None:
    cluster.submit(RequestSpec(name, profile(**resources)))


def resize(cluster: EngineCluster, name: str, **resources: int) -> None:
    cluster.resize(name, profile(**resources))
    cluster.settle()
    cluster.check()


def shares(cluster: EngineCluster, name: str) -> list[dict[str, int]]:
    return [dict(each.amounts) for each in cluster.assignment(name).devices]


def share(core: int, gib: int, ratio: int) -> dict[str, int]:
    return {"gpu-core": core, "gpu-memory": gib * GIB, "gpu-memory-ratio": ratio}


def why(cluster: EngineCluster, name: str) -> str:
    return explain(cluster.state, name).resizes[-1].summary


def test_a_slot_gets_another_share_of_the_gpu_that_it_has() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    submit(cluster, "train", gpu=50)
    gpu = cluster.assignment("train").devices[0].uuid
    for asked, expected in (
        ({"gpu": 30}, share(30, 24, 30)),
        ({"gpu": 100}, share(100, 80, 100)),
        ({"gpu_core": 20, "gpu_memory": 8 * GIB}, share(20, 8, 10)),
        ({"gpu_core": 50}, {"gpu-core": 50}),
    ):
        resize(cluster, "train", **asked)
        assert shares(cluster, "train") == [expected]
        assert cluster.assignment("train").devices[0].uuid == gpu
        assert cluster.slot("train").profile == profile(**asked)
    [executor] = cluster.executors.values()
    [slot] = executor.slots.values()
    assert slot.assignment == cluster.assignment("train")


def test_what_one_slot_gives_up_another_one_gets() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    submit(cluster, "train", gpu=70)
    submit(cluster, "serve", gpu=30)
    resize(cluster, "serve", gpu=60)
    assert shares(cluster, "serve") == [share(30, 24, 30)]
    assert why(cluster, "serve") == (
        "host-a: it needs 30 more gpu-core (free 0), 24Gi more gpu-memory (free 0),"
        " 30 more gpu-memory-ratio (free 0) of its gpu0"
    )
    resize(cluster, "train", gpu=40)
    assert shares(cluster, "serve") == [share(60, 48, 60)]
    assert shares(cluster, "train") == [share(40, 32, 40)]


def test_a_slot_grows_only_on_its_own_gpu() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    for name in ("one", "two"):
        submit(cluster, name, gpu=50)
    assert len({cluster.assignment(each).devices[0].uuid for each in ("one", "two")}) == 1
    resize(cluster, "one", gpu=60)
    assert cluster.slot("one").wanted is not None
    cluster.release("two")
    cluster.settle()
    assert shares(cluster, "one") == [share(60, 48, 60)]


def test_until_the_executor_confirms_both_shares_are_booked() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    submit(cluster, "train", gpu=80)
    cluster.auto_settle = False
    cluster.resize("train", profile(gpu=20))
    submit(cluster, "serve", gpu=50)
    assert cluster.waiting() == {"serve"}
    cluster.settle()
    assert cluster.waiting() == set()
    cluster.restart()
    cluster.settle()
    assert shares(cluster, "train") == [share(20, 16, 20)]


def test_each_gpu_of_a_slot_has_its_own_bytes() -> None:
    """The second GPU has less memory."""
    host = made_up(2)
    smaller = (("gpu-core", 100), ("gpu-memory", 40 * GIB), ("gpu-memory-ratio", 100))
    host = replace(host, devices=(host.devices[0], replace(host.devices[1], capacity=smaller)))
    cluster = EngineCluster.settled(with_devices(gpu_host(gpus=2, nodes=1), host))
    submit(cluster, "train", gpu__shared=2, gpu_memory_ratio=100)
    resize(cluster, "train", gpu__shared=2, gpu_memory_ratio=40, gpu_core=20)
    assert shares(cluster, "train") == [share(10, 16, 20), share(10, 8, 20)]


def test_a_share_of_a_nic_changes_as_well() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1, nodes=1, nics=1))
    submit(cluster, "train", gpu=50, rdma=10)
    resize(cluster, "train", gpu=50, rdma=40)
    assert shares(cluster, "train") == [share(50, 40, 50), {"rdma": 40}]


def test_a_device_without_new_work_lets_slots_shrink_but_not_grow() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    submit(cluster, "train", gpu=50)
    cluster.apply(DeviceCordoned(cluster.at, "host-a", "gpu0", "XID 79"))
    resize(cluster, "train", gpu=40)
    assert shares(cluster, "train") == [share(40, 32, 40)]
    resize(cluster, "train", gpu=60)
    assert why(cluster, "train") == "host-a: its GPU gpu0 gets no new slots (cordoned: XID 79)"
    cluster.apply(DeviceUncordoned(cluster.at, "host-a", "gpu0"))
    cluster.settle()
    assert shares(cluster, "train") == [share(60, 48, 60)]


def test_a_group_at_its_limit_keeps_a_slot_from_growing() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    cluster.set_group("default", maximum={"device.gpu-core": 100})
    submit(cluster, "train", gpu=50)
    submit(cluster, "serve", gpu=50)
    resize(cluster, "train", gpu=80)
    assert shares(cluster, "train") == [share(50, 40, 50)]
    cluster.release("serve")
    cluster.settle()
    assert shares(cluster, "train") == [share(80, 64, 80)]


def test_a_slot_can_have_another_share_after_it_was_parked() -> None:
    host = made_up(1)
    host = replace(host, devices=tuple(replace(e, parking=SAME_GPU) for e in host.devices))
    cluster = EngineCluster.settled(with_devices(gpu_host(gpus=1, nodes=1), host))
    submit(cluster, "train", gpu=80)
    resize(cluster, "train", gpu=60)
    size = cluster.slot("train").profile
    cluster.resize("train", replace(size, devices=without_gpus(size.devices)), park=True)
    cluster.settle()
    assert cluster.slot("train").is_parked
    submit(cluster, "serve", gpu=60)
    resize(cluster, "train", gpu=60)
    assert cluster.slot("train").is_parked
    resize(cluster, "train", gpu=40)
    assert shares(cluster, "train") == [share(40, 32, 40)]


def levelled(**levels: str) -> HostDevices:
    host = made_up(1)
    return replace(
        host, devices=tuple(replace(e, levels=tuple(levels.items())) for e in host.devices)
    )


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"gpu": 200}, "other amounts of the same devices"),
        ({"gpu": 50, "rdma": 10}, "other amounts of the same devices"),
        ({}, "other amounts of the same devices"),
    ],
)
def test_other_devices_are_refused(asked: dict[str, Any], match: str) -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2, nics=1))
    submit(cluster, "train", gpu=100)
    with pytest.raises(InvalidArgument, match=match):
        resize(cluster, "train", **asked)
    cluster.check()


def test_more_than_a_gpu_has_is_refused_at_once() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    submit(cluster, "train", gpu=50)
    with pytest.raises(FailedPrecondition, match=r"even without other slots.*of its gpu0"):
        resize(cluster, "train", gpu_core=50, gpu_memory=100 * GIB)
    cluster.check()


def test_a_level_that_the_slot_requires_must_hold_for_the_new_share() -> None:
    """Whole GPUs are enforced by the kernel there, and shares are not."""
    host = levelled(**{"gpu-core": VISIBLE_ONLY, WHOLE_DEVICE: KERNEL})
    cluster = EngineCluster.settled(with_devices(gpu_host(gpus=1, nodes=1), host))
    required = replace(device_requests({"gpu": 100})[0], isolation=(("gpu-core", KERNEL),))
    whole = ResourceProfile(1_000, 64 * MIB, devices=(required,))
    cluster.submit(RequestSpec("train", whole))
    half = replace(required, amounts=(("gpu-core", 50), ("gpu-memory-ratio", 50)))
    with pytest.raises(InvalidArgument, match="would be enforced by visible-only"):
        cluster.resize("train", replace(whole, devices=(half,)))
    cluster.check()
