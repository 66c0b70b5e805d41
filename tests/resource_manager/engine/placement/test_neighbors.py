"""Tests of rules about neighbors: slots that must be near to or apart from slots of their job."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.cpu_policy import CpuPolicy, NumaPolicy, QosClass
from finegrain.errors import Reason
from finegrain.neighbors import Level, NeighborRule, read_rule
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement
from resource_manager.engine.cpus.neighbors import broken_rules, domains
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from tests.support.engine_cluster import EngineCluster, FakeExecutor, host, numa_host
from tests.support.properties import examples


def policy(labels: str = "", *rules: str, qos: QosClass = QosClass.LS) -> CpuPolicy:
    """Makes a policy: policy("app=db", "apart app=db@host")."""
    pairs = tuple(tuple(each.split("=")) for each in labels.split(",") if each)
    read = [each.split(" ", 1) for each in rules]
    return CpuPolicy(
        qos,
        slot_labels=tuple(sorted(pairs)),  # type: ignore[arg-type]
        neighbors=tuple(read_rule("rule", text, apart=kind == "apart") for kind, text in read),
    )


def submit(cluster: EngineCluster, *names: str, cpus: int = 1, **more: Any) -> Any:
    return cluster.submit(*names, cpu_milli=1_000 * cpus, memory_bytes=64 * MIB, **more)


def three_hosts() -> EngineCluster:
    return EngineCluster.settled(*(numa_host(f"host-{each}") for each in "abc"))


def test_slots_that_are_apart_at_the_level_of_hosts_are_on_different_hosts() -> None:
    cluster = three_hosts()
    replica = policy("app=db", "apart app=db@host")
    submit(cluster, "r1", "r2", "r3", "r4", cpu_policy=replica)
    hosts = cluster.hosts_of("r1", "r2", "r3")
    assert sorted(hosts) == ["host-a", "host-b", "host-c"]
    assert cluster.waiting() == {"r4"}
    assert cluster.waiting_reason("r4") == Reason.WAITING_TOPOLOGY
    cluster.release("r2")
    assert cluster.where("r4") == hosts[1]


def test_a_rule_of_a_running_slot_keeps_later_slots_away() -> None:
    cluster = EngineCluster.settled(numa_host())
    submit(cluster, "quiet", cpu_policy=policy("", "apart app=noisy@host"))
    submit(cluster, "noisy", cpu_policy=policy("app=noisy"))
    submit(cluster, "other", cpu_policy=policy("app=calm"))
    assert cluster.waiting() == {"noisy"}
    cluster.release("quiet")
    assert cluster.is_granted("noisy")


def test_a_refusal_of_a_plain_request_does_not_concern_a_gang_with_rules() -> None:
    """The gang is searched as one large request, which is equal to the refused request except for
    the rule.
    """
    executor = host("host-a")
    executor.broken.add("refused")
    cluster = EngineCluster.settled(executor)
    submit(cluster, "refused")
    assert cluster.waiting() == {"refused"}
    rule = policy("", "apart app=noisy@host:preferred")
    cluster.submit_gang("gang", [1_000, 1_000], GangPlacement.SAME_EXECUTOR, policy=rule)
    assert cluster.hosts_of("gang-0", "gang-1") == ["host-a", "host-a"]


def test_slots_of_other_jobs_do_not_count() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.job("another")
    apart = policy("app=db", "apart app=db@host")
    submit(cluster, "r1", cpu_policy=apart)
    submit(cluster, "r2", cpu_policy=apart, job="another")
    assert not cluster.waiting()


def test_a_slot_goes_to_the_host_of_its_neighbor() -> None:
    cluster = three_hosts()
    submit(cluster, "fills", cpus=15)
    submit(cluster, "db", cpu_policy=policy("app=db", "apart app=web@host:preferred"), cpus=4)
    there = cluster.where("db")
    submit(cluster, "w1", "w2", cpu_policy=policy("", "near app=db"), cpus=4)
    assert cluster.hosts_of("w1", "w2") == [there, there]
    submit(cluster, "w3", cpu_policy=policy("", "near app=db"), cpus=8)
    assert cluster.waiting() == {"w3"}
    cluster.release("w1")
    assert cluster.where("w3") == there


def test_a_request_waits_for_its_neighbor_to_start() -> None:
    cluster = three_hosts()
    submit(cluster, "web", cpu_policy=policy("", "near app=db@host"))
    assert cluster.waiting() == {"web"}
    submit(cluster, "db", cpu_policy=policy("app=db"))
    assert cluster.where("web") == cluster.where("db")


def test_the_first_slot_of_a_group_of_near_slots_needs_no_neighbor() -> None:
    cluster = three_hosts()
    together = policy("app=ps", "near app=ps@host")
    submit(cluster, "a", "b", "c", cpu_policy=together, cpus=5)
    assert len(set(cluster.hosts_of("a", "b", "c"))) == 1
    submit(cluster, "d", cpu_policy=together, cpus=5)
    assert cluster.waiting() == {"d"}  # 15 of 16 cpus of their host are in use
    cluster.release("a", "b", "c")
    assert cluster.is_granted("d")


@pytest.mark.parametrize("strategy", ["pack", "spread", "balanced"])
def test_members_of_a_range_follow_the_rules_under_each_strategy(strategy: str) -> None:
    cluster = EngineCluster.settled(
        *(numa_host(f"host-{each}") for each in "abc"), strategy=strategy
    )
    cluster.submit_range("far", 5, cpu_policy=policy("k=f", "apart k=f@host"))
    assert len(cluster.running()) == 3
    assert len({slot.executor_id for slot in cluster.state.slots.values()}) == 3
    cluster.submit_range("close", 12, cpu_policy=policy("k=c", "near k=c@host"))
    close = [slot for key, slot in cluster.state.slots.items() if key[0].startswith("close")]
    assert len(close) == 12
    assert len({slot.executor_id for slot in close}) == 1


def test_a_preferred_rule_does_not_keep_a_slot_waiting_and_leaves_a_note() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), numa_host("host-b"))
    replica = policy("app=db", "apart app=db@host:preferred")
    submit(cluster, "r1", "r2", "r3", cpu_policy=replica)
    assert set(cluster.hosts_of("r1", "r2")) == {"host-a", "host-b"}
    assert not cluster.assignment("r2").notes
    (note,) = cluster.assignment("r3").notes
    assert "apart app=db@host:preferred was preferred" in note


def test_a_preference_counts_over_all_hosts() -> None:
    cluster = EngineCluster.settled(*(numa_host(f"host-{at:02}") for at in range(20)))
    submit(cluster, *(f"fill-{at}" for at in range(19)), cpus=12)
    submit(cluster, "db", cpu_policy=policy("app=db"), cpus=12)
    submit(cluster, "web", cpu_policy=policy("", "near app=db@host:preferred"))
    assert cluster.where("web") == cluster.where("db")


@pytest.mark.parametrize("level", [Level.NUMA, Level.CORE])
def test_slots_are_apart_and_near_below_the_level_of_hosts(level: Level) -> None:
    cluster = EngineCluster.settled(numa_host())
    submit(cluster, "db", cpu_policy=policy("app=db", qos=QosClass.LSR))
    near = policy("", f"near app=db@{level}", qos=QosClass.LSR)
    apart = policy("", f"apart app=db@{level}", qos=QosClass.LSR)
    submit(cluster, "near", cpu_policy=near)
    submit(cluster, "apart", cpu_policy=apart)
    layout = cluster.cpu_ledger().layout
    (there,) = (
        each for each in domains(layout, level) if each & cluster.assignment("db").cpus.bits
    )
    assert cluster.assignment("near").cpus.bits & there
    assert not cluster.assignment("apart").cpus.bits & there


def test_a_slot_without_dedicated_cpus_counts_as_on_all_cpus() -> None:
    cluster = EngineCluster.settled(numa_host())
    submit(cluster, "quiet", cpu_policy=policy("", "apart app=web@core", qos=QosClass.LSR))
    submit(cluster, "web", cpu_policy=policy("app=web"))
    assert cluster.waiting() == {"web"}
    one_node = CpuPolicy(
        QosClass.LS,
        numa=NumaPolicy.SINGLE_NUMA_NODE,
        numa_required=True,
        slot_labels=(("app", "db"),),
    )
    submit(cluster, "db", cpu_policy=one_node)
    node = cluster.assignment("db").nodes[0]
    submit(cluster, "beside", cpu_policy=policy("", "near app=db@numa", qos=QosClass.LSR))
    mask = cluster.cpu_ledger().layout.nodes[node].mask
    assert cluster.assignment("beside").cpus.bits & mask


def test_a_slot_that_grows_stays_apart() -> None:
    cluster = EngineCluster.settled(numa_host())
    submit(cluster, "db", cpu_policy=policy("app=db", qos=QosClass.LSR), cpus=4)
    apart = policy("", "apart app=db@numa", qos=QosClass.LSR)
    submit(cluster, "far", cpu_policy=apart, cpus=4)
    cluster.resize("far", ResourceProfile(8_000, 64 * MIB))
    assert len(cluster.assignment("far").cpus) == 8
    assert not list(broken_rules(cluster.cpu_ledger()))
    cluster.resize("far", ResourceProfile(10_000, 64 * MIB))
    assert len(cluster.assignment("far").cpus) == 8


def test_rules_survive_a_restart_of_the_resource_manager() -> None:
    cluster = EngineCluster.settled(numa_host())
    replica = policy("app=db", "apart app=db@host")
    submit(cluster, "r1", "r2", cpu_policy=replica)
    cluster.restart()
    assert cluster.waiting() == {"r2"}
    cluster.release("r1")
    assert cluster.is_granted("r2")


def gang(
    cluster: EngineCluster, placement: GangPlacement, *members: tuple[str, int, CpuPolicy]
) -> None:
    specs = [
        RequestSpec(
            name,
            ResourceProfile(1_000 * cpus, 64 * MIB),
            gang_id=members[0][0],
            cpu_policy=each_policy,
            allow_pending=True,
        )
        for name, cpus, each_policy in members
    ]
    cluster.submit(*specs, GangSpec(members[0][0], placement))


def test_members_of_a_gang_are_apart_or_near() -> None:
    cluster = three_hosts()
    submit(cluster, "fills", cpus=14)
    far = policy("app=db", "apart app=db@host")
    gang(
        cluster,
        GangPlacement.ANYWHERE,
        ("web", 4, policy("", "near app=db@host")),
        ("db1", 2, far),
        ("db2", 2, far),
    )
    assert cluster.where("db1") != cluster.where("db2")
    assert cluster.where("web") in cluster.hosts_of("db1", "db2")
    cluster.release("web", "db1", "db2", "fills")
    gang(cluster, GangPlacement.ANYWHERE, *((f"n{at}", 5, far) for at in range(4)))
    assert cluster.waiting() >= {"n0", "n1", "n2", "n3"}


@pytest.mark.parametrize("placement", [GangPlacement.ANYWHERE, GangPlacement.SPREAD])
def test_a_gang_whose_rule_cannot_be_met_waits_as_a_whole(placement: GangPlacement) -> None:
    cluster = three_hosts()
    close = policy("app=ps", "near app=ps@host")
    gang(cluster, placement, *((f"g{at}", 12, close) for at in range(2)))
    assert cluster.waiting() == {"g0", "g1"}


def test_an_explanation_names_the_rule_and_the_slots_in_the_way() -> None:
    cluster = EngineCluster.settled(numa_host("host-a"), host("bare", cpu_milli=64_000))
    submit(cluster, "r1", cpu_policy=policy("app=db"))
    assert cluster.where("r1") == "host-a"
    submit(cluster, "r2", cpu_policy=policy("", "apart app=db@host"))
    text = str(explain(cluster.state, "r2"))
    assert "NOT_APART" in text
    assert "slot r1" in text
    assert "which the rule apart app=db@host:required excludes" in text
    assert "were preferred instead of required" in text
    assert "does not report its cores" in text


LABELS = ("a=1", "a=2", "b=1")
PLACEMENTS = (GangPlacement.ANYWHERE, GangPlacement.SAME_EXECUTOR, GangPlacement.SPREAD)
RULES = [
    f"{kind} {labels}@{level}{strength}"
    for kind in ("near", "apart")
    for labels in LABELS
    for level in Level
    for strength in ("", ":preferred")
]


@settings(max_examples=examples(150))
@given(st.data())
def test_required_rules_hold_on_random_clusters(data: st.DataObject) -> None:
    """After each step, no required rule `apart` is broken, and each slot with a required rule
    `near` was placed beside a neighbor, or as the first slot that the rule selects.
    """
    cluster = EngineCluster.settled(
        *(
            numa_host(f"host-{at}", cores=data.draw(st.integers(2, 4)))
            for at in range(data.draw(st.integers(1, 3)))
        )
    )
    made = 0
    for _ in range(data.draw(st.integers(2, 8))):
        running = cluster.running()
        ends: bool = data.draw(st.booleans())
        if running and ends:
            cluster.release(data.draw(st.sampled_from(sorted(running))))
        pinned: bool = data.draw(st.booleans())
        rules: list[str] = data.draw(st.lists(st.sampled_from(RULES), max_size=2))
        if not pinned:
            rules = [each for each in rules if "@host" in each]
        wanted = policy(
            data.draw(st.sampled_from(("", *LABELS))),
            *rules,
            qos=QosClass.LSR if pinned else QosClass.LS,
        )
        names = [f"r{made + at}" for at in range(data.draw(st.integers(1, 3)))]
        made += len(names)
        before = set(cluster.state.slots)
        submit(cluster, *names, cpu_policy=wanted, cpus=data.draw(st.integers(1, 5)))
        cluster.check()
        for each in cluster.state.hosts.values():
            assert each.cpus is not None
            assert not list(broken_rules(each.cpus))
        assert_near(cluster, set(cluster.state.slots) - before)


@settings(max_examples=examples(80))
@given(st.data())
def test_required_rules_hold_through_revocations(data: st.DataObject) -> None:
    """Slots that are being revoked do not count, because other slots start after their end."""
    cluster = EngineCluster.settled(
        *(numa_host(f"host-{at}", cores=2) for at in range(data.draw(st.integers(1, 2)))),
        revocation=True,
    )
    for number in range(data.draw(st.integers(2, 8))):
        qos = data.draw(st.sampled_from((QosClass.LS, QosClass.LSR)))
        rules: list[str] = data.draw(st.lists(st.sampled_from(RULES), max_size=2))
        usable = [each for each in rules if qos.is_pinned or "@host" in each]
        wanted = policy(data.draw(st.sampled_from(("", *LABELS))), *usable, qos=qos)
        cpu_milli = 1_000 * data.draw(st.integers(1, 6))
        revocable: bool = data.draw(st.booleans())
        if data.draw(st.booleans()):
            sizes = [cpu_milli] * data.draw(st.integers(1, 3))
            cluster.submit_gang(f"g{number}", sizes, policy=wanted, revocable=revocable)
        else:
            names = [f"r{number}-{at}" for at in range(data.draw(st.integers(1, 3)))]
            cluster.submit(*names, cpu_milli=cpu_milli, policy=wanted, revocable=revocable)
        known = sorted(cluster.state.requests)
        is_cancelled: bool = data.draw(st.booleans())
        if known and is_cancelled:
            cluster.cancel(data.draw(st.sampled_from(known)))
        cluster.check()
        for each in cluster.state.hosts.values():
            assert each.cpus is not None
            assert not list(broken_rules(each.cpus))
        if data.draw(st.booleans()):
            cluster.settle()
            assert not any(each.revoked for each in cluster.state.hosts.values())
            cluster.check()


def assert_near(cluster: EngineCluster, new: set[tuple[str, int]]) -> None:
    slots = cluster.state.slots
    for key in new:
        own = slots[key]
        for rule in rules_of(own.policy):
            if rule.apart or not rule.required:
                continue
            selected = [each for each in slots.values() if selects(rule, each.policy)]
            others = [each for each in selected if each is not own]
            if own in selected and not others:
                continue
            assert any(share(cluster, own, each, rule.level) for each in others), rule


def rules_of(policy_of_slot: CpuPolicy | None) -> tuple[NeighborRule, ...]:
    return policy_of_slot.neighbors if policy_of_slot is not None else ()


def selects(rule: NeighborRule, other: CpuPolicy | None) -> bool:
    return other is not None and rule.selects(other.slot_labels)


def share(cluster: EngineCluster, one: Any, other: Any, level: Level) -> bool:
    """Returns True if two slots are on the same part of a host."""
    if one.executor_id != other.executor_id:
        return False
    if level is Level.HOST:
        return True
    ledger = cluster.cpu_ledger(one.executor_id)
    own, its = (
        each.assignment.cpus.bits
        if each.assignment is not None and each.assignment.cpus
        else ledger.layout.cpus
        for each in (one, other)
    )
    return any(part & own and part & its for part in domains(ledger.layout, level))


@settings(max_examples=examples(100))
@given(st.data())
def test_the_table_of_hosts_finds_what_a_look_at_each_host_finds(data: st.DataObject) -> None:
    cluster = EngineCluster.settled(*(numa_host(f"host-{at}") for at in range(3)))
    for at in range(data.draw(st.integers(1, 8))):
        labels = data.draw(st.sampled_from(LABELS))
        rules: list[str] = data.draw(st.lists(st.sampled_from(RULES), max_size=2))
        rules = [each for each in rules if "@host" in each]
        submit(cluster, f"r{at}", cpu_policy=policy(labels, *rules))
    table = cluster.state.hosts.labeled
    wanted = CpuPolicy(
        slot_labels=(("a", "1"),),
        neighbors=(read_rule("rule", "a=2", apart=True), read_rule("rule", "b=1", apart=False)),
        neighbor_job="job",
    )
    slots = [each for each in cluster.state.slots.values() if each.policy is not None]
    assert table.near(wanted, wanted.neighbors[1]) == {
        each.executor_id for each in slots if selects(wanted.neighbors[1], each.policy)
    }
    assert table.excluded(wanted) == {
        each.executor_id
        for each in slots
        if selects(wanted.neighbors[0], each.policy)
        or any(
            rule.apart
            and rule.required
            and rule.level is Level.HOST
            and rule.selects(wanted.slot_labels)
            for rule in rules_of(each.policy)
        )
    }


@settings(max_examples=examples(60))
@given(st.data())
def test_a_gang_that_is_apart_is_placed_exactly_if_enough_hosts_have_room(
    data: st.DataObject,
) -> None:
    cluster = EngineCluster.settled(*(numa_host(f"host-{at}", cores=2) for at in range(4)))
    full = data.draw(st.integers(0, 4))
    submit(cluster, *(f"fill-{at}" for at in range(full)), cpus=8)
    members = data.draw(st.integers(2, 5))
    far = policy("app=db", "apart app=db@host")
    gang(cluster, GangPlacement.ANYWHERE, *((f"g{at}", 2, far) for at in range(members)))
    if members <= 4 - full:
        hosts = cluster.hosts_of(*(f"g{at}" for at in range(members)))
        assert all(one != other for one, other in combinations(hosts, 2))
    else:
        assert cluster.waiting() >= {f"g{at}" for at in range(members)}


@settings(max_examples=examples(80))
@given(st.data())
def test_required_rules_hold_within_random_gangs(data: st.DataObject) -> None:
    """Only a rule that selects its own slot may have no neighbor: the slot may have been first."""
    cluster = EngineCluster.settled(
        *(numa_host(f"host-{at}") for at in range(data.draw(st.integers(1, 3))))
    )
    for number in range(2):
        members = []
        for at in range(data.draw(st.integers(2, 4))):
            qos = data.draw(st.sampled_from((QosClass.LS, QosClass.LSR)))
            rules: list[str] = data.draw(st.lists(st.sampled_from(RULES), max_size=2))
            usable = [each for each in rules if qos.is_pinned or "@host" in each]
            labels = data.draw(st.sampled_from(("", *LABELS)))
            cpus = data.draw(st.integers(1, 4))
            members.append((f"g{number}-{at}", cpus, policy(labels, *usable, qos=qos)))
        gang(cluster, data.draw(st.sampled_from(PLACEMENTS)), *members)
        cluster.check()
        for each in cluster.state.hosts.values():
            assert each.cpus is not None
            assert not list(broken_rules(each.cpus))
        for slot in cluster.state.slots.values():
            for rule in rules_of(slot.policy):
                if rule.apart or not rule.required or selects(rule, slot.policy):
                    continue
                others = [o for o in cluster.state.slots.values() if selects(rule, o.policy)]
                assert any(share(cluster, slot, each, rule.level) for each in others), rule


def test_hosts_that_do_not_report_their_cores_take_slots_with_labels_only() -> None:
    bare: FakeExecutor = host("bare", cpu_milli=8_000)
    cluster = EngineCluster.settled(bare)
    submit(cluster, "labeled", cpu_policy=policy("app=db"))
    assert cluster.is_granted("labeled")
    submit(cluster, "ruled", cpu_policy=policy("", "apart app=db@host"), allow_pending=True)
    assert cluster.waiting() == {"ruled"}
