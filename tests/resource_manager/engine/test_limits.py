"""Tests that everything that could grow without end is limited, and ended things are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from finegrain.errors import AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted
from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import (
    JobRegistered,
    RequestsSubmitted,
)
from resource_manager.engine.model.settings import DAY_MS
from tests.support.engine_cluster import EngineCluster, host

SMALL = ResourceProfile(100, 64 * MIB)


def cluster_of(*jobs: str, **settings: Any) -> EngineCluster:
    small = host(memory_bytes=4 * GIB, default_profile=SMALL)
    return EngineCluster(small, jobs=jobs, **settings)


def register(cluster: EngineCluster, job_id: str, owner: str = "operator/ann") -> None:
    cluster.batch(JobRegistered(cluster.at, job_id, job_id, "default", None, owner, "r"))


def submit(cluster: EngineCluster, *names: str) -> None:
    cluster.submit(*names, profile=SMALL)


def cycle(cluster: EngineCluster, count: int) -> None:
    """Requests that come and go, with two entries each in the job's log."""
    for number in range(count):
        name = f"r{cluster.now_ms}.{number}"
        submit(cluster, name)
        cluster.deliver_all()
        cluster.cancel(name)
        cluster.deliver_all()


def test_live_requests_of_one_job_are_limited_as_a_whole_call() -> None:
    cluster = cluster_of("job", job_requests_max=3)
    submit(cluster, "r1", "r2")
    with pytest.raises(ResourceExhausted) as caught:
        submit(cluster, "r2", "r3", "r4")
    assert caught.value.retry_after_s is not None
    assert caught.value.details == {"live": "2", "asked": "2", "job_requests_max": "3"}
    assert set(cluster.state.requests) == {"r1", "r2"}
    submit(cluster, "r1", "r2", "r3")
    cluster.deliver_all()
    cluster.cancel("r1")
    submit(cluster, "r4")
    assert set(cluster.state.requests) == {"r1", "r2", "r3", "r4"}


def of_size(number: int, name: str = "") -> RequestSpec:
    """Returns a request of one of many scheduling classes, none of which fits."""
    profile = ResourceProfile(100_000 + number, 64 * MIB)
    return RequestSpec(name or f"r{number}", profile, allow_pending=True)


def test_shapes_that_one_job_waits_with_are_limited_as_a_whole_call() -> None:
    cluster = cluster_of("job", "other", job_scheduling_classes_max=3)
    for job_id in ("job", "other"):  # each job has as many, although they are equal
        specs = tuple(of_size(number, f"{job_id}{number}") for number in range(2))
        cluster.submit(*specs, job=job_id)
        with pytest.raises(ResourceExhausted) as caught:
            cluster.submit(of_size(2), of_size(3), job=job_id)
        assert caught.value.retry_after_s is not None
        assert caught.value.details["waiting"] == "2"
        following = (of_size(1), of_size(3))
        event = RequestsSubmitted(cluster.at, job_id, (of_size(2),), following=following)
        with pytest.raises(ResourceExhausted):
            cluster.batch(event)
    assert "r2" not in cluster.state.requests
    many = tuple(of_size(number % 3, f"r{number}") for number in range(20))
    cluster.submit(*many)
    cluster.submit(*many, of_size(0, "more"))
    cluster.cancel("job1", *(f"r{n}" for n in range(1, 20)))
    cluster.submit(of_size(3, "r30"), of_size(4, "r40"))
    queues = cluster.state.queue.by_job
    assert {name: len(each) for name, each in queues.items()} == {"job": 3, "other": 2}
    cluster.restart_rm()
    with pytest.raises(ResourceExhausted):
        cluster.submit(of_size(5, "r50"))
    cluster.check()


def test_a_shape_counts_no_more_when_its_last_request_is_placed() -> None:
    cluster = cluster_of("job", job_scheduling_classes_max=1)
    for number in range(3):
        profile = ResourceProfile(100 + number, 64 * MIB)
        cluster.submit(f"r{number}", profile=profile)
    assert cluster.state.queue.by_job == {}
    assert len(cluster.state.slots) == 3


def test_live_jobs_are_limited() -> None:
    cluster = cluster_of("one", "two", jobs_max=2)
    with pytest.raises(ResourceExhausted):
        register(cluster, "three")
    cluster.end_job("one")
    register(cluster, "three")


def test_the_same_job_of_another_owner_is_rejected() -> None:
    cluster = cluster_of("job")
    register(cluster, "job")
    with pytest.raises(AlreadyExists):
        register(cluster, "job", owner="user/bob")


def test_a_jobs_log_is_capped_and_says_from_where_it_is_kept() -> None:
    cluster = cluster_of("job", job_events_max=20)
    cycle(cluster, 15)
    job = cluster.state.jobs["job"]
    kept = cluster.store.job_events["job"]
    assert job.last_sequence == 30
    assert len(kept) <= 20
    assert kept[0].sequence == job.trimmed_sequence + 1


def test_acknowledged_events_are_forgotten_in_large_steps() -> None:
    cluster = cluster_of("job")
    cycle(cluster, 600)
    cluster.keep_alive("job", 900)
    assert cluster.state.jobs["job"].trimmed_sequence == 0
    cluster.keep_alive("job", 1_100)
    assert cluster.state.jobs["job"].trimmed_sequence == 1_100
    cluster.keep_alive("job", 10**9)
    assert cluster.state.jobs["job"].acknowledged_sequence == 1_200


def test_the_clusters_history_is_capped() -> None:
    cluster = cluster_of("job", cluster_events_max=50)
    cycle(cluster, 60)
    kept = cluster.store.cluster_events
    assert len(kept) <= 50
    assert kept[-1].sequence == cluster.state.history.last_sequence
    assert kept[0].sequence == cluster.state.history.trimmed_sequence + 1


def test_the_clusters_history_is_forgotten_by_age_even_across_restarts() -> None:
    cluster = cluster_of("job", cluster_events_age_ms=8 * DAY_MS)
    cycle(cluster, 3)
    old = cluster.state.history.last_sequence
    for day in range(11):
        cluster.wait(DAY_MS)
        if day % 3 == 0:
            cluster.restart_rm()
    assert cluster.state.history.trimmed_sequence >= old
    assert all(event.sequence > old for event in cluster.store.cluster_events)


def test_ended_ids_are_kept_for_a_day_and_then_forgotten() -> None:
    cluster = cluster_of("job")
    submit(cluster, "r1")
    cluster.deliver_all()
    cluster.end_job("job")
    cluster.deliver_all()
    with pytest.raises(FailedPrecondition):
        submit(cluster, "r1")
    cluster.wait(DAY_MS // 2)
    cluster.restart_rm()
    assert "r1" in cluster.state.requests
    cluster.wait(DAY_MS // 2)
    assert not cluster.state.requests
    assert cluster.store.requests == {}
    assert "job" not in cluster.store.job_events
    with pytest.raises(NotFound):
        submit(cluster, "r1")


def test_an_ended_job_is_forgotten_only_when_its_slot_at_a_lost_host_is_gone() -> None:
    cluster = cluster_of("job")
    submit(cluster, "r1")
    cluster.deliver_all()
    cluster.end_job("job")
    cluster.wire.clear()
    cluster.wait(2 * DAY_MS)
    assert set(cluster.state.jobs) == {"job"}
    assert set(cluster.state.slots) == {("r1", 1)}
    cluster.restart_rm()
    cluster.register(cluster.executors["host-a"])
    cluster.deliver_all()
    assert cluster.state.slots == {}
    cluster.wait(2 * DAY_MS)
    assert cluster.state.jobs == {}
    cluster.check()
