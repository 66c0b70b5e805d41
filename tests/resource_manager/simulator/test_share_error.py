"""Tests of share error and convergence time, on runs that are small enough to compute by hand."""

import math

import pytest

from resource_manager.simulator.ideal import IdealFlow, IdealTree
from resource_manager.simulator.share_error import Comparison, Usage

TREE = IdealTree(
    [
        IdealFlow("big", weight=3),
        IdealFlow("small"),
        IdealFlow("a", "big"),
        IdealFlow("b", "small"),
    ]
)


def usage(at_s: float, a: float, b: float, *, a_wants: float = 99, b_wants: float = 99) -> Usage:
    """Returns the usage of eight threads of capacity; by weight a has 6 of them and b 2."""
    return Usage(at_s, 8, {"a": a, "b": b}, {"a": a_wants, "b": b_wants})


def test_a_run_that_is_the_ideal_has_no_error() -> None:
    comparison = Comparison(TREE, [usage(0, 6, 2)], end_s=100)
    assert comparison.flows == ["a", "b", "big", "small"]
    assert comparison.errors(0, 100) == dict.fromkeys(comparison.flows, 0.0)
    assert (comparison.received("a", 10, 20), comparison.due("big", 10, 20)) == (60, 60)


def test_the_error_is_relative_to_what_was_due_in_the_window() -> None:
    comparison = Comparison(TREE, [usage(0, 7, 1), usage(50, 5, 3)], end_s=100)
    assert comparison.error("b", 0, 50) == pytest.approx(0.5)
    assert comparison.error("a", 0, 50) == pytest.approx(1 / 6)
    assert comparison.error("small", 0, 50) == pytest.approx(0.5)
    # Over both halves together, each flow received its share.
    assert comparison.worst_error(0, 100) == pytest.approx(0)
    assert comparison.error("b", 25, 75) == pytest.approx(0)


def test_what_is_due_follows_the_demand_that_there_was() -> None:
    comparison = Comparison(TREE, [usage(0, 7, 1, b_wants=1), usage(10, 8, 0, b_wants=0)], 20)
    assert comparison.worst_error(0, 20) == 0
    assert comparison.due("b", 0, 20) == 10
    assert comparison.error("b", 10, 20) == 0


def test_what_a_flow_gets_when_nothing_is_due_to_it_is_infinitely_wrong() -> None:
    stopped = IdealTree([IdealFlow("a", maximum=0), IdealFlow("b")])
    comparison = Comparison(stopped, [Usage(0, 8, {"a": 1, "b": 7}, {"a": 9, "b": 9})], 10)
    assert comparison.error("a", 0, 10) == math.inf


def test_converged_from_when_on_every_window_is_within_the_tolerance() -> None:
    run = [usage(0, 8, 0), usage(30, 4, 4), usage(40, 6, 2)]
    comparison = Comparison(TREE, run, end_s=200)
    # A window that begins at 39 has one second in 10 with two threads too many for b.
    assert comparison.converged_after_s(0, 200, window_s=10, tolerance=0.11) == 40
    # A window of 100 seconds that begins at 30 has 20 too much of 200, one that begins at 0 has 40
    # too little. Nothing changes in between, so the answer is a time at which something changes.
    assert comparison.converged_after_s(0, 200, window_s=100, tolerance=0.11) == 30
    assert comparison.converged_after_s(0, 200, window_s=100, tolerance=0.2) == 0
    assert comparison.converged_after_s(30, 200, window_s=10, tolerance=0.11) == 10


def test_never_converged_is_said() -> None:
    comparison = Comparison(TREE, [usage(0, 6, 2), usage(95, 7, 1)], end_s=100)
    assert comparison.converged_after_s(0, 100, window_s=10) is None
    assert comparison.converged_after_s(0, 95, window_s=10) == 0
    assert comparison.converged_after_s(0, 5, window_s=10) is None


def test_a_flow_that_comes_later_is_compared_from_then_on() -> None:
    run = [usage(0, 8, 0, b_wants=0), usage(10, 6, 2)]
    comparison = Comparison(TREE, run, end_s=30)
    assert comparison.errors(0, 30) == pytest.approx(dict.fromkeys(("a", "b", "big", "small"), 0))
    assert comparison.due("b", 0, 30) == 40
