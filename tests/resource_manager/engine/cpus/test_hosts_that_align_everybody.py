"""Hosts with an alignment policy place everybody exactly, also those who say nothing of cpus."""

from __future__ import annotations

from finegrain.cpu_policy import HostPolicy, NumaPolicy
from resource_manager.engine.model.events import HostPolicySet, SlotsReleased
from tests.support.cpu_hosts import PLAIN, CpuStory, host


def aligned() -> CpuStory:
    story = CpuStory(host())  # eight cpus on each of two nodes
    policy = HostPolicy(alignment=NumaPolicy.SINGLE_NUMA_NODE)
    story.cluster.batch(HostPolicySet(story.cluster.at, "host-a", policy))
    story.settle()
    return story


def test_equal_requests_that_come_one_by_one_are_placed_while_there_is_room() -> None:
    story = aligned()
    for name in ("first", "second", "third"):
        story.ask(name, 6_000, PLAIN)
    assert [story.where(name) for name in ("first", "second", "third")] == ["host-a", "host-a", ""]
    assert {story.has("first").nodes, story.has("second").nodes} == {(0,), (1,)}


def test_who_waits_is_placed_as_soon_as_a_node_has_room() -> None:
    story = aligned()
    for name in ("first", "second", "third"):
        story.ask(name, 6_000, PLAIN)
    (node,) = story.has("second").nodes
    story.cluster.batch(SlotsReleased(story.cluster.at, "job", (("second", 0),)))
    story.settle()
    assert story.has("third").nodes == (node,)
