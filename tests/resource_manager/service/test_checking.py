"""Tests that all invariants are checked within a window, in short slices."""

from __future__ import annotations

from collections.abc import Iterator

from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import fresh
from resource_manager.engine.state import State
from resource_manager.service.checking import FIRST_SLICE_S, SLICE_S, StateCheck

STATE = fresh(EngineSettings(), 1, Instant(0, 0))
STEP_S = 0.001
WINDOW_S = 60.0


class Sweeps:
    """A sweep over entities that take a millisecond each."""

    def __init__(self, entities: int) -> None:
        self.entities = entities
        self.now_s = 0.0
        self.seen = 0  # in this sweep
        self.whole = 0  # sweeps
        self.wrong: set[int] = set()
        self.check = StateCheck(self.findings, WINDOW_S, lambda: self.now_s)

    def findings(self, state: State) -> Iterator[str | None]:
        assert state is STATE
        self.seen = 0
        for number in range(self.entities):
            self.now_s += STEP_S
            self.seen += 1
            if number in self.wrong:
                yield f"{number} is wrong"
            yield None
        self.whole += 1

    def live(self, seconds: float, pause_s: float = 0.2) -> list[str]:
        """Lets batches come at intervals, with slices after each as the writer runs them."""
        found, until_s = [], self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += pause_s
            while self.check.due():
                before_s = self.now_s
                found += self.check.run_slice(STATE)
                assert self.now_s - before_s <= SLICE_S + STEP_S
        return found


def test_everything_is_checked_at_once_at_the_start() -> None:
    sweeps = Sweeps(5_000)
    sweeps.wrong = {7, 4_000}
    assert sweeps.check.run(STATE) == ["7 is wrong", "4000 is wrong"]
    assert not sweeps.check.due()


def test_a_large_state_is_checked_further_without_pauses() -> None:
    sweeps = Sweeps(5_000)
    sweeps.check.run(STATE)  # the next check has no pauses either
    sweeps.wrong = {7, 4_000}
    found = sweeps.check.run(STATE, 0.05)
    assert found == ["7 is wrong"]
    assert sweeps.seen < 100
    slices = 0
    while not sweeps.check.complete:
        assert sweeps.check.due()
        found += sweeps.check.run_slice(STATE)
        slices += 1
    assert found == ["7 is wrong", "4000 is wrong"]
    assert slices < 5_000 * STEP_S / FIRST_SLICE_S + 2
    assert not sweeps.check.due()


def test_a_sweep_is_spread_over_the_window_and_over_in_time() -> None:
    sweeps = Sweeps(5_000)
    sweeps.check.run(STATE)
    sweeps.live(WINDOW_S / 2 + 5)  # the next sweep begins after half of the window
    assert sweeps.whole == 1
    assert 0 < sweeps.seen < 2_000  # it does not hurry
    sweeps.live(WINDOW_S / 2)
    assert sweeps.whole >= 2


def test_a_sweep_that_takes_longer_than_the_one_before_is_over_in_time_too() -> None:
    sweeps = Sweeps(10)
    sweeps.check.run(STATE)
    sweeps.entities = 20_000
    sweeps.live(WINDOW_S / 2 + WINDOW_S)
    assert sweeps.whole >= 2


def test_what_is_wrong_is_found_in_a_slice() -> None:
    sweeps = Sweeps(5_000)
    sweeps.check.run(STATE)
    sweeps.wrong = {3_000}
    assert sweeps.live(WINDOW_S) == ["3000 is wrong"]


def test_a_sweep_in_progress_is_dropped_with_its_state() -> None:
    sweeps = Sweeps(5_000)
    sweeps.check.run(STATE)
    sweeps.live(WINDOW_S / 2 + 5)
    assert 0 < sweeps.seen < 5_000
    sweeps.check.run(STATE)
    assert sweeps.whole == 2
    assert not sweeps.check.due()
