"""Implements light executors and job masters, for benchmarks of the resource manager.

Both use the whole protocol over real gRPC, with separate channels, but do as little work as
possible. For example, an executor only stores the message that ordered a slot, and answers at once.
So a measurement shows the cost of the resource manager. All executors share one address, because
every command names its executor. The resource manager opens one channel to this address for each
executor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import grpc.aio

from bench.identities import AnyExecutor, channel_as
from finegrain.certificates.authority import Authority
from finegrain.devices.device import NO_DEVICES, HostDevices
from finegrain.ids import new_id
from finegrain.resources import DEVICE_PREFIX, GIB, MIB, total_of_devices
from finegrain.rpc.channels import SERVER_OPTIONS
from finegrain.rpc.wire_devices import devices_to_topology
from finegrain.v1 import cluster_pb2, cpus_pb2, resources_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import task_executor_pb2 as te_pb2
from finegrain.v1.cluster_pb2_grpc import ClusterServiceStub
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub
from finegrain.v1.task_executor_pb2_grpc import (
    TaskExecutorServiceServicer,
    add_TaskExecutorServiceServicer_to_server,
)

# the typed base is abstract; the base at runtime answers undefined calls with UNIMPLEMENTED
if TYPE_CHECKING:
    _Base = object
else:
    _Base = TaskExecutorServiceServicer

CPUS = 64
MEMORY_BYTES = 256 * GIB
ISOLATION = resources_pb2.IsolationReport(
    cpu="quota", cpuset="cpuset", memory="limit", pids="limit", kill="cgroup", driver="v2"
)
"""The isolation report of every slot."""
POLL_S = 0.02
PATIENCE_S = 120.0
ACKNOWLEDGE_INTERVAL_S = 1.0


@dataclass
class LightExecutor:
    """An executor that keeps the messages with the orders for its slots. It also keeps the counters
    of the protocol.
    """

    executor_id: str
    devices: HostDevices = NO_DEVICES
    instance_id: str = field(default_factory=new_id)
    slots: dict[str, slots_pb2.SlotStatus] = field(default_factory=dict)
    registration_number: int = 0
    rm_epoch: int = 0
    report_number: int = 0
    command_number: int = 0
    acknowledged: int = 0
    booked_cpu_milli: int = 0
    booked_memory_bytes: int = 0

    def registration(self, address: str) -> rm_pb2.RegisterExecutorRequest:
        """Returns the registration of this executor: a host with two sockets."""
        half = [f"0-{CPUS // 2 - 1}", f"{CPUS // 2}-{CPUS - 1}"]
        request = rm_pb2.RegisterExecutorRequest(
            executor_id=self.executor_id,
            instance_id=self.instance_id,
            address=address,
            total=resources_pb2.ResourceAmounts(cpu_milli=1000 * CPUS, memory_bytes=MEMORY_BYTES),
            default_slot_profile=resources_pb2.ResourceProfile(
                cpu_milli=1000, task_heap_memory_bytes=GIB
            ),
            topology=resources_pb2.HostTopology(
                online_cpus=f"0-{CPUS - 1}",
                allowed_cpus=f"0-{CPUS - 1}",
                cores=[
                    resources_pb2.Core(cpus=str(n), package_index=n * 2 // CPUS)
                    for n in range(CPUS)
                ],
                numa_nodes=[
                    resources_pb2.NumaNode(
                        numa_node_id=n, cpus=cpus, memory_bytes=MEMORY_BYTES // 2
                    )
                    for n, cpus in enumerate(half)
                ],
            ),
            report=self.state(),
            protocol_version="1.0",
            isolation=ISOLATION,
            shared_cpus=f"0-{CPUS - 1}",
        )
        if not self.devices.devices:
            return request
        devices_to_topology(self.devices, request.topology)
        # Describe the cpus, because a slot can get devices only on a host whose cpus are known.
        request.host_cpus.slot_cpus = request.shared_cpus
        request.host_cpus.numa.extend(
            cpus_pb2.NumaCapacity(numa_node_id=n, memory_bytes=MEMORY_BYTES // 2) for n in range(2)
        )
        request.total.devices.update(self.device_sums)
        return request

    def state(self, *, unchanged: bool = False) -> slots_pb2.SlotReport:
        """Returns the next numbered report."""
        self.report_number += 1
        if unchanged and self.acknowledged:
            return slots_pb2.SlotReport(
                report_number=self.report_number,
                rm_epoch=self.rm_epoch,
                command_number=self.command_number,
                unchanged=True,
                base_report_number=self.acknowledged,
            )
        return slots_pb2.SlotReport(
            report_number=self.report_number,
            rm_epoch=self.rm_epoch,
            command_number=self.command_number,
            slots=self.slots.values(),
            available=self._available(),
        )

    @cached_property
    def device_sums(self) -> dict[str, int]:
        """Returns the sums over the devices of this executor."""
        sums = total_of_devices(self.devices.devices)
        return {name.removeprefix(DEVICE_PREFIX): amount for name, amount in sums.items()}

    def _short_state(self) -> slots_pb2.SlotReport:
        """Returns the next numbered report, for a command that was carried out as ordered, and that
        has the number of the last report.
        """
        self.report_number += 1
        return slots_pb2.SlotReport(
            report_number=self.report_number,
            rm_epoch=self.rm_epoch,
            command_number=self.command_number,
            base_report_number=self.report_number - 1,
            as_ordered=True,
            slot_isolation=ISOLATION,
            available=self._available(),
        )

    def _available(self) -> resources_pb2.ResourceAmounts:
        # Do not deduct the devices of slots, because the resource manager counts them itself.
        return resources_pb2.ResourceAmounts(
            cpu_milli=1000 * CPUS - self.booked_cpu_milli,
            memory_bytes=MEMORY_BYTES - self.booked_memory_bytes,
            devices=self.device_sums,
        )

    def allocate(self, request: te_pb2.AllocateSlotsRequest) -> te_pb2.AllocateSlotsResponse:
        """Allocates every slot at once."""
        results = []
        for allocation in request.allocations:
            slot = allocation.slot
            slot.state = slots_pb2.SLOT_STATE_ALLOCATED
            slot.isolation.CopyFrom(ISOLATION)
            self.slots[slot.allocation_id] = slot
            self.booked_cpu_milli += slot.profile.cpu_milli
            self.booked_memory_bytes += slot.memory_bytes
            results.append(slots_pb2.ItemResult(id=slot.allocation_id))
        self.command_number = request.command_number
        # Like the executor, answer in short unless a slot has dedicated cpus.
        if request.known_report_number == self.report_number and not any(
            each.slot.cpus for each in request.allocations
        ):
            return te_pb2.AllocateSlotsResponse(report=self._short_state())
        return te_pb2.AllocateSlotsResponse(results=results, report=self.state())

    def free(self, request: te_pb2.FreeSlotsRequest) -> te_pb2.FreeSlotsResponse:
        """Frees every slot at once."""
        results = []
        for each in request.slots:
            slot = self.slots.pop(each.allocation_id, None)
            if slot is not None:
                self.booked_cpu_milli -= slot.profile.cpu_milli
                self.booked_memory_bytes -= slot.memory_bytes
            results.append(slots_pb2.ItemResult(id=each.allocation_id))
        self.command_number = request.command_number
        if request.known_report_number == self.report_number:
            return te_pb2.FreeSlotsResponse(report=self._short_state())
        return te_pb2.FreeSlotsResponse(results=results, report=self.state())


class _Servicer(_Base):
    def __init__(self, executors: dict[str, LightExecutor]) -> None:
        self._executors = executors

    async def AllocateSlots(
        self, request: te_pb2.AllocateSlotsRequest, context: Any
    ) -> te_pb2.AllocateSlotsResponse:
        return self._executors[request.executor_id].allocate(request)

    async def FreeSlots(
        self, request: te_pb2.FreeSlotsRequest, context: Any
    ) -> te_pb2.FreeSlotsResponse:
        return self._executors[request.executor_id].free(request)


class LightCluster:
    """Registered executors, and job masters.

    Args:
        address: the address of the resource manager.
        authority: the authority that signs the certificates of executors and job masters.
    """

    def __init__(self, address: str, authority: Authority) -> None:
        self._rm_address = address
        self._authority = authority
        self._stack = AsyncExitStack()
        self.executors: dict[str, LightExecutor] = {}
        self.address = ""
        self._stubs: dict[str, Any] = {}
        self._cluster: Any = None

    async def __aenter__(self) -> LightCluster:
        server = grpc.aio.server(options=list(SERVER_OPTIONS))
        servicer: Any = _Servicer(self.executors)
        add_TaskExecutorServiceServicer_to_server(servicer, server)
        shown = AnyExecutor(self._authority).server_credentials()
        self.address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', shown)}"
        await server.start()
        self._stack.push_async_callback(server.stop, 0)
        self._cluster = ClusterServiceStub(await self._channel("operator/root"))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def register(self, count: int, devices: HostDevices = NO_DEVICES) -> None:
        """Registers `count` executors, each with `devices`."""
        named = [LightExecutor(f"host-{n:05d}", devices) for n in range(count)]
        self.executors.update({each.executor_id: each for each in named})
        for start in range(0, count, 100):
            await asyncio.gather(*(self._register(each) for each in named[start : start + 100]))

    async def _register(self, executor: LightExecutor) -> None:
        channel = await self._channel(f"executor/{executor.executor_id}")
        stub: Any = ResourceManagerServiceStub(channel)
        self._stubs[executor.executor_id] = stub
        answer = await stub.RegisterExecutor(executor.registration(self.address))
        executor.rm_epoch = answer.rm_epoch
        executor.registration_number = answer.registration_number
        executor.acknowledged = executor.report_number

    async def heartbeat(self, executor: LightExecutor) -> None:
        """Sends one report, with the mark `unchanged` if the resource manager has acknowledged a
        report.
        """
        answer = await self._stubs[executor.executor_id].ReportSlots(
            rm_pb2.ReportSlotsRequest(
                executor_id=executor.executor_id,
                instance_id=executor.instance_id,
                registration_number=executor.registration_number,
                report=executor.state(unchanged=True),
                usage=slots_pb2.UsageReport(cpu_milli=1200, memory_bytes=3 * GIB, tasks=4),
            )
        )
        executor.acknowledged = answer.acknowledged_report_number
        if answer.register_again:
            raise RuntimeError(f"{executor.executor_id} was asked to register again")

    async def heartbeats(self, interval_s: float, seconds: float) -> int:
        """Sends one report of every executor per interval, evenly spread over the interval; returns
        the number of reports.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds

        async def one(executor: LightExecutor, offset_s: float) -> int:
            sent = 0
            due = loop.time() + offset_s
            while due < until:
                await asyncio.sleep(max(0.0, due - loop.time()))
                await self.heartbeat(executor)
                sent += 1
                due += interval_s
            return sent

        executors = list(self.executors.values())
        step_s = interval_s / len(executors)
        return sum(
            await asyncio.gather(*(one(each, n * step_s) for n, each in enumerate(executors)))
        )

    async def job(self) -> LightJob:
        """Returns a job master with its own channel and watch stream."""
        job = LightJob(ResourceManagerServiceStub(await self._channel("user/alice")))
        await job.begin()
        self._stack.push_async_callback(job.end)
        return job

    async def _channel(self, who: str) -> grpc.aio.Channel:
        channel = channel_as(self._authority, who, self._rm_address)
        return await self._stack.enter_async_context(channel)

    async def slots(self) -> int:
        """Returns the number of slots that the resource manager knows."""
        answer = await self._cluster.GetCluster(cluster_pb2.GetClusterRequest())
        return int(answer.slots)

    async def until_empty(self) -> None:
        """Waits until the resource manager has no slot left."""
        while await self.slots():  # noqa: ASYNC110  -- the state is in another process
            await asyncio.sleep(POLL_S)


