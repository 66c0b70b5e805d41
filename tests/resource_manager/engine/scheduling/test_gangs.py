"""Tests of the contents and number of gangs, and of what remains of them.

`tests/scenarios/gangs` has the stories of gangs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.errors import InvalidArgument, ResourceExhausted
from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import GangPlacement, RequestState
from resource_manager.engine.explain.cluster import cluster_view
from resource_manager.engine.explain.paused import at_once
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.lifecycle import journal
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from resource_manager.engine.model.events import (
    Decide,
    JobEndRequested,
    RequestsSubmitted,
    Ticked,
)
from resource_manager.engine.model.settings import DAY_MS
from resource_manager.engine.placement.gangs import STEPS_MAX
from resource_manager.engine.queue.gangs import MemberRequest
from resource_manager.engine.step import step
from tests.resource_manager.engine.placement.test_gang_search import (
    SMALL,
    Everything,
    cluster_with,
    hosts,
)
from tests.support.engine_cluster import EngineCluster, host
from tests.support.properties import examples

TINY = ResourceProfile(100, 16 * MIB)
GANG = GangSpec("g")


def cluster_of(count: int = 1, **chosen: Any) -> EngineCluster:
    hosts = (host(f"host-{number:02d}", memory_bytes=4 * GIB) for number in range(count))
    return EngineCluster(*hosts, **chosen)


def members(count: int, gang_id: str = "g", **fields: Any) -> tuple[RequestSpec, ...]:
    return tuple(
        RequestSpec(f"{gang_id}{n}", TINY, gang_id=gang_id, **fields) for n in range(count)
    )


def states(cluster: EngineCluster) -> set[RequestState]:
    return {request.state for request in cluster.state.requests.values()}


def test_a_gang_may_not_have_more_members_than_is_set() -> None:
    cluster = cluster_of(gang_members_max=3)
    outcomes = cluster.submit(*members(4), GANG)
    assert {outcome.reason for outcome in outcomes} == {"INVALID_ARGUMENT"}
    assert "4 members; expected at most 3" in outcomes[0].message
    assert not cluster.state.requests
    assert not cluster.state.gangs.by_id
    assert [o.reason for o in cluster.submit(*members(3), GANG)] == ["", "", ""]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"restart_on_loss": True}, "restart_on_loss is True, but False for g0"),
        ({"target_address": "10.0.0.1:7000"}, "a gang is offered as a whole"),
        ({"profile": ResourceProfile(1, GIB)}, "cpu_milli is 1"),
    ],
)
def test_one_member_that_may_not_be_refuses_all(change: Any, says: str) -> None:
    cluster = cluster_of()
    first, second, third = members(3)
    outcomes = cluster.submit(first, second, replace(third, **change), GANG)
    assert [outcome.reason for outcome in outcomes] == [
        "GANG_REFUSED",
        "GANG_REFUSED",
        "INVALID_ARGUMENT",
    ]
    assert says in outcomes[2].message
    assert says in outcomes[0].message
    assert "because of its member g2" in outcomes[1].message
    assert not cluster.state.requests


def test_a_member_names_a_gang_that_its_call_declares() -> None:
    cluster = cluster_of()
    outcomes = cluster.submit(*members(2), RequestSpec("lone", TINY))
    assert [outcome.reason for outcome in outcomes] == ["INVALID_ARGUMENT"] * 2 + [""]
    with pytest.raises(InvalidArgument, match="each gang once"):
        cluster.submit(*members(2), GANG, GANG)
    with pytest.raises(InvalidArgument, match="belong to"):
        cluster.submit(*members(2), GANG, GangSpec("h"))
    assert set(cluster.state.requests) == {"lone"}


def test_a_gang_counts_like_the_shapes_that_its_members_have() -> None:
    cluster = cluster_of(job_scheduling_classes_max=2)
    full = replace(RequestSpec("full", ResourceProfile(4_000, GIB)))
    cluster.submit(full)
    cluster.submit(*members(2), GANG)
    cluster.submit(*members(2, "h"), GangSpec("h"))
    with pytest.raises(ResourceExhausted):
        cluster.submit(*members(2, "i"), GangSpec("i"))
    with pytest.raises(ResourceExhausted):
        cluster.submit("r", profile=TINY)
    with pytest.raises(ResourceExhausted):  # members announced for later parts count now
        cluster.batch(RequestsSubmitted(cluster.at, "job", (), following=members(2, "i")))
    cluster.submit(*members(2), GANG)  # the same call again
    cluster.deliver_all()
    cluster.release("full")
    cluster.deliver_all()
    assert states(cluster) == {RequestState.GRANTED, RequestState.RELEASED}
    cluster.submit(*members(2, "i"), GangSpec("i"))
    unlike = tuple(
        replace(each, profile=ResourceProfile(100 + n, 16 * MIB))
        for n, each in enumerate(members(3, "k"))
    )
    with pytest.raises(ResourceExhausted):
        cluster.submit(*unlike, GangSpec("k"))
    cluster.submit(*unlike[:2], GangSpec("k"))
    cluster.check()


def test_a_gang_that_is_tried_in_vain_counts_with_each_of_its_different_members() -> None:
    """So one decision tries few gangs with many different members."""
    cluster = cluster_of(classes_tried_max=4)
    cluster.submit("full", profile=ResourceProfile(3_000, GIB))
    for name in "ghi":
        unlike = (
            RequestSpec(f"{name}{n}", ResourceProfile(500 + n, 16 * MIB), gang_id=name)
            for n in range(3)
        )
        step(
            cluster.state, RequestsSubmitted(cluster.at, "job", (*unlike,), gangs=(GangSpec(name),))
        )
    tried: list[int] = []
    while cluster.state.unfinished or not tried:
        cluster.batch()
        tried.append(sum(each.tried for each in cluster.state.gangs.waiting.values()))
    assert tried == [2, 3]


def test_a_gang_of_a_thousand_is_placed_and_granted_as_one() -> None:
    cluster = cluster_of(40, command_items_max=7)
    cluster.submit(*members(1_000), GANG)
    for sent in cluster.wire[1:]:
        cluster.deliver(sent)
    assert RequestState.GRANTED not in states(cluster)
    cluster.deliver_all(most=1_000)
    assert states(cluster) == {RequestState.GRANTED}
    told = [event.allocation_id for event in cluster.store.job_events["job"]]
    assert told == [f"g{n}" for n in range(1_000)]
    cluster.check()


def test_an_id_that_stands_twice_in_a_call_refuses_the_gangs_that_it_is_in() -> None:
    cluster = cluster_of()
    other = replace(members(2)[1], gang_id="h")
    outcomes = cluster.submit(*members(2), other, GANG, GangSpec("h"))
    assert [outcome.reason for outcome in outcomes] == [
        "GANG_REFUSED",
        "ALREADY_EXISTS",
        "ALREADY_EXISTS",
    ]
    assert not cluster.state.requests
    assert not cluster.state.gangs.by_id


def test_gangs_are_forgotten_with_their_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "STEP_ROWS_MAX", 1)
    cluster = cluster_of()
    cluster.submit(*members(2), GANG)
    cluster.deliver_all()
    cluster.end_job("job")
    cluster.deliver_all()
    assert set(cluster.state.gangs.by_id) == {"g"}
    cluster.now_ms += DAY_MS
    step(cluster.state, Ticked(cluster.at))
    while len(cluster.state.requests) > 1:
        step(cluster.state, Decide(cluster.at))
    assert set(cluster.state.requests) == {"g0"}  # half of the gang is forgotten
    cluster.store.apply(cluster.state.changes.take())
    cluster.check()
    cluster.restart_rm()
    cluster.check()
    cluster.wait(1)
    cluster.wait(1)
    assert not cluster.state.jobs
    assert not cluster.state.gangs.by_id
    assert not cluster.store.snapshot(2).gangs
    cluster.check()


def test_gangs_that_wait_are_iterated_in_line_with_their_living_members() -> None:
    cluster = cluster_of()
    cluster.submit("full", profile=ResourceProfile(4_000, GIB))
    call = (*members(1, "h"), *members(3, "g"), *members(2, "i"))
    cluster.submit(*call, GangSpec("g"), GangSpec("h"), GangSpec("i"))
    found = [(each.gang.gang_id, len(each.members)) for each in cluster.state.gangs.in_order()]
    assert found == [("h", 1), ("g", 3), ("i", 2)]
    assert at_once(cluster_view(cluster.state)).pending_requests == {"WAITING_CAPACITY": 6}


def test_a_gang_that_is_declined_before_it_was_granted_is_placed_anew() -> None:
    """An executor that wrongly offers a member directly has no effect."""
    cluster = cluster_of(2)
    cluster.submit(*members(2), GangSpec("g", GangPlacement.SPREAD))
    first = cluster.wire[0]
    cluster.deliver(first)
    executor = cluster.executors[first.command.executor_id]
    executor.end(("g0", 1), "OFFER_NOT_ACCEPTED")
    cluster.report(executor)
    assert states(cluster) == {RequestState.ALLOCATING}
    assert {request.generation for request in cluster.state.requests.values()} == {2}
    cluster.deliver_all()
    assert states(cluster) == {RequestState.GRANTED}
    slot = cluster.state.slots.of(cluster.state.requests["g0"])
    assert slot is not None
    executor = cluster.executors[slot.executor_id]
    executor.end(("g0", 2), "OFFER_NOT_ACCEPTED")
    cluster.report(executor)
    assert states(cluster) == {RequestState.GRANTED, RequestState.RELEASED}
    cluster.check()


def test_a_gang_is_tried_when_an_older_slot_of_it_is_gone_though_nothing_grew() -> None:
    """Another slot took the returned capacity, but enough other capacity was free all the time."""
    cluster = cluster_of()
    executor = cluster.executors["host-00"]
    executor.frees_slowly = True
    asked = tuple(
        replace(each, profile=ResourceProfile(1_000, GIB), restart_on_loss=True)
        for each in members(2)
    )
    cluster.submit(*asked, GangSpec("g", GangPlacement.SAME_EXECUTOR))
    cluster.deliver_all()
    executor.end(("g0", 1), "ORPHANED")
    cluster.report(executor)
    cluster.deliver_all()
    assert states(cluster) == {RequestState.PENDING}  # one of them still has a slot there
    executor.finish_frees()
    executor.hidden = {"cpu_milli": 1_000, "memory_bytes": GIB}
    cluster.report(executor)
    assert states(cluster) == {RequestState.ALLOCATING}


def test_a_gang_of_a_job_that_is_ending_is_not_placed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ending a large job takes several steps; an executor may be lost between them."""
    cluster = cluster_of(2)
    cluster.submit(*(f"r{n}" for n in range(3)), profile=TINY)
    cluster.submit(*members(2, restart_on_loss=True), GangSpec("g", GangPlacement.SPREAD))
    cluster.deliver_all()
    cluster.submit("full", profile=ResourceProfile(3_000, GIB))
    large = replace(members(1, "h")[0], profile=ResourceProfile(4_000, GIB))
    cluster.submit(large, GangSpec("h"))
    monkeypatch.setattr(journal, "STEP_ROWS_MAX", 1)
    cluster.end_job("job")
    assert not cluster.state.gangs.waiting  # long before the job master knows
    executor = cluster.executors["host-01"]
    executor.end(("g1", 1), "ORPHANED")
    cluster.report(executor)
    assert {cluster.state.requests[name].state for name in ("g0", "g1")} == {RequestState.PENDING}
    assert not cluster.state.gangs.waiting
    cluster.check()
    while cluster.state.unfinished:
        cluster.batch()
    cluster.deliver_all()
    assert {cluster.state.requests[name].state for name in ("g0", "g1")} == {RequestState.CANCELLED}
    assert not cluster.state.slots


