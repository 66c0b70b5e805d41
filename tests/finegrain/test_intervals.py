"""A set of intervals behaves as a set of numbers, for all additions and removals."""

import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from finegrain.intervals import IntervalSet
from tests.support.properties import examples

NUMBERS = st.integers(0, 80)


class AgainstAPlainSet(RuleBasedStateMachine):
    """Changes the set in all ways, and compares every answer with the answer of a plain set."""

    @initialize(numbers=st.sets(NUMBERS))
    def some_are_in(self, numbers: set[int]) -> None:
        self.runs = IntervalSet.of(numbers)
        self.plain = set(numbers)

    @rule(number=NUMBERS)
    def one_is_put_in(self, number: int) -> None:
        assert self.runs.add(number) == (number not in self.plain)
        self.plain.add(number)

    @rule(start=NUMBERS, length=st.integers(-1, 30))
    def a_run_is_put_in(self, start: int, length: int) -> None:
        new = set(range(start, start + length)) - self.plain
        assert self.runs.add_run(start, start + length) == len(new)
        self.plain |= new

    @rule(number=NUMBERS)
    def one_is_taken_out(self, number: int) -> None:
        assert self.runs.discard(number) == (number in self.plain)
        self.plain.discard(number)

    @rule(start=NUMBERS, length=st.integers(-1, 30))
    def a_run_is_taken_out(self, start: int, length: int) -> None:
        gone = set(range(start, start + length)) & self.plain
        assert self.runs.remove_run(start, start + length) == len(gone)
        self.plain -= gone

    @rule(count=st.integers(0, 40))
    def the_first_are_taken(self, count: int) -> None:
        least = sorted(self.plain)[:count]
        assert numbers_of(self.runs.peek(count)) == least
        assert numbers_of(self.runs.take(count)) == least
        self.plain -= set(least)

    @rule(start=NUMBERS, length=st.integers(0, 40))
    def a_part_is_looked_at(self, start: int, length: int) -> None:
        part = range(start, start + length)
        has = [number for number in part if number in self.plain]
        assert numbers_of(self.runs.runs_within(start, start + length)) == has
        assert self.runs.count_within(start, start + length) == len(has)
        assert self.runs.next_from(start) == min(
            (number for number in self.plain if number >= start), default=None
        )

    @rule()
    def it_is_copied(self) -> None:
        other = self.runs.copy()
        assert other == self.runs
        other.add(1000)
        assert 1000 not in self.runs
        assert other != self.runs

    @invariant()
    def it_holds_what_it_should(self) -> None:
        assert list(self.runs) == sorted(self.plain)
        assert len(self.runs) == len(self.plain)
        assert bool(self.runs) == bool(self.plain)
        for number in range(-1, 115):
            assert (number in self.runs) == (number in self.plain)
        if self.plain:
            assert (self.runs.first, self.runs.last) == (min(self.plain), max(self.plain))

    @invariant()
    def runs_neither_overlap_nor_touch(self) -> None:
        runs = list(self.runs.runs())
        assert len(runs) == self.runs.run_count
        assert all(start < end for start, end in runs)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(runs))


def numbers_of(runs: object) -> list[int]:
    return [number for start, end in runs for number in range(start, end)]  # type: ignore[attr-defined]


TestAgainstAPlainSet = AgainstAPlainSet.TestCase
TestAgainstAPlainSet.settings = settings(max_examples=examples(60), stateful_step_count=25)


@given(st.lists(st.integers(0, 2000), max_size=400, unique=True), st.data())
@settings(max_examples=examples(20))
def test_many_runs_taken_from_the_front_leave_the_rest_as_it_was(
    numbers: list[int], data: st.DataObject
) -> None:
    runs, left = IntervalSet.of(numbers), sorted(numbers)
    while left:
        count = data.draw(st.integers(1, 120))
        assert numbers_of(runs.take(count)) == left[:count]
        left = left[count:]
        assert list(runs) == left


def test_an_empty_set_has_neither_a_first_nor_a_last_number() -> None:
    with pytest.raises(KeyError):
        _ = IntervalSet().first
    with pytest.raises(KeyError):
        _ = IntervalSet().last
    with pytest.raises(KeyError, match="7"):
        IntervalSet([(1, 7)]).remove(7)


def test_a_million_numbers_in_a_row_cost_no_more_than_one() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        runs = IntervalSet([(1, 1_000_001)])
        for number in range(5000, 6000):
            runs.discard(number)
        assert len(runs) == 999_000
        assert tracemalloc.get_traced_memory()[0] - before < 1000
    finally:
        tracemalloc.stop()
