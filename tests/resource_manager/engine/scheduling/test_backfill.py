"""Planned reservations, and requests that are placed on reserved hosts because they end in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain.reservations import reservation_views
from resource_manager.engine.lifecycle.run_times import RunTimes
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from resource_manager.engine.model.run_times import KEPT, RecentDurations
from tests.simulation.backfill_checks import BackfillChecks
from tests.support.engine_cluster import FOREVER_MS, EngineCluster, host

MINUTE_MS = 60_000


def cluster_of(hosts: int, order: str = "arrival") -> EngineCluster:
    """Hosts with one core each."""
    made = [host(f"host-{number}", cpu_milli=1_000) for number in range(hosts)]
    cluster = EngineCluster(*made, order=order, lost_timeout_ms=FOREVER_MS)
    for name in ("first", "wide", "other", "third", "fourth"):
        cluster.job(name)
    return cluster


def spec(name: str, minutes: int | None, gang_id: str = "") -> RequestSpec:
    profile = ResourceProfile(1_000, 16 * MIB)
    expected_ms = None if minutes is None else minutes * MINUTE_MS
    return RequestSpec(name, profile, gang_id=gang_id, expected_run_time_ms=expected_ms)


def submit_gang(
    cluster: EngineCluster, name: str, count: int, minutes: int | None, job: str = "wide"
) -> None:
    members = [spec(f"{name}{at}", minutes, name) for at in range(count)]
    cluster.submit(*members, GangSpec(name), job=job)


def test_a_gang_is_planned_at_once_and_short_work_runs_before_it() -> None:
    cluster = cluster_of(4)
    cluster.submit(spec("a", 60), spec("b", 60), job="first")
    cluster.settle()
    submit_gang(cluster, "g", 4, 10)
    cluster.submit(spec("long", 61), job="third")
    cluster.submit(spec("unknown", None), job="fourth")
    cluster.submit(spec("short", 59), job="other")
    cluster.settle()
    assert cluster.where("short")
    assert (cluster.where("long"), cluster.where("unknown")) == ("", "")
    (view,) = reservation_views(cluster.state)
    assert (view.gang_id, len(view.executors)) == ("g", 4)
    assert view.start_time_ms == cluster.at.time_ms + 60 * MINUTE_MS
    cluster.wait(59 * MINUTE_MS)
    cluster.release("short", job="other")
    cluster.settle()
    cluster.wait(MINUTE_MS)
    cluster.release("a", "b", job="first")
    cluster.settle()
    assert all(cluster.where(f"g{at}") for at in range(4))
    assert cluster.state.reservations.planned is not None
    assert cluster.state.reservations.planned.owner.title == "long"  # it is the first in order now


def test_a_plan_leaves_the_hosts_that_it_does_not_need_until_its_start() -> None:
    cluster = cluster_of(4)
    cluster.submit(spec("a", 60), spec("b", 30), spec("c", 60), job="first")
    cluster.settle()
    submit_gang(cluster, "g", 3, 10)
    cluster.submit(spec("long", 600), job="other")
    cluster.settle()
    # The gang starts when a and c have ended. Until then, three other hosts would have room, but
    # the gang needs only one of them: the host of b, which has room later than the free host.
    (view,) = reservation_views(cluster.state)
    assert view.start_time_ms == cluster.at.time_ms + 60 * MINUTE_MS
    assert {each.executor_id for each in view.executors} == {
        cluster.where(name) for name in ("a", "b", "c")
    }
    assert cluster.where("long")
    for minutes, name in ((30, "b"), (30, "a"), (0, "c")):
        cluster.wait(minutes * MINUTE_MS)
        cluster.release(name, job="first")
        cluster.settle()
    assert all(cluster.where(f"g{at}") for at in range(3))


def test_a_plan_takes_no_later_hosts_for_members_that_share_hosts() -> None:
    made = [host(f"host-{number}", cpu_milli=2_000) for number in range(3)]
    cluster = EngineCluster(*made, order="arrival", lost_timeout_ms=FOREVER_MS)
    for name in ("first", "wide", "other"):
        cluster.job(name)
    for name, minutes in (("a", 20), ("b", 30), ("c", 40), ("d", 50), ("e", 60)):
        cluster.submit(spec(name, minutes), job="first")
        cluster.settle()
    submit_gang(cluster, "g", 3, 10)
    (view,) = reservation_views(cluster.state)
    # One cpu is free now, and two more will be free in 30 minutes.
    assert view.start_time_ms == cluster.at.time_ms + 30 * MINUTE_MS


def test_slots_that_outlast_their_estimate_move_the_start_but_let_no_more_work_in() -> None:
    cluster = cluster_of(3)
    cluster.submit(spec("a", 60), spec("b", 60), job="first")
    cluster.settle()
    submit_gang(cluster, "g", 3, 10)
    cluster.wait(61 * MINUTE_MS)
    (view,) = reservation_views(cluster.state)
    assert view.start_time_ms == cluster.at.time_ms + 59 * MINUTE_MS
    cluster.submit(spec("late", 30), job="other")
    cluster.settle()
    assert cluster.where("late") == ""


def test_a_waiter_that_lost_its_plan_to_another_one_gets_a_new_promise() -> None:
    """Only the first waiter has a promise. When another waiter was first, slots of any length were
    placed on the hosts of the earlier plan.
    """
    cluster = cluster_of(3, order="fair")
    cluster.job("urgent", priority=1)
    cluster.submit(spec("a", 60), spec("b", 60), job="first")
    cluster.settle()
    submit_gang(cluster, "g", 3, 10)
    cluster.wait(61 * MINUTE_MS)  # the promised start is over; now the start is in 59 minutes
    checks = BackfillChecks()
    assert not list(checks.decided(cluster.state, []))
    submit_gang(cluster, "u", 3, 10, job="urgent")
    cluster.wait(1_000)
    assert [each.gang_id for each in reservation_views(cluster.state)] == ["u"]
    assert not list(checks.decided(cluster.state, []))
    cluster.cancel("u0", "u1", "u2", job="urgent")
    cluster.wait(1_000)
    assert [each.gang_id for each in reservation_views(cluster.state)] == ["g"]
    cluster.submit(spec("late", 30), job="other")
    cluster.settle()
    assert cluster.where("late")
    assert not list(checks.decided(cluster.state, [("late", 1)]))
    assert checks.backfilled == 1


def test_a_promised_start_is_kept_while_the_end_of_slots_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of(3)
    cluster.submit(spec("a", 60), spec("b", 60), job="first")
    cluster.settle()
    submit_gang(cluster, "g", 3, 10)
    cluster.wait(60 * MINUTE_MS)
    with monkeypatch.context() as away:
        away.setattr(RunTimes, "start_ms", lambda *_: None)
        cluster.submit(spec("early", 1), job="third")
        cluster.settle()
    cluster.wait(MINUTE_MS)
    cluster.submit(spec("late", 30), job="other")
    cluster.settle()
    assert (cluster.where("early"), cluster.where("late")) == ("", "")


def test_the_time_limit_counts_where_no_run_time_is_expected() -> None:
    cluster = cluster_of(2)
    limited = replace(spec("a", None), time_limit_ms=60 * MINUTE_MS)
    cluster.submit(limited, job="first")
    cluster.settle()
    submit_gang(cluster, "g", 2, 10)
    short = replace(spec("short", None), time_limit_ms=50 * MINUTE_MS)
    cluster.submit(short, job="other")
    cluster.settle()
    assert cluster.where("short")


def test_without_run_times_nothing_is_planned() -> None:
    cluster = cluster_of(2)
    cluster.submit(spec("a", 60), job="first")
    cluster.settle()
    submit_gang(cluster, "g", 2, None)
    cluster.settle()
    assert not cluster.state.reservations


def test_the_latest_durations_of_a_job_and_class_give_the_estimate() -> None:
    recent = RecentDurations()
    for number in range(9):
        recent.add(number)
    estimates = [recent.expected_ms]
    recent.add(1_000)
    estimates.append(recent.expected_ms)
    for _ in range(KEPT):
        recent.add(7)
    assert [*estimates, recent.expected_ms] == [None, 8, 7]  # 8 is the ninth of ten durations


def test_an_estimate_lets_threads_of_a_batch_backfill() -> None:
    """Ten threads took five minutes each, so the next ones probably do."""
    cluster = cluster_of(4)
    names = [f"t{number}" for number in range(13)]
    cluster.submit(*(spec(name, None) for name in names), job="other")
    for done in range(0, 10, 2):
        cluster.settle()
        cluster.wait(5 * MINUTE_MS)
        cluster.release(*names[done : done + 2], job="other")
    cluster.settle()
    estimate = cluster.state.run_times.expected_ms(spec("x", None), "other")
    assert estimate is not None
    assert 5 * MINUTE_MS <= estimate <= 15 * MINUTE_MS


def test_a_planned_gang_that_fits_elsewhere_is_placed_there_before_the_next_plan() -> None:
    cluster = cluster_of(2)
    cluster.submit(spec("a", 60), spec("b", 600), job="first")
    cluster.settle()
    submit_gang(cluster, "g", 1, 10)
    cluster.settle()
    assert cluster.state.reservations.planned is not None
    cluster.release("b", job="first")  # in the same second as the plan
    cluster.settle()
    assert cluster.where("g0") == "host-1"
    assert not cluster.state.reservations
