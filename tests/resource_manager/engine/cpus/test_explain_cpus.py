"""Tests of why a request waits although its amounts are free.

The explanation names the unsuitable cpus or NUMA nodes, with numbers, and what would help. The
tests apply every suggestion, and each one helps.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement
from resource_manager.engine.cpus.request import CpuBlocker
from resource_manager.engine.explain import survey
from resource_manager.engine.explain.requests import Explanation, explain
from tests.support.engine_cluster import BE, LSE, LSR, EngineCluster, numa_host
from tests.support.properties import examples

ONE_NODE = replace(LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
WHOLE = replace(LSR, bind=BindPolicy.FULL_PCPUS, bind_required=True)
SPREAD = replace(LSR, bind=BindPolicy.SPREAD_BY_PCPUS, bind_required=True)
ALIGNED = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)


def why(cluster: EngineCluster, name: str) -> Explanation:
    return explain(cluster.state, name)


def both_nodes_nearly_full(cluster: EngineCluster) -> None:
    """Leaves three of eight cpus free on each node."""
    for number in range(2):
        cluster.submit(f"large-{number}", cpu_milli=5_000, policy=ONE_NODE)


def test_the_nodes_and_their_numbers_are_named() -> None:
    cluster = EngineCluster.settled(numa_host())
    both_nodes_nearly_full(cluster)
    cluster.submit("waits", cpu_milli=4_000, policy=ONE_NODE)
    found = why(cluster, "waits")
    (verdict,) = found.executors
    assert found.primary_reason == "WAITING_TOPOLOGY"
    assert "1 executor has the amounts, but no suitable cpus and NUMA nodes" in found.summary
    assert not verdict.fits
    assert "TOPOLOGY" in verdict.blockers
    assert verdict.cpu is not None
    assert verdict.cpu.blocker is CpuBlocker.NUMA_UNALIGNED
    assert verdict.message.startswith("NUMA_UNALIGNED: SingleNUMANode cannot place 4 cpus")
    assert "0: 3 cpus" in verdict.message
    assert "1: 3 cpus" in verdict.message
    assert found.executors_fitting == 0


def test_a_policy_that_is_preferred_instead_would_do() -> None:
    cluster = EngineCluster.settled(numa_host())
    both_nodes_nearly_full(cluster)
    cluster.submit("waits", cpu_milli=4_000, policy=ONE_NODE)
    first, second = why(cluster, "waits").would_fit_if
    assert first.message == "fits now on host-a if numa were preferred instead of required"
    assert first.relaxed == ("numa",)
    assert second.message == "fits now on host-a with at most 3 cpu (1 fewer)"
    assert [(each.dimension, each.free) for each in second.at_most] == [("cpu_milli", 3_000)]
    cluster.submit("fewer", cpu_milli=3_000, policy=ONE_NODE)
    assert cluster.where("fewer") == "host-a"
    cluster.release("fewer")
    cluster.submit("loose", cpu_milli=4_000, policy=replace(ONE_NODE, numa_required=False))
    assert cluster.where("loose") == "host-a"


def test_the_end_of_few_slots_would_do() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("wide", cpu_milli=4_000, policy=ONE_NODE)
    cluster.submit("narrow", cpu_milli=1_000, policy=ONE_NODE)
    cluster.submit("other", cpu_milli=5_000, policy=ONE_NODE)
    cluster.submit("plain", cpu_milli=500)
    cluster.submit("waits", cpu_milli=7_000, policy=ONE_NODE, allow_pending=True)
    (blocking,) = why(cluster, "waits").blocked_by
    assert blocking.allocation_id in ("wide", "other")
    cluster.release(blocking.allocation_id)
    assert cluster.where("waits") == "host-a"


def test_only_slots_that_matter_are_named() -> None:
    """Six cpus of node 0 are free beside two slots of one cpu; node 1 is full of such slots."""
    cluster = EngineCluster.settled(numa_host(threads=1))
    for number in range(6):
        cluster.submit(f"single-{number}", cpu_milli=1_000, policy=ONE_NODE)
    cluster.submit("waits", cpu_milli=4_000, policy=ONE_NODE)
    named = [slot.allocation_id for slot in why(cluster, "waits").blocked_by]
    nodes = {cluster.assignment(name).nodes for name in named}
    assert len(nodes) == 1
    assert len(named) == 3
    cluster.release(*named)
    assert cluster.where("waits") == "host-a"


def test_request_and_host_that_require_different_bind_policies_are_both_named() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.set_host_policy("host-a", bind=HostBindPolicy.FULL_PCPUS_ONLY)
    cluster.submit("waits", cpu_milli=2_000, policy=SPREAD, allow_pending=True)
    found = why(cluster, "waits")
    message = found.executors[0].message
    assert message.startswith("BIND_POLICY_CONFLICT: ")
    assert "SpreadByPCPUs" in message
    assert "FullPCPUsOnly" in message
    assert [each.relaxed for each in found.would_fit_if] == [("bind",)]
    assert found.blocked_by == []  # no slot's end would help
    assert found.primary_reason == "INFEASIBLE_NEVER"


def test_an_odd_number_where_whole_cores_are_demanded() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.set_host_policy("host-a", bind=HostBindPolicy.FULL_PCPUS_ONLY)
    cluster.submit("waits", cpu_milli=3_000, policy=LSR, allow_pending=True)
    found = why(cluster, "waits")
    assert found.executors[0].message.startswith("SMT_ALIGNMENT: the host demands whole cores")
    (fewer,) = found.would_fit_if
    assert fewer.message == "fits now on host-a with at most 2 cpu (1 fewer)"


def test_two_policies_that_have_to_give_way_together() -> None:
    cluster = EngineCluster.settled(
        numa_host(nodes=2, cores=2)
    )  # node 0: cpus 0-1, 4-5; node 1: 2-3, 6-7
    cluster.submit("a", cpu_milli=1_000, policy=replace(ONE_NODE, qos=QosClass.LSE))
    cluster.submit("b", cpu_milli=1_000, policy=replace(ONE_NODE, qos=QosClass.LSE))
    cluster.submit(
        "waits", cpu_milli=4_000, policy=replace(WHOLE, numa=ONE_NODE.numa, numa_required=True)
    )
    found = why(cluster, "waits")
    relaxed = [each.relaxed for each in found.would_fit_if if each.relaxed]
    assert relaxed
    for each in relaxed:
        policy = replace(
            WHOLE,
            numa=ONE_NODE.numa,
            numa_required="numa" not in each,
            bind_required="bind" not in each,
        )
        cluster.submit("-".join(each), cpu_milli=4_000, policy=policy)
        assert cluster.where("-".join(each)) == "host-a"
        cluster.release("-".join(each))


def test_a_slot_that_wants_its_core_to_itself() -> None:
    policy = replace(
        LSR,
        bind=BindPolicy.SPREAD_BY_PCPUS,
        exclusive=ExclusivePolicy.PCPU_LEVEL,
        exclusive_required=True,
    )
    cluster = EngineCluster.settled(numa_host(nodes=1, cores=4))
    cluster.submit("one", cpu_milli=3_000, policy=policy)
    cluster.submit("waits", cpu_milli=3_000, policy=policy)
    found = why(cluster, "waits")
    assert found.executors[0].message.startswith("EXCLUSIVE_UNMET: ")
    assert found.would_fit_if[0].relaxed == ("exclusive",)
    assert found.would_fit_if[1].message == ("fits now on host-a with at most 2 cpu (1 fewer)")
    assert [slot.allocation_id for slot in found.blocked_by] == ["one"]


def test_an_aligned_slot_in_a_shared_pool_could_be_smaller() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("a", cpu_milli=6_000, policy=ALIGNED)
    cluster.submit("b", cpu_milli=5_500, policy=ALIGNED)
    cluster.submit("waits", cpu_milli=4_000, policy=ALIGNED)
    found = why(cluster, "waits")
    messages = [each.message for each in found.would_fit_if]
    assert "fits now on host-a if numa were preferred instead of required" in messages
    assert "fits now on host-a with at most 2.5 cpu" in messages
    assert [slot.allocation_id for slot in found.blocked_by] == ["a"]


def test_a_burst_that_no_pool_is_large_enough_for() -> None:
    burst = CpuPolicy(bind=BindPolicy.CONSTRAINED_BURST, bind_required=True)
    cluster = EngineCluster.settled(numa_host())
    cluster.submit(
        "pinned", cpu_milli=8_000, policy=replace(LSE, numa=ONE_NODE.numa, numa_required=True)
    )
    cluster.submit(
        "other", cpu_milli=2_000, policy=replace(LSE, numa=ONE_NODE.numa, numa_required=True)
    )
    cluster.submit("waits", cpu_milli=1_000, policy=burst, cpu_limit_milli=8_000)
    found = why(cluster, "waits")
    assert found.executors[0].message.startswith("BURST_POOL_TOO_SMALL: ")
    messages = [each.message for each in found.would_fit_if]
    assert "fits now on host-a if bind were preferred instead of required" in messages
    assert "fits now on host-a with at most 6 cpu limit" in messages


def test_amounts_that_are_short_are_lowered_to_what_the_cpus_allow() -> None:
    """Five and a half cpus are free; whole cores use four of them."""
    cluster = EngineCluster.settled(numa_host(nodes=1, cores=4))
    cluster.submit("plain", cpu_milli=2_500)
    cluster.submit("waits", cpu_milli=8_000, policy=WHOLE)
    found = why(cluster, "waits")
    assert found.primary_reason == "WAITING_CAPACITY"
    (change,) = found.would_fit_if
    assert change.message == "fits now on host-a with at most 4 cpu"
    cluster.submit("lower", cpu_milli=4_000, policy=WHOLE)
    assert cluster.where("lower") == "host-a"


def test_best_effort_cpu_that_is_short_is_lowered_like_any_other() -> None:
    cluster = EngineCluster.settled(numa_host(nodes=1))
    cluster.submit("one", cpu_milli=6_500, policy=BE)
    cluster.submit("waits", cpu_milli=2_000, policy=BE)
    (change,) = why(cluster, "waits").would_fit_if
    assert change.message == "fits now on host-a with at most 1.5 best effort cpu"


def test_too_few_cpus_are_said_once() -> None:
    cluster = EngineCluster.settled(numa_host(nodes=1))
    cluster.submit("one", cpu_milli=7_000, policy=LSR)
    cluster.submit("waits", cpu_milli=2_000, policy=LSR)
    (verdict,) = why(cluster, "waits").executors
    assert verdict.message == "short by 1 cpu (requested 2, free 1, total 8)"
    assert verdict.cpu is not None


def test_the_host_that_is_nearest_comes_first_and_hosts_that_fit_are_counted() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"), numa_host("host-c"))
    for name in ("host-a", "host-b", "host-c"):
        cluster.set_host_policy(name, alignment=NumaPolicy.NONE)
    for number in range(6):
        cluster.submit(f"large-{number}", cpu_milli=5_000, policy=ONE_NODE)
    cluster.submit("waits", cpu_milli=4_000, policy=ONE_NODE)
    found = why(cluster, "waits")
    assert found.primary_reason == "WAITING_TOPOLOGY"
    assert found.summary.startswith("3 executors have the amounts")
    assert len(found.would_fit_if) == 5
    assert found.executors_considered == 3


def test_of_very_many_hosts_so_many_are_asked_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survey, "COSTLY_CHECKS_MAX", 2)
    cluster = EngineCluster.settled(*(numa_host(f"host-{number}") for number in range(5)))
    for number in range(10):
        cluster.submit(f"large-{number}", cpu_milli=5_000, policy=ONE_NODE)
    cluster.submit("waits", cpu_milli=4_000, policy=ONE_NODE)
    found = why(cluster, "waits")
    assert found.summary.startswith("5 executors have the amounts, but no suitable cpus")
    assert found.executors_fitting == 0
    assert {each.executor_id for each in found.would_fit_if} <= {"host-0", "host-1"}


def test_the_shared_pool_would_do_where_nothing_else_helps() -> None:
    """The only free cpu is the last one that best-effort slots can run on."""
    cluster = EngineCluster.settled(numa_host(nodes=1, cores=2, threads=1))
    cluster.submit("best-effort", cpu_milli=500, policy=BE)
    cluster.submit("one", cpu_milli=1_000, policy=LSE)
    cluster.submit("waits", cpu_milli=1_000, policy=LSE)
    found = why(cluster, "waits")
    assert found.primary_reason == "WAITING_TOPOLOGY"
    assert found.executors[0].message.startswith("BEST_EFFORT_POOL_EMPTY: ")
    (change,) = found.would_fit_if
    assert change.relaxed == ("qos",)
    assert change.message == "fits now on host-a if it ran in the shared pool (qos LS)"
    (blocking,) = found.blocked_by
    cluster.release(blocking.allocation_id)
    assert cluster.where("waits") == "host-a"


def test_a_best_effort_slot_is_told_who_has_its_pool() -> None:
    cluster = EngineCluster.settled(numa_host(nodes=1, cores=2, threads=1))
    cluster.submit("all", cpu_milli=2_000, policy=LSE)
    cluster.submit("waits", cpu_milli=500, policy=BE)
    found = why(cluster, "waits")
    (verdict,) = found.executors
    assert verdict.message == (
        "short by 0.5 best effort cpu (requested 0.5, free 0, total 2);"
        " BEST_EFFORT_POOL_EMPTY: LSE slots have every cpu of the best-effort pool"
    )
    assert [slot.allocation_id for slot in found.blocked_by] == ["all"]
    cluster.release("all")
    assert cluster.where("waits") == "host-a"


def test_a_best_effort_slot_that_others_of_its_class_are_in_the_way_of_as_well() -> None:
    cluster = EngineCluster.settled(numa_host(nodes=1, cores=2, threads=1))
    cluster.submit("other", cpu_milli=1_800, policy=BE)
    cluster.submit("one", cpu_milli=1_000, policy=LSE)
    cluster.submit("waits", cpu_milli=500, policy=BE)
    found = why(cluster, "waits")
    assert [slot.allocation_id for slot in found.blocked_by] == ["other"]
    assert "POOL_EMPTY" not in found.executors[0].message


def test_a_plain_request_on_a_host_that_aligns_everybody() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.set_host_policy("host-a", alignment=NumaPolicy.SINGLE_NUMA_NODE)
    cluster.submit("a", cpu_milli=6_000)
    cluster.submit("b", cpu_milli=6_000)
    cluster.submit("waits", cpu_milli=3_000)
    found = why(cluster, "waits")
    assert found.primary_reason == "WAITING_TOPOLOGY"
    assert found.executors[0].message.startswith("NUMA_UNALIGNED: ")
    (smaller,) = found.would_fit_if
    assert smaller.message == "fits now on host-a with at most 2 cpu"


binds = st.sampled_from(
    [BindPolicy.DEFAULT, BindPolicy.NONE, BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS]
)
exclusives = st.sampled_from([ExclusivePolicy.DEFAULT, *list(ExclusivePolicy)[2:]])
numas = st.sampled_from([NumaPolicy.DEFAULT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE])


@st.composite
def policies(draw: st.DrawFn) -> CpuPolicy:
    qos = draw(st.sampled_from(QosClass))
    bind, exclusive, numa = draw(binds), draw(exclusives), draw(numas)
    own = qos.is_pinned
    required = st.booleans()
    return CpuPolicy(
        qos,
        bind,
        bind not in (BindPolicy.DEFAULT, BindPolicy.NONE) and own and draw(required),
        exclusive,
        exclusive is not ExclusivePolicy.DEFAULT and own and draw(required),
        numa,
        numa is not NumaPolicy.DEFAULT and draw(required),
    )


sizes = st.integers(1, 7)


@settings(max_examples=examples(40))
@given(
    st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([2, 3]), st.sampled_from([1, 2])),
    st.sampled_from([{}, {"alignment": "Restricted"}, {"bind": "FullPCPUsOnly"}]),
    st.lists(st.tuples(policies(), sizes), max_size=8),
    st.tuples(policies(), sizes),
)
def test_whatever_is_said_to_help_does(
    machine: tuple[int, int, int],
    policy: dict[str, str],
    before: list[tuple[CpuPolicy, int]],
    asked: tuple[CpuPolicy, int],
) -> None:
    cluster = EngineCluster.settled(numa_host("host-a", *machine, policy=policy))
    for number, (wish, cpus) in enumerate(before):
        cluster.submit(f"before-{number}", cpu_milli=cpus * 1_000, policy=wish)
        if cluster.where(f"before-{number}") == "":
            cluster.release(f"before-{number}")
    wanted, cpus = asked
    cluster.submit("waits", cpu_milli=cpus * 1_000, policy=wanted, allow_pending=True)
    found = why(cluster, "waits")
    if found.view.request.state != "PENDING":
        return
    assert found.executors_fitting == 0
    assert not found.executors[0].fits
    cluster.release("waits")
    for number, change in enumerate(found.would_fit_if):
        amounts = {each.dimension: each.free for each in change.at_most}
        cpu = amounts.get("cpu_milli", amounts.get("best_effort_cpu_milli", cpus * 1_000))
        cluster.submit(f"try-{number}", cpu_milli=cpu, policy=gives_way(wanted, change.relaxed))
        assert cluster.where(f"try-{number}") == "host-a", change.message
        cluster.release(f"try-{number}")
    if found.blocked_by:
        cluster.release(*(slot.allocation_id for slot in found.blocked_by))
        cluster.submit("after", cpu_milli=cpus * 1_000, policy=wanted)
        assert cluster.where("after") == "host-a"


def gives_way(policy: CpuPolicy, names: tuple[str, ...]) -> CpuPolicy:
    if "qos" in names:
        return CpuPolicy(numa=policy.numa, numa_required=policy.numa_required)
    preferred: dict[str, Any] = {f"{name}_required": False for name in names}
    return replace(policy, **preferred)


def test_a_gang_whose_members_do_not_suit_one_executor_together() -> None:
    cluster = EngineCluster.settled(numa_host())
    both_nodes_nearly_full(cluster)
    cluster.submit_gang("gang", [2_000] * 3, GangPlacement.SAME_EXECUTOR, policy=ONE_NODE)
    found = why(cluster, "gang-0").gang
    assert found is not None
    assert found.placeable == 2
    assert found.summary == (
        "2 of 3 members fit now on host-a, the best executor; host-a has the amounts, but no"
        " cpus and NUMA nodes that suit all members; all would fit now if numa were preferred"
        " instead of required"
    )


def test_looking_changes_nothing() -> None:
    cluster = EngineCluster.settled(numa_host())
    both_nodes_nearly_full(cluster)
    cluster.submit("waits", cpu_milli=4_000, policy=ONE_NODE)
    books = cluster.cpu_ledger()
    before = (books.version, dict(books.holdings), books.problems())
    assert why(cluster, "waits") == why(cluster, "waits")
    assert (books.version, dict(books.holdings), books.problems()) == before
    assert ResourceProfile(4_000, 64 * MIB) == cluster.state.requests["waits"].spec.profile
    cluster.check()


def test_the_last_huge_page_of_a_node_is_offered() -> None:
    """Each node has two huge pages, and one of them is taken."""
    executor = numa_host()
    announced = json.loads(executor.host_cpus)
    for node in announced["numa"]:
        node["extended"] = {"hugepages-1Gi": "2"}
    executor.host_cpus = json.dumps(announced)
    executor.total = {**executor.total, "extended.hugepages-1Gi": 4}
    cluster = EngineCluster.settled(executor)
    for name, pages in (("first", 1), ("second", 1), ("waits", 2)):
        profile = ResourceProfile(1_000, 64 * MIB, extended=(("hugepages-1Gi", pages),))
        cluster.submit(name, profile=profile, policy=ALIGNED, allow_pending=True)
    messages = [each.message for each in why(cluster, "waits").would_fit_if]
    assert "fits now on host-a with at most 1 hugepages-1Gi" in messages
