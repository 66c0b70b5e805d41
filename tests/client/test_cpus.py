"""Tests of cpu policies and assignments of slots, and of administrators' host policies."""

from __future__ import annotations

import json
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.cpuset import CpuSet
from finegrain.v1 import cpus_pb2, resource_manager_pb2, slots_pb2
from finegrain_client.decoding import read
from tests.client.scripted import Scripted

PINNED = cpus_pb2.CpuAssignment(
    qos=cpus_pb2.QOS_CLASS_LSR,
    cpus="2-3",
    bind=cpus_pb2.BIND_POLICY_FULL_PCPUS,
    exclusive=cpus_pb2.EXCLUSIVE_POLICY_PCPU_LEVEL,
    numa=[cpus_pb2.NodeShare(numa_node_id=1, amounts={"cpu_milli": 2000})],
    memory_nodes="1",
    pools=[cpus_pb2.PoolName(package_index=0, numa_node_id=1)],
    notes=["NUMANodeLevel could not be had"],
)


def test_words_are_taken_in_any_case_and_as_values() -> None:
    spec = fg.SlotSpec(
        cpu_milli=2000,
        qos="lsr",
        cpu_bind="fullpcpus:Required",
        cpu_exclusive=fg.ExclusivePolicy.PCPU_LEVEL,
        numa="SINGLENUMANODE:preferred",
    )
    assert (spec.qos, spec.cpu_bind) == (fg.QosClass.LSR, "FullPCPUs:required")
    assert (spec.cpu_exclusive, spec.numa) == ("PCPULevel", "SingleNUMANode:preferred")
    (message,) = spec.messages()
    assert message.cpu_policy == cpus_pb2.CpuPolicy(
        qos=cpus_pb2.QOS_CLASS_LSR,
        bind=cpus_pb2.BIND_POLICY_FULL_PCPUS,
        bind_strength=cpus_pb2.STRENGTH_REQUIRED,
        exclusive=cpus_pb2.EXCLUSIVE_POLICY_PCPU_LEVEL,
        numa=cpus_pb2.NUMA_POLICY_SINGLE_NUMA_NODE,
        numa_strength=cpus_pb2.STRENGTH_PREFERRED,
    )


@pytest.mark.parametrize(
    "wish", [{}, {"qos": "LS"}, {"cpu_bind": "Default", "numa": fg.NumaPolicy.DEFAULT}], ids=str
)
def test_who_wants_nothing_says_nothing(wish: dict[str, Any]) -> None:
    spec = fg.SlotSpec(cpu_milli=500, **wish)
    assert spec == fg.SlotSpec(cpu_milli=500)
    (message,) = spec.messages()
    assert not message.HasField("cpu_policy")


@pytest.mark.parametrize(
    ("wish", "field", "told"),
    [
        ({"qos": "guaranteed"}, "qos", "one of LSE, LSR, LS, BE"),
        ({"qos": 3}, "qos", "a string"),
        ({"cpu_bind": "FullPCPUsOnly"}, "cpu_bind", "did you mean FullPCPUs?"),
        ({"cpu_bind": "FullPCPUs:always"}, "cpu_bind", "FullPCPUs:required"),
        ({"cpu_exclusive": "cores"}, "cpu_exclusive", "one of Default, None, PCPULevel"),
        ({"cpu_exclusive": True}, "cpu_exclusive", "a string"),
        ({"numa": "Default:required"}, "numa", "Default alone"),
    ],
    ids=str,
)
def test_words_that_are_none(wish: dict[str, Any], field: str, told: str) -> None:
    with pytest.raises(fg.InvalidArgument) as caught:
        fg.SlotSpec(cpu_milli=1000, **wish)
    assert caught.value.field == field
    assert told in caught.value.message


def test_a_batch_keeps_what_its_threads_want_in_its_state_file() -> None:
    slot = fg.SlotSpec(cpu_milli=1000, qos="LSE", cpu_bind="SpreadByPCPUs:required", numa="None")
    spec = fg.BatchSpec(10, ["true"], slot=slot)
    again = fg.BatchSpec.from_json(spec.to_json())
    assert again.slot == slot
    assert again.to_json() == spec.to_json()


async def test_all_ways_to_ask_carry_the_wish(servant: Scripted, job: fg.Job) -> None:
    spec = fg.SlotSpec(cpu_milli=1000, qos="LSE")
    await job.request_slots([spec, fg.GangSpec([spec, spec])])
    await job.request_range(fg.SlotSpec(cpu_milli=1000, qos="LSE", count=3))
    calls = servant.calls["RequestResource"]
    asked = [each for call in calls for each in call.requests]
    asked += [each.request for call in calls for each in call.ranges]
    assert [each.cpu_policy.qos for each in asked] == [cpus_pb2.QOS_CLASS_LSE] * 4


