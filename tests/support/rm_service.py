"""A real resource manager in this process, a scripted executor, and a job master for tests.

All of them use real gRPC on loopback ports that the kernel chooses, and a real database.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from finegrain.certificates.authority import Authority
from finegrain.errors import FailedPrecondition, FinegrainError, Reason
from finegrain.identity import Identity, Role
from finegrain.ids import new_id
from finegrain.options import ListenOptions
from finegrain.resources import GIB, MIB
from finegrain.rpc.access import TASK_EXECUTOR_ACCESS
from finegrain.rpc.channels import open_channel
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.status import error_from_rpc
from finegrain.rpc.trust import Trust
from finegrain.v1 import identity_pb2, resources_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import task_executor_pb2 as te_pb2
from finegrain.v1.cluster_pb2_grpc import ClusterServiceStub
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub
from finegrain.v1.task_executor_pb2_grpc import (
    TaskExecutorServiceServicer,
    add_TaskExecutorServiceServicer_to_server,
)
from resource_manager.main import serve
from resource_manager.options import ResourceManagerOptions
from resource_manager.service.identities.epochs import EpochProofs
from resource_manager.service.identities.own import open_own_files
from resource_manager.web_site import ServeWeb
from tests.support import patience
from tests.support.identities import signed_by
from tests.support.patience import PATIENCE_S

eventually = patience.eventually_async

# the typed base is abstract; a call that the script lacks must return "unimplemented"
if TYPE_CHECKING:
    _Servicer = object
else:
    _Servicer = TaskExecutorServiceServicer


USER, OPERATOR = "user/alice", "operator/root"

_LIVES = count(0, 1_000_000)
"""First report numbers of executors: report numbers must increase even across restarts."""


def channel_as(own: OwnCertificate, address: str) -> grpc.aio.Channel:
    """Returns a channel to a resource manager of the certificate's cluster."""
    return open_channel(address, own, Identity(own.credentials.who.cluster, Role.RM))


def own_of(state_dir: Path, who: str) -> OwnCertificate:
    """Returns a certificate of an identity, signed by the authority in a state directory."""
    return OwnCertificate(signed_by(open_own_files(state_dir).authority, who))


@dataclass
class RunningRm:
    """Addresses of a running resource manager, and stubs for any identity."""

    state_dir: Path
    address: str
    metrics_address: str
    task: asyncio.Task[int]
    _owns: dict[str, OwnCertificate] = field(default_factory=dict)
    _channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)

    @property
    def authority(self) -> Authority:
        """The authority of the cluster, which can make any identity."""
        return open_own_files(self.state_dir).authority

    def own(self, who: str) -> OwnCertificate:
        """Returns a certificate of an identity: "user/alice", "executor/host-a"."""
        if who not in self._owns:
            self._owns[who] = OwnCertificate(signed_by(self.authority, who, self.address))
        return self._owns[who]

    def channel(self, who: str) -> grpc.aio.Channel:
        """Returns a channel to the resource manager for calls of the identity `who`."""
        if who not in self._channels:
            self._channels[who] = channel_as(self.own(who), self.address)
        return self._channels[who]

    def rm_as(self, who: str) -> Any:
        """Returns ResourceManagerService for an identity."""
        return ResourceManagerServiceStub(self.channel(who))

    def cluster_as(self, who: str) -> Any:
        """Returns ClusterService for an identity."""
        return ClusterServiceStub(self.channel(who))

    @property
    def rm(self) -> Any:
        """ResourceManagerService for `USER`."""
        return self.rm_as(USER)

    @property
    def cluster(self) -> Any:
        """ClusterService for `OPERATOR`."""
        return self.cluster_as(OPERATOR)

    @property
    def cluster_as_user(self) -> Any:
        """ClusterService for `USER`."""
        return self.cluster_as(USER)

    def proof_of(self, rm_epoch: int, who: str = "rm") -> identity_pb2.EpochProof:
        """Returns the proof of an epoch as another maker would make it: another resource manager of
        this cluster, or a program that only has the certificate of `who`.
        """
        return EpochProofs(lambda: self.authority, self.own(who)).proof_of(rm_epoch)

    def trust(self) -> Trust:
        """Returns what a server of this cluster accepts."""
        return Trust(self.authority.cluster)

    async def close(self) -> None:
        """Closes the channels."""
        for channel in self._channels.values():
            await channel.close()


