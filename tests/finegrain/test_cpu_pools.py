"""Shared and best-effort pools are the cpus that are not dedicated, per NUMA node."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpu_assignment import CpuAssignment, NodeShare, PoolName
from finegrain.cpu_policy import HostPolicy, PolicyOrigin, QosClass, settle
from finegrain.cpu_pools import (
    Pool,
    Pooled,
    Pools,
    cores_of,
    places_of,
    pools_of,
)
from finegrain.cpuset import EMPTY, CpuSet, union
from finegrain.topology import Core, HostTopology, NumaNode
from tests.support.components import REPOSITORY

VECTORS = json.loads(
    (REPOSITORY / "tests/data/vectors/koordinator_shared_pools.json").read_text(encoding="utf-8")
)
NEAR, FAR = PoolName(0, 0), PoolName(1, 1)
TWO_PACKAGES = Pooled(((NEAR, CpuSet.parse("0-7")), (FAR, CpuSet.parse("8-15"))))


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def _host(topology: str) -> tuple[tuple[PoolName, CpuSet], ...]:
    rows = VECTORS["topologies"][topology]
    return places_of(
        [(PoolName(socket, node), CpuSet.of(cpu)) for cpu, _, node, socket in rows],
        CpuSet(row[0] for row in rows),
    )


def _holder(pod: Mapping[str, str]) -> tuple[QosClass, CpuSet]:
    """A pod with dedicated cpus counts by its cpus, and not by its class. Only LSE keeps BE slots
    away from these cpus.
    """
    qos = QosClass.LSE if pod["qos"] == "LSE" else QosClass.LSR
    return qos, cpus(pod["cpuset"])


def _rows(pools: Sequence[tuple[PoolName, CpuSet]]) -> list[dict[str, object]]:
    return [
        {"socket": name.package, "node": name.node, "cpuset": str(held)} for name, held in pools
    ]


@pytest.mark.parametrize("case", VECTORS["pools"], ids=lambda case: str(case["id"]))
def test_the_pools_are_those_of_koordinator(case: Mapping[str, Any]) -> None:
    """Cpus that the node reserves, and cpus of exclusive system pods, are called strictly reserved
    in finegrain. Which pods of a kubelet count is decided by the reader of its checkpoint.
    """
    system = case["system_qos"] or {"cpuset": "", "exclusive": False}
    pools = pools_of(
        Pooled(
            _host(case["topology"]),
            kubelet_pinned=union(cpus(each["cpuset"]) for each in case["expect"]["kubelet_allocs"]),
            strictly_reserved=cpus(case["node_reserved_cpus"])
            | cpus(system["cpuset"] if system["exclusive"] else ""),
        ),
        map(_holder, case["pods"]),
    )
    shared = [(each.name, each.shared) for each in pools.members]
    best_effort = [(each.name, each.best_effort) for each in pools.members]
    assert _rows(shared) == case["expect"]["ls_pools"]
    assert _rows(best_effort) == case["expect"]["be_pools"]


@pytest.mark.parametrize(
    ("case", "assignment"),
    [
        pytest.param(
            VECTORS["container_cpuset"][0],
            CpuAssignment(numa=(NodeShare(0, (("extended.hugepages-1Gi", 2),)),)),
            id="ccs-05: a share of a node without cpu names no pool",
        ),
        pytest.param(VECTORS["host_app_cpuset"][0], None, id="happ-3: a plain LS slot"),
    ],
)
def test_a_slot_without_pools_of_its_own_runs_in_all_of_its_class(
    case: Mapping[str, Any], assignment: CpuAssignment | None
) -> None:
    """There is no test for ccs-08: every slot has a class, so a best-effort slot always gets the
    best-effort pool. It never gets an empty set, with which the cpus of its parent group would
    apply.
    """
    pools = Pools(
        tuple(
            Pool(PoolName(each["socket"], each["node"]), cpus(each["cpuset"]), EMPTY)
            for each in case["share_pools"]
        )
    )
    assert pools.cpus_of(assignment) == cpus(case["expect"]["cpuset"])


def test_lsr_shares_its_cpus_with_best_effort_and_lse_with_nobody() -> None:
    pools = pools_of(TWO_PACKAGES, [(QosClass.LSE, cpus("0-1")), (QosClass.LSR, cpus("2-3,8"))])
    assert [(str(each.shared), str(each.best_effort)) for each in pools.members] == [
        ("4-7", "2-7"),
        ("9-15", "8-15"),
    ]


def test_a_pool_that_is_emptied_stays() -> None:
    pools = pools_of(TWO_PACKAGES, [(QosClass.LSE, cpus("8-15"))])
    assert pools.members[1] == Pool(FAR, EMPTY, EMPTY)


def test_the_cpus_of_one_slot() -> None:
    pools = pools_of(TWO_PACKAGES, [(QosClass.LSE, cpus("0-1")), (QosClass.LSR, cpus("8-9"))])
    for assignment, want in [
        (None, "2-7,10-15"),
        (CpuAssignment(QosClass.LSE, cpus("0-1")), "0-1"),
        (CpuAssignment(QosClass.LSR, cpus("8-9"), pools=(NEAR,)), "8-9"),
        (CpuAssignment(QosClass.LS, pools=(FAR,)), "10-15"),
        (CpuAssignment(QosClass.BE, pools=(FAR,)), "8-15"),
        (CpuAssignment(QosClass.BE), "2-15"),
    ]:
        assert str(pools.cpus_of(assignment)) == want


def test_a_slot_whose_pools_have_vanished_goes_to_the_others_of_its_class() -> None:
    host = Pooled(TWO_PACKAGES.places, kubelet_pinned=cpus("8-15"), offline=cpus("0-1"))
    pools = pools_of(host, [(QosClass.LSR, cpus("0-3"))])
    assert str(pools.cpus_of(CpuAssignment(QosClass.LS, pools=(FAR,)))) == "4-7"
    assert str(pools.cpus_of(CpuAssignment(QosClass.BE, pools=(FAR,)))) == "2-7"
    assert str(pools.cpus_of(CpuAssignment(QosClass.LSR, cpus("0-3")))) == "2-3"
    assert str(pools.cpus_of(CpuAssignment(QosClass.LSE, cpus("0-1")))) == "4-7"


def test_where_the_host_does_not_tell_the_node_its_cpus_are_pooled_by_package() -> None:
    topology = HostTopology(
        online=cpus("0-5"),
        allowed=cpus("0-5"),
        cores=(
            Core(cpus("0-1"), package=0, numa_node=None),
            Core(cpus("2-3"), package=1, numa_node=4),
            Core(cpus("4-5"), package=0, numa_node=4),
        ),
        numa_nodes=(NumaNode(4, cpus("2-5"), None),),
    )
    assert places_of(cores_of(topology), cpus("1-4")) == (
        (PoolName(0, -1), cpus("1")),
        (PoolName(0, 4), cpus("4")),
        (PoolName(1, 4), cpus("2-3")),
    )


def test_cpus_that_an_executor_keeps_back_are_pooled_unless_strictly() -> None:
    cores = [(NEAR, cpus("0-3")), (FAR, cpus("4-7"))]
    reserved = HostPolicy(reserved_cpus=cpus("0-1"), reserved_strict=False)
    operator = HostPolicy(reserved_cpus=cpus("4"), reserved_strict=True)
    for configured, shared in [
        (reserved, "0-3,5-7"),
        (replace(reserved, reserved_strict=True), "2-3,5-7"),
        (HostPolicy(), "2-3,5-7"),
    ]:
        policy = settle(
            [(PolicyOrigin.OPERATOR, operator), (PolicyOrigin.CONFIGURATION, configured)]
        )
        host = Pooled.of(cores, cpus("2-7"), policy, kept_back=cpus("0-1"))
        assert str(pools_of(host, ()).shared) == shared


sets = st.builds(CpuSet, st.sets(st.integers(0, 23)))


@st.composite
def hosts(draw: st.DrawFn) -> Pooled:
    where = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 3)), max_size=24))
    cores = [(PoolName(*place), CpuSet.of(cpu)) for cpu, place in enumerate(where)]
    return Pooled(places_of(cores, draw(sets)), draw(sets), draw(sets), draw(sets), draw(sets))


@given(hosts(), st.lists(st.tuples(st.sampled_from(QosClass), sets), max_size=6))
def test_pools_and_what_is_taken_partition_the_host(
    host: Pooled, holders: list[tuple[QosClass, CpuSet]]
) -> None:
    pools = pools_of(host, holders)
    own = union(place for _, place in host.places)
    held = union(each for _, each in holders)
    lse = union(each for qos, each in holders if qos is QosClass.LSE)
    for share, without in ((pools.shared, held), (pools.best_effort, lse)):
        taken = own & (host.excluded | without)
        assert share | taken == own
        assert share.isdisjoint(taken)
    assert pools.shared <= pools.best_effort
    assert pools.best_effort - pools.shared == (held - lse - host.excluded) & own
    assert sum(len(each.shared) for each in pools.members) == len(pools.shared)
    assert [each.name for each in pools.members] == sorted(name for name, _ in host.places)
