"""An executor that was asked for comes: those it was asked for have it first."""

from __future__ import annotations

from finegrain.resources import GIB, ResourceProfile
from resource_manager.engine.model.events import GroupSet
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from tests.support.jobs_and_hosts import Story


def test_whoever_a_maximum_stops_does_not_stand_before_those_it_was_asked_for() -> None:
    """They wait with the same and came first, and somebody else would be served before both."""
    shape = ExecutorShape(
        "four", "test", {"cpu_milli": 4_000, "memory_bytes": 64 * GIB}, ResourceProfile(1_000, GIB)
    )
    story = Story(Provisioning((shape,), total_max={"cpu_milli": 5_000}))
    story.host("host-0", cpu=1_000)
    story.act(GroupSet(story.cluster.at, "none", maximum={"cpu_milli": 0}))
    story.job("stopped", group="none")
    story.job("free")
    story.ask("free", ["runs"])
    story.ask("stopped", ["stopped-0"], cpu=4_000)
    story.ask("free", ["planned"], cpu=4_000)
    story.wait(2)
    (asked_for,) = story.state.provisions
    story.job("late", group="critical")
    story.ask("late", ["late-0"])
    story.host(asked_for, provided_as="four")
    story.wait(1)
    assert story.where("planned") == asked_for
    assert not story.where("late-0")
    assert not story.where("stopped-0")