def test_many_gangs_end_with_their_job_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "STEP_ROWS_MAX", 15)  # three for each member
    cluster = waiting_in_vain(6, timeout_ms=None)
    step(cluster.state, JobEndRequested(cluster.at, "job", "ENDED"))
    left = [cluster.state.requests.live]
    while cluster.state.unfinished:
        cluster.batch()
        left.append(cluster.state.requests.live)
    assert left == [12, 6, 0]  # a gang always ends as a whole
    cluster.check()


def test_many_gangs_whose_time_is_over_end_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "STEP_ROWS_MAX", 15)  # three for each member
    cluster = waiting_in_vain(6, timeout_ms=1_000)
    cluster.now_ms += 1_000
    step(cluster.state, Ticked(cluster.at))
    left = [cluster.state.requests.live]
    while cluster.state.unfinished:
        cluster.batch()
        left.append(cluster.state.requests.live)
    assert left == [12, 6, 0]
    assert {each.reason for each in cluster.state.requests.values()} == {"GANG_TIMEOUT"}
    cluster.check()


def waiting_in_vain(gangs: int, *, timeout_ms: int | None) -> EngineCluster:
    """Returns gangs of three that are larger than the only executor."""
    cluster = cluster_of()
    for number in range(gangs):
        name = f"g{number}."
        large = ResourceProfile(2_000, GIB)
        asked = (replace(m, profile=large, allow_pending=True) for m in members(3, name))
        cluster.submit(*(asked), GangSpec(name, timeout_ms=timeout_ms))
    return cluster


