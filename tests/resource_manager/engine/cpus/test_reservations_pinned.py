"""Hosts that are held for those who wait for cpus of their own, or for NUMA nodes."""

from __future__ import annotations

from finegrain.cpu_policy import CpuPolicy, HostPolicy, NumaPolicy, QosClass
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import GangPlacement, GangSpec, RequestSpec
from resource_manager.engine.model.events import HostPolicySet, RequestsSubmitted, ResizeRequested
from resource_manager.engine.model.settings import Fairness
from tests.support.cpu_hosts import BE, LSE, PLAIN, CpuStory, host

ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
LS_ONE_NODE = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
IMPATIENT = Fairness(starvation_timeout_ms=1_000, starvation_placements=1)


def story_of(*names: str) -> CpuStory:
    """Hosts of two nodes with eight cpus, each of which holds two slots of half a node each."""
    hosts = [
        host(name, policy={"numa_strategy": "LeastAllocated"}, labels=(("name", name),))
        for name in names
    ]
    story = CpuStory(*hosts, fairness=IMPATIENT)
    for at in range(2 * len(names)):
        here = (("name", names[at // 2]),)
        story.ask(f"half-{at}", 4_000, ONE_NODE, required_labels=here)
    return story


def starve(story: CpuStory) -> None:
    """Others are served meanwhile, and time goes by."""
    for at in range(3):
        story.cluster.wait(1_000)
        for executor in story.cluster.executors.values():
            story.cluster.report(executor)
        if not story.state.reservations.by_number:
            name = f"passer-by-{story.state.numbers.arrival}-{at}"
            story.ask(name, 100, PLAIN)
            story.release(name)
    story.sound()


def held(story: CpuStory) -> list[str]:
    return sorted(story.state.reservations.on_host)


def test_a_host_that_is_held_for_a_whole_node_gives_no_cpus_to_anybody_else() -> None:
    story = story_of("host-a")
    story.ask("node", 8_000, ONE_NODE)  # there are eight cpus, four on each node
    starve(story)
    assert held(story) == ["host-a"]
    assert story.waits("node") != ""
    story.ask("other", 2_000, ONE_NODE, allow_pending=True)
    story.ask("bound", 500, LS_ONE_NODE, allow_pending=True)
    assert story.state.requests["other"].state == "PENDING"
    assert story.state.requests["bound"].state == "PENDING"
    story.release("half-0")
    assert story.state.requests["node"].state == "GRANTED"
    assert len(story.has("node").nodes) == 1
    assert held(story) == []
    story.settle()
    assert story.state.requests["other"].state == "GRANTED"
    assert story.state.requests["bound"].state == "GRANTED"


def test_nothing_is_held_on_hosts_that_would_not_suit_even_when_empty() -> None:
    small = host("host-a", nodes=2, cores=2)
    story = CpuStory(small, host("host-b"), fairness=IMPATIENT)
    for at in range(4):
        story.ask(f"half-{at}", 3_000, ONE_NODE)
    story.ask("wide", 8_000, ONE_NODE)
    starve(story)
    assert held(story) == ["host-b"]


def test_what_is_held_is_given_up_when_the_host_comes_to_align_otherwise() -> None:
    story = story_of("host-a", "host-b")
    both_nodes = CpuPolicy(QosClass.LSR, numa=NumaPolicy.RESTRICTED, numa_required=True)
    story.ask("wide", 12_000, both_nodes)
    starve(story)
    (name,) = held(story)
    other = {"host-a": "host-b", "host-b": "host-a"}[name]
    aligned = HostPolicy(alignment=NumaPolicy.SINGLE_NUMA_NODE)
    story.cluster.batch(HostPolicySet(story.cluster.at, name, aligned))
    story.sound()
    starve(story)
    assert held(story) == [other]
    assert any("do not suit it any more" in each for each in story.told("reservation_ended"))


def test_a_gang_has_hosts_held_that_suit_all_its_members_together() -> None:
    story = story_of("host-a", "host-b")
    specs = tuple(
        RequestSpec(f"g-{at}", ResourceProfile(8_000, 64 * MIB), gang_id="g", cpu_policy=ONE_NODE)
        for at in range(3)
    )
    gangs = (GangSpec("g", GangPlacement.ANYWHERE),)
    story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", specs, gangs=gangs))
    starve(story)
    assert held(story) == ["host-a", "host-b"]
    story.release("half-0", "half-1", "half-2")
    assert {story.state.requests[f"g-{at}"].state for at in range(3)} == {"GRANTED"}
    assert held(story) == []


def test_the_growth_of_a_slot_is_held_for_until_its_node_has_room() -> None:
    story = CpuStory(host(policy={"numa_strategy": "MostAllocated"}), fairness=IMPATIENT)
    story.ask("grows", 4_000, ONE_NODE)
    story.ask("beside", 4_000, ONE_NODE)
    assert story.has("beside").nodes == story.has("grows").nodes
    profile = ResourceProfile(8_000, 64 * MIB)
    story.cluster.batch(ResizeRequested(story.cluster.at, "job", "grows", 0, 0, profile))
    starve(story)
    assert held(story) == ["host-a"]  # the amounts are there all the time
    story.ask("other", 2_000, ONE_NODE, allow_pending=True)
    assert story.state.requests["other"].state == "PENDING"
    story.release("beside")
    assert story.slot("grows").profile.cpu_milli == 8_000
    assert story.state.requests["other"].state == "GRANTED"


def test_no_other_slot_grows_by_cpus_of_a_host_that_is_held() -> None:
    story = story_of("host-a")
    story.ask("node", 8_000, ONE_NODE)
    starve(story)
    assert held(story) == ["host-a"]
    story.ask("plain", 500, PLAIN)  # others may have what is not held
    assert story.state.requests["plain"].state == "GRANTED"
    profile = ResourceProfile(5_000, 64 * MIB)
    story.cluster.batch(ResizeRequested(story.cluster.at, "job", "half-0", 0, 0, profile))
    story.settle()
    assert story.slot("half-0").wanted is not None
    (change,) = explain(story.state, "half-0").resizes
    assert change.summary == "there is room on host-a, which is held for node"
    story.release("half-1")
    assert story.state.requests["node"].state == "GRANTED"
    story.settle()
    assert story.slot("half-0").profile.cpu_milli == 5_000


def test_best_effort_slots_do_not_keep_an_exclusive_one_off_its_last_cpu_for_ever() -> None:
    story = CpuStory(host("host-a"), fairness=IMPATIENT)
    story.ask("idle-0", 500, BE)
    story.ask("all", 16_000, LSE)
    assert story.waits("all") != ""
    for at in range(1, 6):  # there is always another one before the last one ends
        story.cluster.wait(1_000)
        story.cluster.report(story.cluster.executors["host-a"])
        story.ask(f"idle-{at}", 500, BE, allow_pending=True)
        story.release(f"idle-{at - 1}")
    assert story.state.requests["all"].state == "GRANTED"
    assert held(story) == []
    story.release("all")
    assert story.state.requests["idle-5"].state == "GRANTED"
