"""A resource manager that a test controls: it answers executors, commands them and forgets them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from finegrain.errors import FinegrainError
from finegrain.rpc.access import TOKEN_KEY
from finegrain.rpc.allocation_tokens import TokenSigner
from finegrain.rpc.channels import open_channel
from finegrain.rpc.status import error_from_rpc, status_of
from finegrain.rpc.wire import duration_ms_to_proto
from finegrain.v1 import cpus_pb2, identity_pb2, slots_pb2, task_executor_pb2_grpc
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import task_executor_pb2 as te
from tests.support import identities, patience
from tests.support.patience import PATIENCE_S

eventually = patience.eventually_async

OWNER, OTHER_OWNER, OPERATOR = "user/alice", "user/bob", "operator/ann"
EXECUTOR_ID = "host-a"  # of executors in this process
MIB = 1 << 20


@dataclass
class ScriptedRM:
    """It knows one executor. It keeps what it has received, and its answers can be set.

    It shows the certificate of `identity`; with any other value than "rm" it is an impostor.
    """

    rm_epoch: int = 1
    registration_number: int = 0
    command_number: int = 0
    report_interval_ms: int = 100
    registrations: list[rm.RegisterExecutorRequest] = field(default_factory=list)
    reports: list[rm.ReportSlotsRequest] = field(default_factory=list)
    states: list[slots_pb2.SlotReport] = field(default_factory=list)
    unowned: list[rm.SlotRelease] = field(default_factory=list)
    reused: list[rm.SlotReuseNumber] = field(default_factory=list)
    refuse: FinegrainError | None = None
    refused_at: list[float] = field(default_factory=list)
    register_again: bool = False
    send_full_report: bool = False
    acknowledge: bool = True
    policy: cpus_pb2.HostPolicy | None = None
    policy_number: int = 0
    authorities_sha256: str = ""
    denied: rm.DeniedIdentities = field(default_factory=rm.DeniedIdentities)
    identity: str = "rm"
    renewals: list[str] = field(default_factory=list)  # callers that renewed their certificates
    address: str = ""
    _server: grpc.aio.Server | None = None

    async def start(self, address: str = "127.0.0.1:0") -> str:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        for service, name, handler, decode in (
            ("ResourceManager", "RegisterExecutor", self.RegisterExecutor, REGISTER),
            ("ResourceManager", "ReportSlots", self.ReportSlots, REPORT),
            ("Identity", "RenewCertificate", self.RenewCertificate, RENEW),
        ):
            method = grpc.unary_unary_rpc_method_handler(handler, decode, _encode)
            generic = grpc.method_handlers_generic_handler(
                f"finegrain.v1.{service}Service", {name: method}
            )
            self._server.add_generic_rpc_handlers((generic,))
        self.address = f"127.0.0.1:{self.add_port(self._server, address)}"
        await self._server.start()
        return self.address

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        """Binds the address, and returns the port."""
        return int(
            server.add_secure_port(address, identities.own(self.identity).server_credentials())
        )

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def _refuse(self, context: Any) -> None:
        if self.refuse is not None:
            self.refused_at.append(time.monotonic())
            code, message, trailing = status_of(self.refuse)
            await context.abort(code, message, trailing)

    async def RegisterExecutor(self, request: Any, context: Any) -> rm.RegisterExecutorResponse:
        await self._refuse(context)
        self.registrations.append(request)
        self.states.append(request.report)
        self.registration_number += 1
        self.command_number = 0
        self.register_again = False
        unowned, self.unowned = self.unowned, []
        return rm.RegisterExecutorResponse(
            rm_epoch=self.rm_epoch,
            registration_number=self.registration_number,
            report_interval=duration_ms_to_proto(self.report_interval_ms),
            lost_timeout=duration_ms_to_proto(10_000),
            unowned_slots=unowned,
            authorities_sha256=self.authorities_sha256,
            denied=self.denied,
            host_policy=self.policy,
            host_policy_number=self.policy_number or request.report.cpu_state.host_policy_number,
            protocol_version="1.0",
        )

    async def ReportSlots(self, request: Any, context: Any) -> rm.ReportSlotsResponse:
        await self._refuse(context)
        self.reports.append(request)
        self.states.append(request.report)
        unowned, self.unowned = self.unowned, []
        full, self.send_full_report = self.send_full_report, False
        return rm.ReportSlotsResponse(
            rm_epoch=self.rm_epoch,
            register_again=self.register_again,
            send_full_report=full,
            unowned_slots=unowned,
            acknowledged_report_number=request.report.report_number if self.acknowledge else 0,
            host_policy=self.policy if self.policy_number else None,
            host_policy_number=self.policy_number,
            reused_slots=self.reused,
            denied=self.denied if self.denied.number != request.denied_number else None,
        )

    async def RenewCertificate(
        self, _request: Any, context: Any
    ) -> identity_pb2.RenewCertificateResponse:
        await self._refuse(context)
        shown = identities.trust().identify(context.auth_context(), context.peer())
        self.renewals.append(shown.name)
        return identity_pb2.RenewCertificateResponse(issued=identities.issued_again(shown))

    # -- received messages -------------------------------------------------------------------

    @property
    def registered(self) -> rm.RegisterExecutorRequest:
        return self.registrations[-1]

    @property
    def executor_address(self) -> str:
        return str(self.registered.address)

    def full_reports(self) -> list[slots_pb2.SlotReport]:
        return [state for state in self.states if not state.unchanged]

    def slots(self) -> dict[str, int]:
        """Returns the last reported state of each slot, by allocation id."""
        return {slot.allocation_id: slot.state for slot in self.full_reports()[-1].slots}

    def ended(self) -> dict[str, str]:
        """Returns the reason of each ended slot in all reports, by allocation id."""
        return {each.allocation_id: each.reason for state in self.states for each in state.ended}

    def job_master(self, who: str = OWNER) -> JobMaster:
        """Returns a job master that calls the registered executor."""
        return JobMaster(self.executor_address, who, self.registered.executor_id)

    # -- commands ----------------------------------------------------------------------------

    async def allocate(
        self, *allocations: te.SlotAllocation, number: int | None = None, **changes: Any
    ) -> te.AllocateSlotsResponse:
        request = te.AllocateSlotsRequest(**self._numbers(number, changes), allocations=allocations)
        answer: te.AllocateSlotsResponse = await self._command("AllocateSlots", request)
        return answer

    async def free(
        self, *slots: te.SlotFree, number: int | None = None, **changes: Any
    ) -> te.FreeSlotsResponse:
        request = te.FreeSlotsRequest(**self._numbers(number, changes), slots=slots)
        answer: te.FreeSlotsResponse = await self._command("FreeSlots", request)
        return answer

    async def resize(
        self, resize_number: int, *, number: int | None = None, **changes: Any
    ) -> te.TaskExecutorServiceResizeSlotResponse:
        """Orders a resize. `changes` are fields of the request; `of_command` has its numbers."""
        of_command = changes.pop("of_command", {})
        cpu_milli, heap_bytes = changes.pop("cpu_milli", 500), changes.pop("heap_bytes", 64 * MIB)
        usual: dict[str, Any] = {"allocation_id": "slot", "generation": 1} | changes
        request = te.TaskExecutorServiceResizeSlotRequest(
            **self._numbers(number, of_command), resize_number=resize_number, **usual
        )
        request.profile.cpu_milli = cpu_milli
        request.profile.task_heap_memory_bytes = heap_bytes
        answer: te.TaskExecutorServiceResizeSlotResponse = await self._command(
            "ResizeSlot", request
        )
        return answer

    def _numbers(self, number: int | None, changes: dict[str, Any]) -> dict[str, Any]:
        if number is None:
            self.command_number += 1
            number = self.command_number
        usual = {
            "rm_epoch": self.rm_epoch,
            "registration_number": self.registration_number,
            "command_number": number,
        }
        return usual | changes

    async def _command(self, method: str, request: Any) -> Any:
        executor = identities.identity(f"executor/{self.registered.executor_id}")
        own = identities.own(self.identity)
        async with open_channel(self.executor_address, own, executor) as channel:
            stub: Any = task_executor_pb2_grpc.TaskExecutorServiceStub(channel)
            answer = await calling(getattr(stub, method)(request))
        # The answer has a report, and the executor does not report the same state again. The answer
        # to a repeated command has an old report.
        if answer.report.report_number > self.states[-1].report_number:
            self.states.append(answer.report)
        return answer


async def calling(call: Any) -> Any:
    """Returns the answer, or raises the error as a job master would see it."""
    try:
        return await call
    except grpc.RpcError as error:
        raise error_from_rpc(error) from None


REGISTER, REPORT = rm.RegisterExecutorRequest.FromString, rm.ReportSlotsRequest.FromString
RENEW = identity_pb2.RenewCertificateRequest.FromString


def _encode(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def allocation(
    allocation_id: str = "slot",
    generation: int = 1,
    *,
    cpu_milli: int = 500,
    memory_bytes: int = 64 * MIB,
    job_id: str = "job",
    owner: str = OWNER,
    target_address: str = "",
    **changes: Any,
) -> te.SlotAllocation:
    slot = slots_pb2.SlotStatus(
        allocation_id=allocation_id, generation=generation, job_id=job_id, **changes
    )
    slot.profile.cpu_milli = cpu_milli
    slot.profile.task_heap_memory_bytes = memory_bytes
    slot.memory_bytes = -(-memory_bytes // 65536) * 65536
    GRANTED.slots[allocation_id] = job_id, owner
    return te.SlotAllocation(slot=slot, owner=owner, target_address=target_address)


@dataclass
class Granted:
    """What resource managers have granted in this process: the jobs and owners of slots, and the
    slot of each submitted task. Job masters get their tokens from it.
    """

    slots: dict[str, tuple[str, str]] = field(default_factory=dict)
    tasks: dict[str, tuple[str, int]] = field(default_factory=dict)

    def token(self, executor_id: str, request: Any) -> bytes:
        """Returns the token that belongs to a request."""
        if hasattr(request, "allocation_id"):
            key = request.allocation_id, request.generation
            if hasattr(request, "task_id") and request.task_id:
                self.tasks[request.task_id] = key
        elif hasattr(request, "task_id"):
            key = self.tasks.get(request.task_id, ("slot", 1))
        else:
            owners = dict(self.slots.values())
            return SIGNER.token(executor_id, request.job_id, owners.get(request.job_id, OWNER))
        return SIGNER.token(executor_id, *self.slots.get(key[0], ("job", OWNER)), *key)


GRANTED = Granted()
SIGNER = TokenSigner(identities.own("rm"))


def showing(token: bytes) -> tuple[tuple[str, bytes], ...]:
    """Returns the metadata that shows a token."""
    return ((TOKEN_KEY, token),)


def free(allocation_id: str = "slot", generation: int = 1, grace_ms: int = 0) -> te.SlotFree:
    return te.SlotFree(
        allocation_id=allocation_id, generation=generation, grace=duration_ms_to_proto(grace_ms)
    )


@dataclass
class JobMaster:
    """The calls of a job master to an executor."""

    address: str
    who: str = OWNER
    executor_id: str = EXECUTOR_ID
    token: bytes | None = None  # None: the token that belongs to the request

    def metadata(self, request: Any) -> Any:
        if self.token is not None:
            return showing(self.token)
        return showing(GRANTED.token(self.executor_id, request))

    async def call(self, method: str, request: Any) -> Any:
        async with self._channel() as channel:
            stub: Any = task_executor_pb2_grpc.TaskExecutorServiceStub(channel)
            return await calling(getattr(stub, method)(request, metadata=self.metadata(request)))

    def _channel(self) -> Any:
        executor = identities.identity(f"executor/{self.executor_id}")
        return open_channel(self.address, identities.own(self.who), executor)

    async def submit(
        self,
        *argv: str,
        task_id: str = "task",
        allocation_id: str = "slot",
        generation: int = 1,
        timeout_ms: int = 0,
        wait_ms: int = 0,
        **spec: Any,
    ) -> te.TaskStatus:
        message = te.TaskSpec(argv=argv, **spec)
        if timeout_ms:
            message.timeout.CopyFrom(duration_ms_to_proto(timeout_ms))
        request = te.SubmitTaskRequest(
            task_id=task_id, allocation_id=allocation_id, generation=generation, spec=message
        )
        if wait_ms:
            request.wait.CopyFrom(duration_ms_to_proto(wait_ms))
        answer: te.SubmitTaskResponse = await self.call("SubmitTask", request)
        return answer.task

    async def watch(
        self, task_id: str = "task", stdout_offset: int = 0, stderr_offset: int = 0, **more: Any
    ) -> Watched:
        """Returns all messages of a stream, until it ends."""
        seen = Watched()
        request = te.WatchTaskRequest(
            task_id=task_id, stdout_offset=stdout_offset, stderr_offset=stderr_offset, **more
        )
        async with self._channel() as channel:
            stub: Any = task_executor_pb2_grpc.TaskExecutorServiceStub(channel)
            call = stub.WatchTask(request, timeout=PATIENCE_S, metadata=self.metadata(request))
            try:
                async for message in call:
                    seen.add(message)
            except grpc.RpcError as error:
                raise error_from_rpc(error) from None
            finally:
                call.cancel()
        return seen

    async def write(self, *pieces: Sequence[Any], task_id: str = "task") -> int:
        """Pieces are (offset, bytes, eof)."""

        async def messages() -> Any:
            for offset, data, eof in pieces:
                yield te.WriteTaskInputRequest(task_id=task_id, offset=offset, data=data, eof=eof)

        async with self._channel() as channel:
            stub: Any = task_executor_pb2_grpc.TaskExecutorServiceStub(channel)
            shown = self.metadata(te.WriteTaskInputRequest(task_id=task_id))
            call = stub.WriteTaskInput(messages(), timeout=PATIENCE_S, metadata=shown)
            answer = await calling(call)
            return int(answer.accepted_bytes)

    async def cancel(self, task_id: str = "task", grace_ms: int = 0) -> None:
        request = te.CancelTaskRequest(task_id=task_id, grace=duration_ms_to_proto(grace_ms))
        await self.call("CancelTask", request)

    async def signal(self, signum: int, task_id: str = "task") -> None:
        await self.call("SignalTask", te.SignalTaskRequest(task_id=task_id, signal=signum))

    async def tasks(self, job_id: str = "job") -> list[te.TaskStatus]:
        answer = await self.call("ListTasks", te.ListTasksRequest(job_id=job_id))
        return list(answer.tasks)


@dataclass
class Watched:
    """What a watch stream brought."""

    states: list[int] = field(default_factory=list)
    stdout: bytes = b""
    stderr: bytes = b""
    last: te.TaskStatus = field(default_factory=te.TaskStatus)

    def add(self, message: te.WatchTaskResponse) -> None:
        if message.HasField("task"):
            self.last = message.task
            self.states.append(message.task.state)
        elif message.HasField("output"):
            assert not self.is_over, "output after the end"
            chunk = message.output
            if chunk.stream == 1:
                self.stdout += chunk.data
            else:
                self.stderr += chunk.data

    @property
    def is_over(self) -> bool:
        return self.last.state in (te.TASK_STATE_EXITED, te.TASK_STATE_FAILED) and (
            len(self.states) > 1
        )

    @property
    def exit(self) -> te.TaskExit:
        return self.last.exit
