"""Settings of hosts that operators make at runtime: which may be, what they change, what a restart
finds, and what executors are told."""

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
from resource_manager.engine.explain.topology import topology_view
from resource_manager.engine.model.entities import HostSetting
from resource_manager.engine.model.events import ForgetRequested, HostPolicySet
from tests.support.cpu_hosts import BE, PLAIN, CpuStory, host

ALIGNED = {"alignment": "SingleNUMANode"}
NODE_0 = "0-3,8-11"


def set_policy(story: CpuStory, name: str = "host-a", *clear: str, **fields: Any) -> HostSetting:
    event = HostPolicySet(story.cluster.at, name, HostPolicy(**fields), clear)
    setting: HostSetting = story.cluster.batch(event)
    story.sound()
    return setting


def refused(story: CpuStory, name: str = "host-a", *clear: str, **fields: Any) -> FinegrainError:
    before = dict(story.state.host_settings)
    with pytest.raises(FinegrainError) as caught:
        set_policy(story, name, *clear, **fields)
    assert story.state.host_settings == before
    return caught.value


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def test_only_what_is_given_changes_and_what_is_named_is_no_longer_set() -> None:
    story = CpuStory(host())
    set_policy(story, bind=HostBindPolicy.FULL_PCPUS_ONLY, alignment=NumaPolicy.RESTRICTED)
    setting = set_policy(story, numa_strategy=NumaStrategy.DISTRIBUTE_EVENLY)
    assert setting.policy == HostPolicy(
        HostBindPolicy.FULL_PCPUS_ONLY, NumaStrategy.DISTRIBUTE_EVENLY, NumaPolicy.RESTRICTED
    )
    assert setting.number == 2
    setting = set_policy(story, "host-a", "bind", alignment=NumaPolicy.NONE)
    assert setting.policy == HostPolicy(None, NumaStrategy.DISTRIBUTE_EVENLY, NumaPolicy.NONE)
    assert story.told("host_policy_set")[-1] == (
        "host-a: numa_strategy DistributeEvenly, alignment None; no longer bind"
    )
    assert set_policy(story, alignment=NumaPolicy.NONE) is setting  # that is how it is
    assert len(story.told("host_policy_set")) == 3


def test_the_layers_stand_in_their_order_and_say_where_a_setting_comes_from() -> None:
    story = CpuStory(host(policy={"numa_strategy": "MostAllocated", "alignment": "BestEffort"}))
    set_policy(
        story,
        "",
        bind=HostBindPolicy.SPREAD_BY_PCPUS,
        numa_strategy=NumaStrategy.DISTRIBUTE_EVENLY,
        default_exclusive=ExclusivePolicy.PCPU_LEVEL,
    )
    story.see("host-a", kubelet_policy=HostPolicy(bind=HostBindPolicy.FULL_PCPUS_ONLY))
    set_policy(story, alignment=NumaPolicy.SINGLE_NUMA_NODE)
    policy = story.state.hosts["host-a"].present.policy
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
    story = CpuStory(host())
    story.ask("all", 16_000, PLAIN)
    story.ask("more", 2_000, PLAIN, allow_pending=True)
    set_policy(story, reserved_cpus=cpus("0,8"))
    assert story.state.hosts["host-a"].shrunk  # slots that exist stay as they are
    assert story.state.hosts["host-a"].total["cpu_milli"] == 14_000
    assert story.state.hosts["host-a"].total["best_effort_cpu_milli"] == 16_000  # they are shared
    set_policy(story, reserved_strict=True)
    assert story.state.hosts["host-a"].total["best_effort_cpu_milli"] == 14_000
    set_policy(story, "host-a", "reserved_cpus", "reserved_strict")
    assert story.free_cpu() == 0
    assert not story.state.hosts["host-a"].shrunk


def reserved_by_configuration(strict: bool) -> CpuStory:
    executor = host(policy=ALIGNED | {"reserved_cpus": NODE_0, "reserved_strict": strict})
    announced = json.loads(executor.host_cpus)
    announced |= {"slot_cpus": "4-7,12-15", "reserved_cpus": NODE_0}
    executor.host_cpus = json.dumps(announced)
    best_effort = 8_000 if strict else 16_000
    executor.total = {**executor.total, "cpu_milli": 8_000, "best_effort_cpu_milli": best_effort}
    return CpuStory(executor)


