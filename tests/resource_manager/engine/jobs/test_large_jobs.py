"""Tests that a job with very many requests is processed in bounded steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from finegrain.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.explain.lists import list_requests
from resource_manager.engine.jobs import lifecycle
from resource_manager.engine.lifecycle import journal
from resource_manager.engine.lifecycle.journal import STEP_ROWS_MAX
from resource_manager.engine.model.entities import JobState, RequestSpec
from resource_manager.engine.model.events import (
    RequestsSubmitted,
    Ticked,
)
from resource_manager.engine.model.settings import DAY_MS
from tests.support.engine_cluster import EngineCluster, host

SMALL = ResourceProfile(100, 64 * MIB)
LARGE = ResourceProfile(1_000_000, 64 * MIB)
MANY = 5 * STEP_ROWS_MAX + 500
ENDED_AT_ONCE = STEP_ROWS_MAX // 3 + 1  # each is a row, and an entry in both logs


def large_cluster(count: int = MANY, **settings: Any) -> EngineCluster:
    """One host, and one job whose requests wait for a larger one."""
    cluster = EngineCluster(host(), jobs=("large", "small"), **settings)
    submit(cluster, "large", *(f"r{n}" for n in range(count)), profile=LARGE)
    return cluster


def submit(
    cluster: EngineCluster, job_id: str, *names: str, profile: ResourceProfile = SMALL
) -> None:
    cluster.submit(*names, job=job_id, profile=profile, allow_pending=True)


def live(cluster: EngineCluster) -> int:
    return cluster.state.jobs["large"].live_requests


def test_a_large_job_ends_in_steps_and_others_are_served_between_them() -> None:
    cluster = large_cluster()
    cluster.end_job("large")
    assert cluster.state.jobs["large"].state is JobState.ENDED
    with pytest.raises(FailedPrecondition):
        submit(cluster, "large", "late")
    submit(cluster, "small", "r")
    steps = 0
    while cluster.state.unfinished:
        cluster.check()
        before = live(cluster)
        cluster.batch(Ticked(cluster.at))
        assert 0 < before - live(cluster) <= ENDED_AT_ONCE
        steps += 1
    assert steps > 5
    assert live(cluster) == 0
    cluster.deliver_all()
    assert cluster.is_granted("r")
    ended = [each.sequence for each in cluster.store.cluster_events if each.kind == "job_ended"]
    cancelled = [
        each.sequence for each in cluster.store.cluster_events if each.kind == "request_cancelled"
    ]
    assert len(ended) == 1
    assert len(cancelled) == MANY
    assert max(cancelled) < ended[0]


def test_nobody_of_an_ended_job_is_placed_while_it_is_cleared_away() -> None:
    cluster = large_cluster()
    cluster.end_job("large")
    cluster.host("host-b", cpu_milli=10**9, memory_bytes=10**15)
    while cluster.state.unfinished:
        cluster.batch(Ticked(cluster.at))
    assert not cluster.state.slots
    cluster.check()


def test_nobody_of_a_job_that_ended_behind_a_large_one_is_placed_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "STEP_ROWS_MAX", 300)
    cluster = large_cluster(3_000)
    submit(cluster, "small", *(f"s{n}" for n in range(3_000)), profile=LARGE)
    for job_id in ("large", "small"):
        cluster.end_job(job_id)
    for _ in range(12):
        cluster.batch(Ticked(cluster.at))
    assert live(cluster) > 1_000
    cluster.host("host-b", cpu_milli=10**10, memory_bytes=10**15)
    while cluster.state.unfinished:
        cluster.batch(Ticked(cluster.at))
        assert not cluster.state.slots
    cluster.check()


def test_nobody_of_an_ended_job_is_placed_after_a_restart() -> None:
    cluster = large_cluster(3_000)
    cluster.end_job("large")
    cluster.restart_rm()
    cluster.host("host-b", cpu_milli=10**10, memory_bytes=10**15)
    assert cluster.state.unfinished
    assert not cluster.state.slots


def test_an_end_that_a_restart_interrupts_goes_on() -> None:
    cluster = large_cluster()
    cluster.end_job("large")
    cluster.batch(Ticked(cluster.at))
    left = live(cluster)
    assert 0 < left < MANY
    cluster.restart_rm()
    assert live(cluster) == left
    cluster.check()
    while cluster.state.unfinished:
        cluster.batch(Ticked(cluster.at))
    assert live(cluster) == 0
    assert {each.state for each in cluster.state.requests.values()} == {RequestState.CANCELLED}


def test_a_large_job_is_forgotten_in_steps() -> None:
    cluster = large_cluster()
    cluster.end_job("large")
    while cluster.state.unfinished:
        cluster.batch(Ticked(cluster.at))
    cluster.now_ms += DAY_MS + 1_000
    sizes = []
    while "large" in cluster.state.jobs:
        cluster.batch(Ticked(cluster.at))
        cluster.check()
        assert set(cluster.store.requests) == set(cluster.state.requests)
        sizes.append(len(cluster.state.requests))
    forgotten = [before - after for before, after in pairwise([MANY, *sizes])]
    # the tick and the decision that follows are a step each
    assert all(0 < number <= 2 * STEP_ROWS_MAX for number in forgotten)


def test_later_parts_of_a_call_count_with_the_first_one() -> None:
    cluster = large_cluster(0, job_requests_max=3, requests_max=4)
    first, *rest = (RequestSpec(f"r{n}", LARGE, allow_pending=True) for n in range(4))
    with pytest.raises(ResourceExhausted, match="submits 4 more"):
        cluster.batch(RequestsSubmitted(cluster.at, "large", (first,), following=tuple(rest)))
    assert not cluster.state.requests
    following = tuple(rest[:2])
    cluster.batch(RequestsSubmitted(cluster.at, "large", (first,), following=following))
    cluster.batch(RequestsSubmitted(cluster.at, "large", following, admitted=True))
    # Repeat the whole call, as if its answer was lost: it has nothing new.
    cluster.batch(RequestsSubmitted(cluster.at, "large", (first,), following=following))
    with pytest.raises(ResourceExhausted, match="all jobs together have 3 live requests"):
        submit(cluster, "small", "s0", "s1")
    submit(cluster, "small", "s0")
    mixed = (RequestSpec("s1", None),)
    with pytest.raises(InvalidArgument):
        cluster.batch(RequestsSubmitted(cluster.at, "small", mixed, admitted=True))


def test_requests_of_a_job_are_listed_from_any_place_on() -> None:
    cluster = large_cluster(50)
    submit(cluster, "small", "s0")
    submit(cluster, "large", "r50", profile=LARGE)
    names: list[str] = []
    after = 0
    while True:
        page = list_requests(cluster.state, job_id="large", after=after, limit=7)
        names += [view.request.allocation_id for view in page.items]
        if page.next_key is None:
            break
        after = page.next_key
    assert names == [f"r{n}" for n in range(51)]


def test_the_ranges_of_an_ended_job_leave_the_queue_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "DEQUEUED_AT_ONCE", 7)
    monkeypatch.setattr(journal, "STEP_ROWS_MAX", 1)
    cluster = large_cluster(0)
    for number in range(40):
        cluster.submit_range(
            f"range{number}", 100, job="large", cpu_milli=1_000_000 + number, allow_pending=True
        )
    queue = cluster.state.queue
    assert len(queue) == 4_000
    cluster.end_job("large")
    steps = 1
    while len(queue):
        before = len(queue)
        cluster.batch(Ticked(cluster.at))
        assert 0 < before - len(queue) <= 700
        steps += 1
    assert steps > 5
