"""Tallies over restarts that come one soon after the other."""

from __future__ import annotations

import pytest

from tests.support.jobs_and_hosts import Story


def test_what_was_received_while_nobody_led_is_kept_when_some_of_it_ends_right_after() -> None:
    """Nobody could tell after the next restart that the slot had been there for so long."""
    story = Story(service="slots", half_life_ms=None)
    story.host("host-0")
    story.job("one")
    story.ask("one", ["stays", "ends"])
    away_s = 600
    story.cluster.now_ms += 1_000 * away_s
    story.cluster.restart_rm()
    story.end("one", "ends")
    story.cluster.restart_rm()
    flow = story.state.flows.jobs["one"]
    assert story.state.flows.tally(flow).service == pytest.approx(2 * away_s, abs=20)
