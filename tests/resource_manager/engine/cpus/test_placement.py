"""Slots with cpus of their own, aligned ones, best-effort ones and all others, placed by the real
engine on hosts of two packages with a NUMA node of four cores with two threads each.
"""

from __future__ import annotations

import pytest

from finegrain.cpu_assignment import NodeShare, PoolName
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.errors import Reason
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.cpus.refusals import CpuBlocker
from resource_manager.engine.explain.waiting_reasons import pending_by_reason
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import RequestSpec, RequestState
from resource_manager.engine.model.events import RequestsSubmitted, SlotsReuseAsked
from resource_manager.engine.placement.feasibility import Blocker, judge
from tests.support.cpu_hosts import BE, LSE, LSR, PLAIN, CpuStory, host, plain_host

ONE_NODE = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
LSR_ON_ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
WHOLE_CORES = CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS, bind_required=True)
ALIGNED = {"alignment": "SingleNUMANode"}


def test_a_pinned_slot_gets_whole_cores_of_its_own_and_books_them() -> None:
    story = CpuStory(host())
    story.ask("pinned", 4_000)
    given = story.has("pinned")
    assert (given.qos, str(given.cpus), given.bind) == (QosClass.LSR, "0-1,8-9", "FullPCPUs")
    assert story.free_cpu() == 12_000
    books = story.state.hosts["host-a"].cpus
    assert CpuSet.from_bits(books.pinned) == given.cpus
    story.release("pinned")
    assert books.pinned == 0
    assert not books.holdings


def test_no_two_pinned_slots_ever_share_a_cpu_and_the_others_have_what_is_left() -> None:
    story = CpuStory(host())
    names = [f"lse-{n}" for n in range(3)]
    for name in names:
        story.ask(name, 4_000, LSE)
    taken = [story.has(name).cpus for name in names]
    assert len(set().union(*taken)) == 12
    story.ask("beside", 4_000, PLAIN)
    assert story.slot("beside").assignment is None
    story.ask("one-more", 1_000, PLAIN, allow_pending=True)
    assert story.waits("one-more") == Reason.WAITING_CAPACITY
    story.release("lse-1")
    assert story.hosts_of("one-more") == ["host-a"]


def test_whoever_wants_the_cpus_that_a_slot_leaves_gets_them() -> None:
    story = CpuStory(host())
    for n in range(4):
        story.ask(f"p{n}", 4_000)
    story.ask("next", 4_000, allow_pending=True)
    left = story.has("p2").cpus
    story.release("p2")
    assert story.has("next").cpus == left


def test_amounts_that_suffice_are_not_enough_where_threads_are_scattered() -> None:
    story = CpuStory(host())
    spread = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    story.ask("one-of-each-core", 8_000, spread)
    assert story.free_cpu() == 8_000
    story.ask("whole", 2_000, WHOLE_CORES)
    assert story.waits("whole") == Reason.WAITING_TOPOLOGY
    assert pending_by_reason(story.state) == {Reason.WAITING_TOPOLOGY: 1}
    judged = judge(story.state.hosts["host-a"], story.state.queue.classes()[0])
    assert judged.blockers == (Blocker.TOPOLOGY,)
    assert judged.cpu_refusal is not None
    assert judged.cpu_refusal.blocker is CpuBlocker.WHOLE_CORES_NOT_ENOUGH
    story.release("one-of-each-core")
    assert story.cpus("whole") == "0,8"


def test_a_host_that_aligns_everybody_gives_everybody_one_node() -> None:
    story = CpuStory(host(policy=ALIGNED))
    story.ask("a", 5_000, PLAIN)
    story.ask("b", 5_000, PLAIN)
    story.ask("c", 4_000, PLAIN)  # six thousand are left, three on each node
    given = story.has("a")
    assert given.numa == (NodeShare(0, (("cpu_milli", 5_000), ("memory_bytes", 64 * MIB))),)
    assert given.pools == (PoolName(0, 0),)
    assert given.memory_nodes == CpuSet.of(0)
    assert story.has("b").nodes == (1,)
    assert story.waits("c") == Reason.WAITING_TOPOLOGY
    story.ask("d", 3_000, LSR)
    assert story.has("d").nodes in ((0,), (1,))
    story.release("b")
    assert story.has("c").nodes == (1,)