@asynccontextmanager
async def running_rm(
    state_dir: Path,
    *,
    address: str = "127.0.0.1:0",
    web: ServeWeb | None = None,
    **options: Any,
) -> AsyncIterator[RunningRm]:
    """Runs a resource manager inside the block. With the same directory, it belongs to the same
    cluster.
    """
    listen = ListenOptions(address=address, metrics_address="127.0.0.1:0")
    loop = asyncio.get_running_loop()
    bound: asyncio.Future[tuple[str, str]] = loop.create_future()
    task = loop.create_task(
        serve(
            ResourceManagerOptions(
                state_dir=state_dir, listen=listen, **{"join_listen": "", **options}
            ),
            web=web,
            ready=lambda rm, metrics: bound.set_result((rm, metrics)),
        )
    )
    either: set[asyncio.Future[Any]] = {bound, task}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
    assert bound.done(), f"the resource manager ended with {task.result()}"
    rm_address, metrics_address = bound.result()
    running = RunningRm(state_dir, rm_address, metrics_address, task)
    try:
        yield running
    finally:
        await running.close()
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)


def pooled(cpu_milli: int, memory_bytes: int) -> resources_pb2.ResourceAmounts:
    return resources_pb2.ResourceAmounts(cpu_milli=cpu_milli, memory_bytes=memory_bytes)


def profile(cpu_milli: int = 500, memory_bytes: int = 64 * MIB) -> resources_pb2.ResourceProfile:
    return resources_pb2.ResourceProfile(cpu_milli=cpu_milli, task_heap_memory_bytes=memory_bytes)


def slot_request(
    allocation_id: str = "", *, cpu_milli: int = 500, memory_bytes: int = 64 * MIB, **more: Any
) -> slots_pb2.SlotRequest:
    return slots_pb2.SlotRequest(
        allocation_id=allocation_id or new_id(), profile=profile(cpu_milli, memory_bytes), **more
    )


