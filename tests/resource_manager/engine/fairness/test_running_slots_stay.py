"""Tests that fairness never stops running slots.

It decides only what is placed next: a reservation, a minimum and a maximum wait until slots end.
"""

from __future__ import annotations

import pytest

from finegrain.values.states import SlotState
from tests.support.engine_cluster import EngineCluster

CORES = 4
STARVING_S = 60
LONG_S = 600


@pytest.fixture
def cluster() -> EngineCluster:
    """Returns two hosts full of slots of a job in the group with the least weight."""
    cluster = EngineCluster.settled(starvation_timeout_ms=1_000 * STARVING_S)
    cluster.host("host-0", cpu_milli=CORES * 1_000)
    cluster.host("host-1", cpu_milli=CORES * 1_000)
    cluster.job("first", group="low")
    cluster.submit(*(f"low-{number}" for number in range(2 * CORES)), job="first")
    assert len(cluster.running()) == 2 * CORES
    return cluster


def assert_all_go_on(cluster: EngineCluster, running: list[str]) -> None:
    """Waits for a long time, in steps in which every timer fires; fails if a slot is taken away."""
    for _ in range(LONG_S // 5):
        cluster.wait(5_000)
        assert cluster.running() == running
        assert {slot.state for slot in cluster.state.slots.values()} == {SlotState.ALLOCATED}


def test_neither_weight_nor_usage_stops_what_runs(cluster: EngineCluster) -> None:
    running = cluster.running()
    cluster.job("urgent", group="critical")
    cluster.submit(*(f"urgent-{number}" for number in range(CORES)), job="urgent")
    assert_all_go_on(cluster, running)
    cluster.release(running[0], job="first")
    assert cluster.running() == [*running[1:], "urgent-0"]


def test_a_reservation_waits_until_what_runs_on_its_host_has_ended(cluster: EngineCluster) -> None:
    cluster.job("urgent", group="critical")
    cluster.submit("large", job="urgent", cpu_milli=CORES * 1_000)
    for number in range(STARVING_S):  # small slots are placed where small ones end
        cluster.wait(2_000)
        cluster.submit(f"low-more-{number}", job="first")
        cluster.release(cluster.running()[0], job="first")
        if cluster.state.reservations:
            break
    running = cluster.running()
    assert len(running) == 2 * CORES
    assert_all_go_on(cluster, running)
    (host,) = cluster.state.reservations.on_host
    *ending, last = cluster.running(host)
    cluster.release(*ending, job="first")
    assert cluster.running(host) == [last]
    cluster.release(last, job="first")
    assert cluster.running(host) == ["large"]


def test_a_minimum_is_reached_only_with_slots_that_ended(cluster: EngineCluster) -> None:
    running = cluster.running()
    cluster.set_group("critical", minimum={"cpu_milli": CORES * 1_000})
    cluster.job("urgent", group="critical")
    cluster.submit(*(f"urgent-{number}" for number in range(CORES)), job="urgent")
    assert_all_go_on(cluster, running)
    cluster.release(*running[:2], job="first")
    assert cluster.running() == [*running[2:], "urgent-0", "urgent-1"]


def test_a_maximum_below_what_runs_is_reached_only_as_slots_end(cluster: EngineCluster) -> None:
    running = cluster.running()
    cluster.submit("low-more", job="first")
    cluster.set_group("low", maximum={"cpu_milli": 1_000})
    assert_all_go_on(cluster, running)
    cluster.release(*running[1:], job="first")
    assert cluster.running() == running[:1]
