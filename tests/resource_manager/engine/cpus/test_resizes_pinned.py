"""Slots with cpus of their own, and slots that are bound to NUMA nodes, change their size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from finegrain.cpu_policy import BindPolicy, CpuPolicy, HostPolicy, NumaPolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.errors import FailedPrecondition, InvalidArgument, Reason
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.model.events import HostPolicySet, ResizeRequested, SlotsReleased
from tests.support.cpu_hosts import BE, LSE, LSR, PLAIN, CpuStory, host

ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
LS_ONE_NODE = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)


def ask(story: CpuStory, name: str, cpu_milli: int, mib: int = 64, **more: Any) -> Slot:
    """Asks for another size; nothing that is ordered is delivered."""
    event = ResizeRequested(
        story.cluster.at, "job", name, 0, 0, ResourceProfile(cpu_milli, mib * MIB), **more
    )
    slot: Slot = story.cluster.batch(event)
    story.sound()
    return slot


def resize(story: CpuStory, name: str, cpu_milli: int, mib: int = 64, **more: Any) -> Slot:
    slot = ask(story, name, cpu_milli, mib, **more)
    story.settle()
    return slot


def release(story: CpuStory, name: str) -> None:
    story.cluster.batch(SlotsReleased(story.cluster.at, "job", ((name, 0),)))
    story.settle()


def why(story: CpuStory, name: str) -> str:
    (change,) = explain(story.state, name).resizes
    return change.summary


def test_a_slot_grows_beside_what_it_has_and_gives_whole_cores_back_first() -> None:
    story = CpuStory(host())
    story.ask("pinned", 4_000)
    before = story.has("pinned").cpus
    resize(story, "pinned", 6_000)
    grown = story.has("pinned").cpus
    assert before < grown
    assert story.slot("pinned").profile.cpu_milli == 6_000
    assert story.free_cpu() == 10_000
    resize(story, "pinned", 3_000)
    shrunk = story.has("pinned").cpus
    assert shrunk < grown
    siblings = [CpuSet.of(cpu, cpu + 8) for cpu in range(8)]
    assert sorted(len(shrunk & core) for core in siblings)[-2:] == [1, 2]
    assert story.free_cpu() == 13_000


def test_both_are_booked_until_the_executor_has_answered() -> None:
    story = CpuStory(host())
    story.ask("pinned", 4_000)
    before = story.has("pinned").cpus
    slot = ask(story, "pinned", 8_000)
    assert slot.assignment is not None
    assert slot.assignment.cpus == before
    assert slot.ordered is not None
    assert slot.ordered.assignment is not None
    assert before < slot.ordered.assignment.cpus
    books = story.state.hosts["host-a"].cpus
    assert books.pinned == slot.ordered.assignment.cpus.bits
    story.cluster.restart_rm()
    assert story.state.hosts["host-a"].cpus.pinned == books.pinned
    story.sound()
    story.cluster.register(story.cluster.executors["host-a"])
    story.settle()
    assert story.has("pinned").cpus == slot.ordered.assignment.cpus
    slot = ask(story, "pinned", 2_000)
    assert story.state.hosts["host-a"].cpus.pinned.bit_count() == 8  # it may still run on them
    story.settle()
    assert story.state.hosts["host-a"].cpus.pinned.bit_count() == 2


def test_what_the_executor_refuses_leaves_everything_as_it_was() -> None:
    story = CpuStory(host())
    story.ask("pinned", 4_000)
    before = story.has("pinned")
    story.cluster.executors["host-a"].broken.add("pinned")
    resize(story, "pinned", 8_000)
    slot = story.slot("pinned")
    assert (slot.assignment, slot.ordered, slot.wanted) == (before, None, None)
    assert story.state.hosts["host-a"].cpus.pinned == before.cpus.bits


def test_cpus_that_go_offline_under_an_order_are_chosen_anew() -> None:
    executor = host()
    story = CpuStory(executor)
    story.ask("pinned", 4_000)
    before = story.has("pinned").cpus
    slot = ask(story, "pinned", 6_000)
    assert slot.ordered is not None
    assert slot.ordered.assignment is not None
    more = slot.ordered.assignment.cpus - before
    executor.cpu_state = replace(executor.cpu_state, offline_cpus=more)
    story.settle()
    assert slot.wanted is not None
    assert slot.wanted.assignment is None
    story.cluster.wait(5_000)
    story.settle()
    assert slot.profile.cpu_milli == 6_000
    assert not (story.has("pinned").cpus & more)


def test_a_change_that_its_cpus_do_not_suit_waits_in_line_and_says_why() -> None:
    story = CpuStory(host(policy={"numa_strategy": "MostAllocated"}))
    story.ask("pinned", 4_000, ONE_NODE)
    (node,) = story.has("pinned").nodes
    story.ask("beside", 4_000, ONE_NODE)
    assert story.has("beside").nodes == (node,)
    slot = resize(story, "pinned", 6_000)
    assert slot.wanted is not None
    assert story.free_cpu() == 8_000
    assert why(story, "pinned").startswith("WAITING_TOPOLOGY: host-a has the amounts, but the slot")
    release(story, "beside")
    assert slot.profile.cpu_milli == 6_000
    assert story.has("pinned").nodes == (node,)


def test_a_slot_in_a_nodes_pool_grows_within_it_or_waits() -> None:
    story = CpuStory(host())
    story.ask("bound", 2_000, LS_ONE_NODE)
    (node,) = story.has("bound").nodes
    story.ask("pinned", 8_000, ONE_NODE)
    assert story.has("pinned").nodes != (node,)
    resize(story, "bound", 7_500, 1_024)
    assert dict(story.has("bound").numa[0].amounts) == {
        "cpu_milli": 7_500,
        "memory_bytes": 1_024 * MIB,
    }
    release(story, "pinned")
    story.ask("beside", 500, LS_ONE_NODE)
    assert story.has("beside").nodes == (1 - node,)
    with pytest.raises(FailedPrecondition) as refused:
        resize(story, "bound", 9_000)  # the node has eight cpus
    assert refused.value.reason is Reason.INFEASIBLE_NEVER
    assert refused.value.details["blocker"] == "NUMA_NOT_ENOUGH_CPU"


def test_slots_in_the_whole_pool_grow_by_amounts_alone() -> None:
    story = CpuStory(host())
    story.ask("plain", 1_000, PLAIN)
    story.ask("idle", 1_000, BE)
    story.cluster.batch(
        HostPolicySet(story.cluster.at, "host-a", HostPolicy(alignment=NumaPolicy.SINGLE_NUMA_NODE))
    )
    resize(story, "plain", 12_000)
    assert story.slot("plain").assignment is None
    resize(story, "idle", 12_000)
    assert story.has("idle").numa == ()
    assert story.free_cpu() == 4_000
    assert story.state.hosts["host-a"].booked["best_effort_cpu_milli"] == 12_000


def test_a_lost_slot_leaves_nothing_pinned() -> None:
    story = CpuStory(host())
    story.ask("pinned", 4_000, LSE)
    ask(story, "pinned", 8_000)
    release(story, "pinned")
    assert story.state.hosts["host-a"].cpus.pinned == 0
    assert story.free_cpu() == 16_000


@pytest.mark.parametrize(
    ("policy", "cpu_milli", "limit", "field"),
    [
        (LSR, 2_500, 0, "profile.cpu_milli"),
        (LSE, 2_000, 3_000, "cpu_limit_milli"),
        (BE, 1_500, 2_000, "cpu_limit_milli"),
    ],
)
def test_sizes_that_a_class_does_not_have_are_refused(
    policy: CpuPolicy, cpu_milli: int, limit: int, field: str
) -> None:
    story = CpuStory(host())
    story.ask("slot", 1_000, policy)
    with pytest.raises(InvalidArgument) as refused:
        ask(story, "slot", cpu_milli, cpu_limit_milli=limit)
    assert refused.value.details["field"] == field
    assert str(policy.qos) in refused.value.message or "LS slots" in refused.value.message


def test_half_a_core_of_whole_ones_is_never_to_be_had() -> None:
    story = CpuStory(host())
    story.ask("slot", 4_000, CpuPolicy(QosClass.LSE, BindPolicy.FULL_PCPUS, bind_required=True))
    with pytest.raises(FailedPrecondition) as refused:
        ask(story, "slot", 5_000)
    assert refused.value.reason is Reason.INFEASIBLE_NEVER
    assert "ask for a multiple of 2000" in refused.value.message
    assert story.slot("slot").resize_number == 0
