"""Tests of waits, slowdowns and shares, computed by hand."""

from __future__ import annotations

import pytest

from finegrain.resources import ResourceProfile
from resource_manager.simulator.cluster import Cluster
from resource_manager.simulator.ideal import IdealFlow, IdealTree
from resource_manager.simulator.log import JobRecord
from resource_manager.simulator.measures import (
    Account,
    Moment,
    Spread,
    bounded_slowdown,
    mean_while,
    moments,
    share_gaps,
    wait_ms,
)
from resource_manager.simulator.nodes import equal_nodes
from resource_manager.simulator.steps import Steps, steps_of

HALF = IdealTree([IdealFlow("a"), IdealFlow("b")])


def record(submit_ms: int, start_ms: int, end_ms: int) -> JobRecord:
    job = JobRecord("job", "group", submit_ms, ResourceProfile(1_000), 1)
    job.first_start_ms, job.end_ms, job.longest_ms = start_ms, end_ms, end_ms - start_ms
    return job


def test_percentiles_are_values_that_occur() -> None:
    spread = Spread.of(range(100, 0, -1))
    assert (spread.median, spread.p95, spread.p99, spread.most) == (50, 95, 99, 100)
    assert (spread.count, spread.mean) == (100, 50.5)
    assert Spread.of([7]) == Spread(1, 7, 7, 7, 7, 7)
    assert Spread.of([]) == Spread()


def test_slowdown_counts_short_jobs_as_ten_seconds_and_is_at_least_one() -> None:
    assert bounded_slowdown(record(0, 60_000, 80_000)) == 4
    assert bounded_slowdown(record(0, 30_000, 31_000)) == 3.1
    assert bounded_slowdown(record(0, 0, 1_000)) == 1
    assert wait_ms(record(5, 60, 80)) == 55


def test_what_has_not_run_has_no_wait_and_no_slowdown() -> None:
    job = JobRecord("job", "group", 0, ResourceProfile(1_000), 1)
    with pytest.raises(ValueError, match="no thread of job job has started"):
        wait_ms(job)
    with pytest.raises(ValueError, match="job job has not ended"):
        bounded_slowdown(job)


def test_steps_hold_until_the_next_one() -> None:
    steps = steps_of([(10, 2), (30, -1), (20, 0), (30, 5), (50, -6)])
    assert steps == Steps([10, 30, 50], [2, 6, 0])
    assert [steps.at(ms) for ms in (9, 10, 29, 30, 49, 50)] == [0, 2, 2, 6, 6, 0]
    assert steps.integral(0, 100) == 2 * 20 + 6 * 20
    assert steps.mean(20, 40) == 4
    assert steps.mean(20, 20) == 0
    assert list(steps.pieces(5, 30)) == [(5, 10, 0), (10, 30, 2)]


def test_a_mean_over_the_time_in_which_somebody_waits() -> None:
    use = Steps([0, 10], [4, 1])
    waiting = Steps([5, 15], [3, 0])
    assert mean_while(use, waiting, 0, 100) == (2.5, 10)
    assert mean_while(use, Steps(), 0, 100) == (0, 0)


def test_the_course_of_a_run_says_who_uses_and_who_wants_how_much() -> None:
    cluster = Cluster(equal_nodes(2))
    cluster.submit("one", [10] * 3, group="a")
    cluster.submit("two", [5], group="b", at_ms=2)
    cluster.run()

    course = list(moments(cluster.log, lambda profile: profile.cpu_milli / 1_000))

    assert course[:3] == [
        Moment(0, {"a": 2}, {"a": 3}),
        Moment(2, {"a": 2}, {"a": 3, "b": 1}),
        Moment(10, {"a": 1, "b": 1}, {"a": 1, "b": 1}),
    ]
    assert course[-1] == Moment(20, {}, {})


def test_who_has_all_although_two_want_it_has_half_of_it_too_much() -> None:
    both = {"a": 2.0, "b": 2.0}
    course = [Moment(0, {"a": 2.0}, both), Moment(10_000, {"b": 2.0}, both), Moment(20_000, {}, {})]

    accounts, (fine, whole) = share_gaps(course, HALF, [10_000, 20_000])

    assert accounts == {"a": Account(20, 20), "b": Account(20, 20)}
    assert (fine.windows, fine.error, fine.worst) == (2, 0.5, 0.5)
    assert (whole.windows, whole.error) == (1, 0)


def test_a_time_in_which_nobody_waits_says_nothing_about_shares() -> None:
    course = [Moment(0, {"a": 2.0}, {"a": 2.0}), Moment(10_000, {}, {})]

    accounts, (gap,) = share_gaps(course, HALF, [5_000])

    assert accounts["a"] == Account(20, 20)
    assert (gap.windows, gap.error) == (0, 0)


def test_weights_divide_what_is_in_use() -> None:
    tree = IdealTree([IdealFlow("a", weight=3), IdealFlow("b")])
    wanted = {"a": 8.0, "b": 8.0}
    course = [Moment(0, {"a": 2.0, "b": 2.0}, wanted), Moment(1_000, {}, {})]

    accounts, (gap,) = share_gaps(course, tree, [1_000])

    assert accounts == {"a": Account(2, 3), "b": Account(2, 1)}
    assert gap.error == 0.25
