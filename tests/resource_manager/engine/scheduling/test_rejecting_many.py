"""Ranges, gangs and very many requests that turn out to be infeasible while they wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.model.entities import GangSpec, RangeSpec, RequestSpec
from resource_manager.engine.model.events import ItemOutcome, JobEndRequested, RequestsSubmitted
from resource_manager.engine.placement.feasibility import feasibility
from resource_manager.engine.scheduling import rejecting
from tests.resource_manager.engine.infeasible import (
    AFTER_MS,
    HUGE,
    MOST_OF_A_HOST,
    SMALL,
    ask,
    cluster_of,
    host,
    rejected_after,
    told,
    waits,
)


def test_a_range_is_rejected_whole_in_one_event() -> None:
    cluster = cluster_of()
    ranges = (RangeSpec(RequestSpec("range", HUGE), 0, 25_000),)
    cluster.batch(RequestsSubmitted(cluster.at, "job", (), ranges=ranges))
    cluster.register(host())
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
    cluster = cluster_of()
    profiles = {"fits": SMALL, "huge": HUGE}

    def ask_for_gang(gang_id: str) -> list[ItemOutcome]:
        members = tuple(
            RequestSpec(f"{gang_id}-{name}", profile, gang_id=gang_id, allow_pending=name == "fits")
            for name, profile in profiles.items()
        )
        event = RequestsSubmitted(cluster.at, "job", members, gangs=(GangSpec(gang_id),))
        outcomes: list[ItemOutcome] = cluster.batch(event)
        return outcomes

    ask_for_gang("early")
    cluster.register(host())
    fits, huge = ask_for_gang("late")
    assert (fits.reason, huge.reason) == ("GANG_REFUSED", "INFEASIBLE_NEVER")
    assert rejected_after(cluster, AFTER_MS, "early-huge")
    events = cluster.store.job_events["job"]
    assert [(e.allocation_id, e.reason) for e in events] == [
        ("early-huge", "INFEASIBLE_NEVER"),
        ("early-fits", "GANG_REFUSED"),
    ]
    assert events[0].message == huge.message
    assert events[1].message == fits.message.replace("late", "early")


@pytest.mark.parametrize(("allowing", "ends"), [(0, True), (1, True), (2, False)])
def test_a_gang_that_cannot_be_placed_together_is_rejected(allowing: int, ends: bool) -> None:
    cluster = cluster_of()
    members = tuple(
        RequestSpec(name, MOST_OF_A_HOST, gang_id="gang", allow_pending=number < allowing)
        for number, name in enumerate(("early", "other"))
    )
    cluster.batch(RequestsSubmitted(cluster.at, "job", members, gangs=(GangSpec("gang"),)))
    cluster.register(host())
    cluster.wait(AFTER_MS)
    assert waits(cluster) is waits(cluster, "other") is not ends


def test_a_request_that_lost_its_slot_is_rejected_where_no_executor_is_large_enough_any_more() -> (
    None
):
    cluster = cluster_of()
    large = host("large", cpu=8_000)
    cluster.register(large)
    ask(cluster, "early", profile=ResourceProfile(6_000, 256 * MIB), restart_on_loss=True)
    ask(cluster, "patient", profile=ResourceProfile(1_500, 256 * MIB), restart_on_loss=True)
    cluster.settle()
    large.total = {"cpu_milli": 4_000, "memory_bytes": 8 * GIB}
    cluster.register(large)
    cluster.wait(AFTER_MS)
    assert not waits(cluster)  # it has its slot
    for name in ("early", "patient"):
        large.end((name, 1), "SLOT_BROKEN")
    cluster.report(large)
    cluster.wait(0)
    assert [state for state, _, _ in told(cluster)] == ["GRANTED", "PENDING", "REJECTED"]
    assert [state for state, _, _ in told(cluster, "patient")] == ["GRANTED", "PENDING"]


def test_requests_of_a_job_that_has_ended_are_left_to_its_end() -> None:
    cluster = cluster_of()
    ask(cluster, "early")
    cluster.register(host())
    cluster.wait(AFTER_MS - 1)
    cluster.batch(JobEndRequested(cluster.at, "job", "ENDED"))
    cluster.wait(1)
    assert [state for state, _, _ in told(cluster)] == ["CANCELLED"]


def test_very_many_requests_are_rejected_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejecting, "STEPS_MAX", 10)
    cluster = cluster_of()
    names = [f"r{number}" for number in range(25)]
    ask(cluster, *names)
    ask(cluster, "patient", allow_pending=True)
    spec = RequestSpec("range", HUGE)
    cluster.batch(RequestsSubmitted(cluster.at, "job", (), ranges=(RangeSpec(spec, 0, 9),)))
    cluster.register(host())
    cluster.wait(AFTER_MS)
    assert 0 < len(cluster.store.job_events["job"]) < 10
    while cluster.state.timers.next_due_ms() == cluster.now_ms:
        cluster.wait(0)
    events = cluster.store.job_events["job"]
    assert [event.allocation_id for event in events] == [*names, "range.0"]
    assert waits(cluster, "patient")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first label of every scheduling class that is looked at."""
    seen: list[str] = []

    def counted(hosts: Any, elastic: Any, shape: Any) -> Any:
        seen.append(shape.labels[0][1] if shape.labels else "")
        return feasibility(hosts, elastic, shape)

    monkeypatch.setattr(rejecting, "feasibility", counted)
    return seen


