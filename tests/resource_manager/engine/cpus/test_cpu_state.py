"""Cpus that go offline, or that a kubelet takes: capacity follows, and slots are named."""

from __future__ import annotations

import json

from finegrain.cpu_policy import CpuPolicy, NumaPolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.resources import GIB
from resource_manager.engine.model.entities import NO_CPU_STATE
from resource_manager.engine.model.events import SlotsReleased
from tests.resource_manager.engine.infeasible import AFTER_MS, rejected_after
from tests.support.cpu_hosts import NODE_MEMORY, PLAIN, CpuStory, host


def test_cpus_that_do_not_run_are_nobodys_capacity() -> None:
    story = CpuStory(host())
    story.see("host-a", offline_cpus="3,11")
    assert story.free_cpu() == 14_000
    story.ask("waits", 15_000, PLAIN, allow_pending=True)
    assert story.state.requests["waits"].state == "PENDING"
    story.see("host-a", offline_cpus="3")
    story.settle()
    assert story.state.requests["waits"].state == "GRANTED"
    story.see("host-a")
    assert story.free_cpu() == 1_000


def test_isolated_cpus_let_nobody_book_more_than_the_pool_has() -> None:
    executor = host()
    executor.host_cpus = json.dumps(json.loads(executor.host_cpus) | {"isolated_cpus": "6-7"})
    story = CpuStory(executor)
    assert story.state.hosts["host-a"].total["best_effort_cpu_milli"] == 14_000
    story.ask("pinned", 2_000, CpuPolicy(QosClass.LSR))
    assert story.cpus("pinned") == "6-7"  # nobody else can use them
    assert story.free_cpu() == 12_000
    story.sound()


def test_slots_that_are_there_stay_when_capacity_goes() -> None:
    story = CpuStory(host())
    story.ask("all", 16_000, PLAIN)
    story.see("host-a", kubelet_cpus="0-7")
    books = story.state.hosts["host-a"]
    assert books.shrunk
    assert story.free_cpu() == 0
    assert books.total["best_effort_cpu_milli"] == 8_000
    assert story.state.requests["all"].state == "GRANTED"


def test_what_was_seen_before_a_restart_is_known_again_with_the_first_report() -> None:
    story = CpuStory(host())
    story.see("host-a", offline_cpus="3,11")
    story.cluster.restart_rm()
    books = story.state.hosts["host-a"]
    assert books.executor.cpu_state == NO_CPU_STATE
    assert not books.eligible
    story.cluster.register(story.cluster.executors["host-a"])
    assert story.free_cpu() == 14_000
    story.sound()


def test_a_report_that_says_nothing_leaves_it_as_it_was_and_a_full_one_does_not() -> None:
    executor = host()
    story = CpuStory(executor)
    story.see("host-a", offline_cpus="3")
    story.cluster.report(executor)
    story.cluster.short_report(executor)
    assert story.free_cpu() == 15_000
    executor.cpu_state = NO_CPU_STATE
    story.cluster.report(executor)
    assert story.free_cpu() == 16_000


def test_offline_cpus_that_slots_never_could_have_change_nothing() -> None:
    story = CpuStory(host())
    version = story.state.hosts.version
    story.see("host-a", offline_cpus="64-127")
    assert story.free_cpu() == 16_000
    assert story.state.hosts.version == version
    assert story.state.hosts["host-a"].present.taken == CpuSet()


def test_memory_that_a_kubelet_gave_away_is_not_there_for_slots_bound_to_its_node() -> None:
    one_node = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
    story = CpuStory(host(policy={"numa_strategy": "MostAllocated"}))
    story.see("host-a", kubelet_memory=((0, NODE_MEMORY - GIB),))
    story.ask("large", 1_000, one_node, mib=2 * 1_024)
    assert story.has("large").nodes == (1,)
    story.ask("second", 1_000, one_node, mib=15 * 1_024, allow_pending=True)
    assert story.state.requests["second"].state == "PENDING"
    story.see("host-a")
    story.settle()
    assert story.has("second").nodes == (0,)


def test_slots_whose_own_cpus_vanish_are_named_and_stay() -> None:
    story = CpuStory(host())
    story.ask("pinned", 2_000)
    story.ask("plain", 1_000, PLAIN)
    cpus = story.has("pinned").cpus
    story.see("host-a", offline_cpus=cpus.first(1))
    (told,) = story.told("cpus_lost")
    assert told.startswith(f"cpus {cpus.first(1)} of the slot's own")
    assert story.state.hosts["host-a"].lost_cpus == {("pinned", 1): cpus.first(1)}
    assert story.state.requests["pinned"].state == "GRANTED"
    story.see("host-a", offline_cpus=cpus.first(1))
    assert len(story.told("cpus_lost")) == 1  # once is enough
    story.see("host-a", kubelet_cpus=cpus)
    assert len(story.told("cpus_lost")) == 2
    story.see("host-a")
    assert len(story.told("cpus_returned")) == 1
    assert story.state.hosts["host-a"].lost_cpus == {}
    story.cluster.executors["host-a"].host_cpus = '{"slot_cpus":"0-6"}'
    story.cluster.register(story.cluster.executors["host-a"])
    assert len(story.told("cpus_lost")) == 2 + bool(cpus - CpuSet.parse("0-6"))


def test_what_a_slot_lost_is_in_nobodys_books_when_it_is_gone() -> None:
    story = CpuStory(host())
    story.ask("pinned", 2_000)
    story.see("host-a", offline_cpus=story.has("pinned").cpus.first(1))
    story.cluster.batch(SlotsReleased(story.cluster.at, "job", (("pinned", 0),)))
    story.settle()
    assert story.state.hosts["host-a"].lost_cpus == {}
    assert story.free_cpu() == 15_000


def test_what_a_host_refused_is_asked_for_again_when_its_cpus_are_others() -> None:
    story = CpuStory(host())
    story.cluster.executors["host-a"].broken.add("pinned")
    story.ask("pinned", 4_000, allow_pending=True)
    assert story.state.requests["pinned"].state == "PENDING"
    story.cluster.executors["host-a"].broken.clear()
    story.see("host-a", offline_cpus="0")  # which it did not say when it refused
    story.settle()
    assert story.state.requests["pinned"].state == "GRANTED"
    assert 0 not in story.has("pinned").cpus


def test_what_executors_see_of_their_cpus_restarts_the_clock_of_late_rejection() -> None:
    story = CpuStory(lost_timeout_ms=10**9)
    story.ask("early", 64_000, PLAIN)
    executor = host()
    story.cluster.register(executor)
    story.cluster.wait(AFTER_MS - 1)
    story.see("host-a", offline_cpus="3")
    assert rejected_after(story.cluster, AFTER_MS)