def reserved_at_runtime(strict: bool) -> CpuStory:
    story = CpuStory(host(policy=ALIGNED))
    set_policy(story, reserved_cpus=cpus(NODE_0), reserved_strict=strict)
    return story


@pytest.mark.parametrize("strict", [False, True], ids=["shared", "strictly"])
@pytest.mark.parametrize("reserved", [reserved_by_configuration, reserved_at_runtime])
def test_a_reserve_by_configuration_or_at_runtime_leaves_the_same_best_effort_cpu(
    reserved: Callable[[bool], CpuStory], strict: bool
) -> None:
    story = reserved(strict)
    on_the_host = story.state.hosts["host-a"]
    best_effort = 8_000 if strict else 16_000
    assert on_the_host.total["best_effort_cpu_milli"] == best_effort
    assert on_the_host.total["cpu_milli"] == 8_000
    assert on_the_host.cpus is not None
    drawn = topology_view(story.state, "host-a")
    assert CpuSet.from_bits(on_the_host.cpus.best_effort_cpus) == drawn.pools.best_effort
    assert CpuSet.from_bits(on_the_host.cpus.shared_cpus) == drawn.pools.shared
    zones = [zone.total.get("best_effort_cpu_milli", 0) for zone in drawn.zones]
    assert zones == [best_effort - 8_000, 8_000]


@pytest.mark.parametrize("reserved", [reserved_by_configuration, reserved_at_runtime])
def test_best_effort_slots_are_bound_to_a_node_whose_cpus_are_all_reserved_and_shared(
    reserved: Callable[[bool], CpuStory],
) -> None:
    story = reserved(False)
    for name in ("a", "b"):
        story.ask(name, 8_000, BE)
    assert sorted(story.has(name).nodes for name in ("a", "b")) == [(0,), (1,)]
    story.ask("plain", 8_000, PLAIN)
    assert story.has("plain").nodes == (1,)  # of the other node's cpus it can book none
    story.ask("more", 1_000, BE, allow_pending=True)
    assert story.state.requests["more"].state == "PENDING"


def test_strictly_reserved_cpus_are_no_node_for_best_effort_slots() -> None:
    story = reserved_at_runtime(True)
    story.ask("a", 4_000, BE)
    story.ask("b", 4_000, BE)
    assert story.has("a").nodes == story.has("b").nodes == (1,)


def test_cpus_that_an_operator_reserves_strictly_leave_the_best_effort_pool() -> None:
    story = reserved_by_configuration(False)
    set_policy(story, reserved_cpus=cpus("0-1"), reserved_strict=True)
    assert story.state.hosts["host-a"].total["best_effort_cpu_milli"] == 14_000
    story.see("host-a", offline_cpus="2")
    assert story.state.hosts["host-a"].total["best_effort_cpu_milli"] == 13_000
    assert story.state.hosts["host-a"].total["cpu_milli"] == 8_000


def test_who_waits_looks_again_when_cpus_are_given_free() -> None:
    story = CpuStory(host())
    set_policy(story, reserved_cpus=cpus("0-3"))
    story.ask("large", 14_000, PLAIN, allow_pending=True)
    assert story.state.requests["large"].state == "PENDING"
    set_policy(story, reserved_cpus=cpus("0-1"))
    story.settle()
    assert story.state.requests["large"].state == "GRANTED"


def test_reserves_of_all_layers_add_up() -> None:
    story = CpuStory(host())
    story.see("host-a", kubelet_policy=HostPolicy(reserved_cpus=cpus("0-1")), kubelet_cpus="2-3")
    set_policy(story, reserved_cpus=cpus("1,4"), reserved_strict=True)
    present = story.state.hosts["host-a"].present
    assert str(present.taken) == "0-4"
    assert str(present.policy.strictly_reserved_cpus) == "1,4"
    assert present.total["cpu_milli"] == 11_000
    assert present.total["best_effort_cpu_milli"] == 12_000  # without 2-3 and 1, 4


