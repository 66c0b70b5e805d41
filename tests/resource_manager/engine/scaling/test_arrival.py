"""Tests that a new executor first serves the requests that it was asked for."""

from __future__ import annotations

from finegrain.resources import GIB, ResourceProfile
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from tests.support.engine_cluster import EngineCluster
from tests.support.engine_cluster.hosts import host


def test_whoever_a_maximum_stops_does_not_stand_before_those_it_was_asked_for() -> None:
    """Equal blocked requests came first, and another request would be served before both."""
    shape = ExecutorShape(
        "four", "test", {"cpu_milli": 4_000, "memory_bytes": 64 * GIB}, ResourceProfile(1_000, GIB)
    )
    cluster = EngineCluster.settled(
        provisioning=Provisioning((shape,), total_max={"cpu_milli": 5_000})
    )
    cluster.host("host-0", cpu_milli=1_000)
    cluster.set_group("none", maximum={"cpu_milli": 0})
    cluster.job("stopped", group="none")
    cluster.job("free")
    cluster.submit("runs", job="free")
    cluster.submit("stopped-0", job="stopped", cpu_milli=4_000)
    cluster.submit("planned", job="free", cpu_milli=4_000)
    cluster.wait(2_000)
    (asked_for,) = cluster.state.provisions
    cluster.job("late", group="critical")
    cluster.submit("late-0", job="late")
    cluster.host(asked_for, provided_as="four")
    cluster.wait(1_000)
    assert cluster.where("planned") == asked_for
    assert not cluster.where("late-0")
    assert not cluster.where("stopped-0")


RACK = (("rack", "a"),)


def cluster_with_a_gang() -> tuple[EngineCluster, str]:
    """A gang waits for an executor of its rack; returns the id of the pending executor."""
    total = {"cpu_milli": 4_000, "memory_bytes": 64 * GIB}
    shape = ExecutorShape("four", "test", total, ResourceProfile(1_000, GIB), labels=RACK)
    cluster = EngineCluster.settled(provisioning=Provisioning((shape,)))
    cluster.submit_gang("gang", [2_000, 2_000], required_labels=RACK)
    cluster.wait(2_000)
    (asked_for,) = cluster.asked_for()
    return cluster, asked_for


def test_an_executor_with_the_labels_of_the_gang_it_was_asked_for_is_no_failure() -> None:
    cluster, asked_for = cluster_with_a_gang()
    cluster.host(asked_for, provided_as="four", labels=RACK)
    assert cluster.running(asked_for) == ["gang-0", "gang-1"]
    assert cluster.state.elastic.backoffs["four"].last_failure == ""


def test_an_executor_without_them_is_a_failure_that_names_the_gang() -> None:
    cluster, asked_for = cluster_with_a_gang()
    cluster.host(asked_for, provided_as="four")
    assert cluster.running() == []
    assert cluster.state.elastic.backoffs["four"].last_failure == (
        f"{asked_for}: registered with 4 cpu, 64Gi memory (promised: 4 cpu, 64Gi memory);"
        " it lacks labels that are required by members of gang gang of 2"
    )


def test_a_gang_does_not_take_the_room_that_another_new_executor_has_for_its_own_requests() -> None:
    """The gang needs two of the executors. The first of them registers with the third one."""
    total = {"cpu_milli": 4_000, "memory_bytes": 64 * GIB}
    shape = ExecutorShape("four", "test", total, ResourceProfile(1_000, GIB))
    cluster = EngineCluster.settled(provisioning=Provisioning((shape,)))
    cluster.submit_gang("gang", [3_000, 3_000])
    cluster.submit("whole", cpu_milli=4_000)
    cluster.wait(2_000)
    plans = cluster.state.elastic.plan.on
    of_gang = next(name for name, each in plans.items() if each.gangs)
    of_whole = next(name for name, each in plans.items() if each.classes)
    executors = [host(name, provided_as="four") for name in (of_gang, of_whole)]
    cluster.executors |= {each.executor_id: each for each in executors}
    cluster.batch(*map(cluster.registration_of, executors))
    assert cluster.where("whole") == of_whole