async def test_a_slot_shows_its_cpus(servant: Scripted, job: fg.Job) -> None:
    servant.slot("pinned", 1).assignment.CopyFrom(PINNED)
    spec = fg.SlotSpec(cpu_milli=2000, qos="LSR", allocation_id="pinned")
    (request,) = await job.request_slots(spec)
    slot = await request.granted(timeout_s=10)
    assert slot.assignment is not None
    assert slot.assignment == fg.CpuAssignment(
        qos=fg.QosClass.LSR,
        cpus=CpuSet.parse("2-3"),
        bind=fg.BindPolicy.FULL_PCPUS,
        exclusive=fg.ExclusivePolicy.PCPU_LEVEL,
        numa=(fg.NodeShare(1, (("cpu_milli", 2000),)),),
        memory_nodes=CpuSet.parse("1"),
        pools=(fg.PoolName(0, 1),),
        notes=("NUMANodeLevel could not be had",),
    )
    shown = json.loads(json.dumps(slot.status.to_dict()))["assignment"]
    assert (shown["qos"], shown["pools"]) == ("LSR", [{"package": 0, "node": 1}])


async def test_a_plain_slot_shows_none(slot: fg.Slot) -> None:
    assert slot.assignment is None


def test_a_request_shows_what_it_wants() -> None:
    (asked,) = fg.SlotSpec(cpu_milli=1000, qos="LSR", numa="Restricted").messages()
    status = resource_manager_pb2.RequestStatus(
        allocation_id="a", state=slots_pb2.REQUEST_STATE_PENDING, request=asked
    )
    wish = read(fg.RequestStatus, status).cpu_policy
    assert (wish.qos, wish.bind, wish.numa) == ("LSR", "Default", "Restricted")
    assert wish.numa_required
    assert not wish.bind_required
    status.request.ClearField("cpu_policy")
    assert read(fg.RequestStatus, status).cpu_policy == fg.CpuPolicy()


def test_words_of_a_newer_server_are_not_guessed() -> None:
    newer = slots_pb2.SlotStatus(allocation_id="a")
    newer.assignment.qos = 17  # type: ignore[assignment]
    with pytest.raises(fg.FailedPrecondition, match=r"assignment\.qos is 17") as caught:
        read(fg.SlotStatus, newer)
    assert caught.value.reason is fg.Reason.VERSION_MISMATCH


async def test_settings_of_a_host_say_where_they_come_from(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    found = await cluster.host_policy("host-a")
    assert servant.calls["GetHostPolicy"][0].executor_id == "host-a"
    assert (found.executor_id, found.number, found.followed_number) == ("host-a", 4, 3)
    assert (found.set.numa_strategy, found.set.bind) == ("MostAllocated", None)
    assert (str(found.set.reserved_cpus), found.set.reserved_strict) == ("0", None)
    assert (found.effective.bind, found.effective.origins["bind"]) == ("FullPCPUsOnly", "kubelet")
    assert found.effective.strictly_reserved_cpus == "0"
    assert (await cluster.host_policy(None)).executor_id == ""
    assert servant.calls["GetHostPolicy"][1].executor_id == ""
    assert json.loads(json.dumps(found.to_dict()))["set"]["bind"] is None


async def test_only_what_is_given_is_set(servant: Scripted, cluster: fg.Cluster) -> None:
    changed = await cluster.set_host_policy(
        "host-a", bind="fullpcpusonly", reserved_cpus="", reserved_strict=False, clear=["alignment"]
    )
    assert (changed.number, changed.followed_number) == (5, None)
    assert (str(changed.set.bind), str(changed.set.reserved_cpus)) == ("FullPCPUsOnly", "")
    await cluster.set_host_policy(None, default_bind=fg.BindPolicy.SPREAD_BY_PCPUS)
    first, second = servant.calls["SetHostPolicy"]
    assert (first.executor_id, list(first.clear)) == ("host-a", ["alignment"])
    assert first.policy == cpus_pb2.HostPolicy(
        bind=cpus_pb2.HOST_BIND_POLICY_FULL_PCPUS_ONLY, reserved_cpus="", reserved_strict=False
    )
    assert second.executor_id == ""
    assert second.policy == cpus_pb2.HostPolicy(default_bind=cpus_pb2.BIND_POLICY_SPREAD_BY_PCPUS)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"bind": "FullPCPUs"}, "bind is 'FullPCPUs'; expected one of None, FullPCPUsOnly"),
        ({"default_bind": "ConstrainedBurst"}, "expected one of None, FullPCPUs, SpreadByPCPUs"),
        ({"alignment": "Default"}, "expected one of None, BestEffort, Restricted, SingleNUMANode"),
        ({"reserved_cpus": "a"}, "reserved_cpus is 'a'; expected numbers and ranges"),
    ],
    ids=str,
)
async def test_a_setting_that_is_none_is_not_sent(
    servant: Scripted, cluster: fg.Cluster, setting: dict[str, Any], told: str
) -> None:
    with pytest.raises(fg.InvalidArgument) as caught:
        await cluster.set_host_policy("host-a", **setting)
    assert told in caught.value.message
    assert not servant.calls["SetHostPolicy"]