def test_to_release_a_slot_of_a_gang_that_is_broken_up_meanwhile_takes_nobody_else_along() -> None:
    """The release was in transit when the executor was lost."""
    cluster = cluster_of(2)
    cluster.submit(*members(3, restart_on_loss=True), GANG)
    cluster.deliver_all()
    slot = cluster.state.slots.of(cluster.state.requests["g0"])
    assert slot is not None
    executor = cluster.executors[slot.executor_id]
    executor.end(("g0", 1), "ORPHANED")
    step(cluster.state, cluster.report_of(executor))
    assert states(cluster) == {RequestState.PENDING}
    cluster.release("g1", generation=1)
    cluster.check()
    cluster.deliver_all()
    found = {name: request.state for name, request in cluster.state.requests.items()}
    assert found == {
        "g0": RequestState.GRANTED,
        "g1": RequestState.CANCELLED,
        "g2": RequestState.GRANTED,
    }
    cluster.check()


def test_few_places_are_told_of_a_gang_of_many_different_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource_manager.engine.explain.gangs.SEARCHES_MAX", 9)
    cluster = cluster_of(5)
    for number in range(4):
        cluster.submit(f"r{number}", profile=ResourceProfile(3_000, GIB))
    for name, step_milli in (("alike", 0), ("differ", 1)):
        asked = (
            replace(each, profile=ResourceProfile(900 + n * step_milli, MIB * 16))
            for n, each in enumerate(members(5, name))
        )
        same = GangPlacement.SAME_EXECUTOR
        cluster.submit(*(replace(m, allow_pending=True) for m in asked), GangSpec(name, same))
    told = [explain(cluster.state, f"{name}0").gang for name in ("alike", "differ")]
    assert [[spot.placeable for spot in each.spots] for each in told if each is not None] == [
        [4, 1, 1, 1, 1],
        [4, 1],
    ]


