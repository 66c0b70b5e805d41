"""A simulated cluster for the web page: answers the calls of the page without a resource manager.

It is served by the real server of the page, with the real JSON. So tests can show a cluster of any
size in a browser, in any state, in a second. `PageCluster(texts="<b>")` puts a text into each field
that a user or a host chooses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from finegrain.resources import GIB
from finegrain.v1 import cluster_pb2, cpus_pb2, resource_manager_pb2, resources_pb2, slots_pb2
from finegrain.v1 import task_executor_pb2 as te
from tests.support.page_machine import (
    CPUS,
    DEDICATED_SLOTS,
    GROUPS,
    HOSTS_PER_RACK,
    MEMORY_BYTES,
    NODES,
    RESERVED_CPUS,
    add,
    amounts_of,
    at,
    host_id,
    isolation_of,
    job_id,
    number_of,
    topology,
)


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


@dataclass
class PageCluster:
    """The cluster.

    Attributes:
        hosts: number of hosts.
        slots: number of slots on each full host.
        texts: what stands in each field that people or hosts choose; empty: plain names.
        now_s: seconds since the start of the simulation.
        waiting: number of waiting requests.
        all_full: True: all hosts have all slots; False: some hosts are emptier than others.
        drained: hosts that are being drained.
        freed: slots that have ended, by host.
    """

    hosts: int = 5
    slots: int = 64
    texts: str = ""
    now_s: float = 7200.0
    waiting: int = 12
    all_full: bool = False
    drained: set[str] = field(default_factory=set)
    freed: dict[str, int] = field(default_factory=dict)
    events: list[cluster_pb2.ClusterEvent] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _kept: dict[int, tuple[Any, cluster_pb2.ExecutorStatus]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.note("executor_registered", executor=host_id(0), message="registered")
        if self.hosts > 3:
            self.drained.add(host_id(3))
            self.note("executor_draining", executor=host_id(3), message="drained for a new kernel")
        self.note(
            "request_pending",
            job=job_id(0),
            reason="WAITING_CAPACITY",
            message="waits for free capacity",
        )

    # changes

    def note(
        self, kind: str, executor: str = "", job: str = "", reason: str = "", message: str = ""
    ) -> None:
        """Adds an event, and wakes the streams."""
        self.events.append(
            cluster_pb2.ClusterEvent(
                sequence=len(self.events) + 1,
                event_time=at(self.now_s),
                kind=kind,
                executor_id=executor,
                job_id=job,
                reason=reason,
                message=self.text(message),
                actor="operator/root",
            )
        )
        self.changed.set()
        self.changed = asyncio.Event()

    def drain(self, executor_id: str, reason: str = "kernel update") -> None:
        """Drains a host."""
        self.drained.add(executor_id)
        self.note("executor_draining", executor=executor_id, message=reason)

    def free(self, executor_id: str, slots: int) -> None:
        """Ends slots of a host."""
        self.freed[executor_id] = self.freed.get(executor_id, 0) + slots
        self.note("slot_freed", executor=executor_id, message="the job ended the slot")

    def text(self, plain: str) -> str:
        """Returns a text that people or hosts choose."""
        return f"{plain} {self.texts}" if self.texts else plain

    def printable(self, plain: str) -> str:
        """Returns a text of a host about devices, which has only printable characters."""
        return "".join(each for each in self.text(plain) if each.isprintable())[:240]

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
            self._add_devices(answer.executors.add(), number)
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
        slots = 20 if executor_id == host_id(0) else 0
        tasks = [self.task(f"slot-0-{index}") for index in range(slots)]
        return te.ListTasksResponse(tasks=[each for each in tasks if each.job_id == request.job_id])

    def WatchTask(self, request: te.WatchTaskRequest) -> Output:
        """Writes lines until the page ends the call."""
        return Output(self, request.task_id)

    # objects

    def task(self, allocation_id: str) -> te.TaskStatus:
        """Returns the task of a slot."""
        index = int(allocation_id.rpartition("-")[2])
        names = ("source", "map") if index < 10 else ("sink",)
        quota = {
            "fraction": "1/2",
            "quota_bytes": GIB,
            "used_bytes": GIB // 2,
            "enforcement": te.QUOTA_ENFORCEMENT_CGROUP,
        }
        return te.TaskStatus(
            task_id=f"task-{allocation_id}",
            allocation_id=allocation_id,
            generation=1,
            job_id=job_id(index % (2 * len(GROUPS))),
            state=te.TASK_STATE_RUNNING,
            pid=4000 + index,
            start_time=at(self.now_s - 60),
            argv=["python", "train.py", self.text("--name=first")],
            operators=[
                te.OperatorStatus(operator_id=self.text(name), **cast("Any", quota))
                for name in names
            ],
        )

    def slots_of(self, number: int) -> int:
        """Returns the number of slots of a host. Some hosts are emptier than others."""
        lost = number == 4
        part = 4 if self.all_full else 4 - number % 4
        full = 0 if lost else self.slots * part // 4
        return max(full - self.freed.get(host_id(number), 0), 0)

    def executor(self, number: int) -> cluster_pb2.ExecutorStatus:
        """Returns the status of a host. Unchanged hosts are not made again."""
        status = cluster_pb2.ExecutorStatus()
        key = (self.slots_of(number), host_id(number) in self.drained)
        kept = self._kept.get(number)
        if kept is None or kept[0] != key:
            kept = self._kept[number] = (key, self._executor(number))
        status.CopyFrom(kept[1])
        return status

    def _executor(self, number: int) -> cluster_pb2.ExecutorStatus:
        name, slots = host_id(number), self.slots_of(number)
        dedicated = min(slots, DEDICATED_SLOTS)
        allocated_cpu = 2000 * dedicated + 500 * (slots - dedicated)
        allocated_memory = 2 * GIB * slots
        total = CPUS * 1000 - RESERVED_CPUS * 1000
        usable = MEMORY_BYTES - 8 * GIB
        status = cluster_pb2.ExecutorStatus(
            executor_id=name,
            instance_id=f"instance-{number}",
            address=f"10.0.{number // 250}.{number % 250}:7171",
            state=cast("Any", 3 if number == 4 else 2),
            draining=name in self.drained,
            drain_reason=self.text("kernel update") if name in self.drained else "",
            report_time=at(self.now_s),
            total=amounts_of(total, usable),
            reserved=amounts_of(RESERVED_CPUS * 1000, 8 * GIB),
            allocated=amounts_of(allocated_cpu, allocated_memory),
            available=amounts_of(total - allocated_cpu, usable - allocated_memory),
            slots=slots,
            labels={"rack": f"r{number // HOSTS_PER_RACK:03d}", "note": self.text("plain")},
            isolation=isolation_of(self.text("swap is counted")),
            software_version="1.0",
            shared_cpus=f"10-{CPUS - 1}",
            protocol_version="1.0",
        )
        share = 0.3 + 0.1 * (number % 7)
        status.used.cpu_milli = int(allocated_cpu * share)
        status.used.memory_bytes = int(allocated_memory * share)
        status.used.tasks = slots
        status.used.host.cpu_milli = status.used.cpu_milli + 900
        status.used.host.cpus = f"0-{CPUS - 1}"
        status.used.host.cpu_busy_percent.extend((7 * cpu + number) % 100 for cpu in range(CPUS))
        status.used.host.memory_total_bytes = MEMORY_BYTES
        status.used.host.memory_used_bytes = status.used.memory_bytes + 6 * GIB
        status.used.host.load_1m = 4.5
        status.used.host.temperatures.add(sensor=self.text("package"), celsius=61.0)
        return status

    def slots_at(self, number: int) -> list[slots_pb2.SlotStatus]:
        """Returns the slots of a host. The first ones have dedicated cpus."""
        return [self.slot(number, index) for index in range(self.slots_of(number))]

    def slot(self, number: int, index: int) -> slots_pb2.SlotStatus:
        """Returns one slot of a host."""
        is_dedicated = index < DEDICATED_SLOTS
        cpu, half = 2000 if is_dedicated else 500, CPUS // NODES
        node = index % NODES
        slot = slots_pb2.SlotStatus(
            allocation_id=f"slot-{number}-{index}",
            generation=1,
            job_id=job_id((number + index) % (2 * len(GROUPS))),
            executor_id=host_id(number),
            executor_address="10.0.0.1:7171",
            state=slots_pb2.SLOT_STATE_ALLOCATED,
            profile=resources_pb2.ResourceProfile(cpu_milli=cpu, task_heap_memory_bytes=2 * GIB),
            memory_bytes=2 * GIB,
            cpu_limit_milli=cpu,
            pids_max=1000,
            isolation=isolation_of(self.text("swap is counted")),
            allocated_time=at(self.now_s - 60 * index),
        )
        slot.used.cpu_milli = cpu * (index * 37 % 100) // 100
        slot.used.memory_bytes = 2 * GIB * (index * 53 % 100) // 100
        slot.used.pids = 3
        if is_dedicated:
            first = node * half + RESERVED_CPUS + index // NODES * 2
            slot.cpus = slot.assignment.cpus = f"{first}-{first + 1}"
            slot.assignment.qos = cpus_pb2.QOS_CLASS_LSR
            share = slot.assignment.numa.add(numa_node_id=node)
            share.amounts["cpu_milli"] = cpu
            share.amounts["memory_bytes"] = 2 * GIB
        else:
            slot.assignment.qos = cpus_pb2.QOS_CLASS_LS
            slot.assignment.pools.add(package_index=node, numa_node_id=node)
        return slot

    def job(self, number: int) -> cluster_pb2.JobStatus:
        """Returns a job."""
        waiting = sum(1 for each in range(self.waiting) if each % 4 == number)
        return cluster_pb2.JobStatus(
            job_id=job_id(number),
            name=self.text(f"train-{number}"),
            group=self.text(GROUPS[number // 2]),
            create_time=at(self.now_s - 600 * (number + 1)),
            pending_requests=waiting,
            slots=6 * self.hosts,
            allocated=amounts_of(3_000 * self.hosts, 12 * GIB * self.hosts),
            share_now=0.1,
            owner=self.text("user/alice"),
        )

    def request(self, number: int) -> resource_manager_pb2.RequestStatus:
        """Returns a waiting request."""
        status = resource_manager_pb2.RequestStatus(
            allocation_id=f"request-{number}",
            job_id=job_id(number % 4),
            job_name=self.text(f"train-{number % 4}"),
            state=slots_pb2.REQUEST_STATE_PENDING,
            reason="WAITING_CAPACITY" if number % 3 else "BEHIND_QUEUE",
            profile=resources_pb2.ResourceProfile(
                cpu_milli=32_000, task_heap_memory_bytes=8 * GIB, extended={"licence": 1}
            ),
            arrival_number=number,
            create_time=at(self.now_s - 90 * number),
            count=1,
        )
        status.request.required_labels["zone"] = self.text("a")
        return status

    def _add_devices(self, host: cluster_pb2.ExecutorDevices, number: int) -> None:
        host.executor_id = host_id(number)
        described = topology(self.printable(""))
        slots = self.slots_at(number)
        for index, device in enumerate(described.devices):
            status = host.devices.add(device=device)
            status.problem = self.printable("cordoned: fan") if index == 1 and number == 0 else ""
            status.cordoned = bool(status.problem)
            status.usage.busy_percent = 40 + 20 * index
            status.usage.memory_bytes = 20 * GIB
            status.usage.type, status.usage.uuid = device.kind, device.uuid
            status.condition.type, status.condition.uuid = device.kind, device.uuid
            status.condition.health = "unhealthy" if status.problem else "healthy"
            status.condition.problem = status.problem
            if index < len(slots) and not status.problem:
                use = status.uses.add(allocation_id=slots[index].allocation_id, generation=1)
                use.job_id = slots[index].job_id
                use.amounts["gpu-core"], use.amounts["gpu-memory"] = 50, 40 * GIB
                status.allocated["gpu-core"], status.allocated["gpu-memory"] = 50, 40 * GIB
        host.links.extend(described.device_links)
