"""Tests that the real engine produces figures 3-1 to 3-10 of the paper."""

import json
from dataclasses import replace

import pytest

from resource_manager.simulator.drawing import Area, Timeline, area_text, timeline_text
from resource_manager.simulator.figure_report import (
    comparison_text,
    figure_data,
    figure_text,
    shared_end_s,
)
from resource_manager.simulator.figure_setups import (
    SEED_MEASURE,
    STATE_U_MS,
    all_set_ups,
    figure_3_10,
)
from resource_manager.simulator.figures import FigureResult, run_figure, run_set_up
from resource_manager.simulator.share_error import TOLERANCE
from tests.support.components import REPOSITORY

SET_UPS = all_set_ups()


@pytest.fixture(scope="module")
def results() -> dict[str, FigureResult]:
    return {name: run_figure(set_up) for name, set_up in SET_UPS.items()}


def test_there_are_ten_and_all_work_of_each_is_done(results: dict[str, FigureResult]) -> None:
    assert list(results) == [f"3-{number}" for number in range(1, 11)]
    for result in results.values():
        for job in result.set_up.jobs:
            done = sum(counts.get(job.name, 0) for counts in result.lane_threads.values())
            assert done == len(job.durations_ms)


def test_coarse_and_fine_are_the_same_work(results: dict[str, FigureResult]) -> None:
    for fine in SET_UPS.values():
        if fine.coarse:
            coarse = SET_UPS[fine.coarse]
            assert fine.speeds == coarse.speeds
            for job, before in zip(fine.jobs, coarse.jobs, strict=True):
                assert (job.name, job.at_ms) == (before.name, before.at_ms)
                assert sum(job.durations_ms) == sum(before.durations_ms)


def test_3_1_state_u_delays_job_1_and_job_1_delays_job_2(results: dict[str, FigureResult]) -> None:
    picture = results["3-1"].picture
    assert isinstance(picture, Timeline)
    job_1 = sorted((bar.end_s, bar.lane) for bar in picture.bars if bar.job == "Job 1")
    assert len(job_1) == 10
    assert job_1[-1][1] == "C6"  # thread #6
    assert job_1[-1][0] > job_1[-2][0] + 0.8 * STATE_U_MS / 1_000
    # Job 2 begins when the first thread of Job 1 has ended, although it is far shorter.
    assert results["3-1"].job("Job 2").started_s == job_1[0][0]


def test_3_2_the_last_thread_of_job_1_waits_for_job_0(results: dict[str, FigureResult]) -> None:
    picture = results["3-2"].picture
    assert isinstance(picture, Timeline)
    on_c4 = [bar for bar in picture.bars if bar.lane == "C4"]
    assert [bar.job for bar in on_c4] == ["Job 0", "Job 1"]
    assert on_c4[1].start_s == results["3-2"].job("Job 0").done_s
    assert on_c4[1].end_s == results["3-2"].makespan_s


def test_3_3_two_threads_of_capacity_are_kept_free(results: dict[str, FigureResult]) -> None:
    threads = results["3-3"].lane_threads
    assert (threads["C9"], threads["C10"]) == ({"Job 2": 1}, {})
    assert results["3-3"].job("Job 2").started_s == results["3-3"].job("Job 2").submitted_s


def test_3_4_capacity_with_state_u_does_less_and_job_2_is_served_early(
    results: dict[str, FigureResult],
) -> None:
    threads = results["3-4"].lane_threads
    assert threads["C6"] == {"Job 1": 6}
    assert threads["C7"] == {"Job 1": 11}
    picture = results["3-4"].picture
    assert isinstance(picture, Timeline)
    assert [bar.lane for bar in picture.bars if bar.mark == "U"] == ["C6"]
    on_c3 = sorted((bar.start_s, bar.job) for bar in picture.bars if bar.lane == "C3")
    assert [job for _, job in on_c3[:4]] == ["Job 1", "Job 1", "Job 2", "Job 1"]


def test_3_5_capacity_that_job_0_holds_does_less_for_job_1(
    results: dict[str, FigureResult],
) -> None:
    threads = {lane: counts["Job 1"] for lane, counts in results["3-5"].lane_threads.items()}
    assert threads["C4"] == 6
    assert max(threads.values()) == 13


def test_3_6_all_capacity_is_used_and_job_2_waits_for_one_thread_at_most(
    results: dict[str, FigureResult],
) -> None:
    result = results["3-6"]
    assert all(counts["Job 1"] >= 9 for counts in result.lane_threads.values())
    waited_s = result.job("Job 2").started_s - result.job("Job 2").submitted_s
    assert waited_s < 60


@pytest.mark.parametrize(("coarse", "fine"), [("3-1", "3-4"), ("3-2", "3-5"), ("3-3", "3-6")])
def test_fine_threads_shorten_the_completion_of_job_1_and_use_what_there_is(
    results: dict[str, FigureResult], coarse: str, fine: str
) -> None:
    assert results[fine].makespan_s < 0.85 * results[coarse].makespan_s
    assert results[fine].job("Job 1").took_s < 0.85 * results[coarse].job("Job 1").took_s
    assert results[fine].utilisation > 0.9 > results[coarse].utilisation


