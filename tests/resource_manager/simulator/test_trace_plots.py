"""Tests of curves of a replayed log, divided into time slices."""

from __future__ import annotations

import pytest

from finegrain.resources import ResourceProfile
from resource_manager.simulator.replay import Plan, replay
from resource_manager.simulator.steps import Steps
from resource_manager.simulator.trace_plots import slices, trace_plot_text
from resource_manager.simulator.traces.jobs import TraceJob, Workload
from resource_manager.simulator.traces.node_lists import read_nodes


def test_slices_are_means_over_equal_times() -> None:
    steps = Steps([10, 25], [4, 0])
    assert slices(steps, 0, 40, 4) == [0, 4, 2, 0]
    assert slices(steps, 0, 40, 1) == [1.5]
    assert slices(Steps(), 0, 40, 2) == [0, 0]
    assert slices(Steps([0], [3]), 0, 0, 3) == [3, 3, 3]


@pytest.mark.parametrize("count", [1, 3, 7, 66])
def test_slices_lose_nothing(count: int) -> None:
    steps = Steps([3, 17, 40, 91], [2, 9, 5, 0])
    means = slices(steps, 0, 100, count)
    edges = [100 * number // count for number in range(count + 1)]
    sums = [m * (b - a) for m, a, b in zip(means, edges, edges[1:], strict=False)]
    assert sum(sums) == pytest.approx(steps.integral(0, 100))


def test_text_shows_use_waiting_and_waits() -> None:
    profile = ResourceProfile(1_000)
    jobs = tuple(TraceJob(str(n), 0, 86_400_000, 1, profile) for n in range(4))
    outcome = replay(Workload("log", "swf", jobs), read_nodes("2x1cpu"), Plan())

    lines = trace_plot_text([outcome], 2, width=10).splitlines()

    assert lines[:5] == [
        "cores in use, of 2 ('.' to '@')",
        "fair @@@@@@@@@@",
        "",
        "threads waiting, of 2 at most",
        "fair @@@@@     ",
    ]
    assert lines[5].endswith("2.0 days")
    assert lines[-1].split() == ["fair", "0s", "0s", *["86400s"] * 5]
