"""Tests that requests which become infeasible while they wait are rejected.

This happens once the executors have been known for long enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from finegrain.cpu_policy import NumaPolicy
from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import RangeSpec, RequestSpec
from resource_manager.engine.model.events import (
    CommandRefused,
    Ticked,
)
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from tests.resource_manager.engine.infeasible import (
    AFTER_MS,
    HUGE,
    SMALL,
    rejected_after,
    told,
    waits,
)
from tests.support.engine_cluster import FOREVER_MS, EngineCluster, host


def test_a_request_from_before_the_first_executor_is_refused_like_one_that_comes_later() -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit("early", profile=HUGE)
    cluster.wait(10 * AFTER_MS)
    assert waits(cluster)  # a suitable executor may register

    cluster.host()
    (late,) = cluster.submit("late", profile=HUGE)
    assert rejected_after(cluster, AFTER_MS)
    assert told(cluster) == [("REJECTED", late.reason, late.message)]
    assert late.reason == "INFEASIBLE_NEVER"
    history = [e for e in cluster.store.cluster_events if e.kind == "request_rejected"]
    assert [e.allocation_id for e in history] == ["late", "early"]
    cluster.restart_rm()
    request = cluster.state.requests["early"]
    assert (request.state, request.message) == ("REJECTED", late.message)


def test_a_request_that_allows_to_wait_is_never_rejected() -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit("patient", allow_pending=True, profile=HUGE)
    cluster.submit(RangeSpec(RequestSpec("range", HUGE, allow_pending=True), 0, 5))
    cluster.submit("early", profile=HUGE)
    cluster.host()
    cluster.wait(10 * AFTER_MS)
    assert [waits(cluster, name) for name in ("early", "patient", "range.0")] == [False, True, True]


def test_labels_that_no_executor_carries_count_too() -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit("early", profile=SMALL, required_labels=(("zone", "b"),))
    cluster.host()
    (late,) = cluster.submit("late", profile=SMALL, required_labels=(("zone", "b"),))
    assert rejected_after(cluster, AFTER_MS)
    assert told(cluster) == [("REJECTED", late.reason, late.message)]


def test_an_unconfirmed_executor_stops_the_clock_until_it_registers() -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit("early", profile=HUGE)
    a, b = host("host-a"), host("host-b")
    cluster.register(a)
    cluster.register(b)
    cluster.restart_rm()
    cluster.register(a)
    cluster.wait(10 * AFTER_MS)
    assert waits(cluster)
    cluster.register(b)
    assert rejected_after(cluster, AFTER_MS)


def test_an_unconfirmed_executor_stops_the_clock_until_it_is_lost() -> None:
    cluster = EngineCluster(lost_timeout_ms=100_000)
    cluster.submit("early", profile=HUGE)
    a = cluster.host()
    cluster.host("host-b")
    cluster.restart_rm()
    cluster.register(a)
    for _ in range(10):
        cluster.wait(10_000)
        cluster.report(a)
    assert cluster.state.hosts["host-b"].executor.lost
    assert rejected_after(cluster, AFTER_MS)


def test_an_executor_that_refuses_its_orders_is_unconfirmed_until_it_registers() -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit("early", profile=HUGE)
    a = cluster.host()
    cluster.submit("small", profile=SMALL)
    command = cluster.wire.pop().command
    numbers = command.registration_number, command.command_number
    cluster.batch(CommandRefused(cluster.at, "host-a", *numbers, "COMMAND_OUT_OF_ORDER"))
    cluster.wait(AFTER_MS)
    assert waits(cluster)
    cluster.register(a)
    assert rejected_after(cluster, AFTER_MS)


def test_a_lost_executor_alone_does_not_let_the_clock_run() -> None:
    cluster = EngineCluster(lost_timeout_ms=20_000)
    cluster.submit("early", profile=HUGE)
    cluster.host()
    cluster.wait(20_000)
    assert cluster.state.hosts["host-a"].executor.lost
    cluster.wait(10 * AFTER_MS)
    assert waits(cluster)


def _registration(cluster: EngineCluster) -> None:
    cluster.host("host-b")


def _registered_again(cluster: EngineCluster) -> None:
    cluster.register(cluster.executors["host-a"])


def _forgetting(cluster: EngineCluster) -> None:
    cluster.forget("lost")


def _settings_of_a_host(cluster: EngineCluster) -> None:
    cluster.set_host_policy("host-a", reserved_strict=True)


def _settings_of_the_cluster(cluster: EngineCluster) -> None:
    cluster.set_host_policy("", alignment=NumaPolicy.RESTRICTED)


def _takeover(cluster: EngineCluster) -> None:
    cluster.restart_rm()
    cluster.register(cluster.executors["host-a"])


@pytest.mark.parametrize(
    "change",
    [
        _registration,
        _registered_again,
        _forgetting,
        _settings_of_a_host,
        _settings_of_the_cluster,
        _takeover,
    ],
)
def test_the_clock_restarts_with(change: Callable[[EngineCluster], None]) -> None:
    cluster = EngineCluster(lost_timeout_ms=20_000)
    cluster.submit("early", profile=HUGE)
    cluster.host("lost")
    cluster.wait(20_000)
    a = cluster.host()
    for _ in range(2):
        cluster.wait(12_000)
        cluster.report(a)
    change(cluster)
    cluster.wait(15_000)
    cluster.report(a)
    assert rejected_after(cluster, AFTER_MS - 15_000)


def test_the_clock_does_not_restart_with_drains_and_lost_executors() -> None:
    cluster = EngineCluster(lost_timeout_ms=20_000)
    cluster.submit("early", profile=HUGE)
    a = host()
    cluster.host("host-b")
    cluster.register(a)
    cluster.wait(15_000)
    cluster.report(a)
    cluster.drain("host-a")
    cluster.wait(10_000)
    assert cluster.state.hosts["host-b"].executor.lost
    assert rejected_after(cluster, 5_000)


def test_time_in_which_nobody_could_be_heard_does_not_count() -> None:
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit("early", profile=HUGE)
    cluster.host()
    cluster.now_ms += 10 * AFTER_MS
    cluster.batch(Ticked(cluster.at, after_stall=True))
    assert rejected_after(cluster, AFTER_MS)


@pytest.mark.parametrize("how", ["draining", "lost"])
def test_an_executor_that_takes_no_slots_now_still_counts(how: str) -> None:
    cluster = EngineCluster(lost_timeout_ms=20_000)
    cluster.submit("early", profile=HUGE)
    small, large = host(), host("large", cpu_milli=64_000)
    cluster.register(large)
    if how == "lost":
        cluster.wait(20_000)
        assert cluster.state.hosts["large"].executor.lost
    else:
        cluster.drain("large")
    cluster.register(small)
    for _ in range(10):
        cluster.wait(15_000)
        cluster.report(small)
    assert waits(cluster)
    if how == "draining":
        cluster.wait(5_000)
        assert cluster.state.hosts["large"].executor.lost
    cluster.forget("large")
    cluster.report(small)
    cluster.wait(15_000)
    cluster.report(small)
    assert rejected_after(cluster, 15_000)


@pytest.mark.parametrize(("cpu", "hosted"), [(64_000, True), (63_000, False)])
def test_what_a_provider_could_start_counts(cpu: int, hosted: bool) -> None:
    total = {"cpu_milli": cpu, "memory_bytes": GIB}
    shape = ExecutorShape("shape", "test", total, ResourceProfile(1_000, 64 * MIB))
    provisioning = Provisioning(shapes=(shape,), total_max={"cpu_milli": 200_000})
    cluster = EngineCluster(lost_timeout_ms=FOREVER_MS)
    cluster.submit("early", profile=HUGE)
    # A new leader has providers.
    cluster.settings = replace(cluster.settings, provisioning=provisioning)
    cluster.restart_rm()
    cluster.host()
    cluster.wait(AFTER_MS)
    assert waits(cluster) is hosted


def test_explain_says_when_a_request_is_rejected() -> None:
    cluster = EngineCluster(lost_timeout_ms=100_000)

    def summary(name: str = "early") -> str:
        return explain(cluster.state, name).summary

    cluster.submit("early", "second", profile=HUGE)
    cluster.submit("patient", allow_pending=True, profile=HUGE)
    assert "rejected" not in summary()  # whether it will be is unknown yet
    a = cluster.host()
    assert "it is rejected at 22:13:51 UTC, unless" in summary()
    assert "rejected" not in summary("patient")
    cluster.wait(10_000)
    cluster.host("host-b")
    assert "it is rejected at 22:14:01 UTC, unless" in summary()
    cluster.restart_rm()
    assert "it is rejected 30 s after an executor has registered" in summary()
    cluster.register(a)
    assert "it is rejected 30 s after every known executor has registered again" in summary()
    cluster.host("host-c", cpu_milli=64_000)
    assert "rejected" not in summary("second")