def test_who_needs_no_alignment_leaves_hosts_that_give_it_to_those_who_do() -> None:
    story = CpuStory(host("host-a", policy=ALIGNED), host("host-b"))
    for n in range(4):
        story.ask(f"plain-{n}", 4_000, PLAIN)
    assert story.hosts_of(*(f"plain-{n}" for n in range(4))) == ["host-b"] * 4
    assert all(story.slot(f"plain-{n}").assignment is None for n in range(4))
    story.ask("more", 4_000, PLAIN)
    assert story.hosts_of("more") == ["host-a"]
    assert story.has("more").nodes == (0,)


def test_many_at_once_fill_both_kinds_of_hosts() -> None:
    story = CpuStory(host("host-a", policy=ALIGNED), host("host-b"))
    specs = tuple(RequestSpec(f"s{n}", ResourceProfile(3_000, 64 * MIB)) for n in range(12))
    story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", specs))
    story.settle()
    placed = [name for name, request in story.state.requests.items() if request.state == "GRANTED"]
    on = story.hosts_of(*placed)
    assert (on.count("host-b"), on.count("host-a")) == (5, 4)  # two on each node
    left = [name for name in story.state.requests if name not in placed]
    assert {story.waits(name) for name in left} == {Reason.WAITING_TOPOLOGY}


def test_a_request_may_ask_for_one_node_anywhere() -> None:
    story = CpuStory(plain_host("host-a"), host("host-b"))
    story.ask("aligned", 3_000, ONE_NODE)
    assert story.hosts_of("aligned") == ["host-b"]
    assert story.has("aligned").nodes == (0,)
    story.ask("pinned", 6_000, LSR_ON_ONE_NODE)
    assert story.has("pinned").nodes == (1,)
    story.ask("plain", 3_000, PLAIN)
    assert story.hosts_of("plain") == ["host-a"]


def test_nothing_of_it_is_forgotten_over_a_restart() -> None:
    story = CpuStory(host())
    story.ask("lse", 4_000, LSE)
    story.ask("aligned", 3_000, ONE_NODE)
    story.ask("be", 6_000, BE)
    story.ask("plain", 1_000, PLAIN)
    before = {name: story.slot(name).assignment for name in ("lse", "aligned", "be", "plain")}
    free = story.free_cpu()
    story.cluster.restart_rm()
    story.sound()
    books = story.state.hosts["host-a"]
    assert {key[0]: held for key, held in books.cpus.holdings.items()} == before
    assert books.booked["best_effort_cpu_milli"] == 6_000
    story.cluster.register(story.cluster.executors["host-a"])
    story.settle()
    assert story.free_cpu() == free
    story.ask("after", 4_000, LSE)
    assert story.has("after").cpus.isdisjoint(story.has("lse").cpus)


def test_what_a_host_refuses_goes_elsewhere_and_comes_back_when_it_changes() -> None:
    story = CpuStory(host("host-a"), host("host-b"))
    story.cluster.executors["host-a"].broken.add("pinned")
    story.ask("pinned", 4_000)
    assert story.hosts_of("pinned") == ["host-b"]
    assert story.state.hosts["host-a"].cpus.pinned == 0
    story.ask("another", 4_000)  # the same wish: the host is not asked for it so soon
    assert story.hosts_of("another") == ["host-b"]
    story.ask("other", 12_000)  # more than host-b has left
    assert story.hosts_of("other") == ["host-a"]


def test_cpus_that_an_executor_has_given_away_are_refused_and_tried_again() -> None:
    story = CpuStory(host())
    story.ask("first", 4_000)
    executor = story.cluster.executors["host-a"]
    foreign = executor.slots["first", 1]
    story.release("first")
    executor.slots["foreign", 7] = foreign  # nobody's, by these books
    story.ask("second", 4_000, allow_pending=True)
    story.cluster.wait(2_000)
    story.cluster.report(executor)  # it is told that nobody owns that slot, and drops it
    executor.slots.pop(("foreign", 7), None)
    story.cluster.report(executor)
    story.settle()
    assert story.cpus("second") == "0-1,8-9"


def test_of_the_hosts_with_room_the_one_that_gives_all_that_is_preferred_is_best() -> None:
    story = CpuStory(host("host-a"), host("host-b"))
    spread = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    story.ask("one-of-each-core", 8_000, spread)
    assert story.hosts_of("one-of-each-core") == ["host-a"]
    story.ask("whole", 2_000, CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS))
    assert story.hosts_of("whole") == ["host-b"]
    assert story.has("whole").notes == ()