def test_each_scheduling_class_is_looked_at_once(looks: list[str]) -> None:
    cluster = cluster_of()
    labels = {name: (("zone", name),) for name in "abc"}
    for name in "ab":
        ask(
            cluster, *(f"{name}{n}" for n in range(20)), profile=SMALL, required_labels=labels[name]
        )
    ask(cluster, "patient", profile=SMALL, required_labels=labels["c"], allow_pending=True)
    cluster.register(replace(host(), labels=labels["a"]))
    cluster.settle()
    cluster.wait(AFTER_MS - 1)
    assert not looks
    cluster.wait(1)
    assert sorted(looks) == ["a", "b"]
    cluster.wait(10 * AFTER_MS)
    assert sorted(looks) == ["a", "b"]


def test_nothing_is_looked_at_where_nothing_could_be_rejected(looks: list[str]) -> None:
    cluster = cluster_of()
    ask(cluster, "patient", allow_pending=True)
    cluster.register(host())
    ask(cluster, "served", profile=SMALL)
    cluster.settle()
    cluster.wait(10 * AFTER_MS)
    assert not looks


def test_what_allows_to_wait_is_looked_at_once_beside_what_does_not(looks: list[str]) -> None:
    cluster = cluster_of()
    ask(cluster, "patient", allow_pending=True)
    ask(cluster, "early")
    cluster.register(host())
    cluster.wait(AFTER_MS)
    assert looks == [""]
    cluster.register(host("host-b"))
    cluster.wait(AFTER_MS)
    assert waits(cluster, "patient")
    assert looks == [""]


def test_a_gang_that_lost_its_slots_is_rejected_where_it_does_not_fit_any_more() -> None:
    cluster = cluster_of()
    large = host("large", cpu=8_000)
    cluster.register(large)
    members = tuple(
        RequestSpec(name, MOST_OF_A_HOST, gang_id="gang", restart_on_loss=True)
        for name in ("early", "other")
    )
    cluster.batch(RequestsSubmitted(cluster.at, "job", members, gangs=(GangSpec("gang"),)))
    cluster.settle()
    large.total = {"cpu_milli": 4_000, "memory_bytes": 8 * GIB}
    cluster.register(large)
    cluster.wait(AFTER_MS)
    large.end(("other", 1), "SLOT_BROKEN")
    cluster.report(large)
    cluster.wait(0)
    for name in ("early", "other"):
        assert [state for state, _, _ in told(cluster, name)] == ["GRANTED", "PENDING", "REJECTED"]
