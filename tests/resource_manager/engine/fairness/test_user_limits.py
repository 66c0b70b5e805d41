"""Limits of users: for all jobs of an identity together, even if they are in different groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from finegrain.errors import InvalidArgument, NotFound, ResourceExhausted
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.explain.paused import at_once
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.explain.users import user_view, user_views
from resource_manager.engine.explain.waiting_reasons import pending_by_reason
from resource_manager.engine.fairness.siblings import Flow
from resource_manager.engine.jobs import users as user_calls
from resource_manager.engine.model.entities import RangeSpec, RequestSpec
from resource_manager.engine.model.events import UserLimitsDeleted, UserLimitsSet
from tests.support.engine_cluster import EngineCluster

ALICE, BOB, ANN = "user/alice", "user/bob", "operator/ann"


def limit(cluster: EngineCluster, user: str, **maximum: int | None) -> None:
    cluster.apply(UserLimitsSet(cluster.at, user, maximum))


def cluster_of(**jobs: str) -> EngineCluster:
    """A cluster with one large host, and jobs by name with their owners."""
    cluster = EngineCluster(jobs=())
    cluster.host("host-a", cpu_milli=16_000)
    for name, owner in jobs.items():
        cluster.job(name, owner=owner)
    return cluster


def granted(cluster: EngineCluster, job: str) -> int:
    return len(cluster.state.jobs[job].slot_keys)


def waits(cluster: EngineCluster) -> Mapping[str, int]:
    return at_once(pending_by_reason(cluster.state))


def test_slots_of_all_jobs_of_a_user_count_together() -> None:
    cluster = cluster_of(a=ALICE, b=ALICE, c=BOB)
    limit(cluster, ALICE, slots=3)
    for job in "abc":
        cluster.submit(*(f"{job}-{n}" for n in range(4)), job=job)
    assert granted(cluster, "a") + granted(cluster, "b") == 3
    assert granted(cluster, "c") == 4
    assert waits(cluster) == {"WAITING_USER_LIMIT": 5}
    waiting = next(
        name
        for name in ("a-3", "b-3")
        if (request := cluster.state.requests.named(name)) is not None
        and request.state is RequestState.PENDING
    )
    found = explain(cluster.state, waiting)
    assert found.primary_reason == "WAITING_USER_LIMIT"
    assert "user/alice has 3 of at most 3 slots, but the request needs 1 slot" in found.summary
    assert found.limits[0].group_id == ALICE


@pytest.mark.parametrize("limited", [True, False])
def test_a_new_job_visits_no_other_job_of_its_user(limited: bool) -> None:
    """With thousands of jobs of one user, each new job would otherwise take a millisecond."""
    cluster = cluster_of(a=ALICE)
    if limited:
        limit(cluster, ALICE, slots=3)
    users = cluster.state.flows.users
    first = cluster.state.flows.jobs["a"]
    own, seen = first.user, Flow(id="seen")
    first.user = seen
    cluster.job("b", owner=ALICE)
    assert first.user is seen
    first.user = own
    assert cluster.state.flows.jobs["b"].user is own
    assert users.jobs_of(ALICE).keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("maximum", "slots"), [({"cpu_milli": 2_500}, 2), ({"memory_bytes": 3 * 64 * MIB}, 3)]
)
def test_amounts_are_limited(maximum: dict[str, int], slots: int) -> None:
    cluster = cluster_of(a=ALICE)
    limit(cluster, ALICE, **maximum)
    cluster.submit(*(f"a-{n}" for n in range(5)), job="a", memory_bytes=64 * MIB)
    assert granted(cluster, "a") == slots


def test_what_a_user_gives_back_serves_its_other_jobs() -> None:
    cluster = cluster_of(a=ALICE, b=ALICE)
    limit(cluster, ALICE, slots=1)
    cluster.submit("a-0", job="a")
    cluster.submit("b-0", job="b")
    assert (granted(cluster, "a"), granted(cluster, "b")) == (1, 0)
    cluster.end_job("a")
    cluster.settle()
    assert granted(cluster, "b") == 1


def test_a_limit_that_is_set_later_counts_what_runs_and_stops_nothing() -> None:
    cluster = cluster_of(a=ALICE)
    cluster.submit("a-0", "a-1", job="a")
    limit(cluster, ALICE, slots=1)
    cluster.submit("a-2", job="a")
    assert granted(cluster, "a") == 2
    limit(cluster, ALICE, slots=3)
    cluster.settle()
    assert granted(cluster, "a") == 3
    cluster.submit("a-3", job="a")
    limit(cluster, ALICE, slots=None)
    cluster.settle()
    assert granted(cluster, "a") == 4


def test_limits_outlive_a_restart() -> None:
    cluster = cluster_of(a=ALICE)
    limit(cluster, ALICE, slots=1, jobs=5)
    limit(cluster, "*", cpu_milli=0)
    cluster.submit("a-0", "a-1", job="a")
    cluster.restart_rm()
    cluster.settle()
    assert cluster.state.flows.users.limits == {
        ALICE: {"jobs": 5, "slots": 1},
        "*": {"cpu_milli": 0},
    }
    assert granted(cluster, "a") == 1
    assert waits(cluster) == {"WAITING_USER_LIMIT": 1}


def test_the_limits_of_all_are_for_users_without_own_limits() -> None:
    cluster = cluster_of(a=ALICE, b=BOB, c=ANN)
    limit(cluster, "*", slots=1)
    limit(cluster, BOB, cpu_milli=3_000)
    for job in "abc":
        cluster.submit(*(f"{job}-{n}" for n in range(4)), job=job)
    assert [granted(cluster, job) for job in "abc"] == [1, 3, 4]
    cluster.apply(UserLimitsDeleted(cluster.at, "*"))
    cluster.settle()
    assert granted(cluster, "a") == 4
    with pytest.raises(NotFound, match="no own limits"):
        cluster.apply(UserLimitsDeleted(cluster.at, "*"))


def test_a_gang_and_a_range_keep_to_the_limit() -> None:
    cluster = cluster_of(a=ALICE, b=ALICE)
    limit(cluster, ALICE, slots=3)
    cluster.submit_gang("gang", [1_000] * 4, job="a")
    one = RequestSpec("range", profile=ResourceProfile(1_000, 64 * MIB))
    cluster.submit(RangeSpec(one, 0, 5), job="b")
    assert (granted(cluster, "a"), granted(cluster, "b")) == (0, 3)
    assert waits(cluster) == {"WAITING_USER_LIMIT": 6}


def test_jobs_are_refused_at_once() -> None:
    cluster = cluster_of(a=ALICE)
    limit(cluster, ALICE, jobs=2)
    cluster.job("b", owner=ALICE)
    with pytest.raises(ResourceExhausted) as refused:
        cluster.job("c", owner=ALICE)
    assert "user/alice has 2 live jobs, and its limit is 2" in refused.value.message
    assert "finegrain users set user/alice --max-jobs" in refused.value.message
    cluster.job("b", owner=ALICE)  # repeated
    cluster.job("c", owner=BOB)
    cluster.end_job("a")
    cluster.settle()
    cluster.job("d", owner=ALICE)


def test_requests_are_refused_at_once_and_as_a_whole() -> None:
    cluster = cluster_of(a=ALICE, b=ALICE)
    limit(cluster, ALICE, requests=3)
    cluster.submit("a-0", "a-1", job="a")
    with pytest.raises(ResourceExhausted) as refused:
        cluster.submit("b-0", "b-1", job="b")
    assert "has 2 requests and slots in all its jobs and submits 2 more, and its limit is 3" in (
        refused.value.message
    )
    assert not cluster.state.jobs["b"].live_requests
    cluster.submit("a-0", "a-1", job="a")  # repeated
    cluster.submit("b-0", job="b")


@pytest.mark.parametrize("user", ["alice", "", "viewer/v", "executor/x", "rm", "user/"])
def test_only_owners_of_jobs_have_limits(user: str) -> None:
    with pytest.raises(InvalidArgument, match="identity that can own jobs"):
        limit(cluster_of(), user, slots=1)


@pytest.mark.parametrize("maximum", [{"gpus": 1}, {"slots": -1}, {"jobs": 2**60}])
def test_a_limit_that_could_not_hold_is_refused(maximum: dict[str, Any]) -> None:
    cluster = cluster_of()
    with pytest.raises(InvalidArgument, match="maximum"):
        limit(cluster, ALICE, **maximum)
    assert not cluster.state.flows.users.limits


def test_the_number_of_limited_users_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_calls, "LIMITED_MAX", 1)
    cluster = cluster_of()
    limit(cluster, ALICE, slots=1)
    with pytest.raises(ResourceExhausted):
        limit(cluster, BOB, slots=1)
    limit(cluster, ALICE, slots=2)


def test_the_list_has_use_and_limits() -> None:
    cluster = cluster_of(a=ALICE, b=ALICE)
    cluster.submit("a-0", job="a", memory_bytes=64 * MIB)
    cluster.submit("b-0", job="b", memory_bytes=64 * MIB)
    limit(cluster, "*", slots=7)
    users, jobs = cluster.state.flows.users, cluster.state.jobs
    star, alice = user_views(users, jobs)
    assert (star.user, star.own_limits, star.maximum) == ("*", True, {"slots": 7})
    assert (alice.user, alice.own_limits, alice.maximum) == (ALICE, False, {"slots": 7})
    assert (alice.slots, alice.jobs, alice.requests) == (2, 2, 2)
    assert alice.used == {"cpu_milli": 2_000, "memory_bytes": 128 * MIB}
    assert user_view(users, jobs, BOB).slots == 0
