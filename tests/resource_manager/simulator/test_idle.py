"""Tests the check for capacity that is idle although work fits."""

from __future__ import annotations

import itertools

import pytest

from finegrain.resources import GIB, ResourceProfile
from resource_manager.engine.model.effects import StepResult
from resource_manager.engine.model.events import Decide, Event
from resource_manager.engine.model.settings import EngineSettings, Fairness
from resource_manager.engine.placement.reserved import Reservation
from resource_manager.engine.state import State
from resource_manager.engine.step import step
from resource_manager.simulator import cluster as driver
from resource_manager.simulator.cluster import Cluster
from resource_manager.simulator.idle import IdleCheck
from resource_manager.simulator.nodes import Node, equal_nodes


def crowded(settings: EngineSettings | None = None) -> Cluster:
    """Returns jobs of several sizes, with gangs and labels, on nodes that are often full."""
    nodes = [
        *equal_nodes(3, cpus=4, memory_bytes=8 * GIB),
        Node("special", {"cpu_milli": 8_000, "memory_bytes": 4 * GIB}, (("zone", "a"),)),
    ]
    cluster = Cluster(nodes, settings)
    for number in range(60):
        cluster.submit(
            f"job-{number}",
            [1_000 + number * 70 % 900] * (1 + number % 5),
            group=f"group-{number % 4}",
            profile=ResourceProfile(500 * (1 + number % 7), GIB // 4 * (1 + number % 3)),
            at_ms=number * 130,
            gang=number % 6 == 0,
            labels=(("zone", "a"),) if number % 9 == 0 else (),
        )
    return cluster


def test_nothing_is_idle_beside_work_that_fits() -> None:
    cluster = crowded()
    check = IdleCheck(cluster)

    cluster.run()

    assert check.checks == cluster.effort.moments > 100
    assert (check.idle_moments, check.findings) == (0, [])
    assert not cluster.waiting_kinds


def test_capacity_that_is_held_for_who_starves_is_not_idle() -> None:
    impatient = EngineSettings(fairness=Fairness(starvation_timeout_ms=300))
    cluster = crowded(impatient)
    check = IdleCheck(cluster)

    cluster.run()

    assert cluster.events["reservation_made"] > 0
    assert check.findings == []


def test_who_starves_is_served_when_those_have_ended_who_were_there() -> None:
    """Compares the promise of a reservation with the true ends of threads."""
    patience = EngineSettings(fairness=Fairness(starvation_timeout_ms=300))
    cluster = crowded(patience)
    promised: dict[Reservation, int] = {}

    def look(cluster: Cluster) -> None:
        for each in cluster.state.reservations.by_number.values():
            if each not in promised:
                there = {
                    allocation_id
                    for node in each.hosts
                    for allocation_id, _ in cluster.state.hosts[node].slots
                }
                promised[each] = max(cluster.ends_at(name) for name in there)
            assert cluster.now_ms <= promised[each], each.owner.title

    cluster.on_settled.append(look)
    cluster.run()

    assert promised


def test_what_a_group_must_not_have_is_not_idle() -> None:
    cluster = Cluster(equal_nodes(4))
    cluster.set_group("small", maximum={"cpu_milli": 2_000})
    cluster.submit("job", [1_000] * 5, group="small")
    check = IdleCheck(cluster)

    cluster.run()

    assert cluster.log.running(lambda _: "")[""].most() == 2
    assert check.findings == []


def test_what_a_group_above_must_not_have_is_not_idle_either() -> None:
    cluster = Cluster(equal_nodes(4))
    cluster.set_group("all", maximum={"cpu_milli": 3_000})
    cluster.set_group("left", parent="all")
    cluster.set_group("right", parent="all")
    cluster.submit("a", [1_000] * 5, group="left")
    cluster.submit("b", [1_000] * 2, group="right", gang=True)
    check = IdleCheck(cluster)

    cluster.run()

    assert cluster.log.running(lambda _: "")[""].most() == 3
    assert check.findings == []


def test_an_engine_that_left_capacity_idle_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine of this test sometimes omits a decision."""
    decisions = itertools.count()

    def forgetful(state: State, event: Event) -> StepResult:
        if isinstance(event, Decide) and next(decisions) % 5 == 4:
            return StepResult()
        return step(state, event)

    monkeypatch.setattr(driver, "step", forgetful)
    cluster = Cluster(equal_nodes(2))
    check = IdleCheck(cluster)
    for number in range(6):
        cluster.submit(f"job-{number}", [1_000], at_ms=number * 400)

    cluster.run()

    assert check.idle_moments > 0
    assert "1 x {'cpu_milli': 1000} of group default wait" in check.findings[0]
