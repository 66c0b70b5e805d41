"""Executors that do not tell what their cpus are made of, such as those of an older version: they
serve whatever demands nothing of single cpus or NUMA nodes, and what is preferred is noted.
"""

from __future__ import annotations

import pytest

from finegrain.cpu_policy import BindPolicy, CpuPolicy, ExclusivePolicy, NumaPolicy
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.model.entities import GangPlacement, GangSpec, RequestSpec
from resource_manager.engine.model.events import RequestsSubmitted
from tests.support.cpu_hosts import LSR, CpuStory, host, plain_host

UNKNOWN = "the host does not tell its cores and NUMA nodes"
BURST = BindPolicy.CONSTRAINED_BURST
ONE_NODE = NumaPolicy.SINGLE_NUMA_NODE


@pytest.mark.parametrize(
    ("policy", "note"),
    [
        (CpuPolicy(numa=ONE_NODE), f"NUMA policy SingleNUMANode was preferred: {UNKNOWN}"),
        (
            CpuPolicy(numa=NumaPolicy.BEST_EFFORT),
            f"NUMA policy BestEffort was preferred: {UNKNOWN}",
        ),
        (CpuPolicy(bind=BURST), f"ConstrainedBurst was preferred: {UNKNOWN}"),
        (
            CpuPolicy(exclusive=ExclusivePolicy.PCPU_LEVEL),
            "PCPULevel was preferred: LS slots have no cpus of their own",
        ),
    ],
)
def test_what_is_only_preferred_never_refuses(policy: CpuPolicy, note: str) -> None:
    story = CpuStory(plain_host("host-a"))
    story.ask("alone", 1_000, policy, cpu_limit_milli=2_000)
    assert story.where("alone") == "host-a"
    given = story.has("alone")
    assert given.notes == (note,)
    assert given.numa == ()


@pytest.mark.parametrize(
    "policy",
    [LSR, CpuPolicy(numa=ONE_NODE, numa_required=True), CpuPolicy(bind=BURST, bind_required=True)],
)
def test_what_is_required_is_refused_and_says_why(policy: CpuPolicy) -> None:
    story = CpuStory(plain_host("host-a"))
    [answer] = story.ask("alone", 1_000, policy)
    assert UNKNOWN in answer.message


def test_hosts_that_tell_go_first() -> None:
    story = CpuStory(plain_host("host-a"), host("host-b"))
    for number in range(3):
        story.ask(f"bound-{number}", 8_000, CpuPolicy(numa=ONE_NODE))
    assert story.hosts_of("bound-0", "bound-1", "bound-2") == ["host-b", "host-b", "host-a"]


def test_gangs_may_prefer_as_well() -> None:
    story = CpuStory(plain_host("host-a", 4))
    specs = tuple(
        RequestSpec(
            name,
            ResourceProfile(2_000, 64 * MIB),
            gang_id="gang",
            cpu_policy=CpuPolicy(numa=ONE_NODE),
        )
        for name in ("first", "second")
    )
    gangs = (GangSpec("gang", GangPlacement.SAME_EXECUTOR),)
    story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", specs, gangs=gangs))
    story.settle()
    assert story.hosts_of("first", "second") == ["host-a", "host-a"]


def test_default_slots_prefer_as_well() -> None:
    story = CpuStory(plain_host("host-a", 4))
    spec = RequestSpec("one", None, cpu_policy=CpuPolicy(numa=ONE_NODE))
    story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", (spec,)))
    story.settle()
    assert story.where("one") == "host-a"


def test_of_hosts_that_are_alike_one_may_have_smaller_default_slots() -> None:
    """The default slot of one needs more than a node of it has; that of its twin does not."""
    large, small = host("host-a"), host("host-b")
    large.default_profile = ResourceProfile(12_000, 256 * MIB)
    story = CpuStory(large, small)
    spec = RequestSpec("one", None, cpu_policy=CpuPolicy(numa=ONE_NODE, numa_required=True))
    story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", (spec,)))
    story.settle()
    assert story.where("one") == "host-b"
