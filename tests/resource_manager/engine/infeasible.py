"""Helpers for tests of requests that become infeasible while they wait."""

from __future__ import annotations

from finegrain.resources import MIB, ResourceProfile
from tests.support.engine_cluster import EngineCluster

AFTER_MS = 30_000
HUGE = ResourceProfile(64_000, 256 * MIB)
SMALL = ResourceProfile(1_000, 256 * MIB)
MOST_OF_A_HOST = ResourceProfile(3_000, 256 * MIB)


def waits(cluster: EngineCluster, name: str = "early") -> bool:
    """Returns whether a request waits; the invariants must hold."""
    cluster.check()
    return cluster.state_of(name) == "PENDING"


def rejected_after(cluster: EngineCluster, ms: int, name: str = "early") -> bool:
    """Returns whether a request waits exactly until the last millisecond of this time."""
    cluster.wait(ms - 1)
    until_then = waits(cluster, name)
    cluster.wait(1)
    return until_then and not waits(cluster, name)


def told(cluster: EngineCluster, name: str = "early") -> list[tuple[str, str, str]]:
    """Returns the events of a request: state, reason and message."""
    events = cluster.store.job_events["job"]
    return [(e.state, e.reason, e.message) for e in events if e.allocation_id == name]