class LightJob:
    """A job master that requests slots, waits for the grants on its watch stream, and releases
    them.
    """

    def __init__(self, rm: Any) -> None:
        self._rm = rm
        self._waiting: dict[int, set[str]] = {
            slots_pb2.REQUEST_STATE_GRANTED: set(),
            slots_pb2.REQUEST_STATE_RELEASED: set(),
        }
        self._heard: dict[int, asyncio.Event] = {state: asyncio.Event() for state in self._waiting}
        self._tasks: list[asyncio.Task[None]] = []
        self.job_id = new_id()
        self._failure: Exception | None = None
        self.sequence = 0

    async def begin(self) -> None:
        """Registers the job and opens the watch stream."""
        await self._rm.RegisterJob(
            rm_pb2.RegisterJobRequest(job_id=self.job_id, request_id=new_id(), name="light")
        )
        stream = self._rm.WatchJob(rm_pb2.WatchJobRequest(job_id=self.job_id))
        self._tasks = [
            asyncio.create_task(self._followed(self._watch(stream))),
            asyncio.create_task(self._followed(self._acknowledge())),
        ]

    async def end(self) -> None:
        """Closes the watch stream."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _followed(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the reader of the stream. Passes a failure to all waiting calls, which would
        otherwise never return.
        """
        try:
            await work
        except Exception as error:
            self._failure = error
            for heard in self._heard.values():
                heard.set()

    async def _watch(self, stream: Any) -> None:
        async for message in stream:
            for event in message.events:
                if event.sequence != self.sequence + 1:
                    raise RuntimeError(f"event {event.sequence} followed {self.sequence}")
                self.sequence = event.sequence
                self._waiting[event.state].discard(event.allocation_id)
            for state, ids in self._waiting.items():
                if not ids:
                    self._heard[state].set()

    async def _acknowledge(self) -> None:
        while True:
            await asyncio.sleep(ACKNOWLEDGE_INTERVAL_S)
            await self._rm.KeepAlive(
                rm_pb2.KeepAliveRequest(job_id=self.job_id, acknowledged_sequence=self.sequence),
            )

    async def live(
        self, ids: Sequence[str], profile: resources_pb2.ResourceProfile, gang_id: str = ""
    ) -> None:
        """Runs one batch: requests slots, waits for the grants, releases the slots, and waits for
        their ends.
        """
        await self.ask(ids, profile, gang_id)
        await self.give_back(ids)

    async def ask(
        self, ids: Sequence[str], profile: resources_pb2.ResourceProfile, gang_id: str = ""
    ) -> tuple[float, float]:
        """Requests slots, as a gang if `gang_id` is not empty, and waits for all grants. Returns
        the seconds to the acknowledgment and to the last grant.
        """
        heard = self._expect(slots_pb2.REQUEST_STATE_GRANTED, ids)
        request = rm_pb2.RequestResourceRequest(
            job_id=self.job_id,
            requests=[
                slots_pb2.SlotRequest(allocation_id=each, profile=profile, gang_id=gang_id)
                for each in ids
            ],
            gangs=[slots_pb2.Gang(gang_id=gang_id)] if gang_id else [],
        )
        begun = time.perf_counter()
        answer = await self._rm.RequestResource(request)
        acknowledged = time.perf_counter()
        _all_done(answer.results)
        await self._until(heard)
        return acknowledged - begun, time.perf_counter() - begun

    async def give_back(self, ids: Sequence[str]) -> None:
        """Releases slots, and waits until the stream reports their ends."""
        heard = self._expect(slots_pb2.REQUEST_STATE_RELEASED, ids)
        answer = await self._rm.ReleaseSlots(
            rm_pb2.ReleaseSlotsRequest(
                job_id=self.job_id,
                slots=[rm_pb2.SlotRelease(allocation_id=each) for each in ids],
            ),
        )
        _all_done(answer.results)
        await self._until(heard)

    async def _until(self, heard: asyncio.Event) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await heard.wait()
        if self._failure is not None:
            raise self._failure

    def _expect(self, state: int, ids: Iterable[str]) -> asyncio.Event:
        self._waiting[state].update(ids)
        self._heard[state] = asyncio.Event()
        return self._heard[state]


def profile(
    cpu_milli: int = 500, memory_bytes: int = 512 * MIB, **devices: int
) -> resources_pb2.ResourceProfile:
    """Returns the profile that light jobs request."""
    return resources_pb2.ResourceProfile(
        cpu_milli=cpu_milli, task_heap_memory_bytes=memory_bytes, devices=devices
    )


def _all_done(results: Sequence[slots_pb2.ItemResult]) -> None:
    for result in results:
        if result.HasField("error"):
            raise RuntimeError(f"{result.id}: {result.error.reason} {result.error.message}")