@dataclass
class ScriptedExecutor(_Servicer):
    """Keeps a slot table in memory and executes commands.

    `refuse` and `refuse_resize` return an error reason for commands that it refuses. `on_command`
    may raise or wait before a command is executed.
    """

    rm: RunningRm
    executor_id: str = "host-a"
    instance_id: str = field(default_factory=new_id)
    cpu_milli: int = 4000
    memory_bytes: int = 8 * GIB
    refuse: Callable[[slots_pb2.SlotStatus], str] = lambda _slot: ""
    refuse_resize: Callable[[te_pb2.TaskExecutorServiceResizeSlotRequest], str] = lambda _: ""
    on_command: Callable[[Any], Any] | None = None
    labels: dict[str, str] = field(default_factory=dict)
    slots: dict[str, slots_pb2.SlotStatus] = field(default_factory=dict)
    commands: list[Any] = field(default_factory=list)
    # higher than in any earlier run
    report_number: int = field(default_factory=lambda: next(_LIVES))
    command_number: int = 0
    rm_epoch: int = 0
    epoch_proof: identity_pb2.EpochProof | None = None
    registration_number: int = 0
    address: str = ""
    _server: GuardedServer | None = None

    async def __aenter__(self) -> ScriptedExecutor:
        await self.open_port()
        await self.register()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close_port()

    @property
    def stub(self) -> Any:
        """ResourceManagerService for this executor."""
        return self.rm.rm_as(f"executor/{self.executor_id}")

    async def open_port(self) -> None:
        """Starts serving. If there was a previous address, uses it again."""
        self._server = GuardedServer(
            ListenOptions(address=self.address or "127.0.0.1:0"),
            TASK_EXECUTOR_ACCESS,
            self.rm.own(f"executor/{self.executor_id}"),
            self.rm.trust(),
        )
        self._server.add(add_TaskExecutorServiceServicer_to_server, self)
        self.address = await self._server.start()

    async def close_port(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    def registration(self) -> rm_pb2.RegisterExecutorRequest:
        return rm_pb2.RegisterExecutorRequest(
            executor_id=self.executor_id,
            instance_id=self.instance_id,
            address=self.address or "127.0.0.1:1",
            total=pooled(self.cpu_milli, self.memory_bytes),
            reserved=pooled(0, 256 * MIB),
            default_slot_profile=profile(1000, GIB),
            topology=resources_pb2.HostTopology(
                online_cpus="0-3",
                allowed_cpus="0-3",
                cores=[resources_pb2.Core(cpus=str(n)) for n in range(4)],
                numa_nodes=[resources_pb2.NumaNode(cpus="0-3", memory_bytes=self.memory_bytes)],
            ),
            labels=self.labels,
            report=self.report(),
            protocol_version="1.0",
            software_version="0.2.0",
            isolation=resources_pb2.IsolationReport(cpu="quota", driver="v1"),
            shared_cpus="0-3",
            epoch_proof=self.epoch_proof,
        )

    async def register(self) -> rm_pb2.RegisterExecutorResponse:
        self.command_number = 0
        answer: rm_pb2.RegisterExecutorResponse
        answer = await self.stub.RegisterExecutor(self.registration())
        self.rm_epoch, self.registration_number = answer.rm_epoch, answer.registration_number
        self.epoch_proof = answer.epoch_proof
        return answer

    def report(self) -> slots_pb2.SlotReport:
        self.report_number += 1
        used_cpu = sum(slot.profile.cpu_milli for slot in self.slots.values())
        used_memory = sum(slot.memory_bytes for slot in self.slots.values())
        return slots_pb2.SlotReport(
            report_number=self.report_number,
            rm_epoch=self.rm_epoch,
            command_number=self.command_number,
            slots=self.slots.values(),
            available=pooled(self.cpu_milli - used_cpu, self.memory_bytes - used_memory),
        )

    async def send_report(
        self,
        *,
        admin_calls: Sequence[rm_pb2.AdminCall] = (),
        used: Sequence[slots_pb2.SlotUsage] = (),
    ) -> rm_pb2.ReportSlotsResponse:
        answer: rm_pb2.ReportSlotsResponse = await self.stub.ReportSlots(
            rm_pb2.ReportSlotsRequest(
                executor_id=self.executor_id,
                instance_id=self.instance_id,
                registration_number=self.registration_number,
                report=self.report(),
                usage=slots_pb2.UsageReport(cpu_milli=250, memory_bytes=MIB, tasks=1, slots=used),
                admin_calls=admin_calls,
            )
        )
        return answer

    async def register_if_asked(self) -> bool:
        """Sends one report. If the RM asks for a registration, registers again. Returns whether it
        registered.
        """
        if (await self.send_report()).register_again:
            await self.register()
            return True
        return False

    async def AllocateSlots(self, request: Any, context: Any) -> te_pb2.AllocateSlotsResponse:
        await self._taken(request)
        results = []
        for allocation in request.allocations:
            slot = allocation.slot
            result = slots_pb2.ItemResult(id=slot.allocation_id)
            if why := self.refuse(slot):
                result.error.reason, result.error.message = why, "refused by the script"
            else:
                slot.state = slots_pb2.SLOT_STATE_ALLOCATED
                self.slots[slot.allocation_id] = slot
            results.append(result)
        return te_pb2.AllocateSlotsResponse(results=results, report=self.report())

    async def FreeSlots(self, request: Any, context: Any) -> te_pb2.FreeSlotsResponse:
        await self._taken(request)
        for each in request.slots:
            self.slots.pop(each.allocation_id, None)
        results = [slots_pb2.ItemResult(id=each.allocation_id) for each in request.slots]
        return te_pb2.FreeSlotsResponse(results=results, report=self.report())

    async def ResizeSlot(
        self, request: Any, context: Any
    ) -> te_pb2.TaskExecutorServiceResizeSlotResponse:
        await self._taken(request)
        result = slots_pb2.ItemResult(id=request.allocation_id)
        if why := self.refuse_resize(request):
            result.error.reason, result.error.message = why, "refused by the script"
        else:
            slot = self.slots[request.allocation_id]
            slot.profile.CopyFrom(request.profile)
            slot.memory_bytes, slot.cpu_limit_milli = request.memory_bytes, request.cpu_limit_milli
            slot.resize_number = request.resize_number
        return te_pb2.TaskExecutorServiceResizeSlotResponse(result=result, report=self.report())

    async def ListTasks(self, request: Any, context: Any) -> te_pb2.ListTasksResponse:
        return te_pb2.ListTasksResponse()

    async def _taken(self, request: Any) -> None:
        # as a real executor does with a late command
        if request.registration_number < self.registration_number:
            raise FailedPrecondition(
                "an older registration", reason=Reason.STALE_REGISTRATION, details={}
            )
        self.commands.append(request)
        if self.on_command is not None:
            waited = self.on_command(request)
            if asyncio.iscoroutine(waited):
                await waited
        self.command_number = request.command_number


@dataclass
class ScriptedJob:
    """A job master with short-hand methods."""

    rm: RunningRm
    job_id: str = field(default_factory=new_id)
    request_id: str = field(default_factory=new_id)
    who: str = USER

    @property
    def stub(self) -> Any:
        """ResourceManagerService for the job's owner."""
        return self.rm.rm_as(self.who)

    async def register(self, **more: Any) -> ScriptedJob:
        await self.stub.RegisterJob(
            rm_pb2.RegisterJobRequest(
                job_id=self.job_id, request_id=self.request_id, **{"name": "a job", **more}
            )
        )
        return self

    async def request(self, *requests: slots_pb2.SlotRequest) -> list[slots_pb2.ItemResult]:
        answer = await self.stub.RequestResource(
            rm_pb2.RequestResourceRequest(job_id=self.job_id, requests=requests),
        )
        return list(answer.results)

    async def request_gang(
        self, *requests: slots_pb2.SlotRequest, gangs: Sequence[slots_pb2.Gang]
    ) -> list[slots_pb2.ItemResult]:
        answer = await self.stub.RequestResource(
            rm_pb2.RequestResourceRequest(job_id=self.job_id, requests=requests, gangs=gangs),
        )
        return list(answer.results)

    async def resize(self, allocation_id: str, **parts: Any) -> slots_pb2.SlotStatus:
        message = rm_pb2.ResourceManagerServiceResizeSlotRequest(
            job_id=self.job_id, allocation_id=allocation_id, **parts
        )
        answer = await self.stub.ResizeSlot(message)
        slot: slots_pb2.SlotStatus = answer.slot
        return slot

    async def release(self, *allocation_ids: str, **more: Any) -> list[slots_pb2.ItemResult]:
        slots = [rm_pb2.SlotRelease(allocation_id=each, **more) for each in allocation_ids]
        answer = await self.stub.ReleaseSlots(
            rm_pb2.ReleaseSlotsRequest(job_id=self.job_id, slots=slots)
        )
        return list(answer.results)

    async def reuse(
        self, *wishes: tuple[str, int, str], ranges: Sequence[slots_pb2.RequestRange] = ()
    ) -> list[slots_pb2.ItemResult]:
        slots = [
            rm_pb2.SlotReuse(allocation_id=slot, generation=generation, for_allocation_id=waiting)
            for slot, generation, waiting in wishes
        ]
        answer = await self.stub.ReuseSlots(
            rm_pb2.ReuseSlotsRequest(job_id=self.job_id, slots=slots, ranges=ranges)
        )
        return [*answer.range_results, *answer.results]

    def watch(self, from_sequence: int = 0, rm: RunningRm | None = None) -> Any:
        return (
            (rm or self.rm)
            .rm_as(self.who)
            .WatchJob(rm_pb2.WatchJobRequest(job_id=self.job_id, from_sequence=from_sequence))
        )


async def next_events(stream: Any, count: int) -> list[rm_pb2.JobEvent]:
    """Returns the next events of a watch stream, and ignores its other messages."""
    events: list[rm_pb2.JobEvent] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(events) < count:
            events += (await stream.read()).events
    return events


async def refusal(call: Any) -> FinegrainError:
    """Returns the error with which a call ends. Fails if the call succeeds."""
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return error_from_rpc(caught.value)


async def fetch(address: str, path: str) -> tuple[int, str]:
    """Returns the status and body of a plain HTTP GET."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


def endpoint_of(state_dir: Path) -> dict[str, Any]:
    """Returns the content of `endpoint.json`, which the resource manager writes for the command
    line."""
    note: dict[str, Any] = json.loads((state_dir / "endpoint.json").read_text())
    return note


def sequences(events: Sequence[rm_pb2.JobEvent]) -> list[int]:
    return [event.sequence for event in events]
