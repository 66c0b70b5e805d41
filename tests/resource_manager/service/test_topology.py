"""Tests of an executor's cpus, and why they do not suit, from a real RM to a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain.cpuset import CpuSet
from finegrain.resources import GIB
from finegrain.v1 import cluster_pb2, cpus_pb2, resources_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    running_rm,
    slot_request,
)

LSE, LSR = cpus_pb2.QOS_CLASS_LSE, cpus_pb2.QOS_CLASS_LSR
ONE_NODE = cpus_pb2.NUMA_POLICY_SINGLE_NUMA_NODE


@dataclass
class TwoNodes(ScriptedExecutor):
    """Two NUMA nodes, each in a separate package, with two cores of two threads."""

    executor_id: str = "host-a"
    cpu_milli: int = 8000
    offline: str = ""

    def registration(self) -> rm_pb2.RegisterExecutorRequest:
        message = super().registration()
        message.topology.CopyFrom(
            resources_pb2.HostTopology(
                online_cpus="0-7",
                allowed_cpus="0-7",
                cores=[
                    resources_pb2.Core(
                        cpus=f"{core},{core + 4}", package_index=core // 2, numa_node_id=core // 2
                    )
                    for core in range(4)
                ],
                numa_nodes=[
                    resources_pb2.NumaNode(numa_node_id=node, memory_bytes=4 * GIB)
                    for node in range(2)
                ],
            )
        )
        message.shared_cpus = "0-7"
        message.host_cpus.CopyFrom(
            cpus_pb2.HostCpus(
                slot_cpus="0-7",
                policy=cpus_pb2.HostPolicy(numa_strategy=cpus_pb2.NUMA_STRATEGY_MOST_ALLOCATED),
                numa=[
                    cpus_pb2.NumaCapacity(
                        numa_node_id=node, memory_bytes=4 * GIB, default_memory=True
                    )
                    for node in range(2)
                ],
            )
        )
        return message

    def report(self) -> slots_pb2.SlotReport:
        message = super().report()
        if self.offline:
            message.cpu_state.offline_cpus = self.offline
            message.cpu_state.kubelet.cpu_manager_policy = "static"
            message.cpu_state.kubelet.cpu_manager_options["full-pcpus-only"] = "true"
        return message


@asynccontextmanager
async def two_nodes(
    state_dir: Path,
) -> AsyncIterator[tuple[RunningRm, TwoNodes, ScriptedJob, fg.Cluster]]:
    async with running_rm(state_dir) as rm:
        executor = TwoNodes(rm)
        user = rm.own("user/alice").credentials
        async with executor, fg.connect(rm.address, credentials=user) as cluster:
            yield rm, executor, await ScriptedJob(rm).register(), cluster


def wants(
    name: str, cpus: int, qos: cpus_pb2.QosClass.ValueType, *, one_node: bool = False
) -> slots_pb2.SlotRequest:
    policy = cpus_pb2.CpuPolicy(qos=qos)
    if one_node:
        policy.numa, policy.numa_strength = ONE_NODE, cpus_pb2.STRENGTH_REQUIRED
    return slot_request(name, cpu_milli=cpus * 1000, cpu_policy=policy)


async def test_the_whole_report_of_an_executors_cpus(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (_, executor, job, cluster):
        await job.request(
            wants("exclusive", 2, LSE, one_node=True),
            wants("with-others", 1, LSR),
            slot_request("plain"),
        )
        await eventually(lambda: len(executor.slots) == 3)
        report = await cluster.topology("host-a")
        own = {each.allocation_id: each for each in report.slots}
        assert report.executor_id == "host-a"
        assert [(each.cpu, each.core, each.node, each.package) for each in report.cpus] == [
            (cpu, cpu % 4, cpu % 4 // 2, cpu % 4 // 2) for cpu in range(8)
        ]
        assert report.settings.numa_strategy == "MostAllocated"
        assert report.settings.origins["numa_strategy"] == "configuration"
        assert report.settings.origins["bind"] == "built-in"
        assert own["exclusive"].cpus in ("0,4", "1,5", "2,6", "3,7")
        assert own["exclusive"].assignment is not None
        (share,) = own["exclusive"].assignment.numa
        zone = report.zones[share.node]
        assert zone.total["cpu_milli"] == 4000
        assert zone.allocated["cpu_milli"] >= 2000
        taken = {*own["exclusive"].cpus.split(","), *own["with-others"].cpus.split(",")}
        shared = {cpu for pool in report.pools for cpu in _members(pool.shared_cpus)}
        best_effort = {cpu for pool in report.pools for cpu in _members(pool.best_effort_cpus)}
        assert shared == {str(cpu) for cpu in range(8)} - taken
        assert best_effort == shared | set(own["with-others"].cpus.split(","))
        assert report.lost_cpus == ()
        assert report.now is None


async def test_cpus_that_vanish_are_named_with_the_slot_that_had_them(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (_, executor, job, cluster):
        await job.request(wants("exclusive", 2, LSE))
        await eventually(lambda: executor.slots)
        gone = executor.slots["exclusive"].cpus.split(",")[0]
        executor.offline = gone
        await executor.send_report()
        report = await cluster.topology("host-a")
        assert [(each.allocation_id, each.cpus) for each in report.lost_cpus] == [
            ("exclusive", gone)
        ]
        assert report.now is not None
        assert report.now.offline_cpus == gone
        assert report.now.kubelet is not None
        assert report.now.kubelet.cpu_manager_options == {"full-pcpus-only": "true"}


async def test_explain_says_over_the_wire_which_nodes_are_short(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (_, executor, job, cluster):
        await job.request(*(wants(f"node-{n}", 2, LSR, one_node=True) for n in range(4)))
        await eventually(lambda: len(executor.slots) == 4)
        first = next(iter(executor.slots.values()))
        node = first.assignment.numa[0].numa_node_id
        others = [
            each.allocation_id
            for each in executor.slots.values()
            if each.assignment.numa[0].numa_node_id != node
        ]
        await job.release(first.allocation_id, others[0])  # two cpus of each node are free
        await eventually(lambda: len(executor.slots) == 2)
        await job.request(wants("waits", 4, LSR, one_node=True))

        async def explained() -> fg.Explanation | None:
            found = await cluster.explain("waits")
            return found if found.primary_reason == "WAITING_TOPOLOGY" else None

        found = await eventually(explained)
        (verdict,) = found.executors
        assert verdict.cpu is not None
        assert verdict.cpu.code == "NUMA_UNALIGNED"
        assert verdict.cpu.numbers["asked cpu_milli"] == 4000
        assert verdict.message.startswith("NUMA_UNALIGNED: ")
        assert found.would_fit_if[0].relaxed == ("numa",)
        assert len(found.blocked_by) == 1
        assert found.blocked_by[0].assignment is not None


async def test_an_executor_that_nobody_knows_has_no_topology(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (rm, _, _, cluster):
        with pytest.raises(fg.NotFound):
            await cluster.topology("nobody")
        answer = await rm.cluster_as_user.GetTopology(
            cluster_pb2.GetTopologyRequest(executor_id="host-a")
        )
        assert answer.executor_id == "host-a"


def _members(text: str) -> list[str]:
    return [str(cpu) for cpu in CpuSet.parse(text)]