def test_who_compares_one_host_takes_the_first() -> None:
    story = CpuStory(host("host-a"), host("host-b"), pack_candidates=1)
    spread = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    story.ask("one-of-each-core", 8_000, spread)
    story.ask("whole", 2_000, CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS))
    assert story.hosts_of("whole") == ["host-a"]
    assert "FullPCPUs was preferred" in story.has("whole").notes[0]


@pytest.mark.parametrize("strategy", ["LeastAllocated", "MostAllocated"])
def test_pack_leaves_whole_hosts_whole_however_they_choose_among_nodes(strategy: str) -> None:
    names = [f"host-{n:02d}" for n in range(20)]
    story = CpuStory(*(host(name, policy={"numa_strategy": strategy}) for name in names))
    for n in range(20):
        story.ask(f"large-{n}", 9_000)
    for n in range(5):
        story.release(f"large-{n}")
    story.ask("small", 4_000, CpuPolicy(QosClass.LSR, numa=NumaPolicy.BEST_EFFORT))
    assert story.hosts_of("small") == ["host-05"]  # the first one that is in use
    for n in range(5):
        story.ask(f"whole-{n}", 16_000)
        assert story.hosts_of(f"whole-{n}")[0]


def test_what_is_preferred_goes_before_a_full_host() -> None:
    story = CpuStory(host("host-a"), host("host-b"))
    story.ask(
        "one-of-each-core",
        8_000,
        CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True),
    )
    whole = CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS)
    story.ask("whole", 2_000, whole)
    assert story.hosts_of("one-of-each-core", "whole") == ["host-a", "host-b"]
    assert story.has("whole").notes == ()


def test_spread_gives_one_to_each_host() -> None:
    story = CpuStory(host("host-a"), host("host-b"), host("host-c"), strategy="spread")
    for n in range(6):
        story.ask(f"p{n}", 4_000)
    on = story.hosts_of(*(f"p{n}" for n in range(6)))
    assert sorted(on) == ["host-a", "host-a", "host-b", "host-b", "host-c", "host-c"]
    assert len(set(on[:3])) == 3


def test_many_pinned_ones_at_once_fill_host_by_host() -> None:
    story = CpuStory(host("host-a"), host("host-b"))
    profile = ResourceProfile(3_000, 64 * MIB)
    specs = tuple(RequestSpec(f"p{n}", profile, cpu_policy=LSR) for n in range(11))
    story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", specs))
    story.settle()
    states = [request.state for request in story.state.requests.values()]
    assert states.count(RequestState.GRANTED) == 10
    for name in ("host-a", "host-b"):
        assert story.free_cpu(name) == 1_000
    assert story.waits("p10") == Reason.WAITING_CAPACITY


class TestBestEffort:
    def test_it_displaces_nobody_and_is_displaced_by_nobody(self) -> None:
        story = CpuStory(host())
        story.ask("all", 16_000, PLAIN)
        story.ask("be", 16_000, BE)
        assert story.slot("be").best_effort
        assert story.free_cpu() == 0
        assert story.state.hosts["host-a"].free().get("best_effort_cpu_milli", 0) == 0
        story.ask("more", 1_000, BE, allow_pending=True)
        assert story.waits("more") == Reason.WAITING_CAPACITY
        story.release("be")
        assert story.hosts_of("more") == ["host-a"]

    def test_it_needs_a_pool_to_run_in(self) -> None:
        story = CpuStory(host())
        story.ask("lse", 16_000, LSE)
        story.ask("be", 1_000, BE, allow_pending=True)
        assert story.state.requests["be"].state is RequestState.PENDING
        story.release("lse")
        assert story.hosts_of("be") == ["host-a"]

    def test_nobody_takes_the_last_cpu_of_its_pool(self) -> None:
        story = CpuStory(host())
        story.ask("be", 1_000, BE)
        story.ask("lse", 16_000, LSE)
        assert story.waits("lse") == Reason.WAITING_TOPOLOGY
        story.ask("lsr", 16_000, LSR)  # whose cpus best-effort slots may use
        assert story.hosts_of("lsr") == ["host-a"]
        story.release("be", "lsr")
        assert story.hosts_of("lse") == ["host-a"]

    def test_a_default_slot_may_be_best_effort(self) -> None:
        story = CpuStory(plain_host("host-a"), host("host-b"))
        specs = tuple(RequestSpec(f"d{n}", None, cpu_policy=BE) for n in range(18))
        story.cluster.batch(RequestsSubmitted(story.cluster.at, "job", specs))
        story.settle()
        states = [request.state for request in story.state.requests.values()]
        assert states.count(RequestState.GRANTED) == 16
        assert story.state.hosts["host-b"].booked["best_effort_cpu_milli"] == 16_000
        assert story.free_cpu("host-b") == 16_000
        assert "host-a" not in story.hosts_of("d0", "d15")

    def test_where_nothing_is_known_of_cpus_amounts_decide(self) -> None:
        executor = plain_host("host-a")
        executor.total = {**executor.total, "best_effort_cpu_milli": 2_000}
        story = CpuStory(executor)
        story.ask("be", 2_000, BE)
        assert story.has("be").qos is QosClass.BE
        assert story.free_cpu() == 16_000


