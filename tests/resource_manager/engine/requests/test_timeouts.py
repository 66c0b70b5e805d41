"""Tests that a change of the wall clock does not move the timeouts of waiting requests."""

from __future__ import annotations

import pytest

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.model.entities import Instant, RangeSpec, RequestSpec
from tests.support.engine_cluster import EngineCluster

HOUR_MS = 3_600_000
SPEC = RequestSpec("many", ResourceProfile(1_000, 64 * MIB), wait_timeout_ms=60_000)


class Shifted(EngineCluster):
    """A cluster whose wall clock can be set."""

    shift_ms = 0

    @property
    def at(self) -> Instant:
        found = super().at
        return Instant(found.monotonic_ms, found.time_ms + self.shift_ms)


@pytest.mark.parametrize("shift_ms", [-HOUR_MS, 0, HOUR_MS])
def test_single_requests_and_ranges_time_out_at_the_same_moment(shift_ms: int) -> None:
    cluster = Shifted()
    cluster.submit(RangeSpec(SPEC, 0, 2))
    cluster.submit(RequestSpec("single", SPEC.profile, wait_timeout_ms=60_000))
    cluster.wait(30_000)
    cluster.shift_ms = shift_ms
    cluster.wait(29_000)
    waiting = {"many.0", "many.1", "single"}
    assert all(_state(cluster, name) is RequestState.PENDING for name in waiting)
    cluster.wait(1_000)
    cluster.settle()
    assert all(_state(cluster, name) is RequestState.REJECTED for name in waiting)


def _state(cluster: EngineCluster, name: str) -> RequestState:
    found = cluster.state.requests.named(name)
    assert found is not None
    return found.state


def test_a_request_that_was_being_placed_at_a_restart_still_times_out() -> None:
    cluster = EngineCluster()
    cluster.host("host-a", cpu_milli=1_000)
    cluster.settle()
    cluster.submit(RequestSpec("single", SPEC.profile, wait_timeout_ms=60_000))
    assert _state(cluster, "single") is RequestState.ALLOCATING
    cluster.restart_rm()
    cluster.wait(20_000)  # the executor does not come back
    cluster.wait(61_000)
    cluster.settle()
    assert _state(cluster, "single") is RequestState.REJECTED
