"""Tests of the advice how many threads to split a job into (F17), case by case.

Durations are in seconds here, for readability.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resource_manager.engine.fairness.advice import (
    ASSUMED,
    MANY_THREADS,
    ONE_THREAD,
    ONE_UNIT,
    OUTWEIGHED,
    THREADS_MAX,
    Advice,
    Observed,
    advise,
)
from resource_manager.engine.model.durations import Durations


def observed(
    *seconds: float, running: int = 0, waiting: int = 0, running_longest_s: float = 0
) -> Observed:
    finished = Durations()
    for each in seconds:
        finished.add(round(each * 1000))
    return Observed(finished, running, waiting, round(running_longest_s * 1000))


def says(advice: Advice, words: str) -> bool:
    return any(words in remark for remark in advice.remarks)


def test_ten_threads_of_twenty_minutes_become_ten_times_as_many() -> None:
    """A typical case: the advice is ten times as many threads."""
    advice = advise(observed(*[20 * 60] * 10))

    assert advice.threads_recommended == 100
    assert advice.share_within_target == 0
    assert says(advice, "with 100, 10 times as many threads, about 100 % would")
    assert advice.remarks[-1] == ASSUMED


def test_the_great_majority_is_what_is_asked_for_not_all() -> None:
    """One thread in twenty may take longer; here one does."""
    spread = [60 + 6 * number for number in range(100)]  # 60 s to 11 minutes
    strict = advise(observed(*spread), quantile=0.99)
    usual = advise(observed(*spread))
    half = advise(observed(*spread), quantile=0.5)

    assert half.threads_recommended < usual.threads_recommended < strict.threads_recommended
    # 95 of 100 take at most 624 s, which is 5.2 times the target.
    assert usual.threads_recommended == pytest.approx(520, rel=0.06)
    assert usual.at_quantile_ms == pytest.approx(624_000, rel=0.05)


@pytest.mark.parametrize(("longer", "recommended"), [(5, 100), (6, 400)])
def test_95_of_100_are_to_keep_to_two_minutes(longer: int, recommended: int) -> None:
    """Some of 100 threads take eight minutes, and the others at most two minutes.

    If more than five threads take eight minutes, the advice is four times as many threads.
    """
    advice = advise(observed(*[100] * (100 - longer), *[480] * longer))

    assert advice.threads_recommended == pytest.approx(recommended, rel=0.05)
    assert advice.share_within_target == pytest.approx(1 - longer / 100)
    assert (advice.target_ms, advice.quantile) == (120_000, 0.95)


def test_enough_is_enough() -> None:
    advice = advise(observed(*[30] * 500))

    assert advice.threads_recommended == 500
    assert says(advice, "100 % of the finished threads met 2m00s: no more threads are needed")


def test_threads_that_have_not_finished_count_as_threads() -> None:
    """The job has 100 threads: when a third has finished, it must not count as a job of 33
    threads.
    """
    advice = advise(observed(*[600] * 30, running=10, waiting=60))

    assert advice.threads_recommended == pytest.approx(500, abs=10)
    assert (advice.threads_observed, advice.threads_running, advice.threads_waiting) == (30, 10, 60)


def test_state_u_cannot_be_split_away() -> None:
    """Figure 3-1: one of ten threads has one unit that takes long.

    Bringing that thread under two minutes would take 150 threads without success; 21 are enough for
    the others.
    """
    advice = advise(observed(*[4 * 60] * 9, 30 * 60))

    assert advice.threads_recommended == pytest.approx(20, abs=2)
    assert says(advice, "1 of 10 took far longer than the others (up to 30m00s")
    assert ONE_UNIT in advice.remarks
    assert says(advice, "if each of these threads has many units of work, about 150 threads")


def test_a_long_one_among_many_is_said_although_nothing_is_to_change() -> None:
    advice = advise(observed(*[30] * 500, 3600))

    assert advice.threads_recommended == 501
    assert says(advice, "1 of 501 took far longer")


def test_long_ones_that_are_many_are_no_exceptions() -> None:
    """A third of the threads has nearly all of the work: more threads do divide it."""
    advice = advise(observed(*[1800] * 30, *[2] * 70))

    assert advice.threads_recommended == 1_500
    assert ONE_UNIT not in advice.remarks
    assert MANY_THREADS in advice.remarks


def test_no_advice_goes_where_a_threads_own_cost_dominates() -> None:
    """Threads of half a second, and a target of a tenth of that: 5 % of each thread is work."""
    advice = advise(observed(*[0.5] * 100), target_ms=50)

    assert advice.threads_recommended == 100
    assert says(advice, OUTWEIGHED)


def test_splitting_stops_at_threads_of_a_second() -> None:
    advice = advise(observed(*[20] * 10), target_ms=100)

    assert advice.threads_recommended == 200  # of one second each; 2,000 would meet the target
    assert says(advice, OUTWEIGHED)


def test_threads_that_are_too_short_should_be_fewer() -> None:
    advice = advise(observed(*[0.5] * 10_000))

    assert advice.threads_recommended == 500  # of about ten seconds each
    assert says(advice, "fewer and longer threads would waste less")


def test_nobody_is_told_to_make_so_few_that_hardly_any_run_at_once() -> None:
    assert advise(observed(*[0.3] * 5_000)).threads_recommended == 200
    assert advise(observed(*[0.3] * 50)).threads_recommended == 50


def test_a_job_of_one_thread_may_stay_so() -> None:
    advice = advise(observed(50 * 60))

    assert advice.threads_recommended == 25
    assert ONE_THREAD in advice.remarks


def test_without_anything_finished_there_is_no_advice() -> None:
    advice = advise(observed(running=5, waiting=10, running_longest_s=60))

    assert advice.threads_recommended == 0
    assert says(advice, "no thread of the job has finished yet")


def test_doubts_are_said() -> None:
    advice = advise(observed(*[100] * 5, running=4, waiting=500, running_longest_s=900))

    assert says(advice, "few threads have finished: this is a rough estimate")
    assert says(advice, "only 5 of 509 threads have finished")
    assert says(advice, "one thread has run for 15m00s, longer than any finished thread")


def test_nobody_is_told_to_make_more_threads_than_are_normal() -> None:
    advice = advise(observed(*[40 * 3600] * 1_000))

    assert advice.threads_recommended == THREADS_MAX


@given(
    st.lists(st.floats(1.0, 5_000.0), min_size=1, max_size=40),
    st.integers(10_000, 600_000),
    st.floats(0.5, 0.99),
)
def test_split_as_advised_the_wanted_part_keeps_to_the_target(
    seconds: list[float], target_ms: int, quantile: float
) -> None:
    """Whatever the durations, the advice holds if the work is split evenly, as assumed.

    The histogram is accurate to 5 %. The check leaves out threads that the advice calls long, and
    cases in which the advice says why it cannot help.
    """
    advice = advise(observed(*seconds), target_ms, quantile)
    wanted = advice.threads_recommended
    excused = says(advice, OUTWEIGHED) or says(advice, "took far longer") or wanted == THREADS_MAX
    factor = wanted / len(seconds)
    kept = sum(each * 1000 / factor <= target_ms * 1.11 for each in seconds) / len(seconds)

    assert excused or kept >= quantile - 1e-9
    assert wanted >= 1
