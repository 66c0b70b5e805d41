"""Fairness decides who is placed next, and never stops what runs: a reservation, a minimum
and a maximum wait until slots end by themselves.
"""

from __future__ import annotations

import pytest

from resource_manager.engine.model.entities import SlotState
from resource_manager.engine.model.events import GroupSet
from tests.support.jobs_and_hosts import Story

CORES = 4
STARVING_S = 60
LONG_S = 600


@pytest.fixture
def full() -> Story:
    """Two hosts, full of slots of a job in the group with the least weight."""
    story = Story(starvation_timeout_ms=1_000 * STARVING_S)
    story.host("host-0", cpu=CORES * 1_000)
    story.host("host-1", cpu=CORES * 1_000)
    story.job("first", group="low")
    story.ask("first", [f"low-{number}" for number in range(2 * CORES)])
    assert len(story.running()) == 2 * CORES
    return story


def assert_all_go_on(story: Story, running: list[str]) -> None:
    """Looks for a long time, in steps in which every timer rings, for a slot that is taken away."""
    for _ in range(LONG_S // 5):
        story.wait(5)
        assert story.running() == running
        assert {slot.state for slot in story.state.slots.values()} == {SlotState.ALLOCATED}


def test_neither_weight_nor_usage_stops_what_runs(full: Story) -> None:
    running = full.running()
    full.job("urgent", group="critical")
    full.ask("urgent", [f"urgent-{number}" for number in range(CORES)])
    assert_all_go_on(full, running)
    full.end("first", running[0])
    assert full.running() == [*running[1:], "urgent-0"]


def test_a_reservation_waits_until_what_runs_on_its_host_has_ended(full: Story) -> None:
    full.job("urgent", group="critical")
    full.ask("urgent", ["large"], cpu=CORES * 1_000)
    for number in range(STARVING_S):  # small slots are placed where small ones end
        full.wait(2)
        full.ask("first", [f"low-more-{number}"])
        full.end("first", full.running()[0])
        if full.state.reservations:
            break
    running = full.running()
    assert len(running) == 2 * CORES
    assert_all_go_on(full, running)
    (host,) = full.state.reservations.on_host
    *ending, last = full.running(host)
    full.end("first", *ending)
    assert full.running(host) == [last]
    full.end("first", last)
    assert full.running(host) == ["large"]


def test_a_minimum_is_reached_only_with_slots_that_ended(full: Story) -> None:
    running = full.running()
    full.act(GroupSet(full.cluster.at, "critical", minimum={"cpu_milli": CORES * 1_000}))
    full.job("urgent", group="critical")
    full.ask("urgent", [f"urgent-{number}" for number in range(CORES)])
    assert_all_go_on(full, running)
    full.end("first", *running[:2])
    assert full.running() == [*running[2:], "urgent-0", "urgent-1"]


def test_a_maximum_below_what_runs_is_reached_only_as_slots_end(full: Story) -> None:
    running = full.running()
    full.ask("first", ["low-more"])
    full.act(GroupSet(full.cluster.at, "low", maximum={"cpu_milli": 1_000}))
    assert_all_go_on(full, running)
    full.end("first", *running[1:])
    assert full.running() == running[:1]