def test_3_7_the_flow_with_100_is_served_before_the_one_with_101_5(
    results: dict[str, FigureResult],
) -> None:
    choice = results["3-7"].choice
    assert choice is not None
    assert choice.jobs == pytest.approx({"DEFAULT1": 100, "DEFAULT2": 101.5})
    assert choice.served == "DEFAULT1"


def test_3_8_a_thread_that_still_runs_counts_for_what_it_ran_so_far(
    results: dict[str, FigureResult],
) -> None:
    choice = results["3-8"].choice
    assert choice is not None
    assert choice.jobs == pytest.approx({"DEFAULT1": 104, "DEFAULT2": 101.5})
    assert choice.served == "DEFAULT2"


def test_3_9_808_of_a_group_of_weight_4_count_202(results: dict[str, FigureResult]) -> None:
    """In the log, and for the engine, which uses it for the choice."""
    choice = results["3-9"].choice
    assert choice is not None
    assert choice.groups == pytest.approx({"medium": 202, "default": 201.5})
    assert choice.jobs == pytest.approx({"MED1": 808, "DEFAULT1": 100, "DEFAULT2": 101.5})
    assert choice.served == "DEFAULT1"
    flows = run_set_up(SET_UPS["3-9"], SET_UPS["3-9"].looked_at_ms).state.flows
    counted = {name: flows.usage(flows.groups[name]).key for name in choice.groups}
    assert counted == pytest.approx(choice.groups)


def test_3_9_two_seconds_later_it_is_the_other_groups_turn() -> None:
    later = run_figure(replace(SET_UPS["3-9"], looked_at_ms=506_750)).choice
    assert later is not None
    assert later.groups == pytest.approx({"medium": 202, "default": 205.5})
    assert later.served == "MED1"


THREE_PHASES = [
    {"MED1": 48, "DEFAULT1": 6, "DEFAULT2": 6},
    {"MED1": 48, "DEFAULT1": 12},
    {"DEFAULT1": 60},
]


def _ideals(result: FigureResult) -> list[dict[str, float]]:
    return [{name: round(each, 6) for name, each in phase.ideal.items()} for phase in result.phases]


def test_3_10_48_6_6_then_48_12_then_60(results: dict[str, FigureResult]) -> None:
    result = results["3-10"]
    assert _ideals(result) == THREE_PHASES
    for phase, ideal in zip(result.phases, THREE_PHASES, strict=True):
        assert phase.shares == pytest.approx(ideal, rel=TOLERANCE)
        assert phase.converged_s is not None
        assert phase.converged_s < 60
        assert phase.error < TOLERANCE
    assert result.job("DEFAULT2").done_s < result.job("MED1").done_s < result.makespan_s
    assert result.utilisation > 0.95


@pytest.mark.full
def test_3_10_in_the_bare_measure_shares_swing_but_are_right_on_average() -> None:
    """Without lookahead the flow with the least usage takes all that is free at a moment."""
    result = run_figure(figure_3_10(30_000, SEED_MEASURE))
    assert [phase.ideal.keys() for phase in result.phases] == [each.keys() for each in THREE_PHASES]
    for phase, ideal in zip(result.phases, THREE_PHASES, strict=True):
        assert phase.shares == pytest.approx(ideal, rel=TOLERANCE)
    assert result.phases[0].converged_s is None


def test_coarse_and_fine_are_drawn_on_one_scale(results: dict[str, FigureResult]) -> None:
    for name, end_s in {"3-1": "3-1", "3-4": "3-1", "3-6": "3-3", "3-7": "3-7"}.items():
        assert shared_end_s(results, name) == results[end_s].makespan_s
    assert shared_end_s({"3-4": results["3-4"]}, "3-4") == results["3-4"].makespan_s


def test_a_figure_reads_as_text_and_as_data(results: dict[str, FigureResult]) -> None:
    for name, result in results.items():
        text = figure_text(result)
        assert text.startswith(f"Figure {name}: ")
        assert "The paper: " in text
        assert json.loads(json.dumps(figure_data(result)))["figure"] == name
    assert isinstance(results["3-10"].picture, Area)
    assert "| Job 1 | 10 / 100" in " ".join(comparison_text(results).split())
    assert not comparison_text({"3-4": results["3-4"]})


def test_the_page_shows_these_very_figures(results: dict[str, FigureResult]) -> None:
    page = (REPOSITORY / "docs/fairness-theory.md").read_text(encoding="utf-8")
    assert comparison_text(results) in page
    for name, result in results.items():
        picture = result.picture
        if isinstance(picture, Area):
            assert area_text(picture) in page
        elif result.choice is None:
            assert timeline_text(picture, shared_end_s(results, name)) in page
