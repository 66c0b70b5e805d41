"""Tallies over restarts that come soon after something has ended, or one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resource_manager.engine.model.events import GroupSet, JobEndRequested, JobRegistered
from tests.support.jobs_and_hosts import Story


def test_what_was_received_while_nobody_led_is_kept_when_some_of_it_ends_right_after() -> None:
    """Nobody could tell after the next restart that the slot had been there for so long."""
    story = Story(usage_measure="slots", half_life_ms=None)
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


def end_job(story: Story) -> None:
    story.act(JobEndRequested(story.cluster.at, "job", "ENDED"))


def end_lease(story: Story) -> None:
    """Its master is gone."""
    story.wait(2)


@pytest.mark.parametrize(("end", "lease_ms"), [(end_job, None), (end_lease, 8_000)])
def test_groups_keep_what_a_job_received_that_ended_right_before_a_restart(
    end: Callable[[Story], None], lease_ms: int | None
) -> None:
    """Its slots are gone by then, so nothing shows that they were there."""
    story = Story(usage_measure="slots", half_life_ms=None)
    story.host("host-0")
    story.act(GroupSet(story.cluster.at, "outer"))
    story.act(GroupSet(story.cluster.at, "inner", parent="outer"))
    story.cluster.batch(JobRegistered(story.cluster.at, "job", "job", "inner", lease_ms, "s", "r"))
    story.ask("job", ["a", "b"])
    ran_s = 6
    for _ in range(ran_s):  # less than the interval at which tallies are stored
        story.wait(1)
    end(story)
    story.restart()
    assert story.running() == []
    received = {
        name: story.state.flows.tally(story.state.flows.groups[name]).service
        for name in ("outer", "inner", "default")
    }
    ran_s += 2 if lease_ms else 0
    assert received == {
        "outer": pytest.approx(2 * ran_s),
        "inner": pytest.approx(2 * ran_s),
        "default": 0,
    }
