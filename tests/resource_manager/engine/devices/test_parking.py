"""Slots that give up their GPUs while their processes stay, and get GPUs again."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from finegrain.devices.device import HostDevices
from finegrain.devices.names import device_requests
from finegrain.devices.parking import ANY_GPU, SAME_GPU, without_gpus
from finegrain.errors import FailedPrecondition, InvalidArgument
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import DeviceCordoned, DeviceUncordoned
from tests.support.devices import gpu_host, made_up, with_devices
from tests.support.engine_cluster import EngineCluster, FakeExecutor


def profile(cpu_milli: int = 1_000, **resources: int) -> ResourceProfile:
    named = {key.replace("_", "-"): amount for key, amount in resources.items()}
    return ResourceProfile(cpu_milli, 64 * MIB, devices=device_requests(named))


def parkable(gpus: int = 2, mode: str = SAME_GPU, **more: Any) -> FakeExecutor:
    return with_devices(gpu_host(gpus=gpus, nodes=1), devices(gpus, mode, **more))


def devices(gpus: int, mode: str = SAME_GPU, **more: Any) -> HostDevices:
    host = made_up(gpus, **more)
    return replace(host, devices=tuple(replace(each, parking=mode) for each in host.devices))


def submit(cluster: EngineCluster, name: str, **resources: int) -> None:
    cluster.submit(RequestSpec(name, profile(**resources)))


def park(cluster: EngineCluster, name: str) -> None:
    size = cluster.slot(name).profile
    cluster.resize(name, replace(size, devices=without_gpus(size.devices)), job=None, park=True)
    cluster.settle()
    cluster.check()


def unpark(cluster: EngineCluster, name: str) -> None:
    original = cluster.state.requests[name].spec.profile
    assert original is not None
    size = cluster.slot(name).profile
    cluster.resize(name, replace(size, devices=original.devices), job=None)
    cluster.settle()
    cluster.check()


def gpus_of(cluster: EngineCluster, name: str) -> list[str]:
    return [each.uuid for each in cluster.assignment(name).devices]


def why(cluster: EngineCluster, name: str) -> str:
    return explain(cluster.state, name).resizes[-1].summary


def test_others_have_the_gpus_of_a_parked_slot_until_it_gets_them_again() -> None:
    cluster = EngineCluster.settled(parkable(gpus=1))
    submit(cluster, "train", gpu=100)
    submit(cluster, "serve", gpu=50)
    assert cluster.waiting() == {"serve"}
    park(cluster, "train")
    assert cluster.slot("train").is_parked
    assert gpus_of(cluster, "train") == []
    assert gpus_of(cluster, "serve") == ["GPU-0"]
    # The slot waits for the GPU that it had, and `explain` says so.
    unpark(cluster, "train")
    assert cluster.slot("train").is_parked
    assert why(cluster, "train") == "host-a: other slots have its former share of gpu0"
    cluster.release("serve")
    cluster.settle()
    assert gpus_of(cluster, "train") == ["GPU-0"]
    assert not cluster.slot("train").is_parked
    assert cluster.slot("train").profile == profile(gpu=100)
    assert cluster.history("slot_parked") == ["gave up host-a/gpu0"]
    assert cluster.history("slot_unparked") == ["has host-a/gpu0"]


def test_a_parked_slot_gets_another_gpu_only_where_its_host_allows_it() -> None:
    for mode, expected in ((SAME_GPU, []), (ANY_GPU, ["GPU-1"])):
        cluster = EngineCluster.settled(parkable(gpus=2, mode=mode))
        submit(cluster, "train", gpu=100)
        park(cluster, "train")
        submit(cluster, "serve", gpu=50)
        assert gpus_of(cluster, "serve") == ["GPU-0"]
        unpark(cluster, "train")
        assert gpus_of(cluster, "train") == expected
        if not expected:
            assert why(cluster, "train") == "host-a: other slots have its former share of gpu0"


def test_another_model_is_not_of_its_kind() -> None:
    host = devices(2, ANY_GPU)
    other = replace(host.devices[1], model="A100")
    executor = with_devices(
        gpu_host(gpus=2, nodes=1), replace(host, devices=(host.devices[0], other))
    )
    cluster = EngineCluster.settled(executor)
    submit(cluster, "train", gpu=100)
    park(cluster, "train")
    submit(cluster, "serve", gpu=100)
    assert gpus_of(cluster, "train") == []
    unpark(cluster, "train")
    assert cluster.slot("train").is_parked


def test_a_gpu_without_new_work_keeps_a_slot_parked() -> None:
    cluster = EngineCluster.settled(parkable(gpus=1))
    submit(cluster, "train", gpu=50)
    park(cluster, "train")
    cluster.apply(DeviceCordoned(cluster.at, "host-a", "gpu0", "XID 79"))
    unpark(cluster, "train")
    assert "its GPU gpu0 gets no new slots (cordoned: XID 79)" in why(cluster, "train")
    cluster.apply(DeviceUncordoned(cluster.at, "host-a", "gpu0"))
    cluster.settle()
    assert gpus_of(cluster, "train") == ["GPU-0"]


def test_a_slot_with_a_nic_near_its_gpus_keeps_the_nic() -> None:
    cluster = EngineCluster.settled(parkable(gpus=2, nics=1))
    near = ResourceProfile(
        1_000,
        64 * MIB,
        devices=tuple(
            replace(each, near="gpu") if each.type == "rdma" else each
            for each in device_requests({"gpu": 100, "rdma": 100})
        ),
    )
    cluster.submit(RequestSpec("train", near))
    before = gpus_of(cluster, "train")
    assert before == ["GPU-0", "mlx5_0"]
    park(cluster, "train")
    assert gpus_of(cluster, "train") == ["mlx5_0"]
    unpark(cluster, "train")
    assert gpus_of(cluster, "train") == before
    assert cluster.slot("train").profile == near


def test_while_the_executor_works_on_it_nothing_is_promised_twice() -> None:
    cluster = EngineCluster.settled(parkable(gpus=1))
    executor = cluster.executors["host-a"]
    submit(cluster, "train", gpu=100)
    submit(cluster, "serve", gpu=100)
    executor.moving = "IN_PROGRESS"
    park(cluster, "train")
    assert why(cluster, "train") == "host-a is carrying it out (process 7 still uses the GPU)"
    assert cluster.waiting() == {"serve"}
    # The resource manager repeats the order, also after restarts of the resource manager and the
    # executor.
    cluster.wait(5_000)
    cluster.settle()
    cluster.restart()
    cluster.settle()
    cluster.register_all()
    cluster.settle()
    cluster.check()
    assert cluster.waiting() == {"serve"}
    executor.moving = ""
    cluster.wait(5_000)
    cluster.settle()
    assert cluster.slot("train").is_parked
    assert gpus_of(cluster, "serve") == ["GPU-0"]


def test_a_gpu_may_vanish_after_a_slot_has_left_it() -> None:
    """The executor starts again before it has reported the parked slot, and finds one GPU less."""
    host = devices(2)
    cluster = EngineCluster.settled(with_devices(gpu_host(gpus=2, nodes=1), host))
    executor = cluster.executors["host-a"]
    submit(cluster, "train", gpu=100)
    executor.moving = "IN_PROGRESS"
    park(cluster, "train")
    ordered = cluster.slot("train").ordered
    assert ordered is not None
    [(key, slot)] = executor.slots.items()
    executor.slots[key] = replace(
        slot,
        profile=ordered.profile,
        resize_number=ordered.number,
        assignment=ordered.assignment,
    )
    with_devices(executor, replace(host, devices=host.devices[1:]))
    cluster.register(executor)
    cluster.settle()
    cluster.check()
    assert cluster.slot("train").is_parked
    executor.moving = ""
    unpark(cluster, "train")
    assert why(cluster, "train") == "host-a: its GPU GPU-0 is no longer announced"
    with_devices(executor, host)
    cluster.register(executor)
    cluster.settle()
    cluster.check()
    assert gpus_of(cluster, "train") == ["GPU-0"]


def test_a_slot_that_is_released_while_it_parks_is_asked_about_no_more() -> None:
    cluster = EngineCluster.settled(parkable(gpus=1))
    executor = cluster.executors["host-a"]
    submit(cluster, "train", gpu=100)
    executor.moving, executor.frees_slowly = "IN_PROGRESS", True
    size = cluster.slot("train").profile
    cluster.auto_settle = False  # the release comes while the order is on its way
    cluster.resize("train", replace(size, devices=()), job=None, park=True)
    cluster.release("train")
    cluster.settle()
    assert cluster.state.hosts["host-a"].resize_backoffs == {}
    executor.finish_frees()
    cluster.report(executor)
    cluster.settle()
    cluster.check()


def test_parking_that_fails_is_refused_and_unparking_that_fails_is_tried_again() -> None:
    cluster = EngineCluster.settled(parkable(gpus=1))
    executor = cluster.executors["host-a"]
    submit(cluster, "train", gpu=100)
    executor.moving = "PARK_FAILED"
    park(cluster, "train")
    assert not cluster.slot("train").is_parked
    assert cluster.slot("train").ordered is None
    [refused] = cluster.history("slot_resize_refused")
    assert "process 7 still uses the GPU" in refused
    executor.moving = ""
    park(cluster, "train")
    assert cluster.slot("train").is_parked
    executor.moving = "PARK_FAILED"
    unpark(cluster, "train")
    assert cluster.slot("train").is_parked
    assert "is tried again later" in why(cluster, "train")
    executor.moving = ""
    cluster.wait(60_000)
    cluster.settle()
    assert gpus_of(cluster, "train") == ["GPU-0"]


def test_an_unpark_that_waits_can_be_withdrawn() -> None:
    cluster = EngineCluster.settled(parkable(gpus=1))
    submit(cluster, "train", gpu=100)
    park(cluster, "train")
    submit(cluster, "serve", gpu=100)
    unpark(cluster, "train")
    cluster.resize("train", cluster.slot("train").profile)  # what it has now
    cluster.settle()
    cluster.release("serve")
    cluster.settle()
    cluster.check()
    assert cluster.slot("train").is_parked
    assert cluster.slot("train").wanted is None


def test_a_parked_slot_can_be_resized_and_a_request_that_is_placed_again_has_its_gpu() -> None:
    cluster = EngineCluster.settled(parkable(gpus=1), parkable_on("host-b"))
    submit(cluster, "train", gpu=100)
    where = cluster.where("train")
    park(cluster, "train")
    cluster.resize("train", replace(cluster.slot("train").profile, cpu_milli=500))
    cluster.settle()
    assert cluster.slot("train").is_parked
    assert cluster.slot("train").profile.cpu_milli == 500
    cluster.executors[where].slots.clear()  # it loses the slot
    cluster.report(cluster.executors[where])
    cluster.settle()
    cluster.submit(RequestSpec("again", profile(gpu=100)))
    cluster.settle()
    assert len(gpus_of(cluster, "again")) == 1
    cluster.check()


def parkable_on(name: str) -> FakeExecutor:
    return with_devices(gpu_host(name, gpus=1, nodes=1), devices(1))


def test_what_cannot_be_parked_is_refused_with_the_way_out() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1, nodes=1))
    submit(cluster, "train", gpu=100)
    submit(cluster, "plain")
    with pytest.raises(FailedPrecondition, match=r"host-a does not park .* gpu0.*gpu_parking"):
        park(cluster, "train")
    with pytest.raises(InvalidArgument, match="the slot has no GPU"):
        park(cluster, "plain")
    size = cluster.slot("train").profile
    with pytest.raises(InvalidArgument, match="cannot change the number, the types"):
        cluster.resize("train", replace(size, devices=()))  # without `park`, as before
    cluster.check()


def test_a_group_at_its_limit_keeps_a_slot_parked() -> None:
    cluster = EngineCluster.settled(parkable(gpus=2))
    cluster.set_group("default", maximum={"device.gpu-core": 100})
    submit(cluster, "train", gpu=100)
    park(cluster, "train")
    submit(cluster, "serve", gpu=100)
    unpark(cluster, "train")
    assert cluster.slot("train").is_parked
    cluster.release("serve")
    cluster.settle()
    assert not cluster.slot("train").is_parked


def shares_on_host(executor: FakeExecutor) -> dict[str, int]:
    """What slots have of the compute of each GPU, as the executor knows it."""
    found: dict[str, int] = {}
    for slot in executor.slots.values():
        for share in slot.assignment.devices if slot.assignment is not None else ():
            found[share.uuid] = found.get(share.uuid, 0) + dict(share.amounts)["gpu-core"]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_failures_promises_a_gpu_twice_or_forgets_a_parked_slot(seed: int) -> None:
    rng = Random(seed)
    mode = rng.choice((SAME_GPU, ANY_GPU))
    cluster = EngineCluster.settled(parkable(gpus=2, mode=mode))
    executor = cluster.executors["host-a"]
    names: list[str] = []
    for step in range(50):
        chance = rng.random()
        granted = [each for each in names if cluster.is_granted(each)]
        name = rng.choice(granted) if granted else ""
        if chance < 0.25:
            names.append(f"slot-{step}")
            submit(cluster, names[-1], gpu=rng.choice((30, 50, 100, 200)))
        elif chance < 0.65 and name:
            size, original = cluster.slot(name).profile, cluster.state.requests[name].spec.profile
            assert original is not None
            target = rng.choice((without_gpus(original.devices), original.devices))
            size = replace(size, devices=target, cpu_milli=rng.choice((500, 1_000)))
            cluster.resize(name, size, job=None, park=True)
        elif chance < 0.75 and name:
            cluster.release(name)
        elif chance < 0.85:
            executor.moving = rng.choice(("", "", "IN_PROGRESS", "PARK_FAILED"))
        elif chance < 0.9:
            cluster.restart_rm()
            cluster.register_all()
        elif chance < 0.95:
            cluster.register(executor)
        else:
            cluster.wait(rng.choice((500, 5_000)))
        if rng.random() < 0.7:
            cluster.settle()
        cluster.check()
        assert all(core <= 100 for core in shares_on_host(executor).values())
    # In the end everything works: with its host to itself, a parked slot has its GPUs again.
    executor.moving = ""
    cluster.wait(60_000)
    cluster.settle()
    kept = next((each for each in names if cluster.is_granted(each)), None)
    for name in names:
        if name != kept:
            cluster.cancel(name)
    cluster.settle()
    if kept is not None:
        unpark(cluster, kept)
        assert not cluster.slot(kept).is_parked
        assert sum(shares_on_host(executor).values()) > 0


def test_a_slot_gets_its_gpu_again_only_when_a_revoked_slot_has_ended() -> None:
    """`infer` needs half of the GPU of the revoked slot, and `train` gets the other half."""
    executor = parkable(gpus=1)
    executor.frees_slowly = True
    cluster = EngineCluster.settled(executor, revocation=True)
    submit(cluster, "train", gpu=50)
    park(cluster, "train")
    cluster.submit(RequestSpec("serve", profile(gpu=100), revocable=True))
    submit(cluster, "infer", gpu=50)
    assert cluster.state.slots["serve", 1].revoked_for == "infer"
    unpark(cluster, "train")
    assert cluster.slot("train").ordered is not None
    assert not executor.slots["train", 1].profile.devices
    assert not cluster.is_granted("infer")
    executor.finish_frees()
    cluster.report(executor)
    cluster.settle()
    assert gpus_of(cluster, "train") == gpus_of(cluster, "infer") == ["GPU-0"]
    assert executor.slots["train", 1].profile == profile(gpu=50)


def test_a_revoked_slot_ends_for_a_slot_that_got_its_gpu_in_the_meantime() -> None:
    executor = parkable(gpus=1)
    executor.frees_slowly = True
    cluster = EngineCluster.settled(executor, revocation=True)
    submit(cluster, "train", gpu=50)
    park(cluster, "train")
    cluster.submit(RequestSpec("serve", profile(gpu=100), revocable=True))
    submit(cluster, "infer", gpu=50)
    unpark(cluster, "train")
    cluster.cancel("infer")
    assert cluster.state.slots["serve", 1].revoked_for == "train"
    cluster.check()
    executor.finish_frees()
    cluster.report(executor)
    cluster.settle()
    assert gpus_of(cluster, "train") == ["GPU-0"]
