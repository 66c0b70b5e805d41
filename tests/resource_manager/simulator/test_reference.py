"""The rules of other schedulers: EASY backfilling and the order by usage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain.errors import InvalidArgument
from finegrain.resources import ResourceProfile
from resource_manager.simulator.nodes import equal_nodes
from resource_manager.simulator.reference import FCFS_EASY, MULTIFACTOR_EASY
from resource_manager.simulator.replay import Outcome, Plan, replay_reference
from resource_manager.simulator.traces.jobs import TraceJob, Workload

MINUTE_MS = 60_000


def job(
    name: str, minutes: int, count: int = 1, *, at: int = 0, user: str = "a", slack: int = 1
) -> TraceJob:
    """A job; its user expects `slack` times its run time."""
    run_ms = minutes * MINUTE_MS
    return TraceJob(
        *(name, at * MINUTE_MS, run_ms, count, ResourceProfile(1_000)),
        owners={"user": user},
        requested_ms=slack * run_ms,
    )


def waits(policy: str, *jobs: TraceJob, nodes: int = 4) -> dict[str, int]:
    """Minutes that each job waited, in order of arrival."""
    outcome = played(policy, *jobs, nodes=nodes)
    return dict(zip((each.name for each in jobs), _minutes(outcome), strict=True))


def played(policy: str, *jobs: TraceJob, nodes: int = 4) -> Outcome:
    workload = Workload("log", "swf", jobs, owner_keys=("user",))
    return replay_reference(workload, equal_nodes(nodes), Plan(), policy)


def _minutes(outcome: Outcome) -> list[int]:
    return [wait_ms // MINUTE_MS for wait_ms in outcome.waits_ms]


def test_a_short_job_starts_before_a_wide_one_and_a_long_one_does_not() -> None:
    found = waits(
        FCFS_EASY,
        job("running", 60, 2),
        job("wide", 10, 4, at=1),
        job("long", 61, at=2),
        job("short", 30, at=3),
    )
    assert found == {"running": 0, "wide": 59, "long": 68, "short": 0}


def test_a_long_job_may_use_what_the_wide_one_leaves() -> None:
    found = waits(FCFS_EASY, job("running", 60, 2), job("wide", 10, 3, at=1), job("long", 90, at=2))
    assert found == {"running": 0, "wide": 59, "long": 0}


def test_estimates_that_are_too_high_keep_jobs_back() -> None:
    jobs = [job("running", 60, 2), job("wide", 10, 4, at=1), job("short", 30, at=3, slack=3)]
    assert waits(FCFS_EASY, *jobs)["short"] == 67
    without = [replace(each, requested_ms=None) for each in jobs]
    assert waits(FCFS_EASY, *without)["short"] == 0


def test_the_user_with_less_usage_comes_first() -> None:
    jobs = [
        job("big", 60, 4, user="a"),
        job("next", 10, 4, at=1, user="a"),
        job("other", 10, 4, at=2, user="b"),
    ]
    assert waits(FCFS_EASY, *jobs) == {"big": 0, "next": 59, "other": 68}
    assert waits(MULTIFACTOR_EASY, *jobs) == {"big": 0, "next": 69, "other": 58}


def test_a_job_that_is_larger_than_the_cluster_is_rejected() -> None:
    outcome = played(FCFS_EASY, job("huge", 1, 5), job("fits", 1, 4))
    assert (outcome.jobs, outcome.rejected) == (1, {"INFEASIBLE_NEVER": 1})


def test_logs_with_other_resources_are_refused() -> None:
    odd = replace(job("odd", 1), profile=ResourceProfile(1_000, extended=(("disk", 1),)))
    workload = Workload("log", "swf", (odd,), owner_keys=("user",))
    nodes = [replace(node, total={**node.total, "extended.disk": 1}) for node in equal_nodes(1)]
    with pytest.raises(InvalidArgument, match="only cpu and memory"):
        replay_reference(workload, nodes, Plan(), FCFS_EASY)


def test_run_times_are_scaled_by_one_factor_for_each_user() -> None:
    workload = Workload("log", "swf", (job("x", 10), job("y", 20), job("z", 10, user="b")))
    x, y, z = (each.requested_ms or 0 for each in workload.expecting("scaled").jobs)
    assert abs(y - 2 * x) <= 1
    assert 10 * MINUTE_MS <= x <= 50 * MINUTE_MS
    assert x != z
    assert workload.expecting("scaled") == workload.expecting("scaled")
    assert [each.requested_ms for each in workload.expecting("none").jobs] == [None] * 3
