"""Tests of host policies over the wire: set, read, sent to executors, and restarted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finegrain.cpuset import CpuSet
from finegrain.errors import Reason
from finegrain.v1 import cluster_pb2 as pb
from finegrain.v1 import cpus_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import task_executor_pb2 as te_pb2
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    next_events,
    profile,
    refusal,
    running_rm,
    slot_request,
)


class Seeing(ScriptedExecutor):
    """An executor that announces its cpus and reports their state."""

    seen: cpus_pb2.CpuState | None = None

    async def __aenter__(self) -> Seeing:
        await super().__aenter__()
        return self

    def registration(self) -> rm_pb2.RegisterExecutorRequest:
        message = super().registration()
        message.host_cpus.slot_cpus = "0-3"
        message.host_cpus.policy.numa_strategy = cpus_pb2.NUMA_STRATEGY_MOST_ALLOCATED
        return message

    def report(self) -> slots_pb2.SlotReport:
        message = super().report()
        if self.seen is not None:
            message.cpu_state.CopyFrom(self.seen)
        return message


async def free_cpu(rm: RunningRm) -> int:
    answer = await rm.cluster.GetExecutor(pb.GetExecutorRequest(executor_id="host-a"))
    return int(answer.executor.available.cpu_milli)


async def test_what_is_set_holds_is_told_and_survives(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, Seeing(rm) as executor:
        wish = pb.SetHostPolicyRequest(executor_id="host-a")
        wish.policy.bind = cpus_pb2.HOST_BIND_POLICY_FULL_PCPUS_ONLY
        wish.policy.reserved_cpus = "0"
        wish.policy.reserved_strict = True
        answer = await rm.cluster.SetHostPolicy(wish)
        assert (answer.set, answer.number) == (wish.policy, 1)
        effective = answer.effective
        assert effective.policy.numa_strategy == cpus_pb2.NUMA_STRATEGY_MOST_ALLOCATED
        assert effective.origins["numa_strategy"] == "configuration"
        assert effective.origins["bind"] == effective.origins["reserved_cpus"] == "operator"
        assert effective.strictly_reserved_cpus == "0"
        assert await free_cpu(rm) == 3_000
        told = await executor.send_report()
        assert (told.host_policy, told.host_policy_number) == (wish.policy, 1)
        executor.seen = cpus_pb2.CpuState(host_policy_number=1, offline_cpus="3")
        told = await executor.send_report()
        assert (told.HasField("host_policy"), told.host_policy_number) == (False, 0)
        assert await free_cpu(rm) == 2_000
        cluster = pb.SetHostPolicyRequest()
        cluster.policy.default_exclusive = cpus_pb2.EXCLUSIVE_POLICY_PCPU_LEVEL
        assert (await rm.cluster.SetHostPolicy(cluster)).number == 2
    async with running_rm(tmp_path) as rm:
        ask = pb.GetHostPolicyRequest(executor_id="host-a")
        found = await rm.cluster_as_user.GetHostPolicy(ask)
        assert (found.set, found.number, found.followed_number) == (wish.policy, 1, 0)
        assert found.effective.origins["default_exclusive"] == "cluster"
        executor.rm = rm
        answer = await executor.register()
        assert (answer.host_policy, answer.host_policy_number) == (wish.policy, 1)
        assert (await rm.cluster.GetHostPolicy(ask)).followed_number == 1
        await rm.cluster.SetHostPolicy(
            pb.SetHostPolicyRequest(executor_id="host-a", clear=["reserved_cpus", "bind"])
        )
        found = await rm.cluster.GetHostPolicy(ask)
        assert found.set == cpus_pb2.HostPolicy(reserved_strict=True)
        cluster_wide = await rm.cluster.GetHostPolicy(pb.GetHostPolicyRequest())
        assert (cluster_wide.set, cluster_wide.number) == (cluster.policy, 2)
        assert cluster_wide.effective.origins["default_exclusive"] == "cluster"


async def test_what_is_refused_names_field_value_and_way_out(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, Seeing(rm):
        wish = pb.SetHostPolicyRequest(executor_id="host-a")
        wish.policy.reserved_cpus = "0,77"
        error = await refusal(rm.cluster.SetHostPolicy(wish))
        assert error.reason is Reason.INVALID_ARGUMENT
        assert error.details["field"] == "policy.reserved_cpus"
        assert "0-3" in error.message
        assert "77" in error.message
        wish.policy.reserved_cpus = "zero"
        assert (await refusal(rm.cluster.SetHostPolicy(wish))).reason is Reason.INVALID_ARGUMENT
        many = pb.SetHostPolicyRequest(executor_id="host-a", clear=["bind"] * 100)
        assert (await refusal(rm.cluster.SetHostPolicy(many))).details["field"] == "clear"
        nobody = pb.SetHostPolicyRequest(executor_id="host-z")
        assert (await refusal(rm.cluster.SetHostPolicy(nobody))).reason is Reason.EXECUTOR_UNKNOWN
        ask = pb.GetHostPolicyRequest(executor_id="host-z")
        assert (await refusal(rm.cluster.GetHostPolicy(ask))).reason is Reason.EXECUTOR_UNKNOWN
        user = await refusal(rm.cluster_as_user.SetHostPolicy(nobody))
        assert user.reason is Reason.ROLE_MISSING


class Carving(Seeing):
    """An executor that gives slots the cpus of their commands."""

    async def ResizeSlot(
        self, request: Any, context: Any
    ) -> te_pb2.TaskExecutorServiceResizeSlotResponse:
        slot = self.slots[request.allocation_id]
        slot.assignment.CopyFrom(request.assignment)
        slot.cpus = request.assignment.cpus
        return await super().ResizeSlot(request, context)


async def test_a_slot_with_cpus_of_its_own_keeps_them_when_it_grows(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, Carving(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        policy = cpus_pb2.CpuPolicy(qos=cpus_pb2.QOS_CLASS_LSR)
        await job.request(slot_request("r", cpu_milli=1_000, cpu_policy=policy))
        (granted,) = await next_events(stream, 1)
        assert granted.slot.assignment.qos == cpus_pb2.QOS_CLASS_LSR
        before = CpuSet.parse(granted.slot.cpus)
        assert len(before) == 1
        await job.resize("r", profile=profile(3_000))
        (resized,) = await next_events(stream, 1)
        assert resized.reason == "RESIZED"
        after = CpuSet.parse(resized.slot.cpus)
        assert before < after
        assert len(after) == 3
        told = executor.commands[-1]
        assert (told.resize_number, told.assignment.cpus) == (1, str(after))
        assert await free_cpu(rm) == 1_000
        error = await refusal(job.resize("r", profile=profile(2_500)))
        assert error.details["field"] == "profile.cpu_milli"
