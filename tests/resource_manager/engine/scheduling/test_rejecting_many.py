"""Tests of ranges, gangs and very many requests that become infeasible while they wait."""

from __future__ import annotations

from typing import Any

import pytest

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.model.entities import GangSpec, RangeSpec, RequestSpec
from resource_manager.engine.model.events import Decide, Ticked
from resource_manager.engine.placement.feasibility import feasibility
from resource_manager.engine.scheduling import rejecting
from resource_manager.engine.step import step
from tests.resource_manager.engine.infeasible import (
    AFTER_MS,
    HUGE,
    MOST_OF_A_HOST,
    SMALL,
    rejected_after,
    told,
    waits,
)
from tests.support.engine_cluster import FOREVER_MS, EngineCluster


def test_a_range_is_rejected_whole_in_one_event() -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit(RangeSpec(RequestSpec("range", HUGE), 0, 25_000))
    cluster.host()
    cluster.wait(AFTER_MS)
    events = cluster.store.job_events["job"]
    assert {(event.state, event.reason) for event in events} == {("REJECTED", "INFEASIBLE_NEVER")}
    assert sum(event.count for event in events) == 25_000
    assert len(events) <= 3  # one for each of its rows
    assert not waits(cluster, "range.24999")
    cluster.restart_rm()
    assert not cluster.state.requests.live
    assert not len(cluster.state.queue)


def test_a_gang_is_rejected_with_those_to_blame_first() -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    profiles = {"fits": SMALL, "huge": HUGE}

    def ask_for_gang(gang_id: str) -> list[ItemOutcome]:
        members = tuple(
            RequestSpec(f"{gang_id}-{name}", profile, gang_id=gang_id, allow_pending=name == "fits")
            for name, profile in profiles.items()
        )
        return cluster.submit(*members, GangSpec(gang_id))

    ask_for_gang("early")
    cluster.host()
    fits, huge = ask_for_gang("late")
    assert (fits.reason, huge.reason) == ("GANG_REFUSED", "INFEASIBLE_NEVER")
    assert rejected_after(cluster, AFTER_MS, "early-huge")
    events = cluster.store.job_events["job"]
    assert [(e.allocation_id, e.reason) for e in events] == [
        ("early-huge", "INFEASIBLE_NEVER"),
        ("early-fits", "GANG_REFUSED"),
    ]
    assert events[0].message == huge.message
    assert events[1].message == (
        fits.message.replace("gang late", "gang early").replace("late-", "early-")
    )


@pytest.mark.parametrize(("allowing", "ends"), [(0, True), (1, True), (2, False)])
def test_a_gang_that_cannot_be_placed_together_is_rejected(allowing: int, ends: bool) -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    members = tuple(
        RequestSpec(name, MOST_OF_A_HOST, gang_id="gang", allow_pending=number < allowing)
        for number, name in enumerate(("early", "other"))
    )
    cluster.submit(*members, GangSpec("gang"))
    cluster.host()
    cluster.wait(AFTER_MS)
    assert waits(cluster) is waits(cluster, "other") is not ends


def test_a_request_that_lost_its_slot_is_rejected_where_no_executor_is_large_enough_any_more() -> (
    None
):
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    large = cluster.host("large", cpu_milli=8_000)
    cluster.submit("early", profile=ResourceProfile(6_000, 256 * MIB), restart_on_loss=True)
    cluster.submit("patient", profile=ResourceProfile(1_500, 256 * MIB), restart_on_loss=True)
    cluster.settle()
    large.total = {**large.total, "cpu_milli": 4_000}
    cluster.register(large)
    cluster.wait(AFTER_MS)
    assert not waits(cluster)  # it has a slot
    for name in ("early", "patient"):
        large.end((name, 1), "SLOT_BROKEN")
    cluster.report(large)
    cluster.wait(0)
    assert [state for state, _, _ in told(cluster)] == ["GRANTED", "PENDING", "REJECTED"]
    assert [state for state, _, _ in told(cluster, "patient")] == ["GRANTED", "PENDING"]


