"""Tests of gangs with dedicated cpus or alignment, and of gangs on aligning hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.errors import Reason
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement, RequestState
from resource_manager.engine.cpus.assign import assign
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from resource_manager.engine.model.scheduling_key import cpu_key
from resource_manager.engine.placement.gangs import GangSearch
from resource_manager.engine.placement.tentative_cpus import TentativeCpus
from resource_manager.engine.queue.gangs import MemberRequest, Where
from tests.support.engine_cluster import BE, LSE, LSR, PLAIN, EngineCluster, numa_host
from tests.support.properties import examples

ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
WHOLE = CpuPolicy(QosClass.LSE, BindPolicy.FULL_PCPUS, bind_required=True)
APART = CpuPolicy(
    QosClass.LSR,
    BindPolicy.SPREAD_BY_PCPUS,
    exclusive=ExclusivePolicy.PCPU_LEVEL,
    exclusive_required=True,
)
PLACEMENTS = [GangPlacement.ANYWHERE, GangPlacement.SAME_EXECUTOR, GangPlacement.SPREAD]


def gang(
    cluster: EngineCluster,
    name: str,
    members: Sequence[tuple[int, CpuPolicy]],
    placement: GangPlacement = GangPlacement.ANYWHERE,
    **more: Any,
) -> Any:
    specs = tuple(
        RequestSpec(
            f"{name}-{at}", ResourceProfile(cpu, 64 * MIB), gang_id=name, cpu_policy=policy, **more
        )
        for at, (cpu, policy) in enumerate(members)
    )
    return cluster.submit(*specs, GangSpec(name, placement))


def placed(cluster: EngineCluster, name: str) -> bool:
    """Returns whether all members have slots; other tests check for half gangs."""
    states = {
        request.state for request in cluster.state.requests.values() if request.spec.gang_id == name
    }
    assert len(states) == 1
    return states == {RequestState.GRANTED}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_all_members_get_cpus_of_their_own(placement: GangPlacement) -> None:
    cluster = EngineCluster.settled(*(numa_host(f"host-{at}") for at in range(3)))
    gang(cluster, "g", [(4_000, LSR)] * 3, placement)
    assert placed(cluster, "g")
    taken: dict[str, CpuSet] = {}
    for at in range(3):
        slot = cluster.slot(f"g-{at}")
        cpus = cluster.assignment(f"g-{at}").cpus
        assert len(cpus) == 4
        assert cpus.isdisjoint(taken.get(slot.executor_id, CpuSet()))
        taken[slot.executor_id] = taken.get(slot.executor_id, CpuSet()) | cpus
    hosts = {GangPlacement.SAME_EXECUTOR: 1, GangPlacement.SPREAD: 3}.get(placement, len(taken))
    assert len(taken) == hosts


def test_a_host_takes_as_many_members_as_its_nodes_suit_not_as_its_amounts_do() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"))
    gang(cluster, "g", [(6_000, ONE_NODE)] * 4)
    assert placed(cluster, "g")
    where = [
        (cluster.slot(f"g-{at}").executor_id, cluster.assignment(f"g-{at}").nodes)
        for at in range(4)
    ]
    assert sorted(where) == [
        ("host-a", (0,)),
        ("host-a", (1,)),
        ("host-b", (0,)),
        ("host-b", (1,)),
    ]
    assert cluster.free_cpu() == 4_000
    gang(cluster, "h", [(4_000, ONE_NODE)] * 2)  # the amounts for both are free
    assert not placed(cluster, "h")
    cluster.release("g-0", "g-3")
    assert placed(cluster, "h")


def test_two_members_with_whole_nodes_go_to_one_host() -> None:
    cluster = EngineCluster.settled(numa_host())
    gang(cluster, "g", [(8_000, ONE_NODE)] * 2, GangPlacement.SAME_EXECUTOR)
    assert placed(cluster, "g")
    assert {cluster.assignment("g-0").nodes, cluster.assignment("g-1").nodes} == {(0,), (1,)}


def test_members_that_differ_are_tried_in_the_order_in_which_they_are_placed() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"))
    members = [(4_000, ONE_NODE), (3_000, APART), (6_000, WHOLE), (1_500, PLAIN), (4_000, BE)]
    gang(cluster, "g", members * 2)
    assert placed(cluster, "g")
    gang(cluster, "h", members, GangPlacement.SAME_EXECUTOR)
    assert not placed(cluster, "h")
    cluster.release(*(f"g-{at}" for at in range(10)))
    assert placed(cluster, "h")


def test_members_move_on_only_to_hosts_that_suit_them() -> None:
    """A member that fits anywhere first takes the only host of another member; the search corrects
    this.
    """
    small = numa_host("host-a", cores=2)
    large = numa_host("host-b")
    cluster = EngineCluster.settled(small, large)
    gang(
        cluster,
        "g",
        [(2_000, ONE_NODE), (8_000, ONE_NODE)],
        GangPlacement.SPREAD,
    )
    assert placed(cluster, "g")
    assert cluster.slot("g-1").executor_id == "host-b"
    assert cluster.slot("g-0").executor_id == "host-a"


def test_plain_members_are_aligned_on_hosts_that_align_everybody() -> None:
    cluster = EngineCluster.settled(numa_host(policy={"alignment": "SingleNUMANode"}))
    gang(cluster, "g", [(3_000, PLAIN)] * 4)
    assert placed(cluster, "g")
    assert [len(cluster.assignment(f"g-{at}").nodes) for at in range(4)] == [1] * 4
    gang(cluster, "h", [(2_000, PLAIN)] * 2)
    assert placed(cluster, "h")
    assert cluster.free_cpu() == 0


def test_a_gang_that_no_host_suits_even_when_empty_is_impossible() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"))
    (outcome, *_) = gang(cluster, "g", [(10_000, ONE_NODE)] * 2)
    assert outcome.reason == Reason.INFEASIBLE_NEVER
    (outcome, *_) = gang(cluster, "h", [(8_000, ONE_NODE)] * 5)
    assert outcome.reason == Reason.INFEASIBLE_NEVER
    (outcome, *_) = gang(cluster, "i", [(8_000, ONE_NODE)] * 4)
    assert outcome.reason == ""
    assert placed(cluster, "i")


def test_members_wait_for_want_of_suitable_cpus() -> None:
    cluster = EngineCluster.settled(numa_host(policy={"numa_strategy": "LeastAllocated"}))
    cluster.submit("one", cpu_milli=3_000, policy=ONE_NODE)
    cluster.submit("two", cpu_milli=3_000, policy=ONE_NODE)
    gang(cluster, "g", [(6_000, ONE_NODE), (1_000, LSE)])
    assert not placed(cluster, "g")
    reason = cluster.state.waiting_reasons.member_reason(cluster.state.requests["g-0"])
    assert reason is Reason.WAITING_TOPOLOGY
    cluster.restart_rm()
    cluster.register(cluster.executors["host-a"])
    cluster.settle()
    assert not placed(cluster, "g")
    cluster.release("one")
    assert placed(cluster, "g")


def test_members_that_fit_only_smallest_first_are_placed() -> None:
    """The host has two nodes with 8 cpus each. If the largest member is placed first, a member of 4
    cpus does not fit beside the member of 6 cpus on its node.
    """
    cluster = EngineCluster.settled(numa_host(policy={"alignment": "SingleNUMANode"}))
    gang(cluster, "g", [(6_000, LSR), (4_000, LSR), (4_000, LSR)])
    assert placed(cluster, "g")


def test_settings_that_change_let_a_gang_look_again() -> None:
    cluster = EngineCluster.settled(numa_host(policy={"alignment": "SingleNUMANode"}))
    gang(cluster, "g", [(6_000, LSR), (6_000, LSR), (4_000, LSR)], allow_pending=True)
    assert not placed(cluster, "g")
    cluster.set_host_policy("host-a", alignment=NumaPolicy.NONE)
    assert placed(cluster, "g")


def test_a_gang_that_is_broken_up_leaves_no_cpus_behind() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"))
    cluster.executors["host-b"].broken.add("g-1")
    cluster.executors["host-a"].broken.add("g-1")
    specs = [(4_000, LSR)] * 2
    gang(cluster, "g", specs, GangPlacement.SPREAD)
    assert not placed(cluster, "g")
    assert [cluster.cpu_ledger(name).pinned for name in cluster.state.hosts] == [0, 0]


def test_a_search_that_begins_anew_has_forgotten_what_it_found_on_the_way() -> None:
    """Both attempts place one member on the host, but of different sizes."""
    cluster = EngineCluster.settled(numa_host(nodes=1, cores=4))
    there = cluster.state.hosts["host-a"]

    def wish(cpus: int) -> MemberRequest:
        return MemberRequest(ResourceProfile(cpus * 1000, 64 * MIB), (), 1, cpus=(LSE, 0))

    trials = TentativeCpus()
    trials.take(wish(1), there, 1)
    assert trials.fit(wish(4), there, 1) == 1
    trials.roll_back()
    trials.take(wish(6), there, 1)
    assert trials.fit(wish(4), there, 1) == 0


SPREAD = CpuPolicy(QosClass.LSR, BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
POLICIES = [LSR, LSE, ONE_NODE, WHOLE, APART, SPREAD, PLAIN]


@settings(max_examples=examples(60))
@given(
    cores=st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3),
    taken=st.lists(st.integers(1, 4), max_size=2),
    asked=st.lists(st.tuples(st.integers(1, 6), st.sampled_from(POLICIES)), min_size=2, max_size=4),
    placement=st.sampled_from(PLACEMENTS),
)
def test_members_with_cpus_of_their_own_are_placed_whenever_they_fit(
    cores: list[int], taken: list[int], asked: list[Any], placement: GangPlacement
) -> None:
    cluster = EngineCluster.settled(
        *(numa_host(f"host-{at}", cores=count) for at, count in enumerate(cores))
    )
    for at, count in enumerate(taken):
        cluster.submit(f"taken-{at}", cpu_milli=1_000 * count, policy=LSR)
    counts = Counter(asked)
    requests = [
        MemberRequest(ResourceProfile(1_000 * cpus, 64 * MIB), (), count, cpus=cpu_key(policy, 0))
        for (cpus, policy), count in counts.items()
    ]
    members = [each for each in requests for _ in range(each.count)]
    members.sort(key=lambda each: each.profile.cpu_milli if each.profile else 0, reverse=True)
    search = GangSearch(cluster.state.hosts, Where(placement), requests)
    found = search.find()
    hosts_of_each = {
        GangPlacement.ANYWHERE: range(1, len(members) + 1),
        GangPlacement.SAME_EXECUTOR: [1],
        GangPlacement.SPREAD: [len(members)],
    }
    exists = any(
        fits(cluster, order, hosts)
        for hosts in product(sorted(cluster.state.hosts), repeat=len(members))
        if len(set(hosts)) in hosts_of_each[placement]
        for order in (members, members[::-1])  # both are tried
    )
    if found is not None:
        order = [share.host_id for share in found for _ in range(share.count)]
        booked = [requests[share.request_index] for share in found for _ in range(share.count)]
        assert fits(cluster, booked, order)
    assert found is not None or not exists or search.cut_off


def test_members_that_are_spread_over_cores_may_share_these_cores() -> None:
    spread = CpuPolicy(
        QosClass.LSR,
        BindPolicy.SPREAD_BY_PCPUS,
        bind_required=True,
        numa=NumaPolicy.SINGLE_NUMA_NODE,
        numa_required=True,
    )
    cluster = EngineCluster.settled(numa_host("host-a", nodes=2, cores=2))

    gang(cluster, "all", [(1_000, spread)] * 8, GangPlacement.SAME_EXECUTOR)

    assert len(cluster.state.slots) == 8


def fits(cluster: EngineCluster, members: list[MemberRequest], order: Sequence[str]) -> bool:
    """Returns whether members fit these hosts if they are booked in this order."""
    free = {name: host.free() for name, host in cluster.state.hosts.items()}
    ledgers = {name: cluster.cpu_ledger(name).scratch() for name in free}
    for at, (member, name) in enumerate(zip(members, order, strict=True)):
        booked = cluster.state.hosts[name].booking_for(member)
        if any(free[name].get(each, 0) < amount for each, amount in booked.items()):
            return False
        free[name] = {each: left - booked.get(each, 0) for each, left in free[name].items()}
        policy = member.cpus[0] if member.cpus is not None else PLAIN
        given = assign(ledgers[name], CpuRequest.of(policy, booked, 0))
        if member.topology_constrained and not isinstance(given, CpuAssignment):
            return False
        plain = None if member.cpus is None else CpuAssignment(policy.qos)
        ledgers[name].add(
            ("member", at),
            given if isinstance(given, CpuAssignment) and member.topology_constrained else plain,
        )
    return True
