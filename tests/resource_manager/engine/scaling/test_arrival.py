"""An executor that was asked for comes: those it was asked for have it first."""

from __future__ import annotations

from finegrain.resources import GIB, ResourceProfile
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from tests.support.engine_cluster import EngineCluster


def test_whoever_a_maximum_stops_does_not_stand_before_those_it_was_asked_for() -> None:
    """They wait with the same and came first, and somebody else would be served before both."""
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