def test_requests_of_a_job_that_has_ended_are_left_to_its_end() -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit("early", profile=HUGE)
    cluster.host()
    cluster.wait(AFTER_MS - 1)
    cluster.end_job("job")
    cluster.wait(1)
    assert [state for state, _, _ in told(cluster)] == ["CANCELLED"]


def test_very_many_requests_are_rejected_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejecting, "STEPS_MAX", 10)
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    names = [f"r{number}" for number in range(25)]
    cluster.submit(*names, profile=HUGE)
    cluster.submit("patient", allow_pending=True, profile=HUGE)
    cluster.submit(RangeSpec(RequestSpec("range", HUGE), 0, 9))
    cluster.host()
    cluster.now_ms += AFTER_MS
    rejected = [len(step(cluster.state, Ticked(cluster.at)).effects)]
    while cluster.state.unfinished:
        rejected.append(len(step(cluster.state, Decide(cluster.at)).effects))
    assert all(number <= 2 * 10 for number in rejected)  # two log entries each
    assert len(rejected) > 2
    cluster.batch()
    events = cluster.store.job_events["job"]
    assert [event.allocation_id for event in events] == [*names, "range.0"]
    assert waits(cluster, "patient")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the first label of every scheduling class that is checked."""
    seen: list[str] = []

    def counted(hosts: Any, elastic: Any, shape: Any) -> Any:
        seen.append(shape.labels[0][1] if shape.labels else "")
        return feasibility(hosts, elastic, shape)

    monkeypatch.setattr(rejecting, "feasibility", counted)
    return seen


def test_each_scheduling_class_is_looked_at_once(looks: list[str]) -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    labels = {name: (("zone", name),) for name in "abc"}
    for name in "ab":
        names = (f"{name}{n}" for n in range(20))
        cluster.submit(*names, profile=SMALL, required_labels=labels[name])
    cluster.submit("patient", profile=SMALL, required_labels=labels["c"], allow_pending=True)
    cluster.host(labels=labels["a"])
    cluster.settle()
    cluster.wait(AFTER_MS - 1)
    assert not looks
    cluster.wait(1)
    assert sorted(looks) == ["a", "b"]
    cluster.wait(10 * AFTER_MS)
    assert sorted(looks) == ["a", "b"]


def test_nothing_is_looked_at_where_nothing_could_be_rejected(looks: list[str]) -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit("patient", allow_pending=True, profile=HUGE)
    cluster.host()
    cluster.submit("served", profile=SMALL)
    cluster.settle()
    cluster.wait(10 * AFTER_MS)
    assert not looks


def test_what_allows_to_wait_is_looked_at_once_beside_what_does_not(looks: list[str]) -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit("patient", allow_pending=True, profile=HUGE)
    cluster.submit("early", profile=HUGE)
    cluster.host()
    cluster.wait(AFTER_MS)
    assert looks == [""]
    cluster.host("host-b")
    cluster.wait(AFTER_MS)
    assert waits(cluster, "patient")
    assert looks == [""]


def test_a_gang_that_lost_its_slots_is_rejected_where_it_does_not_fit_any_more() -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    large = cluster.host("large", cpu_milli=8_000)
    members = tuple(
        RequestSpec(name, MOST_OF_A_HOST, gang_id="gang", restart_on_loss=True)
        for name in ("early", "other")
    )
    cluster.submit(*members, GangSpec("gang"))
    cluster.settle()
    large.total = {**large.total, "cpu_milli": 4_000}
    cluster.register(large)
    cluster.wait(AFTER_MS)
    large.end(("other", 1), "SLOT_BROKEN")
    cluster.report(large)
    cluster.wait(0)
    for name in ("early", "other"):
        assert [state for state, _, _ in told(cluster, name)] == ["GRANTED", "PENDING", "REJECTED"]
