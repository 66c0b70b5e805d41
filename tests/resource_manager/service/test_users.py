"""Tests of the limits of users over the wire: set, in force, deleted, and restarted."""

from __future__ import annotations

from pathlib import Path

from finegrain.errors import Reason, ResourceExhausted
from finegrain.v1 import cluster_pb2 as pb
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    next_events,
    refusal,
    running_rm,
    slot_request,
)


async def users(rm: RunningRm) -> dict[str, pb.UserStatus]:
    answer = await rm.cluster_as_user.ListUsers(pb.ListUsersRequest())
    return {each.user: each for each in answer.users}


async def test_a_user_gets_no_more_than_its_limits(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm):
        wanted = pb.SetUserLimitsRequest(user="user/alice")
        wanted.maximum.update({"slots": 1, "jobs": 1, "requests": 2})
        answer = await rm.cluster.SetUserLimits(wanted)
        assert (answer.user.own_limits, dict(answer.user.maximum)) == (True, dict(wanted.maximum))
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("first"), slot_request("second"))
        await next_events(stream, 1)
        stream.cancel()
        explained = await rm.rm.Explain(rm_pb2.ExplainRequest(allocation_id="second"))
        assert explained.primary_reason == Reason.WAITING_USER_LIMIT
        (limit,) = explained.limits
        assert (limit.user, limit.group, limit.dimension) == ("user/alice", "", "slots")
        assert (limit.used, limit.asked, limit.maximum) == (1, 1, 1)
        for call in (job.request(slot_request("third")), ScriptedJob(rm).register()):
            error = await refusal(call)
            assert isinstance(error, ResourceExhausted)
            assert "its limit is" in error.message
        await ScriptedJob(rm, who="user/bob").register()
        alice = (await users(rm))["user/alice"]
        assert (alice.slots, alice.jobs, alice.requests) == (1, 1, 2)
    async with running_rm(tmp_path) as rm:
        assert dict((await users(rm))["user/alice"].maximum) == dict(wanted.maximum)
        await rm.cluster.DeleteUserLimits(pb.DeleteUserLimitsRequest(user="user/alice"))
        await ScriptedJob(rm).register()


async def test_only_administrators_change_limits(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        wanted = pb.SetUserLimitsRequest(user="user/alice", maximum={"slots": 1_000})
        for call in (
            rm.cluster_as_user.SetUserLimits(wanted),
            rm.cluster_as_user.DeleteUserLimits(pb.DeleteUserLimitsRequest(user="*")),
        ):
            assert (await refusal(call)).reason is Reason.ROLE_MISSING
        for maximum in ({"gpus": 2}, {"slots": -2}):
            wrong = pb.SetUserLimitsRequest(user="*", maximum=maximum)
            assert "maximum" in (await refusal(rm.cluster.SetUserLimits(wrong))).message
        assert not await users(rm)
