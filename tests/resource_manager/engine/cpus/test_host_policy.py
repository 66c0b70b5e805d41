"""Tests of host policies that administrators set at runtime.

Tests which policies are valid, what they change, what survives a restart, and what executors
receive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
    PolicyOrigin,
)
from finegrain.cpuset import CpuSet
from finegrain.errors import FinegrainError, InvalidArgument, NotFound, Reason
from resource_manager.engine.explain.preview import Previews
from resource_manager.engine.explain.topology import topology_view
from resource_manager.engine.model.entities import HostSetting
from resource_manager.engine.model.events import ForgetRequested, HostPolicySet
from tests.support.engine_cluster import BE, LSR, EngineCluster, numa_host

ALIGNED = {"alignment": "SingleNUMANode"}
NODE_0 = "0-3,8-11"


def set_policy(
    cluster: EngineCluster, name: str = "host-a", *clear: str, **fields: Any
) -> HostSetting:
    setting: HostSetting = cluster.batch(
        HostPolicySet(cluster.at, name, HostPolicy(**fields), clear)
    )
    cluster.check()
    return setting


def refused(
    cluster: EngineCluster, name: str = "host-a", *clear: str, **fields: Any
) -> FinegrainError:
    before = dict(cluster.state.host_settings)
    with pytest.raises(FinegrainError) as caught:
        set_policy(cluster, name, *clear, **fields)
    assert cluster.state.host_settings == before
    return caught.value


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def test_only_what_is_given_changes_and_what_is_named_is_no_longer_set() -> None:
    cluster = EngineCluster.settled(numa_host())
    set_policy(cluster, bind=HostBindPolicy.FULL_PCPUS_ONLY, alignment=NumaPolicy.RESTRICTED)
    setting = set_policy(cluster, numa_strategy=NumaStrategy.DISTRIBUTE_EVENLY)
    assert setting.policy == HostPolicy(
        HostBindPolicy.FULL_PCPUS_ONLY, NumaStrategy.DISTRIBUTE_EVENLY, NumaPolicy.RESTRICTED
    )
    assert setting.number == 2
    setting = set_policy(cluster, "host-a", "bind", alignment=NumaPolicy.NONE)
    assert setting.policy == HostPolicy(None, NumaStrategy.DISTRIBUTE_EVENLY, NumaPolicy.NONE)
    assert cluster.history("host_policy_set")[-1] == (
        "host-a: numa_strategy DistributeEvenly, alignment None; no longer bind"
    )
    assert set_policy(cluster, alignment=NumaPolicy.NONE) is setting  # the setting is unchanged
    assert len(cluster.history("host_policy_set")) == 3


def test_the_layers_stand_in_their_order_and_say_where_a_setting_comes_from() -> None:
    cluster = EngineCluster.settled(
        numa_host(policy={"numa_strategy": "MostAllocated", "alignment": "BestEffort"})
    )
    set_policy(
        cluster,
        "",
        bind=HostBindPolicy.SPREAD_BY_PCPUS,
        numa_strategy=NumaStrategy.DISTRIBUTE_EVENLY,
        default_exclusive=ExclusivePolicy.PCPU_LEVEL,
    )
    cluster.report_cpus("host-a", kubelet_policy=HostPolicy(bind=HostBindPolicy.FULL_PCPUS_ONLY))
    set_policy(cluster, alignment=NumaPolicy.SINGLE_NUMA_NODE)
    policy = cluster.state.hosts["host-a"].present.policy
    assert (policy.alignment, policy.origin("alignment")) == (
        NumaPolicy.SINGLE_NUMA_NODE,
        PolicyOrigin.OPERATOR,
    )
    assert (policy.numa_strategy, policy.origin("numa_strategy")) == (
        NumaStrategy.MOST_ALLOCATED,
        PolicyOrigin.CONFIGURATION,
    )
    assert (policy.bind, policy.origin("bind")) == (
        HostBindPolicy.FULL_PCPUS_ONLY,
        PolicyOrigin.KUBELET,
    )
    assert policy.origin("default_exclusive") is PolicyOrigin.CLUSTER
    assert policy.origin("default_bind") is PolicyOrigin.BUILT_IN


def test_reserved_cpus_are_nobodys_capacity_and_come_back_when_they_are_reserved_no_more() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("all", cpu_milli=16_000)
    cluster.submit("more", cpu_milli=2_000, allow_pending=True)
    set_policy(cluster, reserved_cpus=cpus("0,8"))
    assert cluster.state.hosts["host-a"].shrunk  # existing slots are unchanged
    assert cluster.state.hosts["host-a"].total["cpu_milli"] == 14_000
    # reserved as shared
    assert cluster.state.hosts["host-a"].total["best_effort_cpu_milli"] == 16_000
    set_policy(cluster, reserved_strict=True)
    assert cluster.state.hosts["host-a"].total["best_effort_cpu_milli"] == 14_000
    set_policy(cluster, "host-a", "reserved_cpus", "reserved_strict")
    assert cluster.free_cpu() == 0
    assert not cluster.state.hosts["host-a"].shrunk


def reserved_by_configuration(strict: bool) -> EngineCluster:
    executor = numa_host(policy=ALIGNED | {"reserved_cpus": NODE_0, "reserved_strict": strict})
    announced = json.loads(executor.host_cpus)
    announced |= {"slot_cpus": "4-7,12-15", "reserved_cpus": NODE_0}
    executor.host_cpus = json.dumps(announced)
    best_effort = 8_000 if strict else 16_000
    executor.total = {**executor.total, "cpu_milli": 8_000, "best_effort_cpu_milli": best_effort}
    return EngineCluster.settled(executor)


def reserved_at_runtime(strict: bool) -> EngineCluster:
    cluster = EngineCluster.settled(numa_host(policy=ALIGNED))
    set_policy(cluster, reserved_cpus=cpus(NODE_0), reserved_strict=strict)
    return cluster


@pytest.mark.parametrize("strict", [False, True], ids=["shared", "strictly"])
@pytest.mark.parametrize("reserved", [reserved_by_configuration, reserved_at_runtime])
def test_a_reserve_by_configuration_or_at_runtime_leaves_the_same_best_effort_cpu(
    reserved: Callable[[bool], EngineCluster], strict: bool
) -> None:
    cluster = reserved(strict)
    on_the_host = cluster.state.hosts["host-a"]
    best_effort = 8_000 if strict else 16_000
    assert on_the_host.total["best_effort_cpu_milli"] == best_effort
    assert on_the_host.total["cpu_milli"] == 8_000
    assert on_the_host.cpus is not None
    drawn = topology_view(cluster.state, "host-a")
    assert CpuSet.from_bits(on_the_host.cpus.best_effort_cpus) == drawn.pools.best_effort
    assert CpuSet.from_bits(on_the_host.cpus.shared_cpus) == drawn.pools.shared
    zones = [zone.total.get("best_effort_cpu_milli", 0) for zone in drawn.zones]
    assert zones == [best_effort - 8_000, 8_000]


@pytest.mark.parametrize("reserved", [reserved_by_configuration, reserved_at_runtime])
def test_best_effort_slots_are_bound_to_a_node_whose_cpus_are_all_reserved_and_shared(
    reserved: Callable[[bool], EngineCluster],
) -> None:
    cluster = reserved(False)
    for name in ("a", "b"):
        cluster.submit(name, cpu_milli=8_000, policy=BE)
    assert sorted(cluster.assignment(name).nodes for name in ("a", "b")) == [(0,), (1,)]
    cluster.submit("plain", cpu_milli=8_000)
    assert cluster.assignment("plain").nodes == (1,)  # the other node has no bookable cpus
    cluster.submit("more", cpu_milli=1_000, policy=BE, allow_pending=True)
    assert cluster.state_of("more") == "PENDING"


def test_strictly_reserved_cpus_are_no_node_for_best_effort_slots() -> None:
    cluster = reserved_at_runtime(True)
    cluster.submit("a", cpu_milli=4_000, policy=BE)
    cluster.submit("b", cpu_milli=4_000, policy=BE)
    assert cluster.assignment("a").nodes == cluster.assignment("b").nodes == (1,)


def test_cpus_that_an_operator_reserves_strictly_leave_the_best_effort_pool() -> None:
    cluster = reserved_by_configuration(False)
    set_policy(cluster, reserved_cpus=cpus("0-1"), reserved_strict=True)
    assert cluster.state.hosts["host-a"].total["best_effort_cpu_milli"] == 14_000
    cluster.report_cpus("host-a", offline_cpus="2")
    assert cluster.state.hosts["host-a"].total["best_effort_cpu_milli"] == 13_000
    assert cluster.state.hosts["host-a"].total["cpu_milli"] == 8_000


def test_who_waits_looks_again_when_cpus_are_given_free() -> None:
    cluster = EngineCluster.settled(numa_host())
    set_policy(cluster, reserved_cpus=cpus("0-3"))
    cluster.submit("large", cpu_milli=14_000, allow_pending=True)
    assert cluster.state_of("large") == "PENDING"
    set_policy(cluster, reserved_cpus=cpus("0-1"))
    cluster.settle()
    assert cluster.state_of("large") == "GRANTED"


def test_reserves_of_all_layers_add_up() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.report_cpus(
        "host-a", kubelet_policy=HostPolicy(reserved_cpus=cpus("0-1")), kubelet_cpus="2-3"
    )
    set_policy(cluster, reserved_cpus=cpus("1,4"), reserved_strict=True)
    present = cluster.state.hosts["host-a"].present
    assert str(present.taken) == "0-4"
    assert str(present.policy.strictly_reserved_cpus) == "1,4"
    assert present.total["cpu_milli"] == 11_000
    assert present.total["best_effort_cpu_milli"] == 12_000  # without 2-3 and 1, 4


def test_a_quota_gives_way_before_capacity_does() -> None:
    executor = numa_host()
    executor.total = {"cpu_milli": 10_000, "memory_bytes": executor.total["memory_bytes"]}
    cluster = EngineCluster.settled(executor)
    set_policy(cluster, reserved_cpus=cpus("0-3"))
    assert cluster.free_cpu() == 10_000  # of the 12 remaining cpus
    set_policy(cluster, reserved_cpus=cpus("0-7"))
    assert cluster.free_cpu() == 8_000


def test_settings_are_durable_and_wait_for_an_executor_that_is_away() -> None:
    cluster = EngineCluster.settled(numa_host(), lost_timeout_ms=60_000)
    set_policy(cluster, "", default_bind=BindPolicy.SPREAD_BY_PCPUS)
    cluster.wait(10 * 60_000)
    assert cluster.state.hosts["host-a"].executor.lost
    set_policy(cluster, reserved_cpus=cpus("0,8"))
    cluster.restart_rm()
    assert cluster.state.hosts["host-a"].total["cpu_milli"] == 14_000
    cluster.batch(ForgetRequested(cluster.at, "host-a"))
    set_policy(cluster, alignment=NumaPolicy.BEST_EFFORT)  # the host is forgotten by now
    cluster.restart_rm()
    executor = cluster.executors["host-a"]
    cluster.register(executor)
    found = cluster.state.hosts["host-a"].present
    assert found.total["cpu_milli"] == 14_000
    assert found.policy.alignment is NumaPolicy.BEST_EFFORT
    assert found.policy.default_bind is BindPolicy.SPREAD_BY_PCPUS
    assert executor.host_policy == HostPolicy(
        reserved_cpus=cpus("0,8"), alignment=NumaPolicy.BEST_EFFORT
    )
    assert set_policy(cluster, bind=HostBindPolicy.NONE).number == 4


def test_what_is_set_for_nobody_any_more_is_forgotten_when_it_says_nothing() -> None:
    cluster = EngineCluster.settled(numa_host(), lost_timeout_ms=60_000)
    set_policy(cluster, bind=HostBindPolicy.FULL_PCPUS_ONLY)
    cluster.wait(10 * 60_000)
    cluster.batch(ForgetRequested(cluster.at, "host-a"))
    set_policy(cluster, "host-a", "bind")
    assert "host-a" not in cluster.state.host_settings
    assert "host-a" not in cluster.store.host_settings
    error = refused(cluster, bind=HostBindPolicy.NONE)
    assert isinstance(error, NotFound)
    assert error.reason is Reason.EXECUTOR_UNKNOWN


def test_an_executor_is_told_with_its_next_report_until_it_says_that_it_follows() -> None:
    executor = numa_host()
    cluster = EngineCluster.settled(executor)
    held = cluster.report_of(executor)
    answer = cluster.report(executor, held)
    assert (answer.host_policy, answer.host_policy_number) == (None, 0)
    setting = set_policy(cluster, reserved_cpus=cpus("0"), reserved_strict=True)
    set_policy(cluster, "", alignment=NumaPolicy.BEST_EFFORT)  # a setting that only the RM needs
    held = cluster.report_of(executor)
    answer = cluster.report(executor, held)
    assert (answer.host_policy, answer.host_policy_number) == (setting.policy, setting.number)
    assert executor.cpu_state.host_policy_number == 1
    answer = cluster.report(executor)
    assert answer.host_policy_number == 0
    assert cluster.short_report(executor).host_policy_number == 0


@pytest.mark.parametrize(
    ("name", "clear", "fields", "field", "said"),
    [
        ("host-a", (), {"reserved_cpus": "0,99"}, "policy.reserved_cpus", "not 99"),
        ("host-a", (), {"reserved_cpus": "0-15"}, "policy.reserved_cpus", "at least one of 0-15"),
        ("host-a", (), {"alignment": NumaPolicy.DEFAULT}, "policy.alignment", "SingleNUMANode"),
        ("host-a", (), {"default_bind": BindPolicy.CONSTRAINED_BURST}, "policy.default_bind", ""),
        ("host-a", ("taste",), {}, "clear", "one of bind, numa_strategy"),
        ("host-a", ("bind",), {"bind": HostBindPolicy.NONE}, "clear", "policy.bind"),
        ("", (), {"reserved_cpus": "0"}, "policy.reserved_cpus", "host by host"),
        ("", (), {"reserved_strict": True}, "policy.reserved_strict", "host by host"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    name: str, clear: tuple[str, ...], fields: dict[str, Any], field: str, said: str
) -> None:
    cluster = EngineCluster.settled(numa_host())
    fields = {
        key: cpus(value) if key == "reserved_cpus" else value for key, value in fields.items()
    }
    error = refused(cluster, name, *clear, **fields)
    assert isinstance(error, InvalidArgument)
    assert error.details["field"] == field
    assert said in error.message


def test_cpus_that_a_kubelet_has_cannot_be_left_as_the_only_ones() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.report_cpus("host-a", kubelet_cpus="0-7")
    error = refused(cluster, reserved_cpus=cpus("8-15"))
    assert "0-7 are not available to slots either" in error.message
    set_policy(cluster, reserved_cpus=cpus("8-14"))
    assert cluster.free_cpu() == 1_000


def test_hosts_that_tell_nothing_of_cpus_have_none_to_reserve() -> None:
    executor = numa_host()
    executor.host_cpus = executor.topology = "{}"
    cluster = EngineCluster.settled(executor)
    assert "none are known" in refused(cluster, reserved_cpus=cpus("0")).message
    set_policy(cluster, alignment=NumaPolicy.BEST_EFFORT)
    assert cluster.free_cpu() == 16_000


@pytest.mark.parametrize("name", ["host-a", ""])
def test_a_preview_names_the_settings_that_a_change_then_has(name: str) -> None:
    cluster = EngineCluster.settled(numa_host(), numa_host("host-b"))
    event = HostPolicySet(cluster.at, name, HostPolicy(bind=HostBindPolicy.FULL_PCPUS_ONLY))
    found = Previews(cluster.state).host_policy(event)
    hosts = cluster.state.hosts.values()
    assert {each.present.policy.bind for each in hosts} == {HostBindPolicy.NONE}
    set_policy(cluster, name, bind=HostBindPolicy.FULL_PCPUS_ONLY)
    changed = [each for each in hosts if each.present.policy.bind is not HostBindPolicy.NONE]
    assert [(each.name, each.before, each.after, each.executors) for each in found.settings] == [
        ("bind", "None", "FullPCPUsOnly", len(changed))
    ]
    assert found.executors == len(changed) == (1 if name else 2)


def test_a_preview_names_the_slots_whose_cpus_would_be_reserved() -> None:
    cluster = EngineCluster.settled(numa_host())
    cluster.submit("first", "second", cpu_milli=2_000, cpu_policy=LSR)
    own = {each.allocation_id: each.assignment for each in cluster.state.slots.values()}
    assert own["first"] is not None
    reserved = HostPolicy(reserved_cpus=own["first"].cpus)
    found = Previews(cluster.state).host_policy(HostPolicySet(cluster.at, "host-a", reserved))
    assert [each.slot.allocation_id for each in found.slots] == ["first"]
    assert [(each.name, each.after) for each in found.settings] == [
        ("reserved_cpus", str(own["first"].cpus))
    ]
