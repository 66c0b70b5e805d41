"""Tests of shares of jobs during one search for starved requests."""

from __future__ import annotations

from resource_manager.engine.fairness.choice import SharesSince
from tests.support.engine_cluster import EngineCluster


def test_whoever_is_placed_during_a_look_is_among_those_who_were_served() -> None:
    """The search may find capacity for a request, and continues with others of its job."""
    cluster = EngineCluster.settled()
    cluster.host("host-0")
    cluster.job("one", "two")
    cluster.submit("first", job="two")
    cluster.wait(1_000)
    cluster.submit("large", job="one", cpu_milli=4_000)
    shares, since_ms = SharesSince(cluster.state.flows), cluster.now_ms
    assert shares.is_owed("one", since_ms)
    cluster.submit("small", job="one")
    assert cluster.where("small")
    assert shares.is_owed("one", since_ms) == SharesSince(cluster.state.flows).is_owed(
        "one", since_ms
    )