@pytest.mark.parametrize("placement", list(GangPlacement))
@settings(max_examples=examples(60))
@given(described=hosts, count=st.integers(1, 6))
def test_as_many_are_called_placeable_as_could_be_placed(
    placement: GangPlacement, described: Any, count: int
) -> None:
    cluster = cluster_with(described)
    label = "rack" if placement is GangPlacement.SAME_LABEL else ""
    requests = tuple(replace(each, profile=SMALL, allow_pending=True) for each in members(count))
    cluster.submit(*requests, GangSpec("g", placement, label))
    possible = [
        some
        for some in range(1, count + 1)
        if Everything(cluster, [MemberRequest(SMALL, (), some)]).exists(placement)
    ]
    if cluster.state_of("g0") is RequestState.PENDING:
        found = explain(cluster.state, "g0").gang
        assert found is not None
        assert found.placeable == max(possible, default=0)
        assert found.members == count
        assert found.placeable < count


def test_a_gang_whose_search_is_given_up_waits_and_is_told_that_it_may_fit() -> None:
    """Each host has room for two members, but no sum of amounts shows that 20 members do not
    fit.
    """
    cluster = EngineCluster(
        *(host(f"host-{number}", 10_000, 64 * GIB) for number in range(8)), gang_members_max=20
    )
    requests = tuple(
        replace(each, profile=ResourceProfile(3_400 + 10 * n, 64 * MIB))
        for n, each in enumerate(members(20))
    )
    outcomes = cluster.submit(*requests, GANG)
    assert not [outcome for outcome in outcomes if outcome.reason]
    assert states(cluster) == {RequestState.PENDING}
    found = explain(cluster.state, "g0").gang
    assert found is not None
    assert found.placeable == 16
    assert "whether all 20 fit is unknown" in found.summary
    assert cluster.state.gangs.waiting["g"].steps > STEPS_MAX
    cluster.register(host("host-8", 10_000, 64 * GIB))
    cluster.register(host("host-9", 10_000, 64 * GIB))
    cluster.settle()
    assert states(cluster) == {RequestState.GRANTED}


def test_a_gang_that_is_proved_not_to_fit_is_not_called_unknown() -> None:
    cluster = cluster_of(2)
    cluster.submit("other", profile=ResourceProfile(3_000, GIB))
    sizes = [2_000, 1_900, 1_800]
    requests = tuple(
        replace(each, profile=ResourceProfile(size, MIB * 16))
        for size, each in zip(sizes, members(3), strict=True)
    )
    cluster.submit(*requests, GANG)
    assert cluster.state_of("g0") is RequestState.PENDING
    found = explain(cluster.state, "g0").gang
    assert found is not None
    assert found.placeable == 2
    assert "unknown" not in found.summary
