"""Compares scaled amounts with the closed form of exponential decay."""

from __future__ import annotations

from math import isclose, log

from hypothesis import given, settings
from hypothesis import strategies as st

from resource_manager.engine.fairness.clock import Clock
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.model.settings import Fairness
from tests.support.properties import examples


def decayed(runs: list[tuple[int, float]], half_life_s: float) -> float:
    """Returns the integral over pieces of (milliseconds, rate)."""
    received = 0.0
    for length_ms, rate in runs:
        faded = 2.0 ** (-length_ms / 1_000 / half_life_s)
        received = received * faded + rate * half_life_s / log(2) * (1 - faded)
    return received


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.integers(0, 5_000_000), st.integers(0, 50)), min_size=1, max_size=20),
    st.sampled_from([1_000, 60_000, 900_000]),
)
def test_service_is_what_was_received_and_has_not_decayed(
    runs: list[tuple[int, int]], half_life_ms: int
) -> None:
    """Also over thousands of half-lives, with many rescalings."""
    tree = FlowTree(Fairness(half_life_ms=half_life_ms), 0)
    tree.put_group("g")
    tree.add_job("j", "g")
    now_ms, rate = 0, 0
    for length_ms, wanted in runs:
        if wanted > rate:
            tree.place("j", {}, wanted - rate, 1.0)
        else:
            for _ in range(rate - wanted):
                tree.stop_accruing("j", 1.0)
        rate = wanted
        now_ms += length_ms
        tree.advance(now_ms)
    expected = decayed([(ms, float(r)) for ms, r in runs], half_life_ms / 1_000)
    for flow in (tree.jobs["j"], tree.groups["g"], tree.root):
        assert isclose(tree.usage(flow).service, expected, rel_tol=1e-6, abs_tol=1e-6)


def test_without_a_half_life_nothing_is_forgotten() -> None:
    tree = FlowTree(Fairness(half_life_ms=None), 1_000)
    tree.put_group("g")
    tree.add_job("j", "g")
    tree.place("j", {}, 5, 1.0)
    tree.advance(31_000)
    for _ in range(5):
        tree.stop_accruing("j", 1.0)
    tree.advance(10**12)
    assert tree.usage(tree.groups["g"]).service == 150.0


def test_the_past_changes_nothing() -> None:
    clock = Clock(1_000, 5_000)
    clock.advance(6_000)
    before = clock.tau, clock.scale, clock.now_ms
    assert clock.advance(5_500) is None
    assert (clock.tau, clock.scale, clock.now_ms) == before


def test_an_hour_counts_half_after_a_half_life() -> None:
    tree = FlowTree(Fairness(half_life_ms=900_000), 0)
    tree.put_group("g")
    tree.add_job("j", "g")
    tree.set_usage(tree.jobs["j"], 808.0, 8.0)
    tree.advance(900_000)
    tally = tree.usage(tree.jobs["j"])
    assert (tally.service, tally.raised, tally.total) == (404.0, 4.0, 408.0)
