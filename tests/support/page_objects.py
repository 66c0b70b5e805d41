"""The hosts, slots, jobs and requests of the simulated cluster of the web page."""

from __future__ import annotations

import asyncio
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
    amounts_of,
    at,
    host_id,
    isolation_of,
    job_id,
    topology,
)


@dataclass
class PageObjects:
    """The state of the cluster, and its objects.

    Attributes:
        hosts: number of hosts.
        slots: number of slots on each full host.
        texts: what stands in each field that people or hosts choose; empty: plain names.
        now_s: seconds since the start of the simulation.
        waiting: number of waiting requests.
        all_full: True: all hosts have all slots; False: some hosts are emptier than others.
        drained: hosts that are being drained.
        freed: slots that have ended, by host.
        chains: number of chains of the graph of each job; 0: a small graph.
    """

    hosts: int = 5
    slots: int = 64
    texts: str = ""
    now_s: float = 7200.0
    waiting: int = 12
    all_full: bool = False
    drained: set[str] = field(default_factory=set)
    freed: dict[str, int] = field(default_factory=dict)
    chains: int = 0
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
            peer_operator_ids=[self.text("sink" if index < 10 else "map")],
            parallelism=2,
            place=self.place(index),
            operators=[
                te.OperatorStatus(operator_id=self.text(name), **cast("Any", quota))
                for name in names
            ],
        )

    def place(self, index: int) -> te.GraphPlace:
        """Returns the place of the task of a slot in the graph of its job."""
        first, second, last = (self.text(each) for each in ("source+map", "sink", "report"))
        if index < 10:
            edges = [te.ChainEdge(chain=second, parallelism=2)]
        else:
            edges = [
                te.ChainEdge(chain=first, parallelism=2, is_input=True),
                te.ChainEdge(chain=last, parallelism=1, is_blocking=True),
            ]
        return te.GraphPlace(
            chain=first if index < 10 else second,
            slot_sharing_group=self.text("default"),
            region=1,
            edges=edges,
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

    def add_devices(self, host: cluster_pb2.ExecutorDevices, number: int) -> None:
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
