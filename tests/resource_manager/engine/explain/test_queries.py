"""Tests that lists are stable, complete across pages, and consistent with their sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from finegrain.errors import InvalidArgument, NotFound
from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.explain import lists
from resource_manager.engine.explain.cluster import cluster_view
from resource_manager.engine.explain.lists import (
    Page,
    list_executors,
    list_jobs,
    list_requests,
    list_slots,
    request_view,
)
from resource_manager.engine.explain.paused import at_once
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import (
    Decide,
    RequestsSubmitted,
)
from resource_manager.engine.step import step
from tests.support.engine_cluster import EngineCluster, host
from tests.support.engine_cluster.executor import FakeExecutor

SMALL = ResourceProfile(1_000, 256 * MIB)


@pytest.fixture
def cluster() -> EngineCluster:
    """Returns two hosts with four slots each and ten requests of two jobs: two of them wait."""
    hosts = (host(name, memory_bytes=4 * GIB) for name in ("host-b", "host-a"))
    cluster = EngineCluster(*hosts, jobs=("job-1", "job-2"))
    for number in range(5):
        for job_id in ("job-1", "job-2"):
            cluster.submit(f"{job_id}.{number}", profile=SMALL, job=job_id)
    cluster.settle()
    return cluster


def everything(query: Callable[..., Page[Any, Any]], **arguments: Any) -> list[Any]:
    """Returns the items of all pages of two entries each."""
    page = query(limit=2, **arguments)
    items = list(page.items)
    while page.next_key is not None:
        assert len(page.items) == 2
        page = query(limit=2, after=page.next_key, **arguments)
        items.extend(page.items)
    return items


def ids(views: list[Any]) -> list[str]:
    return [view.request.allocation_id for view in views]


def test_pages_of_requests_follow_the_queue_and_lose_nothing(cluster: EngineCluster) -> None:
    order = [f"job-{job}.{number}" for number in range(5) for job in (1, 2)]
    found = everything(lambda **a: list_requests(cluster.state, **a))
    assert ids(found) == order
    mine = everything(lambda **a: list_requests(cluster.state, job_id="job-2", **a))
    assert ids(mine) == order[1::2]


def test_requests_are_found_by_state_and_by_the_beginning_of_their_id(
    cluster: EngineCluster,
) -> None:
    waiting = list_requests(cluster.state, states=[RequestState.PENDING], limit=10).items
    assert ids(waiting) == ["job-1.4", "job-2.4"]
    assert {view.reason for view in waiting} == {"WAITING_CAPACITY"}
    some = list_requests(cluster.state, allocation_ids=["job-1.2", "job-2"], limit=3)
    assert ids(some.items) == ["job-2.0", "job-2.1", "job-1.2"]
    assert some.next_key is not None
    some = list_requests(cluster.state, allocation_ids=["job-1.", "job-1.2", "x"], limit=9)
    assert ids(some.items) == [f"job-1.{number}" for number in range(5)]
    exact = list_requests(cluster.state, allocation_ids=["job-2.1", "job-1.2"], limit=9)
    assert ids(exact.items) == ["job-2.1", "job-1.2"]
    mine = list_requests(
        cluster.state, job_id="job-1", allocation_ids=["job-2.1", "job-1.2"], limit=9
    )
    assert ids(mine.items) == ["job-1.2"]


def test_requests_are_found_by_the_end_of_their_id(cluster: EngineCluster) -> None:
    def found(*texts: str) -> list[str]:
        return ids(list_requests(cluster.state, allocation_ids=texts, limit=9).items)

    assert found("ob-2.1") == ["job-2.1"]
    assert found("-1.2", "ob-2.1") == ["job-2.1", "job-1.2"]
    # It ends no id, so it is a beginning.
    assert found("job-1") == [f"job-1.{number}" for number in range(5)]
    assert found("x-2.1") == []


def test_a_page_ends_after_so_many_that_were_looked_at(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "SCANNED_MAX", 3)
    asked = ["job-2.3", "job-3"]
    page = list_requests(cluster.state, allocation_ids=asked, limit=9)
    pages = [ids(page.items)]
    while page.next_key is not None:
        page = list_requests(cluster.state, allocation_ids=asked, after=page.next_key, limit=9)
        pages.append(ids(page.items))
    assert pages == [[], [], ["job-2.3"], []]


def test_pages_of_slots_go_by_executor_and_id(cluster: EngineCluster) -> None:
    found = everything(lambda **a: list_slots(cluster.state, **a))
    keys = [(view.slot.executor_id, view.slot.allocation_id) for view in found]
    assert len(keys) == 8
    assert keys == sorted(keys)
    on_b = everything(lambda **a: list_slots(cluster.state, executor_id="host-b", **a))
    assert {view.executor_address for view in on_b} == {"host-b:7000"}
    both = list_slots(cluster.state, executor_id="host-b", job_id="job-1", limit=10).items
    assert [v.slot.job_id for v in both] == ["job-1", "job-1"]


def test_a_page_of_slots_of_a_job_skips_a_limited_number_of_others(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The job has more slots than that, so the slots of all hosts are read.
    monkeypatch.setattr(lists, "SCANNED_MAX", 1)
    pages = []
    after: tuple[str, str, int] | None = ("", "", 0)
    while after is not None:
        page = list_slots(cluster.state, job_id="job-1", after=after, limit=2)
        pages.append([view.slot.allocation_id for view in page.items])
        after = page.next_key
    assert pages == [["job-1.0", "job-1.1"], [], [], ["job-1.2", "job-1.3"], [], []]


def test_executors_and_jobs_are_paged(cluster: EngineCluster) -> None:
    hosts = everything(lambda **a: list_executors(cluster.state, **a))
    assert [view.executor.executor_id for view in hosts] == ["host-a", "host-b"]
    assert [view.slots for view in hosts] == [4, 4]
    assert list_executors(cluster.state, limit=1).next_key == "host-a"
    cluster.end_job("job-1")
    live = list_jobs(cluster.state, limit=10).items
    assert [view.job.job_id for view in live] == ["job-2"]
    every = everything(lambda **a: list_jobs(cluster.state, include_ended=True, **a))
    assert [view.job.job_id for view in every] == ["job-1", "job-2"]


def test_jobs_are_found_by_name_and_by_both_ends_of_their_id(cluster: EngineCluster) -> None:
    def found(*texts: str) -> list[str]:
        return [view.job.job_id for view in list_jobs(cluster.state, matching=texts, limit=9).items]

    cluster.state.jobs["job-2"].name = "nightly"
    assert found("job-1") == ["job-1"]
    assert found("ob-2") == ["job-2"]
    assert found("nightly", "ob-1") == ["job-1", "job-2"]
    assert found("job-") == ["job-1", "job-2"]
    assert found("b-2", "nightl") == []


def test_the_sums_of_the_cluster_add_up(cluster: EngineCluster) -> None:
    view = at_once(cluster_view(cluster.state))
    assert view.total == {"cpu_milli": 8_000, "memory_bytes": 8 * GIB}
    assert view.allocated == {"cpu_milli": 8_000, "memory_bytes": 2 * GIB}
    assert view.available == {"memory_bytes": 6 * GIB}
    assert view.executors == {
        "active": 2,
        "unconfirmed": 0,
        "lost": 0,
        "draining": 0,
        "unreachable": 0,
    }
    assert view.pending_requests == {"WAITING_CAPACITY": 2}
    assert (view.slots, view.jobs) == (8, 2)
    jobs = list_jobs(cluster.state, limit=10).items
    assert [(job.pending_requests, job.slots) for job in jobs] == [(1, 4), (1, 4)]
    assert sum(job.allocated["cpu_milli"] for job in jobs) == view.allocated["cpu_milli"]


def test_the_sums_of_a_job_tell_memory_pools_apart_and_leave_out_growing_slots() -> None:
    total = {"cpu_milli": 4_000, "task_heap_memory_bytes": GIB, "network_memory_bytes": GIB}
    small = ResourceProfile(1_000, network_memory_bytes=64 * MIB)
    cluster = EngineCluster(FakeExecutor("host-a", total, small))
    cluster.submit("a", "b", profile=small)
    cluster.settle()
    cluster.submit("late", profile=replace(small, cpu_milli=3_000))
    cluster.resize("a", replace(small, cpu_milli=4_000))
    cluster.settle()
    (view,) = list_jobs(cluster.state, limit=10).items
    assert (view.pending_requests, view.slots) == (1, 2)
    assert view.allocated == {"cpu_milli": 2_000, "network_memory_bytes": 128 * MIB}


def test_a_slot_counts_until_it_is_really_gone(cluster: EngineCluster) -> None:
    cluster.release("job-1.0", job="job-1")
    view = request_view(cluster.state, cluster.state.requests["job-1.0"])
    assert (view.request.state, view.slot) == (RequestState.RELEASED, None)
    assert at_once(cluster_view(cluster.state)).slots == 8


def test_what_came_after_the_last_decision_was_not_considered_yet(cluster: EngineCluster) -> None:
    spec = RequestSpec("late", SMALL)
    step(cluster.state, RequestsSubmitted(cluster.at, "job-1", (spec,)))
    late = cluster.state.requests["late"]
    assert request_view(cluster.state, late).reason == "NOT_YET_CONSIDERED"
    assert at_once(cluster_view(cluster.state)).pending_requests == {
        "WAITING_CAPACITY": 2,
        "NOT_YET_CONSIDERED": 1,
    }
    step(cluster.state, Decide(cluster.at))
    assert request_view(cluster.state, late).reason == "WAITING_CAPACITY"


def test_explain_counts_who_is_ahead_and_lists_no_more_than_asked(cluster: EngineCluster) -> None:
    found = explain(cluster.state, "job-2.4", max_executors=1)
    assert found.requests_ahead == 1
    assert (found.executors_considered, found.executors_fitting) == (2, 0)
    assert [verdict.executor_id for verdict in found.executors] == ["host-a"]
    assert len(found.blocked_by) == 1
    assert found.snapshot_number == cluster.state.journal.snapshot_number


def test_unknown_things_are_said_to_be_unknown(cluster: EngineCluster) -> None:
    for query in (
        lambda: list_slots(cluster.state, executor_id="host-z", limit=1),
        lambda: list_requests(cluster.state, job_id="job-z", limit=1),
        lambda: explain(cluster.state, "nothing"),
        lambda: explain(cluster.state, "job-2.4", "host-z"),
    ):
        with pytest.raises(NotFound):
            query()


def test_a_refused_call_leaves_the_books_untouched(cluster: EngineCluster) -> None:
    cluster.state.changes.take()
    mixed = (RequestSpec("known", SMALL), RequestSpec("unknown", None))
    with pytest.raises(InvalidArgument, match="unknown"):
        step(cluster.state, RequestsSubmitted(cluster.at, "job-1", mixed))
    assert not cluster.state.changes.take()
    assert "known" not in cluster.state.requests
