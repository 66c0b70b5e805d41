"""Who comes later anyhow, asked while one look for those who starve goes on."""

from __future__ import annotations

from resource_manager.engine.scheduling.passed_over import Turns
from tests.support.jobs_and_hosts import Story


def test_whoever_is_placed_during_a_look_is_among_those_who_were_served() -> None:
    """A look may find room for somebody, and goes on with others of his job."""
    story = Story()
    story.host("host-0")
    story.job("one", "two")
    story.ask("two", ["first"])
    story.wait(1)
    story.ask("one", ["large"], cpu=4_000)
    turns, since_ms = Turns(story.state), story.cluster.now_ms
    assert turns.is_passed_over("one", since_ms)
    story.ask("one", ["small"])
    assert story.where("small")
    assert turns.is_passed_over("one", since_ms) == Turns(story.state).is_passed_over(
        "one", since_ms
    )
