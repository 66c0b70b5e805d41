"""Tests of executors that register again or are forgotten, beyond the stories."""

from __future__ import annotations

import pytest

from finegrain.errors import FailedPrecondition, Reason
from tests.support.engine_cluster import EngineCluster, host


def test_forgetting_an_executor_that_still_reports_is_refused_with_its_name_and_state() -> None:
    cluster = EngineCluster.settled(host("host-a"))
    with pytest.raises(FailedPrecondition) as caught:
        cluster.forget("host-a")
    assert caught.value.reason is Reason.EXECUTOR_NOT_LOST
    assert caught.value.details == {"executor_id": "host-a", "state": "ACTIVE"}
    assert "host-a" in cluster.state.hosts


def test_an_executor_has_shrunk_when_it_comes_back_with_fewer_slots_than_it_has() -> None:
    """Only then may it have more slots than allowed: the invariants report any other excess."""
    executor = host("host-a", slots_max=2)
    cluster = EngineCluster.settled(executor)
    cluster.submit("one", "two")
    shrunk = []
    for executor.slots_max in (2, 1):
        cluster.register(executor)
        shrunk.append(cluster.state.hosts["host-a"].shrunk)
    assert shrunk == [False, True]
    cluster.check()
    assert cluster.running("host-a") == ["one", "two"]