class TestBurst:
    policy = CpuPolicy(bind=BindPolicy.CONSTRAINED_BURST, bind_required=True)

    def test_requests_that_differ_in_their_limit_are_not_alike(self) -> None:
        story = CpuStory(host())
        story.ask("fits", 2_000, self.policy, cpu_limit_milli=8_000)
        assert story.has("fits").pools == (PoolName(0, 0),)
        story.ask("too-large", 2_000, self.policy, cpu_limit_milli=9_000, allow_pending=True)
        assert story.waits("too-large") == Reason.INFEASIBLE_NEVER
        story.ask("again", 2_000, self.policy, cpu_limit_milli=8_000)
        assert story.has("again").bind is BindPolicy.CONSTRAINED_BURST

    def test_the_limit_tells_nobody_else_apart(self) -> None:
        story = CpuStory(host())
        class_of = story.state.queue.class_of
        profile = ResourceProfile(2_000, 64 * MIB)
        assert class_of(RequestSpec("a", profile, cpu_limit_milli=3_000)) is class_of(
            RequestSpec("b", profile)
        )
        assert class_of(RequestSpec("a", profile, cpu_policy=LSR)) is not class_of(
            RequestSpec("b", profile)
        )


def test_a_slot_is_handed_on_only_to_who_wants_its_cpus_alike() -> None:
    story = CpuStory(host())
    story.ask("first", 16_000)
    story.ask("alike", 16_000, allow_pending=True)
    story.ask("otherwise", 16_000, LSE, allow_pending=True)
    at = story.cluster.at
    [answer] = story.cluster.batch(SlotsReuseAsked(at, "job", (("first", 1, "alike"),)))
    assert answer.reason == ""
    [answer] = story.cluster.batch(SlotsReuseAsked(at, "job", (("first", 1, "otherwise"),)))
    assert answer.reason == Reason.NOT_REUSABLE
    story.settle()
    assert story.has("otherwise").qos is QosClass.LSE


def test_older_slots_without_an_assignment_are_in_nobodys_way() -> None:
    story = CpuStory(host(policy=ALIGNED))
    story.ask("old", 6_000, PLAIN)
    key = ("old", 1)
    (row,) = story.cluster.store.load().slots
    assert (row.allocation_id, row.generation) == key
    row.assignment = None  # as a row of an older version has it
    story.cluster.store.commit(Changes(slots=[row]))
    executor = story.cluster.executors["host-a"]
    story.cluster.restart_rm()
    story.cluster.register(executor)
    story.settle()
    assert story.slot("old").assignment is None
    story.ask("new", 6_000, PLAIN)
    assert story.has("new").nodes == (0,)
    story.release("old")
    assert story.free_cpu() == 10_000


def test_a_host_that_comes_back_as_another_machine_keeps_its_slots() -> None:
    story = CpuStory(host())
    story.ask("wide", 10_000)
    before = story.has("wide")
    executor = story.cluster.executors["host-a"]
    smaller = host(cores=2)
    executor.topology, executor.host_cpus = smaller.topology, smaller.host_cpus
    executor.total = smaller.total
    story.cluster.register(executor)
    story.sound()
    assert story.slot("wide").assignment == before
    assert story.state.hosts["host-a"].shrunk
    story.ask("more", 2_000, allow_pending=True)
    assert story.state.requests["more"].state is RequestState.PENDING
    story.release("wide")
    assert story.cpus("more") == "0,4"
