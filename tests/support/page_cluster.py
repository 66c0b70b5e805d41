"""A simulated cluster for the web page: answers the calls of the page without a resource manager.

It is served by the real server of the page, with the real JSON. So tests can show a cluster of any
size in a browser, in any state, in a second. `PageCluster(texts="<b>")` puts a text into each field
that a user or a host chooses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from finegrain.resources import GIB
from finegrain.v1 import cluster_pb2, cpus_pb2, resource_manager_pb2
from finegrain.v1 import task_executor_pb2 as te
from tests.support.page_graph import graph_tasks
from tests.support.page_machine import (
    CPUS,
    GROUPS,
    MEMORY_BYTES,
    NODES,
    RESERVED_CPUS,
    add,
    amounts_of,
    at,
    host_id,
    number_of,
    topology,
)
from tests.support.page_objects import PageObjects


class Output:
    """The stream of a task that writes a line each 50 ms."""

    def __init__(self, cluster: PageCluster, task_id: str) -> None:
        self._cluster, self._task_id = cluster, task_id
        self._ended = asyncio.Event()

    def cancel(self) -> bool:
        self._ended.set()
        return True

    async def __aiter__(self) -> AsyncIterator[te.WatchTaskResponse]:
        yield te.WatchTaskResponse(task=self._cluster.task(self._task_id.removeprefix("task-")))
        ends = {1: 0, 2: 0}
        for number in range(100_000):
            data = self._cluster.text(f"step {number}: loss 0.5\n").encode()
            stream = 2 if number % 5 == 4 else 1
            chunk = te.OutputChunk(stream=stream, offset=ends[stream], data=data)
            yield te.WatchTaskResponse(output=chunk)
            ends[stream] += len(data)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), 0.05)
                return


class PageCluster(PageObjects):
    """The cluster, with the calls of its services."""

    # calls of ClusterService and ResourceManagerService

    async def GetCluster(self, request: Any, **_: Any) -> cluster_pb2.GetClusterResponse:
        answer = cluster_pb2.GetClusterResponse(
            rm_epoch=1,
            software_version="1.0",
            start_time=at(0),
            protocol_version="1.0",
            slots=sum(self.slots_of(number) for number in range(self.hosts)),
            jobs=len(GROUPS) * 2,
        )
        for number in range(self.hosts):
            host = self.executor(number)
            for name in ("total", "reserved", "allocated", "available"):
                add(getattr(answer, name), getattr(host, name))
            answer.used.cpu_milli += host.used.cpu_milli
            answer.used.memory_bytes += host.used.memory_bytes
            answer.used.tasks += host.used.tasks
        answer.executors["active"] = self.hosts - (self.hosts > 4)
        answer.executors["lost"] = int(self.hosts > 4)
        answer.executors["draining"] = len(self.drained)
        answer.pending_requests["WAITING_CAPACITY"] = self.waiting
        return answer

    async def ListExecutors(
        self, request: cluster_pb2.ListExecutorsRequest, **_: Any
    ) -> cluster_pb2.ListExecutorsResponse:
        first, size = int(request.page_token or 0), request.page_size or 1000
        rows = [self.executor(number) for number in range(first, min(first + size, self.hosts))]
        more = str(first + size) if first + size < self.hosts else ""
        return cluster_pb2.ListExecutorsResponse(executors=rows, next_page_token=more)

    async def GetExecutor(
        self, request: cluster_pb2.GetExecutorRequest, **_: Any
    ) -> cluster_pb2.GetExecutorResponse:
        number = number_of(request.executor_id)
        executor = self.executor(number)
        executor.topology.CopyFrom(topology(self.printable("")))
        return cluster_pb2.GetExecutorResponse(executor=executor, slots=self.slots_at(number))

    async def GetTopology(
        self, request: cluster_pb2.GetTopologyRequest, **_: Any
    ) -> cluster_pb2.GetTopologyResponse:
        number = number_of(request.executor_id)
        slots = self.slots_at(number)
        answer = cluster_pb2.GetTopologyResponse(
            executor_id=request.executor_id, topology=topology(self.printable("")), slots=slots
        )
        half = CPUS // NODES
        answer.host_cpus.slot_cpus = f"{RESERVED_CPUS}-{CPUS - 1}"
        answer.host_cpus.reserved_cpus = f"0-{RESERVED_CPUS - 1}"
        for node in range(NODES):
            dedicated = sum(
                each.profile.cpu_milli
                for each in slots
                if each.assignment.numa and each.assignment.numa[0].numa_node_id == node
            )
            total = half * 1000 - (RESERVED_CPUS * 1000 if node == 0 else 0)
            answer.host_cpus.numa.add(
                numa_node_id=node, memory_bytes=MEMORY_BYTES // NODES, default_memory=True
            )
            answer.zones.add(
                numa_node_id=node,
                total=amounts_of(total, MEMORY_BYTES // NODES),
                allocated=amounts_of(dedicated, dedicated * GIB // 1000),
                available=amounts_of(
                    total - dedicated, MEMORY_BYTES // NODES - dedicated * GIB // 1000
                ),
            )
            answer.pools.add(
                pool=cpus_pb2.PoolName(package_index=node, numa_node_id=node),
                shared_cpus=f"{node * half + 10}-{node * half + half - 1}",
                best_effort_cpus=f"{node * half + 10}-{node * half + half - 1}",
            )
        return answer

    async def ListSlots(
        self, request: cluster_pb2.ListSlotsRequest, **_: Any
    ) -> cluster_pb2.ListSlotsResponse:
        if request.executor_id:
            return cluster_pb2.ListSlotsResponse(
                slots=self.slots_at(number_of(request.executor_id))
            )
        found = [slot for number in range(min(self.hosts, 20)) for slot in self.slots_at(number)]
        if request.job_id:
            found = [slot for slot in found if slot.job_id == request.job_id]
        return cluster_pb2.ListSlotsResponse(slots=found)

    async def ListDevices(
        self, request: cluster_pb2.ListDevicesRequest, **_: Any
    ) -> cluster_pb2.ListDevicesResponse:
        answer = cluster_pb2.ListDevicesResponse()
        chosen = [number_of(request.executor_id)] if request.executor_id else range(self.hosts)
        for number in chosen:
            self.add_devices(answer.executors.add(), number)
        return answer

    async def GetUsage(
        self, request: cluster_pb2.GetUsageRequest, **_: Any
    ) -> cluster_pb2.GetUsageResponse:
        samples = [
            cluster_pb2.UsageSample(
                sample_time=at(self.now_s - 30 * (119 - step)),
                cpu_milli=20_000 + 200 * (step % 40),
                memory_bytes=(40 + step // 4) * GIB,
                host_cpu_milli=24_000 + 220 * (step % 40),
                host_memory_used_bytes=(60 + step // 4) * GIB,
                share_now=0.1 + 0.002 * (step % 40),
                share_entitled=0.2,
                waiting=step % 7,
                measured_cpu_milli=9_000 + 150 * (step % 40),
                measured_memory_bytes=(25 + step // 5) * GIB,
            )
            for step in range(120)
        ]
        return cluster_pb2.GetUsageResponse(executor_id=request.executor_id, samples=samples)

    async def ListRequests(
        self, request: cluster_pb2.ListRequestsRequest, **_: Any
    ) -> cluster_pb2.ListRequestsResponse:
        rows = [self.request(number) for number in range(self.waiting)]
        if request.job_id:
            rows = [each for each in rows if each.job_id == request.job_id]
        return cluster_pb2.ListRequestsResponse(requests=rows)

    async def ListJobs(
        self, request: cluster_pb2.ListJobsRequest, **_: Any
    ) -> cluster_pb2.ListJobsResponse:
        jobs = [self.job(number) for number in range(2 * len(GROUPS))]
        if request.matching:
            jobs = [each for each in jobs if each.job_id in request.matching]
        return cluster_pb2.ListJobsResponse(jobs=jobs)

    async def ListGroups(
        self, request: cluster_pb2.ListGroupsRequest, **_: Any
    ) -> cluster_pb2.ListGroupsResponse:
        answer = cluster_pb2.ListGroupsResponse(service_measure="dominant")
        for number, name in enumerate(GROUPS):
            parent = {"vision": "research", "speech": "research", "search": "production"}.get(name)
            answer.groups.add(
                name=self.text(name),
                parent=self.text(parent) if parent else "",
                description=self.text("a team"),
                weight=1 + number,
                used=amounts_of(32_000 * (number + 1), 64 * GIB * (number + 1)),
                measured=amounts_of(9_000 * (number + 1), 30 * GIB * (number + 1)),
                minimum={"cpu_milli": 12_000},
                share_entitled=(number + 1) / 10,
                share_now=0.08 * (number + 1),
                running=40 * number,
                waiting=3,
                jobs=2,
                maximum={"cpu_milli": 640_000},
                users=[self.text("user/alice")],
            )
        return answer

    async def ListEvents(
        self, request: cluster_pb2.ListEventsRequest, **_: Any
    ) -> cluster_pb2.ListEventsResponse:
        first = request.from_sequence or max(len(self.events) + 1 - (request.page_size or 1000), 1)
        if request.HasField("wait") and first > len(self.events):
            waits = self.changed.wait()
            with suppress(TimeoutError):
                await asyncio.wait_for(waits, request.wait.ToMilliseconds() / 1000)
        found = [
            each
            for each in self.events[first - 1 :]
            if not request.subject_id
            or request.subject_id in (each.executor_id, each.job_id, each.allocation_id)
        ]
        return cluster_pb2.ListEventsResponse(events=found, next_sequence=len(self.events) + 1)

    async def GetHostPolicy(
        self, request: cluster_pb2.GetHostPolicyRequest, **_: Any
    ) -> cluster_pb2.GetHostPolicyResponse:
        answer = cluster_pb2.GetHostPolicyResponse(number=1, followed_number=1)
        answer.set.reserved_cpus = "0-1"
        effective = answer.effective.policy
        effective.bind = cpus_pb2.HOST_BIND_POLICY_NONE
        effective.numa_strategy = cpus_pb2.NUMA_STRATEGY_LEAST_ALLOCATED
        effective.alignment = cpus_pb2.NUMA_POLICY_NONE
        effective.reserved_cpus, effective.reserved_strict = "0-1", False
        effective.default_bind = cpus_pb2.BIND_POLICY_FULL_PCPUS
        effective.default_exclusive = cpus_pb2.EXCLUSIVE_POLICY_NONE
        answer.effective.origins["reserved_cpus"] = "operator"
        return answer

    async def PreviewAction(
        self, request: cluster_pb2.PreviewActionRequest, **_: Any
    ) -> cluster_pb2.PreviewActionResponse:
        slots = self.slots_at(number_of(request.executor_id)) if request.executor_id else []
        if request.HasField("policy"):
            answer = cluster_pb2.PreviewActionResponse(
                summary=self.text("on 1 executor"), executors=1
            )
            answer.settings.add(
                name="alignment", before="None", after=self.text("Restricted"), executors=1
            )
            return answer
        if request.group:
            answer = cluster_pb2.PreviewActionResponse(summary=self.text("changes one share"))
            below = ["cpu_milli", self.text("slots")] if request.minimum else []
            answer.shares.add(
                group=request.group, share_now=0.16, before=0.2, after=0.3, below_minimum=below
            )
            return answer
        answer = cluster_pb2.PreviewActionResponse(
            slots_total=len(slots), jobs=8, summary=self.text(f"concerns {len(slots)} slots")
        )
        for slot in slots:
            answer.slots.add(
                allocation_id=slot.allocation_id,
                generation=1,
                job_id=slot.job_id,
                job_name=self.text("train"),
                group=self.text("vision"),
                executor_id=slot.executor_id,
                other_executor_id=host_id(2),
            )
        return answer

    async def DrainExecutor(
        self, request: cluster_pb2.DrainExecutorRequest, **_: Any
    ) -> cluster_pb2.DrainExecutorResponse:
        self.drain(request.executor_id, request.reason)
        executor = self.executor(number_of(request.executor_id))
        return cluster_pb2.DrainExecutorResponse(executor=executor)

    async def Explain(
        self, request: resource_manager_pb2.ExplainRequest, **_: Any
    ) -> resource_manager_pb2.ExplainResponse:
        number = int(request.allocation_id.rpartition("-")[2])
        asked = self.request(number)
        dimension: dict[str, Any] = {
            "dimension": "cpu_milli",
            "asked": 32_000,
            "free": 9_000,
            "total": 62_000,
        }
        answer = resource_manager_pb2.ExplainResponse(
            request=asked,
            primary_reason="WAITING_CAPACITY",
            summary=self.text("waits: no executor has 32 cpus free; the largest has 9"),
            requests_ahead=number,
            executors_considered=self.hosts,
            snapshot_number=77,
            more_fit=3,
        )
        answer.dimensions.add(**dimension)
        answer.would_fit_if.add(message=self.text("cpu at most 9"), relaxed=["cpu"])
        answer.blocked_by.extend(self.slots_at(0)[:3])
        for host in range(min(self.hosts, 20)):
            verdict = answer.executors.add(
                executor_id=host_id(host),
                message=self.text("cpu: short by 23"),
                blockers=["cpu_milli"],
                more_fit=0,
            )
            verdict.dimensions.add(**dimension)
        step = answer.steps.add(position=1, backlogged=2, summary=self.text("served next"))
        step.flow.name, step.flow.weight, step.flow.waiting = self.text("research"), 1, 2
        return answer

    # calls of TaskExecutorService

    async def tasks_of(
        self, executor_id: str, request: te.ListTasksRequest, **_: Any
    ) -> te.ListTasksResponse:
        """Answers ListTasks at one host. Only the first host has tasks."""
        if self.chains and executor_id == host_id(0):
            return te.ListTasksResponse(tasks=graph_tasks(self.chains, request.job_id, self.text))
        slots = 20 if executor_id == host_id(0) else 0
        tasks = [self.task(f"slot-0-{index}") for index in range(slots)]
        return te.ListTasksResponse(tasks=[each for each in tasks if each.job_id == request.job_id])

    def WatchTask(self, request: te.WatchTaskRequest) -> Output:
        """Writes lines until the page ends the call."""
        return Output(self, request.task_id)
