"""Tests of the histogram of durations: its accuracy, and its bounded size."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resource_manager.engine.model.durations import BUCKETS_MAX, RELATIVE_ERROR, Durations, merged

YEAR_MS = 365 * 24 * 3600 * 1000
some_ms = st.lists(st.integers(0, 3 * YEAR_MS), min_size=1, max_size=60)


def of(durations_ms: list[int]) -> Durations:
    found = Durations()
    for each in durations_ms:
        found.add(each)
    return found


@given(some_ms, st.floats(0.001, 0.999))
def test_a_quantile_is_one_that_occurred_to_five_percent(ms: list[int], quantile: float) -> None:
    exact = sorted(ms)[max(1, math.ceil(quantile * len(ms) - 1e-9)) - 1]
    told = of(ms).quantile_ms(quantile)

    assert told == pytest.approx(exact, rel=RELATIVE_ERROR * 1.001, abs=1)


@given(some_ms)
def test_number_mean_and_longest_are_exact(ms: list[int]) -> None:
    found = of(ms)

    assert (found.count, found.longest_ms, found.shortest_ms) == (len(ms), max(ms), min(ms))
    assert found.mean_ms == pytest.approx(sum(ms) / len(ms))


@given(some_ms, st.integers(0, 3 * YEAR_MS))
def test_the_share_within_a_limit_lies_between_those_of_limits_close_by(
    ms: list[int], limit_ms: int
) -> None:
    width = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR) * 1.001
    below = sum(each <= limit_ms / width - 1 for each in ms) / len(ms)
    above = sum(each <= limit_ms * width + 1 for each in ms) / len(ms)

    assert below - 1e-9 <= of(ms).share_within(limit_ms) <= above + 1e-9


@given(some_ms, some_ms)
def test_merging_is_as_if_all_had_been_added_to_one(first: list[int], second: list[int]) -> None:
    assert merged([of(first), Durations(), of(second)]) == of(first + second)


@given(some_ms, st.integers(0, 9), st.integers(0, 9))
def test_a_restart_reads_what_was_written(ms: list[int], handed_on: int, others: int) -> None:
    written = of(ms)
    written.handed_on, written.unfinished, written.unmatched = handed_on, others, len(ms) // 2

    assert Durations.from_text(written.to_text()) == written


def test_durations_of_an_earlier_version_are_not_matched_to_threads() -> None:
    found = Durations.from_text("[1,9,2,7,3,[4,2]]")

    assert (found.count, found.total_ms, found.handed_on) == (2, 9, 3)
    assert (found.unfinished, found.unmatched) == (0, 2)


def test_a_million_durations_of_all_lengths_stay_small() -> None:
    found = Durations()
    for exponent in range(1_000):
        found.add(round(1.03**exponent))  # far beyond any age of a cluster
    found = merged([found] * 1_000)

    assert found.count == 1_000_000
    assert len(found.buckets) <= BUCKETS_MAX
    assert len(found.to_text()) < 4_000


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "no JSON",
        "[1,2]",
        "[3,0,0,0,0,0,0,[]]",
        "[2,0,0,0,0,[]]",
        "[1,9,9,9,0,[4]]",
        "[1,9,9,9,0,[999,1]]",
        "7",
    ],
)
def test_what_cannot_be_read_is_nothing_rather_than_a_reason_not_to_start(text: str) -> None:
    assert Durations.from_text(text) == Durations()


def test_none_at_all() -> None:
    none = Durations()

    assert none.to_text() == ""
    assert (none.quantile_ms(0.5), none.mean_ms, none.share_within(1)) == (0, 0, 1)
    assert none.beyond(0) == (0, 0)


def test_time_that_ran_backwards_counts_as_none() -> None:
    assert of([-5]) == of([0])


def test_the_row_is_compact() -> None:
    assert json.loads(of([500] * 100_000).to_text())[-1][1] == 100_000
    assert len(of([500] * 100_000).to_text()) < 50


def test_those_beyond_a_limit_and_their_sum() -> None:
    number, total_ms = of([1_000] * 8 + [60_000, 80_000]).beyond(10_000)

    assert number == 2
    assert total_ms == pytest.approx(140_000, rel=RELATIVE_ERROR)
