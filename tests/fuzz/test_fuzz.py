"""A short attack on a real cluster; `./dev fuzz` runs longer ones."""

from __future__ import annotations

import asyncio

import pytest

from tests.fuzz.run import attack
from tests.fuzz.targets import cluster_under_attack, path_of


@pytest.mark.slow
@pytest.mark.full
def test_no_call_and_no_garbage_breaks_a_daemon() -> None:
    with cluster_under_attack() as targets:
        verdict = asyncio.run(attack(targets, 5, 1))
    assert verdict.failures == [], verdict.text()
    # Every method was called as every kind of member.
    called = set(verdict.figures.calls)
    for target in targets.all:
        for method in target.methods:
            for who in targets.who if target.asks_for_certificates else ("nobody",):
                assert (path_of(method), who) in called
