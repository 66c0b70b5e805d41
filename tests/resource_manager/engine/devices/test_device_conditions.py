"""Conditions of devices that executors report: health, and uses by others than slots."""

from __future__ import annotations

from dataclasses import replace

from finegrain.devices.condition import DeviceCondition, DeviceHealth, ForeignUse
from finegrain.devices.device import HostDevices
from finegrain.devices.names import device_requests
from finegrain.resources import ResourceProfile
from resource_manager.engine.explain.devices import list_devices
from resource_manager.engine.explain.lists import slot_view
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from tests.support.devices import gpu_host, made_up, with_devices
from tests.support.engine_cluster import EngineCluster

MIB = 1024**2
RESET = "the driver asks for a reset"
BAD = DeviceCondition("gpu", "GPU-0", DeviceHealth.UNHEALTHY, RESET, work_lost=True, failures=1)


def request(name: str, *, restart: bool = False, gpu: int = 100, gang: str = "") -> RequestSpec:
    profile = ResourceProfile(1_000, 64 * MIB, devices=device_requests({"gpu": gpu}))
    return RequestSpec(name, profile, restart_on_device_loss=restart, gang_id=gang)


def gpus_of(cluster: EngineCluster, name: str) -> list[str]:
    return [each.uuid for each in cluster.assignment(name).devices]


def report(cluster: EngineCluster, *conditions: DeviceCondition) -> None:
    """Lets the executor report these conditions, and the cluster come to rest."""
    executor = cluster.executors["host-a"]
    executor.device_conditions = conditions
    cluster.report(executor)
    cluster.settle()
    cluster.check()


def events_of(cluster: EngineCluster, name: str) -> list[tuple[str, str]]:
    """Returns state and reason of the job events about a request."""
    return [
        (str(each.state), str(each.reason))
        for events in cluster.store.job_events.values()
        for each in events
        if each.allocation_id == name
    ]


def test_a_device_that_fails_gets_no_new_work_and_keeps_its_slots() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    cluster.submit(request("stays", gpu=50))
    report(cluster, BAD)
    assert cluster.is_granted("stays")
    assert events_of(cluster, "stays")[-1] == ("GRANTED", "DEVICE_UNHEALTHY")
    assert cluster.history("device_unhealthy") == [f"host-a/gpu0: {RESET}"]
    cluster.submit(request("waits", gpu=50))
    found = explain(cluster.state, "waits").executors[0]
    assert found.message.startswith("DEVICE_UNUSABLE")
    assert f"gpu0: {RESET}" in found.message
    [slot] = [s for s in cluster.state.slots.values() if s.allocation_id == "stays"]
    assert slot_view(cluster.state, slot).device_conditions == (BAD,)
    report(cluster)
    assert cluster.is_granted("waits")
    assert events_of(cluster, "stays")[-1] == ("GRANTED", "DEVICE_RECOVERED")
    assert slot_view(cluster.state, slot).device_conditions == ()


def test_a_request_that_wants_it_is_placed_again_at_its_old_place() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    cluster.submit(request("first", restart=True))
    cluster.submit(request("second"))
    cluster.submit(request("third"))
    report(cluster, BAD)
    # It was first in the queue, so it is served before "third" when a GPU becomes free.
    assert events_of(cluster, "first")[-1] == ("PENDING", "DEVICE_LOST")
    cluster.release("second")
    cluster.settle()
    assert gpus_of(cluster, "first") == ["GPU-1"]
    assert cluster.waiting() == {"third"}
    cluster.check()


def test_work_that_can_go_on_is_not_ended() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    cluster.submit(request("stays", restart=True))
    for health in (DeviceHealth.UNKNOWN, DeviceHealth.UNHEALTHY, DeviceHealth.PROBING):
        report(cluster, replace(BAD, health=health, work_lost=False))
    assert cluster.is_granted("stays")
    assert [each for _, each in events_of(cluster, "stays")[-2:]] == ["DEVICE_UNHEALTHY"] * 2


def test_a_gang_returns_to_the_queue_as_a_whole() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    gang = GangSpec("pair")
    cluster.submit(gang, *(request(n, restart=True, gang="pair") for n in ("a", "b")))
    assert cluster.is_granted("a")
    assert cluster.is_granted("b")
    report(cluster, BAD)
    assert cluster.waiting() == {"a", "b"}
    report(cluster)
    assert cluster.is_granted("a")
    assert cluster.is_granted("b")


def test_a_probing_device_is_shown_and_gets_no_work() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    report(cluster, DeviceCondition("gpu", "GPU-0", DeviceHealth.PROBING, "it is being probed"))
    cluster.submit(request("waits"))
    assert cluster.waiting() == {"waits"}
    assert cluster.history("device_probing") == ["host-a/gpu0: it is being probed"]
    [shown] = list_devices(cluster.state, limit=10).items[0].devices
    assert (shown.problem, shown.condition and shown.condition.health) == (
        "it is being probed",
        DeviceHealth.PROBING,
    )


def test_a_device_that_was_announced_with_a_problem_recovers() -> None:
    first = replace(made_up(1).devices[0], problem="it was hot")
    cluster = EngineCluster.settled(with_devices(gpu_host(gpus=1), HostDevices((first,))))
    cluster.submit(request("waits"))
    assert cluster.waiting() == {"waits"}
    report(cluster, DeviceCondition("gpu", "GPU-0"))
    assert cluster.is_granted("waits")


def test_a_device_that_others_use_gets_no_new_work_until_they_end() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    cluster.submit(request("before"))
    stranger = ForeignUse("process", "python", 4711, "ann", 3 << 30)
    used = [DeviceCondition("gpu", f"GPU-{n}", foreign_uses=(stranger,)) for n in (0, 1)]
    report(cluster, *used)
    assert cluster.is_granted("before")  # the slot was there first
    [slot] = cluster.state.slots.values()
    assert slot_view(cluster.state, slot).device_conditions == (used[0],)
    cluster.submit(request("waits"))
    found = explain(cluster.state, "waits").executors[0]
    assert found.message.startswith("FOREIGN_USE")
    assert "process 4711 (python, user ann, 3Gi)" in found.message
    assert len(cluster.history("device_used_by_others")) == 2
    report(cluster)
    assert cluster.is_granted("waits")
    assert len(cluster.history("device_free_of_others")) == 2


def test_conditions_survive_a_new_registration_without_further_events() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    report(cluster, BAD)
    cluster.register(cluster.executors["host-a"])
    cluster.settle()
    cluster.submit(request("waits"))
    assert cluster.waiting() == {"waits"}
    assert len(cluster.history("device_unhealthy")) == 1


def test_a_storm_of_reports_ends_no_slot() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1))
    cluster.submit(request("stays", restart=True))
    for number in range(50):
        report(cluster, replace(BAD, work_lost=False, failures=number))
    assert cluster.is_granted("stays")
    # The health did not change, so one event says it all.
    assert len(cluster.history("device_unhealthy")) == 1
