"""Tests of placement by the real engine of pinned, aligned, best-effort and other slots.

The hosts have two packages, each with a NUMA node of four cores with two threads.
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
from finegrain.values.states import RequestState
from resource_manager.engine.cpus.request import CpuBlocker
from resource_manager.engine.explain.paused import at_once
from resource_manager.engine.explain.waiting_reasons import pending_by_reason
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import SlotsReuseRequested
from resource_manager.engine.placement.constraint import Blocker, HostView
from resource_manager.engine.placement.fit import Fit
from tests.support.engine_cluster import BE, LSE, LSR, EngineCluster, host, numa_host

ONE_NODE = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
LSR_ON_ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
WHOLE_CORES = CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS, bind_required=True)
ALIGNED = {"alignment": "SingleNUMANode"}


def test_a_pinned_slot_gets_whole_cores_of_its_own_and_books_them() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("pinned", cpu_milli=4_000, policy=LSR)
    given = cluster.assignment("pinned")
    assert (given.qos, str(given.cpus), given.bind) == (QosClass.LSR, "0-1,8-9", "FullPCPUs")
    assert cluster.free_cpu() == 12_000
    books = cluster.cpu_ledger()
    assert CpuSet.from_bits(books.pinned) == given.cpus
    cluster.release("pinned")
    assert books.pinned == 0
    assert not books.holdings


def test_no_two_pinned_slots_ever_share_a_cpu_and_the_others_have_what_is_left() -> None:
    cluster = EngineCluster.settled(numa_host())
    names = [f"lse-{n}" for n in range(3)]
    for name in names:
        cluster.submit(name, cpu_milli=4_000, policy=LSE)
    taken = [cluster.assignment(name).cpus for name in names]
    assert len(set().union(*taken)) == 12
    cluster.submit("beside", cpu_milli=4_000)
    assert cluster.slot("beside").assignment is None
    cluster.submit("one-more", cpu_milli=1_000, allow_pending=True)
    assert cluster.waiting_reason("one-more") == Reason.WAITING_CAPACITY
    cluster.release("lse-1")
    assert cluster.hosts_of("one-more") == ["host-a"]


def test_whoever_wants_the_cpus_that_a_slot_leaves_gets_them() -> None:
    cluster = EngineCluster.settled(numa_host())
    for n in range(4):
        cluster.submit(f"p{n}", cpu_milli=4_000, policy=LSR)
    cluster.submit("next", cpu_milli=4_000, policy=LSR, allow_pending=True)
    left = cluster.assignment("p2").cpus
    cluster.release("p2")
    assert cluster.assignment("next").cpus == left


def test_amounts_that_suffice_are_not_enough_where_threads_are_scattered() -> None:
    cluster = EngineCluster.settled(numa_host())
    spread = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    cluster.submit("one-of-each-core", cpu_milli=8_000, policy=spread)
    assert cluster.free_cpu() == 8_000
    cluster.submit("whole", cpu_milli=2_000, policy=WHOLE_CORES)
    assert cluster.waiting_reason("whole") == Reason.WAITING_TOPOLOGY
    assert at_once(pending_by_reason(cluster.state)) == {Reason.WAITING_TOPOLOGY: 1}
    judged = Fit(cluster.state.queue.classes()[0]).verdict(
        HostView.now(cluster.state.hosts["host-a"])
    )
    assert judged.blockers == (Blocker.TOPOLOGY,)
    assert judged.host_refusal is not None
    assert judged.host_refusal.blocker is CpuBlocker.WHOLE_CORES_NOT_ENOUGH
    cluster.release("one-of-each-core")
    assert cluster.cpus("whole") == "0,8"


def test_a_host_that_aligns_everybody_gives_everybody_one_node() -> None:
    cluster = EngineCluster.settled(numa_host(policy=ALIGNED))
    cluster.submit("a", cpu_milli=5_000)
    cluster.submit("b", cpu_milli=5_000)
    cluster.submit("c", cpu_milli=4_000)  # six thousand are free, three on each node
    given = cluster.assignment("a")
    assert given.numa == (NodeShare(0, (("cpu_milli", 5_000), ("memory_bytes", 64 * MIB))),)
    assert given.pools == (PoolName(0, 0),)
    assert given.memory_nodes == CpuSet.of(0)
    assert cluster.assignment("b").nodes == (1,)
    assert cluster.waiting_reason("c") == Reason.WAITING_TOPOLOGY
    cluster.submit("d", cpu_milli=3_000, policy=LSR)
    assert cluster.assignment("d").nodes in ((0,), (1,))
    cluster.release("b")
    assert cluster.assignment("c").nodes == (1,)


def test_who_needs_no_alignment_leaves_hosts_that_give_it_to_those_who_do() -> None:
    cluster = EngineCluster.settled(numa_host("host-a", policy=ALIGNED), numa_host("host-b"))
    for n in range(4):
        cluster.submit(f"plain-{n}", cpu_milli=4_000)
    assert cluster.hosts_of(*(f"plain-{n}" for n in range(4))) == ["host-b"] * 4
    assert all(cluster.slot(f"plain-{n}").assignment is None for n in range(4))
    cluster.submit("more", cpu_milli=4_000)
    assert cluster.hosts_of("more") == ["host-a"]
    assert cluster.assignment("more").nodes == (0,)


def test_many_at_once_fill_both_kinds_of_hosts() -> None:
    cluster = EngineCluster.settled(numa_host("host-a", policy=ALIGNED), numa_host("host-b"))
    cluster.submit(*(f"s{n}" for n in range(12)), cpu_milli=3_000)
    placed = [
        name for name, request in cluster.state.requests.items() if request.state == "GRANTED"
    ]
    on = cluster.hosts_of(*placed)
    assert (on.count("host-b"), on.count("host-a")) == (5, 4)  # two on each node
    left = [name for name in cluster.state.requests if name not in placed]
    assert {cluster.waiting_reason(name) for name in left} == {Reason.WAITING_TOPOLOGY}


def test_a_request_may_ask_for_one_node_anywhere() -> None:
    cluster = EngineCluster.settled(host("host-a", cpu_milli=16_000), numa_host("host-b"))
    cluster.submit("aligned", cpu_milli=3_000, policy=ONE_NODE)
    assert cluster.hosts_of("aligned") == ["host-b"]
    assert cluster.assignment("aligned").nodes == (0,)
    cluster.submit("pinned", cpu_milli=6_000, policy=LSR_ON_ONE_NODE)
    assert cluster.assignment("pinned").nodes == (1,)
    cluster.submit("plain", cpu_milli=3_000)
    assert cluster.hosts_of("plain") == ["host-b"]  # in use, so it comes before an empty one


def test_nothing_of_it_is_forgotten_over_a_restart() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("lse", cpu_milli=4_000, policy=LSE)
    cluster.submit("aligned", cpu_milli=3_000, policy=ONE_NODE)
    cluster.submit("be", cpu_milli=6_000, policy=BE)
    cluster.submit("plain", cpu_milli=1_000)
    before = {name: cluster.slot(name).assignment for name in ("lse", "aligned", "be", "plain")}
    free = cluster.free_cpu()
    cluster.restart_rm()
    cluster.check()
    holdings = cluster.cpu_ledger().holdings
    assert {key[0]: held for key, held in holdings.items()} == before
    assert cluster.state.hosts["host-a"].booked["best_effort_cpu_milli"] == 6_000
    cluster.register(cluster.executors["host-a"])
    cluster.settle()
    assert cluster.free_cpu() == free
    cluster.submit("after", cpu_milli=4_000, policy=LSE)
    assert cluster.assignment("after").cpus.isdisjoint(cluster.assignment("lse").cpus)


def test_what_a_host_refuses_goes_elsewhere_and_comes_back_when_it_changes() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"))
    cluster.executors["host-a"].broken.add("pinned")
    cluster.submit("pinned", cpu_milli=4_000, policy=LSR)
    assert cluster.hosts_of("pinned") == ["host-b"]
    assert cluster.cpu_ledger().pinned == 0
    cluster.submit(
        "another", cpu_milli=4_000, policy=LSR
    )  # equal requests: the host is not asked again so soon
    assert cluster.hosts_of("another") == ["host-b"]
    cluster.submit("other", cpu_milli=12_000, policy=LSR)  # more than host-b has free
    assert cluster.hosts_of("other") == ["host-a"]


def test_cpus_that_an_executor_has_given_away_are_refused_and_tried_again() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("first", cpu_milli=4_000, policy=LSR)
    executor = cluster.executors["host-a"]
    foreign = executor.slots["first", 1]
    cluster.release("first")
    executor.slots["foreign", 7] = foreign  # the engine does not know it
    cluster.submit("second", cpu_milli=4_000, policy=LSR, allow_pending=True)
    cluster.wait(2_000)
    cluster.report(executor)  # the answer names the slot as unowned, and the executor drops it
    executor.slots.pop(("foreign", 7), None)
    cluster.report(executor)
    cluster.settle()
    assert cluster.cpus("second") == "0-1,8-9"


def test_of_the_hosts_with_room_the_one_that_gives_all_that_is_preferred_is_best() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"))
    spread = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    cluster.submit("one-of-each-core", cpu_milli=8_000, policy=spread)
    assert cluster.hosts_of("one-of-each-core") == ["host-a"]
    cluster.submit("whole", cpu_milli=2_000, policy=CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS))
    assert cluster.hosts_of("whole") == ["host-b"]
    assert cluster.assignment("whole").notes == ()


def test_what_is_preferred_is_found_however_few_hosts_are_compared() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"), pack_candidates=1)
    spread = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    cluster.submit("one-of-each-core", cpu_milli=8_000, policy=spread)
    cluster.submit("whole", cpu_milli=2_000, policy=CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS))
    assert cluster.hosts_of("whole") == ["host-b"]
    assert cluster.assignment("whole").notes == ()


def test_if_one_host_is_compared_the_first_in_use_is_taken() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"), pack_candidates=1)
    cluster.submit("first", cpu_milli=2_000, policy=LSR)
    cluster.drain("host-a")
    cluster.submit("second", cpu_milli=8_000, policy=LSR)
    cluster.undrain("host-a")
    cluster.submit("third", cpu_milli=2_000, policy=LSR)  # host-b has less free
    assert cluster.hosts_of("first", "second", "third") == ["host-a", "host-b", "host-a"]


@pytest.mark.parametrize("strategy", ["LeastAllocated", "MostAllocated"])
def test_pack_leaves_whole_hosts_whole_however_they_choose_among_nodes(strategy: str) -> None:
    names = [f"host-{n:02d}" for n in range(20)]
    cluster = EngineCluster.settled(
        *(numa_host(name, policy={"numa_strategy": strategy}) for name in names)
    )
    for n in range(20):
        cluster.submit(f"large-{n}", cpu_milli=9_000, policy=LSR)
    for n in range(5):
        cluster.release(f"large-{n}")
    cluster.submit(
        "small", cpu_milli=4_000, policy=CpuPolicy(QosClass.LSR, numa=NumaPolicy.BEST_EFFORT)
    )
    assert cluster.hosts_of("small") == ["host-05"]  # the first host that is in use
    for n in range(5):
        cluster.submit(f"whole-{n}", cpu_milli=16_000, policy=LSR)
        assert cluster.hosts_of(f"whole-{n}")[0]


def test_what_is_preferred_goes_before_a_full_host() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"))
    cluster.submit(
        "one-of-each-core",
        cpu_milli=8_000,
        policy=CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True),
    )
    whole = CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS)
    cluster.submit("whole", cpu_milli=2_000, policy=whole)
    assert cluster.hosts_of("one-of-each-core", "whole") == ["host-a", "host-b"]
    assert cluster.assignment("whole").notes == ()


def test_spread_gives_one_to_each_host() -> None:
    cluster = EngineCluster.settled(
        numa_host("host-a"), numa_host("host-b"), numa_host("host-c"), strategy="spread"
    )
    for n in range(6):
        cluster.submit(f"p{n}", cpu_milli=4_000, policy=LSR)
    on = cluster.hosts_of(*(f"p{n}" for n in range(6)))
    assert sorted(on) == ["host-a", "host-a", "host-b", "host-b", "host-c", "host-c"]
    assert len(set(on[:3])) == 3


def test_many_pinned_ones_at_once_fill_host_by_host() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"))
    cluster.submit(*(f"p{n}" for n in range(11)), cpu_milli=3_000, policy=LSR)
    states = [request.state for request in cluster.state.requests.values()]
    assert states.count(RequestState.GRANTED) == 10
    for name in ("host-a", "host-b"):
        assert cluster.free_cpu(name) == 1_000
    assert cluster.waiting_reason("p10") == Reason.WAITING_CAPACITY


class TestBestEffort:
    def test_it_displaces_nobody_and_is_displaced_by_nobody(self) -> None:
        cluster = EngineCluster.settled(numa_host())
        cluster.submit("all", cpu_milli=16_000)
        cluster.submit("be", cpu_milli=16_000, policy=BE)
        assert cluster.slot("be").best_effort
        assert cluster.free_cpu() == 0
        assert cluster.state.hosts["host-a"].free().get("best_effort_cpu_milli", 0) == 0
        cluster.submit("more", cpu_milli=1_000, policy=BE, allow_pending=True)
        assert cluster.waiting_reason("more") == Reason.WAITING_CAPACITY
        cluster.release("be")
        assert cluster.hosts_of("more") == ["host-a"]

    def test_it_needs_a_pool_to_run_in(self) -> None:
        cluster = EngineCluster.settled(numa_host())
        cluster.submit("lse", cpu_milli=16_000, policy=LSE)
        cluster.submit("be", cpu_milli=1_000, policy=BE, allow_pending=True)
        assert cluster.state_of("be") is RequestState.PENDING
        cluster.release("lse")
        assert cluster.hosts_of("be") == ["host-a"]

    def test_nobody_takes_the_last_cpu_of_its_pool(self) -> None:
        cluster = EngineCluster.settled(numa_host())
        cluster.submit("be", cpu_milli=1_000, policy=BE)
        cluster.submit("lse", cpu_milli=16_000, policy=LSE)
        assert cluster.waiting_reason("lse") == Reason.WAITING_TOPOLOGY
        cluster.submit("lsr", cpu_milli=16_000, policy=LSR)  # best-effort slots may use its cpus
        assert cluster.hosts_of("lsr") == ["host-a"]
        cluster.release("be", "lsr")
        assert cluster.hosts_of("lse") == ["host-a"]

    def test_a_default_slot_may_be_best_effort(self) -> None:
        cluster = EngineCluster.settled(host("host-a", cpu_milli=16_000), numa_host("host-b"))
        cluster.submit(*(f"d{n}" for n in range(18)), profile=None, policy=BE)
        states = [request.state for request in cluster.state.requests.values()]
        assert states.count(RequestState.GRANTED) == 16
        assert cluster.state.hosts["host-b"].booked["best_effort_cpu_milli"] == 16_000
        assert cluster.free_cpu("host-b") == 16_000
        assert "host-a" not in cluster.hosts_of("d0", "d15")

    def test_where_nothing_is_known_of_cpus_amounts_decide(self) -> None:
        executor = host("host-a", cpu_milli=16_000)
        executor.total = {**executor.total, "best_effort_cpu_milli": 2_000}
        cluster = EngineCluster.settled(executor)
        cluster.submit("be", cpu_milli=2_000, policy=BE)
        assert cluster.assignment("be").qos is QosClass.BE
        assert cluster.free_cpu() == 16_000


class TestBurst:
    policy = CpuPolicy(bind=BindPolicy.CONSTRAINED_BURST, bind_required=True)

    def test_requests_that_differ_in_their_limit_are_not_alike(self) -> None:
        cluster = EngineCluster.settled(numa_host())
        cluster.submit("fits", cpu_milli=2_000, policy=self.policy, cpu_limit_milli=8_000)
        assert cluster.assignment("fits").pools == (PoolName(0, 0),)
        cluster.submit(
            "too-large",
            cpu_milli=2_000,
            policy=self.policy,
            cpu_limit_milli=9_000,
            allow_pending=True,
        )
        assert cluster.waiting_reason("too-large") == Reason.INFEASIBLE_NEVER
        cluster.submit("again", cpu_milli=2_000, policy=self.policy, cpu_limit_milli=8_000)
        assert cluster.assignment("again").bind is BindPolicy.CONSTRAINED_BURST

    def test_the_limit_tells_nobody_else_apart(self) -> None:
        cluster = EngineCluster.settled(numa_host())
        class_of = cluster.state.queue.class_of
        profile = ResourceProfile(2_000, 64 * MIB)
        assert class_of(RequestSpec("a", profile, cpu_limit_milli=3_000)) is class_of(
            RequestSpec("b", profile)
        )
        assert class_of(RequestSpec("a", profile, cpu_policy=LSR)) is not class_of(
            RequestSpec("b", profile)
        )


def test_a_slot_is_handed_on_only_to_who_wants_its_cpus_alike() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("first", cpu_milli=16_000, policy=LSR)
    cluster.submit("alike", cpu_milli=16_000, policy=LSR, allow_pending=True)
    cluster.submit("otherwise", cpu_milli=16_000, policy=LSE, allow_pending=True)
    at = cluster.at
    [answer] = cluster.batch(SlotsReuseRequested(at, "job", (("first", 1, "alike"),)))
    assert answer.reason == ""
    [answer] = cluster.batch(SlotsReuseRequested(at, "job", (("first", 1, "otherwise"),)))
    assert answer.reason == Reason.NOT_REUSABLE
    cluster.settle()
    assert cluster.assignment("otherwise").qos is QosClass.LSE


def test_older_slots_without_an_assignment_are_in_nobodys_way() -> None:
    cluster = EngineCluster.settled(numa_host(policy=ALIGNED))
    cluster.submit("old", cpu_milli=6_000)
    key = ("old", 1)
    (row,) = cluster.store.load().slots
    assert (row.allocation_id, row.generation) == key
    row.assignment = None  # like a row of an older version
    cluster.store.commit(Changes(slots=[row]))
    executor = cluster.executors["host-a"]
    cluster.restart_rm()
    cluster.register(executor)
    cluster.settle()
    assert cluster.slot("old").assignment is None
    cluster.submit("new", cpu_milli=6_000)
    assert cluster.assignment("new").nodes == (0,)
    cluster.release("old")
    assert cluster.free_cpu() == 10_000


def test_a_host_that_comes_back_as_another_machine_keeps_its_slots() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("wide", cpu_milli=10_000, policy=LSR)
    before = cluster.assignment("wide")
    executor = cluster.executors["host-a"]
    smaller = numa_host(cores=2)
    executor.topology, executor.host_cpus = smaller.topology, smaller.host_cpus
    executor.total = smaller.total
    cluster.register(executor)
    cluster.check()
    assert cluster.slot("wide").assignment == before
    assert cluster.state.hosts["host-a"].shrunk
    cluster.submit("more", cpu_milli=2_000, policy=LSR, allow_pending=True)
    assert cluster.state_of("more") is RequestState.PENDING
    cluster.release("wide")
    assert cluster.cpus("more") == "0,4"


def test_a_host_without_threads_that_demands_spread_cpus_takes_those_who_require_them() -> None:
    spread = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
    demands = numa_host("demands", nodes=1, cores=4, threads=1, policy={"bind": "SpreadByPCPUs"})
    cluster = EngineCluster.settled(numa_host("plain", nodes=1, cores=4, threads=1), demands)

    cluster.submit("spread", cpu_milli=2_000, policy=spread)

    assert cluster.slot("spread").executor_id == "demands"
