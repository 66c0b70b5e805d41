"""Tests of resource groups over the wire: set, used, limited, deleted, and restarted."""

from __future__ import annotations

from pathlib import Path

from finegrain.errors import Reason
from finegrain.resources import MIB
from finegrain.v1 import cluster_pb2 as pb
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    fetch,
    next_events,
    refusal,
    running_rm,
    slot_request,
)

EXTENDED = "finegrain_rm_group_extended_resource_units"
DELIVERED = {"critical": 64.0, "default": 1.0, "high": 16.0, "low": 1.0, "medium": 4.0}


async def groups(rm: RunningRm) -> dict[str, pb.GroupStatus]:
    answer = await rm.cluster_as_user.ListGroups(pb.ListGroupsRequest())
    return {group.name: group for group in answer.groups}


async def test_delivered_groups_are_there_and_what_is_set_survives(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        assert {name: group.weight for name, group in (await groups(rm)).items()} == DELIVERED
        wish = pb.SetGroupRequest(name="night", weight=0.5, parent="low", description="later")
        wish.maximum["cpu_milli"] = 0
        wish.minimum["memory_bytes"] = -1
        answer = await rm.cluster.SetGroup(wish)
        assert (answer.group.weight, dict(answer.group.maximum)) == (0.5, {"cpu_milli": 0})
        await rm.cluster.SetGroup(pb.SetGroupRequest(name="medium", weight=5))
        await rm.cluster.DeleteGroup(pb.DeleteGroupRequest(name="critical"))
        listed = await rm.cluster.ListGroups(pb.ListGroupsRequest())
        assert [group.name for group in listed.groups] == [
            "default",
            "high",
            "low",
            "night",
            "medium",
        ]
        assert (listed.service_measure, listed.half_life.seconds) == ("dominant", 900)
        before = await groups(rm)
    async with running_rm(tmp_path) as rm:
        after = await groups(rm)
    assert after == before
    assert (after["night"].parent, after["night"].description) == ("low", "later")
    assert after["medium"].weight == 5.0


async def test_who_may_look_and_who_may_set(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        for call in (
            rm.cluster_as_user.SetGroup(pb.SetGroupRequest(name="x")),
            rm.cluster_as_user.DeleteGroup(pb.DeleteGroupRequest(name="low")),
            rm.cluster_as_user.ChangeGroupUsers(
                pb.ChangeGroupUsersRequest(name="critical", allow=["user/alice"])
            ),
        ):
            assert (await refusal(call)).reason is Reason.ROLE_MISSING
        assert "x" not in await groups(rm)


async def test_what_is_refused_names_field_value_and_way_out(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        wish = pb.SetGroupRequest(name="medium")
        wish.maximum["gpus"] = 2
        error = await refusal(rm.cluster.SetGroup(wish))
        assert (error.reason, "gpus" in error.message) == (Reason.INVALID_ARGUMENT, True)
        too_many = pb.SetGroupRequest(
            name="medium", maximum={f"extended.{n}": 1 for n in range(65)}
        )
        assert "at most 64" in (await refusal(rm.cluster.SetGroup(too_many))).message
        odd = pb.SetGroupRequest(name="medium", maximum={'extended.g p"u': 1})
        assert "a name that matches [a-z]" in (await refusal(rm.cluster.SetGroup(odd))).message
        below = pb.SetGroupRequest(name="medium", minimum={"cpu_milli": -2})
        assert "minimum.cpu_milli is -2" in (await refusal(rm.cluster.SetGroup(below))).message
        error = await refusal(rm.cluster.DeleteGroup(pb.DeleteGroupRequest(name="nobody")))
        assert error.reason is Reason.GROUP_UNKNOWN
        register = rm_pb2.RegisterJobRequest(
            job_id="j", request_id="r" * 16, name="n", group="nobody"
        )
        error = await refusal(rm.rm.RegisterJob(register))
        assert error.reason is Reason.GROUP_UNKNOWN
        assert "critical, default, high, low, medium" in error.message
        await ScriptedJob(rm).register()
        error = await refusal(rm.cluster.DeleteGroup(pb.DeleteGroupRequest(name="default")))
        assert error.reason is Reason.GROUP_IN_USE


async def test_a_user_registers_only_where_an_administrator_has_allowed_it(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        register = rm_pb2.RegisterJobRequest(
            job_id="j", request_id="r" * 16, name="n", group="critical"
        )
        error = await refusal(rm.rm.RegisterJob(register))
        assert error.reason is Reason.GROUP_NOT_ALLOWED
        assert "finegrain groups allow critical user/alice" in error.message
        assert not (await rm.cluster.ListJobs(pb.ListJobsRequest())).jobs
        nobody = pb.ChangeGroupUsersRequest(name="critical")
        assert "no user" in (await refusal(rm.cluster.ChangeGroupUsers(nobody))).message
        crowd = pb.ChangeGroupUsersRequest(name="critical", allow=["user/a"] * 1_001)
        assert "at most 1000" in (await refusal(rm.cluster.ChangeGroupUsers(crowd))).message
        allow = pb.ChangeGroupUsersRequest(name="critical", allow=["user/alice"])
        answer = await rm.cluster.ChangeGroupUsers(allow)
        assert list(answer.group.users) == ["user/alice"]
    async with running_rm(tmp_path) as rm:
        assert list((await groups(rm))["critical"].users) == ["user/alice"]
        await rm.rm.RegisterJob(register)
        await refusal(rm.rm_as("user/bob").RegisterJob(register))


async def test_a_group_shows_what_it_has_and_who_waits_in_it(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(
            slot_request("slot-1", cpu_milli=3000), slot_request("slot-2", cpu_milli=2000)
        )
        await next_events(stream, 1)
        group = (await groups(rm))["default"]
        (listed,) = (await rm.cluster.ListJobs(pb.ListJobsRequest())).jobs
        _, text = await fetch(rm.metrics_address, "/metrics")
        stream.cancel()
    assert (group.running, group.waiting, group.jobs) == (1, 1, 1)
    assert (group.share_entitled, group.share_now) == (1.0, 1.0)
    assert (group.used.cpu_milli, group.used.memory_bytes) == (3000, 64 * MIB)
    assert group.HasField("oldest_wait_time")
    assert listed.share_now == 1.0
    assert listed.oldest_wait_time == group.oldest_wait_time
    lines = set(text.splitlines())
    for line in (
        'finegrain_rm_group_weight{group="medium"} 4.0',
        'finegrain_rm_group_share_ratio{group="default"} 1.0',
        'finegrain_rm_group_entitled_share_ratio{group="low"} 0.0',
        'finegrain_rm_group_pending_requests{group="default"} 1.0',
        'finegrain_rm_group_slots{group="default"} 1.0',
        'finegrain_rm_group_jobs{group="default"} 1.0',
        'finegrain_rm_group_cpu_cores{group="default",state="used"} 3.0',
        'finegrain_rm_group_cpu_cores{group="high",state="used"} 0.0',
        'finegrain_rm_group_oldest_wait_seconds{group="low"} 0.0',
    ):
        assert line in lines
    assert job.job_id not in text


async def test_limits_are_measured_where_there_are_some(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        limits = {"cpu_milli": 1500, "memory_bytes": 8, "extended.license": 0}
        await rm.cluster.SetGroup(pb.SetGroupRequest(name="low", maximum=limits))
        await rm.cluster.SetGroup(pb.SetGroupRequest(name="low", minimum={"cpu_milli": 500}))
        _, text = await fetch(rm.metrics_address, "/metrics")
        await rm.cluster.DeleteGroup(pb.DeleteGroupRequest(name="low"))
        _, without = await fetch(rm.metrics_address, "/metrics")
    for line in (
        'finegrain_rm_group_cpu_cores{group="low",state="maximum"} 1.5',
        'finegrain_rm_group_cpu_cores{group="low",state="minimum"} 0.5',
        'finegrain_rm_group_memory_bytes{group="low",state="maximum"} 8.0',
        f'{EXTENDED}{{group="low",resource="license",state="maximum"}} 0.0',
    ):
        assert line in text.splitlines()
    assert 'group="low"' not in without
