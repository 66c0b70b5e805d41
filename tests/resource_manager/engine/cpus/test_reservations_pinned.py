"""Tests of reservations for requests with dedicated cpus or alignment."""

from __future__ import annotations

from finegrain.cpu_policy import CpuPolicy, HostPolicy, NumaPolicy, QosClass
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.events import HostPolicySet, ResizeRequested
from resource_manager.engine.model.settings import Fairness
from tests.support.engine_cluster import BE, LSE, EngineCluster, numa_host

ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
LS_ONE_NODE = CpuPolicy(numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
HALVES = "halves"
IMPATIENT = Fairness(starvation_timeout_ms=1_000, starvation_placements=1)


def cluster_of(*names: str) -> EngineCluster:
    """Returns hosts of two nodes with eight cpus, each with two slots of half a node. These slots
    belong to a separate job, because an owner does not wait for slots of its own job.
    """
    hosts = [
        numa_host(name, policy={"numa_strategy": "LeastAllocated"}, labels=(("name", name),))
        for name in names
    ]
    cluster = EngineCluster.settled(*hosts, fairness=IMPATIENT)
    cluster.job(HALVES)
    for at in range(2 * len(names)):
        here = (("name", names[at // 2]),)
        name = f"half-{at}"
        cluster.submit(name, job=HALVES, cpu_milli=4_000, policy=ONE_NODE, required_labels=here)
    return cluster


def starve(cluster: EngineCluster) -> None:
    """Lets time pass in which other requests are served."""
    for at in range(3):
        cluster.wait(1_000)
        cluster.report_all()
        if not cluster.state.reservations.by_number:
            name = f"passer-by-{cluster.state.numbers.arrival}-{at}"
            cluster.submit(name, cpu_milli=100)
            cluster.release(name)
    cluster.check()


def held(cluster: EngineCluster) -> list[str]:
    return sorted(cluster.state.reservations.on_host)


def test_a_host_that_is_reserved_for_a_whole_node_gives_no_cpus_to_other_requests() -> None:
    cluster = cluster_of("host-a")
    cluster.submit(
        "node", cpu_milli=8_000, policy=ONE_NODE
    )  # eight cpus are free, four on each node
    starve(cluster)
    assert held(cluster) == ["host-a"]
    assert cluster.waiting_reason("node") != ""
    cluster.submit("other", cpu_milli=2_000, policy=ONE_NODE, allow_pending=True)
    cluster.submit("bound", cpu_milli=500, policy=LS_ONE_NODE, allow_pending=True)
    assert cluster.state_of("other") == "PENDING"
    assert cluster.state_of("bound") == "PENDING"
    cluster.release("half-0", job=HALVES)
    assert cluster.state_of("node") == "GRANTED"
    assert len(cluster.assignment("node").nodes) == 1
    assert held(cluster) == []
    cluster.settle()
    assert cluster.state_of("other") == "GRANTED"
    assert cluster.state_of("bound") == "GRANTED"


def test_no_host_is_reserved_that_is_unsuitable_even_when_empty() -> None:
    small = numa_host("host-a", nodes=2, cores=2)
    cluster = EngineCluster.settled(small, numa_host("host-b"), fairness=IMPATIENT)
    for at in range(4):
        cluster.submit(f"half-{at}", cpu_milli=3_000, policy=ONE_NODE)
    cluster.submit("wide", cpu_milli=8_000, policy=ONE_NODE)
    starve(cluster)
    assert held(cluster) == ["host-b"]


def test_a_reservation_ends_if_the_alignment_policy_of_its_host_changes() -> None:
    cluster = cluster_of("host-a", "host-b")
    both_nodes = CpuPolicy(QosClass.LSR, numa=NumaPolicy.RESTRICTED, numa_required=True)
    cluster.submit("wide", cpu_milli=12_000, policy=both_nodes)
    starve(cluster)
    (name,) = held(cluster)
    other = {"host-a": "host-b", "host-b": "host-a"}[name]
    aligned = HostPolicy(alignment=NumaPolicy.SINGLE_NUMA_NODE)
    cluster.batch(HostPolicySet(cluster.at, name, aligned))
    cluster.check()
    starve(cluster)
    assert held(cluster) == [other]
    assert any("could no longer serve it" in each for each in cluster.history("reservation_ended"))


def test_the_reserved_hosts_of_a_gang_suit_all_its_members_together() -> None:
    cluster = cluster_of("host-a", "host-b")
    cluster.submit_gang("g", [8_000] * 3, policy=ONE_NODE)
    starve(cluster)
    assert held(cluster) == ["host-a", "host-b"]
    cluster.release("half-1", "half-2", "half-3", job=HALVES)
    assert {cluster.state.requests[f"g-{at}"].state for at in range(3)} == {"GRANTED"}
    assert held(cluster) == []


def test_capacity_is_reserved_for_the_growth_of_a_slot_until_its_node_has_room() -> None:
    cluster = EngineCluster.settled(
        numa_host(policy={"numa_strategy": "MostAllocated"}), fairness=IMPATIENT
    )
    cluster.submit("grows", cpu_milli=4_000, policy=ONE_NODE)
    cluster.submit("beside", cpu_milli=4_000, policy=ONE_NODE)
    assert cluster.assignment("beside").nodes == cluster.assignment("grows").nodes
    profile = ResourceProfile(8_000, 64 * MIB)
    cluster.batch(ResizeRequested(cluster.at, "job", "grows", 0, 0, profile))
    starve(cluster)
    assert held(cluster) == ["host-a"]  # the amounts are free all the time
    cluster.submit("other", cpu_milli=2_000, policy=ONE_NODE, allow_pending=True)
    assert cluster.state_of("other") == "PENDING"
    cluster.release("beside")
    assert cluster.slot("grows").profile.cpu_milli == 8_000
    assert cluster.state_of("other") == "GRANTED"


def test_no_other_slot_grows_by_cpus_of_a_reserved_host() -> None:
    cluster = cluster_of("host-a")
    cluster.submit("node", cpu_milli=8_000, policy=ONE_NODE)
    starve(cluster)
    assert held(cluster) == ["host-a"]
    cluster.submit("plain", cpu_milli=500)  # other requests may use what is not reserved
    assert cluster.state_of("plain") == "GRANTED"
    profile = ResourceProfile(5_000, 64 * MIB)
    cluster.resize("half-0", profile, job=HALVES)
    assert cluster.slot("half-0").wanted is not None
    (change,) = explain(cluster.state, "half-0").resizes
    assert change.summary == "there is room on host-a, but it is reserved for node"
    cluster.release("half-1", job=HALVES)
    assert cluster.state_of("node") == "GRANTED"
    cluster.settle()
    assert cluster.slot("half-0").profile.cpu_milli == 5_000


def test_best_effort_slots_do_not_keep_an_exclusive_slot_from_the_last_cpu_indefinitely() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), fairness=IMPATIENT)
    cluster.submit("idle-0", cpu_milli=500, policy=BE)
    cluster.submit("all", cpu_milli=16_000, policy=LSE)
    assert cluster.waiting_reason("all") != ""
    for at in range(1, 6):  # a new one always arrives before the last one ends
        cluster.wait(1_000)
        cluster.report(cluster.executors["host-a"])
        cluster.submit(f"idle-{at}", cpu_milli=500, policy=BE, allow_pending=True)
        cluster.release(f"idle-{at - 1}")
    assert cluster.state_of("all") == "GRANTED"
    assert held(cluster) == []
    cluster.release("all")
    assert cluster.state_of("idle-5") == "GRANTED"
