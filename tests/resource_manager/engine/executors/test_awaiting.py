"""Executors of a version without certificates are awaited until they have joined."""

from __future__ import annotations

import pytest

from finegrain.errors import FailedPrecondition
from finegrain.values.states import ExecutorState, RequestState
from resource_manager.engine.model.entities import JobState
from resource_manager.engine.model.events import (
    ExecutorsAwaited,
    ForgetRequested,
    JobRegistered,
)
from tests.support.engine_cluster import EngineCluster, host

LOST_MS, LEASE_MS, WEEK_MS = 10_000, 30_000, 7 * 24 * 3_600_000


def upgraded() -> EngineCluster:
    """A cluster with one slot on host-a, after the upgrade of its resource manager."""
    cluster = EngineCluster(host("host-a"), host("host-b"), jobs=(), lost_timeout_ms=LOST_MS)
    # As the migration of the database leaves it: the job has no owner.
    cluster.apply(JobRegistered(cluster.at, "job", "job", "default", LEASE_MS, "", "r"))
    cluster.submit("r1", cpu_milli=100)
    cluster.settle()
    assert cluster.state.requests["r1"].state is RequestState.GRANTED
    cluster.restart_rm()
    awaited = cluster.apply(ExecutorsAwaited(cluster.at, WEEK_MS))
    assert awaited == ["host-a", "host-b"]
    return cluster


def states(cluster: EngineCluster) -> dict[str, ExecutorState]:
    return {name: each.executor.state for name, each in cluster.state.hosts.items()}


def request_state(cluster: EngineCluster, name: str) -> RequestState:
    return cluster.state.requests[name].state


def job_state(cluster: EngineCluster) -> JobState:
    return cluster.state.jobs["job"].state


def go_on(cluster: EngineCluster, ms: int) -> None:
    cluster.wait(ms)
    cluster.settle()


def test_neither_executors_nor_leases_end_while_they_are_awaited() -> None:
    cluster = upgraded()
    go_on(cluster, WEEK_MS - 1_000)
    assert set(states(cluster).values()) == {ExecutorState.UNCONFIRMED}
    assert job_state(cluster) is JobState.ACTIVE
    assert request_state(cluster, "r1") is RequestState.GRANTED
    go_on(cluster, LOST_MS)
    assert set(states(cluster).values()) == {ExecutorState.LOST}
    assert job_state(cluster) is JobState.ENDED


def test_no_new_slot_is_placed_on_an_awaited_executor() -> None:
    cluster = upgraded()
    cluster.submit("r2", cpu_milli=100)
    go_on(cluster, LOST_MS)
    assert request_state(cluster, "r2") is RequestState.PENDING
    cluster.register(cluster.executors["host-b"])
    cluster.settle()
    assert request_state(cluster, "r2") is RequestState.GRANTED


def test_an_executor_that_has_joined_can_be_lost_again() -> None:
    cluster = upgraded()
    cluster.register(cluster.executors["host-a"])
    go_on(cluster, LOST_MS + 1)
    assert states(cluster) == {
        "host-a": ExecutorState.LOST,
        "host-b": ExecutorState.UNCONFIRMED,
    }


def test_a_restart_knows_who_is_still_awaited() -> None:
    cluster = upgraded()
    cluster.register(cluster.executors["host-a"])
    cluster.restart_rm()
    go_on(cluster, LOST_MS + 1)
    assert states(cluster) == {
        "host-a": ExecutorState.LOST,
        "host-b": ExecutorState.UNCONFIRMED,
    }
    assert job_state(cluster) is JobState.ACTIVE
    cluster.restart_rm()
    go_on(cluster, WEEK_MS)
    assert states(cluster)["host-b"] is ExecutorState.LOST


def test_only_an_awaited_executor_can_be_forgotten_before_it_is_lost() -> None:
    cluster = upgraded()
    cluster.register(cluster.executors["host-b"])
    cluster.apply(ForgetRequested(cluster.at, "host-a"))
    cluster.settle()
    assert list(cluster.state.hosts) == ["host-b"]
    with pytest.raises(FailedPrecondition, match="only a lost executor"):
        cluster.apply(ForgetRequested(cluster.at, "host-b"))
