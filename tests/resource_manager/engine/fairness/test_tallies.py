"""Tests of usage across restarts that follow an end, or each other, quickly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.engine_cluster import EngineCluster


def test_what_was_received_while_nobody_led_is_kept_when_some_of_it_ends_right_after() -> None:
    """After the next restart, the manager could not know how long the slot had existed."""
    cluster = EngineCluster.settled(usage_measure="slots", half_life_ms=None)
    cluster.host("host-0")
    cluster.job("one")
    cluster.submit("stays", "ends", job="one")
    away_s = 600
    cluster.now_ms += 1_000 * away_s
    cluster.restart_rm()
    cluster.release("ends", job="one")
    cluster.restart_rm()
    flow = cluster.state.flows.jobs["one"]
    assert cluster.state.flows.usage(flow).service == pytest.approx(2 * away_s, abs=20)


def end_job(cluster: EngineCluster) -> None:
    cluster.end_job("job")


def end_lease(cluster: EngineCluster) -> None:
    """Lets the lease of the job expire."""
    cluster.wait(2_000)


@pytest.mark.parametrize(("end", "lease_ms"), [(end_job, None), (end_lease, 8_000)])
def test_groups_keep_what_a_job_received_that_ended_right_before_a_restart(
    end: Callable[[EngineCluster], None], lease_ms: int | None
) -> None:
    """Its slots are deleted by then, so their usage must be stored before."""
    cluster = EngineCluster.settled(jobs=(), usage_measure="slots", half_life_ms=None)
    cluster.host("host-0")
    cluster.set_group("outer")
    cluster.set_group("inner", parent="outer")
    cluster.job("job", group="inner", lease_ms=lease_ms)
    cluster.submit("a", "b")
    ran_s = 6
    for _ in range(ran_s):  # less than the interval of checkpoints
        cluster.wait(1_000)
    end(cluster)
    cluster.restart()
    assert cluster.running() == []
    received = {
        name: cluster.state.flows.usage(cluster.state.flows.groups[name]).service
        for name in ("outer", "inner", "default")
    }
    ran_s += 2 if lease_ms else 0
    assert received == {
        "outer": pytest.approx(2 * ran_s),
        "inner": pytest.approx(2 * ran_s),
        "default": 0,
    }
