"""Tests of the gauges when a request starves."""

from __future__ import annotations

from prometheus_client import generate_latest

from finegrain.devices.names import device_requests
from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.explain.paused import at_once
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import DeviceCordoned, GroupSet
from resource_manager.service.group_use import GroupUse
from resource_manager.service.measured_use import MeasuredUse
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.state_metrics import observe_cluster, observe_hosts
from tests.support.devices import gpu_host
from tests.support.engine_cluster import EngineCluster, numa_host


def reserved(cluster: EngineCluster) -> dict[str, float]:
    metrics = ResourceManagerMetrics("0")
    executors = at_once(observe_cluster(metrics, cluster.state, GroupUse(), lambda: cluster.at))
    observe_hosts(metrics, executors, MeasuredUse(lambda: 0), lambda: cluster.at, cluster.state)
    lines = generate_latest(metrics.registry).decode().splitlines()
    values = [line.split() for line in lines if not line.startswith("#")]
    names = ("reservation", "_reserved_")
    return {each[0]: float(each[1]) for each in values if any(n in each[0] for n in names)}


def test_what_is_held_is_counted_while_it_is() -> None:
    cluster = EngineCluster.settled(starvation_placements=1)
    cluster.host("host-0")
    cluster.job("small", "large")
    cluster.submit(*(f"s{n}" for n in range(5)), job="small")
    cluster.submit("big", job="large", cpu_milli=4_000)
    assert set(reserved(cluster).values()) == {0.0}
    cluster.release("s0", job="small")
    cluster.release("s1", job="small")
    cluster.wait(60_000)
    assert reserved(cluster) == {
        "finegrain_rm_reservations": 1.0,
        "finegrain_rm_oldest_reservation_age_seconds": 60.0,
        "finegrain_rm_reserved_executors": 1.0,
        "finegrain_rm_reserved_free_cpu_cores": 1.0,
    }
    cluster.release("s2", "s3", "s4", job="small")
    assert cluster.where("big")
    assert set(reserved(cluster).values()) == {0.0}


def test_the_total_of_an_executor_is_what_can_be_booked_there() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.report_cpus("host-a", offline_cpus="3,11")
    metrics = ResourceManagerMetrics("0")
    executors = at_once(observe_cluster(metrics, cluster.state, GroupUse(), lambda: cluster.at))
    observe_hosts(metrics, executors, MeasuredUse(lambda: 0), lambda: cluster.at, cluster.state)
    shown = generate_latest(metrics.registry).decode()
    assert 'finegrain_cpu_cores{executor="host-a",state="total"} 14.0' in shown


def test_devices_are_shown_in_sum_and_one_by_one() -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=2))
    cluster.apply(GroupSet(cluster.at, "default", maximum={"device.gpu-core": 150}))
    shared = device_requests({"gpu-core": 50, "gpu-memory": 20 * GIB})
    cluster.submit(RequestSpec("shared", ResourceProfile(1_000, 64 * MIB, devices=shared)))
    cluster.apply(DeviceCordoned(cluster.at, "host-a", "gpu1", "XID 79"))
    metrics = ResourceManagerMetrics("0")
    executors = at_once(observe_cluster(metrics, cluster.state, GroupUse(), lambda: cluster.at))
    observe_hosts(metrics, executors, MeasuredUse(lambda: 0), lambda: cluster.at, cluster.state)
    shown = set(generate_latest(metrics.registry).decode().splitlines())
    first = 'executor="host-a",minor="0",type="gpu",uuid="GPU-0"'
    second = 'executor="host-a",minor="1",type="gpu",uuid="GPU-1"'
    ratio = 'finegrain_device_allocated_ratio{dimension="gpu-memory",'
    assert shown >= {
        'finegrain_device_units{dimension="gpu-core",executor="host-a",state="total"} 2.0',
        'finegrain_device_units{dimension="gpu-core",executor="host-a",state="allocated"} 0.5',
        'finegrain_device_units{dimension="gpu-core",executor="host-a",state="unusable"} 1.0',
        'finegrain_device_memory_bytes{executor="host-a",state="allocated"} 2.147483648e+10',
        'finegrain_device_memory_bytes{executor="host-a",state="unusable"} 8.589934592e+10',
        'finegrain_devices_unusable{executor="host-a",reason="cordoned",type="gpu"} 1.0',
        f"finegrain_device_usable{{{first}}} 1.0",
        f"finegrain_device_usable{{{second}}} 0.0",
        f"{ratio}{first}}} 0.25",
        'finegrain_rm_group_device_units{dimension="gpu-core",group="default",state="used"} 0.5',
        'finegrain_rm_group_device_units{dimension="gpu-core",group="default",state="maximum"} 1.5',
    }
    assert any("finegrain_device_info{" in line and 'model="H100"' in line for line in shown)
    assert not [line for line in shown if 'resource="device' in line]


def revoked(cluster: EngineCluster) -> float | None:
    metrics = ResourceManagerMetrics("0")
    at_once(observe_cluster(metrics, cluster.state, GroupUse(), lambda: cluster.at))
    return metrics.registry.get_sample_value("finegrain_rm_slots_being_revoked")


def test_slots_that_are_being_revoked_are_counted() -> None:
    cluster = EngineCluster(revocation=True)
    cluster.host("host-a", cpu_milli=4_000)
    profile = ResourceProfile(4_000, 64 * MIB)
    cluster.submit(RequestSpec("old", profile, revocable=True))
    cluster.settle()
    cluster.submit(RequestSpec("new", profile))
    assert revoked(cluster) == 1
    cluster.settle()
    assert revoked(cluster) == 0