def test_a_quota_gives_way_before_capacity_does() -> None:
    executor = host()
    executor.total = {"cpu_milli": 10_000, "memory_bytes": executor.total["memory_bytes"]}
    story = CpuStory(executor)
    set_policy(story, reserved_cpus=cpus("0-3"))
    assert story.free_cpu() == 10_000  # of the 12 cpus that are left
    set_policy(story, reserved_cpus=cpus("0-7"))
    assert story.free_cpu() == 8_000


def test_settings_are_durable_and_wait_for_an_executor_that_is_away() -> None:
    story = CpuStory(host())
    set_policy(story, "", default_bind=BindPolicy.SPREAD_BY_PCPUS)
    story.cluster.wait(10 * 60_000)
    assert story.state.hosts["host-a"].executor.lost
    set_policy(story, reserved_cpus=cpus("0,8"))
    story.cluster.restart_rm()
    assert story.state.hosts["host-a"].total["cpu_milli"] == 14_000
    story.cluster.batch(ForgetRequested(story.cluster.at, "host-a"))
    set_policy(story, alignment=NumaPolicy.BEST_EFFORT)  # nobody of that name is known any more
    story.cluster.restart_rm()
    executor = story.cluster.executors["host-a"]
    story.cluster.register(executor)
    found = story.state.hosts["host-a"].present
    assert found.total["cpu_milli"] == 14_000
    assert found.policy.alignment is NumaPolicy.BEST_EFFORT
    assert found.policy.default_bind is BindPolicy.SPREAD_BY_PCPUS
    assert executor.host_policy == HostPolicy(
        reserved_cpus=cpus("0,8"), alignment=NumaPolicy.BEST_EFFORT
    )
    assert set_policy(story, bind=HostBindPolicy.NONE).number == 4


def test_what_is_set_for_nobody_any_more_is_forgotten_when_it_says_nothing() -> None:
    story = CpuStory(host())
    set_policy(story, bind=HostBindPolicy.FULL_PCPUS_ONLY)
    story.cluster.wait(10 * 60_000)
    story.cluster.batch(ForgetRequested(story.cluster.at, "host-a"))
    set_policy(story, "host-a", "bind")
    assert "host-a" not in story.state.host_settings
    assert "host-a" not in story.cluster.store.host_settings
    error = refused(story, bind=HostBindPolicy.NONE)
    assert isinstance(error, NotFound)
    assert error.reason is Reason.EXECUTOR_UNKNOWN


def test_an_executor_is_told_with_its_next_report_until_it_says_that_it_follows() -> None:
    executor = host()
    story = CpuStory(executor)
    held = story.cluster.report_of(executor)
    answer = story.cluster.report(executor, held)
    assert (answer.host_policy, answer.host_policy_number) == (None, 0)
    setting = set_policy(story, reserved_cpus=cpus("0"), reserved_strict=True)
    set_policy(story, "", alignment=NumaPolicy.BEST_EFFORT)  # which only the RM needs to know
    held = story.cluster.report_of(executor)
    answer = story.cluster.report(executor, held)
    assert (answer.host_policy, answer.host_policy_number) == (setting.policy, setting.number)
    assert executor.cpu_state.host_policy_number == 1
    answer = story.cluster.report(executor)
    assert answer.host_policy_number == 0
    assert story.cluster.short_report(executor).host_policy_number == 0


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
    story = CpuStory(host())
    fields = {
        key: cpus(value) if key == "reserved_cpus" else value for key, value in fields.items()
    }
    error = refused(story, name, *clear, **fields)
    assert isinstance(error, InvalidArgument)
    assert error.details["field"] == field
    assert said in error.message


def test_cpus_that_a_kubelet_has_cannot_be_left_as_the_only_ones() -> None:
    story = CpuStory(host())
    story.see("host-a", kubelet_cpus="0-7")
    error = refused(story, reserved_cpus=cpus("8-15"))
    assert "0-7 are taken beside these" in error.message
    set_policy(story, reserved_cpus=cpus("8-14"))
    assert story.free_cpu() == 1_000


def test_hosts_that_tell_nothing_of_cpus_have_none_to_reserve() -> None:
    executor = host()
    executor.host_cpus = executor.topology = "{}"
    story = CpuStory(executor)
    assert "none are known" in refused(story, reserved_cpus=cpus("0")).message
    set_policy(story, alignment=NumaPolicy.BEST_EFFORT)
    assert story.free_cpu() == 16_000
