"""A scripted resource manager and executor in one process, over real gRPC."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio

from finegrain.errors import (
    FailedPrecondition,
    FinegrainError,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Reason,
)
from finegrain.rpc.access import TASK_EXECUTOR_ACCESS, TOKEN_KEY
from finegrain.rpc.channels import SERVER_OPTIONS
from finegrain.rpc.status import item_error, status_of
from finegrain.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    cpus_pb2,
    resource_manager_pb2,
    resource_manager_pb2_grpc,
    resources_pb2,
    slots_pb2,
    task_executor_pb2,
    task_executor_pb2_grpc,
)
from tests.support import patience
from tests.support.identities import own

eventually = patience.eventually_async

rm, te = resource_manager_pb2, task_executor_pb2
PENDING, GRANTED, LOST, RELEASED, CANCELLED = (
    slots_pb2.REQUEST_STATE_PENDING,
    slots_pb2.REQUEST_STATE_GRANTED,
    slots_pb2.REQUEST_STATE_LOST,
    slots_pb2.REQUEST_STATE_RELEASED,
    slots_pb2.REQUEST_STATE_CANCELLED,
)


@dataclass
class Program:
    """The behavior of a command: its output, its end, and the input that it read."""

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int = 0
    end_reason: str = ""
    end_message: str = ""
    error_reason: str = ""
    ends: bool = True
    read: bytearray = field(default_factory=bytearray)
    eof: bool = False
    cancelled: bool = False


if TYPE_CHECKING:
    # The stubs make every method abstract; methods without a script return UNIMPLEMENTED.
    _Servicer = object
else:

    class _Servicer(
        resource_manager_pb2_grpc.ResourceManagerServiceServicer,
        cluster_pb2_grpc.ClusterServiceServicer,
        task_executor_pb2_grpc.TaskExecutorServiceServicer,
    ):
        pass


class Scripted(_Servicer):
    """Both services; tests set and read its attributes."""

    def __init__(self) -> None:
        self.address = ""
        self.tasks_address = ""  # of its executor host-a
        self.auto_grant = True
        self.others_first = False  # if set, no slot may be reused
        self.auto_resize = True
        # replaces the usual answer
        self.explained: resource_manager_pb2.ExplainResponse | None = None
        self.sized: dict[str, slots_pb2.SlotStatus] = {}  # present slots
        self.rejections: dict[str, FinegrainError] = {}  # by label "name"
        self.failures: dict[str, deque[FinegrainError]] = defaultdict(deque)  # by method
        self.calls: dict[str, list[Any]] = defaultdict(list)
        self.callers: dict[str, list[str]] = defaultdict(list)  # URIs of identities
        self.live: Counter[str] = Counter()
        self.events: list[resource_manager_pb2.JobEvent] = []
        self.first_kept = 1
        self.cluster_events: list[tuple[str, str]] = []  # kind and message of one more event
        self.snapshot: list[resource_manager_pb2.RequestStatus] = []
        self.ended: list[resource_manager_pb2.RequestStatus] = []
        self.withheld: set[int] = set()  # events that WatchJob does not send
        self.break_watch_after: deque[int] = deque()  # number of events until a WatchJob breaks
        self.break_snapshot_after: deque[int] = deque()  # number of parts until a snapshot breaks
        self.break_output_after: deque[int] = deque()  # number of chunks until a WatchTask breaks
        self.chunk_bytes = 4
        self.waits = False  # True: SubmitTask has the whole output of a task that has ended
        self.programs: dict[str, Program] = {}
        self.tasks: dict[str, te.SubmitTaskRequest] = {}
        self.cancelled: set[str] = set()  # tasks
        self.signals: list[int] = []
        self.blocked: dict[str, asyncio.Event] = {}  # methods that wait for the event
        self.changed = asyncio.Condition()
        # programs that are really run here once their input ends
        self.run_for_real: set[str] = set()
        self.executor_address = ""  # the address that GetExecutor returns, if set
        self.authority = "signed"  # the beginning of all tokens that the executor accepts
        self.tokens: list[bytes] = []  # shown in the calls about tasks
        self.interrupt_watches = False  # ends running WatchTask streams
        self.server: grpc.aio.Server | None = None

    # For tests.

    async def tell(
        self,
        allocation_id: str,
        state: Any,
        *,
        generation: int = 1,
        reason: str = "",
        count: int = 0,
        message: str = "",
    ) -> None:
        """Adds an event to the job's log."""
        event = rm.JobEvent(
            sequence=len(self.events) + 1, allocation_id=allocation_id, state=state, reason=reason
        )
        event.count = count
        event.message = "it uses more" if reason == "RESIZE_REFUSED" else message
        if state == GRANTED:
            event.slot.CopyFrom(self.slot(allocation_id, generation))
            event.token = self.token_of(allocation_id, generation)
        self.events.append(event)
        await self.wake()

    async def stop(self) -> None:
        """Stops serving, like a crash."""
        assert self.server is not None
        await self.server.stop(0)

    def served(self) -> AbstractAsyncContextManager[grpc.aio.Server]:
        return serving(self)

    def snapshot_of(
        self, allocation_id: str, state: Any, reason: str = "", count: int = 0, range_id: str = ""
    ) -> rm.RequestStatus:
        status = rm.RequestStatus(
            allocation_id=allocation_id, state=state, reason=reason, count=count, range_id=range_id
        )
        if state == GRANTED:
            status.slot.CopyFrom(self.slot(allocation_id, 1))
            status.token = self.token_of(allocation_id, 1)
        return status

    async def wake(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def slot(self, allocation_id: str, generation: int) -> slots_pb2.SlotStatus:
        """Returns the slot; it stays the same until its request is placed again."""
        known = self.sized.get(allocation_id)
        if known is not None and known.generation == generation:
            return known
        slot = self.sized[allocation_id] = slots_pb2.SlotStatus(
            allocation_id=allocation_id,
            generation=generation,
            executor_id="host-a",
            executor_address=self.tasks_address,
            state=slots_pb2.SLOT_STATE_ALLOCATED,
            memory_bytes=256 * 1024 * 1024,
            cpus="0-1",
        )
        slot.profile.cpu_milli = slot.cpu_limit_milli = 500
        slot.profile.task_heap_memory_bytes = 256 * 1024 * 1024
        slot.isolation.cpu = "quota"
        return slot

    async def end_program(self, name: str, **changes: Any) -> None:
        for key, value in changes.items():
            setattr(self.programs[name], key, value)
        self.programs[name].ends = True
        await self.wake()

    # The resource manager.

    async def RegisterJob(self, request: Any, context: Any) -> Any:
        await self._begin("RegisterJob", request, context)
        return rm.RegisterJobResponse(lease=None if request.detached else request.lease, rm_epoch=1)

    async def KeepAlive(self, request: Any, context: Any) -> Any:
        await self._begin("KeepAlive", request, context)
        return rm.KeepAliveResponse()

    async def EndJob(self, request: Any, context: Any) -> Any:
        await self._begin("EndJob", request, context)
        return rm.EndJobResponse()

    async def RequestResource(self, request: Any, context: Any) -> Any:
        await self._begin("RequestResource", request, context)
        answer = rm.RequestResourceResponse()
        for each in request.requests:
            result = answer.results.add(id=each.allocation_id)
            name = each.required_labels.get("name", "")
            if name in self.rejections:
                result.error.CopyFrom(item_error(self.rejections[name]))
            elif self.auto_grant:
                await self.tell(each.allocation_id, GRANTED)
        for each in request.ranges:
            result = answer.range_results.add(id=each.range_id)
            name = each.request.required_labels.get("name", "")
            if name in self.rejections:
                result.error.CopyFrom(item_error(self.rejections[name]))
            elif self.auto_grant and each.count <= 10:  # for larger ones, only what the test sets
                for index in range(each.first_index, each.first_index + each.count):
                    await self.tell(f"{each.range_id}.{index}", GRANTED)
        return answer

    async def CancelRequests(self, request: Any, context: Any) -> Any:
        await self._begin("CancelRequests", request, context)
        return rm.CancelRequestsResponse(
            results=[slots_pb2.ItemResult(id=each) for each in request.allocation_ids],
            range_results=[slots_pb2.ItemResult(id=each.range_id) for each in request.ranges],
        )

    async def ReleaseSlots(self, request: Any, context: Any) -> Any:
        await self._begin("ReleaseSlots", request, context)
        for each in request.slots:
            await self.tell(each.allocation_id, RELEASED)
        return rm.ReleaseSlotsResponse(
            results=[slots_pb2.ItemResult(id=each.allocation_id) for each in request.slots],
            range_results=[slots_pb2.ItemResult(id=each.range_id) for each in request.ranges],
        )

    async def ReuseSlots(self, request: Any, context: Any) -> Any:
        """Agrees, unless `others_first`."""
        await self._begin("ReuseSlots", request, context)
        answer = rm.ReuseSlotsResponse(
            range_results=[slots_pb2.ItemResult(id=each.range_id) for each in request.ranges]
        )
        for each in request.slots:
            result = answer.results.add(id=each.allocation_id)
            if self.others_first:
                result.error.reason, result.error.message = Reason.FAIR_SHARE, "others come first"
                await self.tell(each.allocation_id, RELEASED, reason=Reason.FAIR_SHARE)
            else:
                await self.tell(each.for_allocation_id, RELEASED, reason=Reason.REUSED)
        return answer

    async def ResizeSlot(self, request: Any, context: Any) -> Any:
        """Resizes a slot, for both services: the resize is durable at once and, with `auto_resize`,
        also executed at once.
        """
        await self._begin("ResizeSlot", request, context)
        slot = self.sized[request.allocation_id]
        if request.resize_number != slot.resize_number + 1:
            await _abort(context, FailedPrecondition("not the next", reason=Reason.STALE_RESIZE))
        slot.resize_number = request.resize_number
        del slot.resizes[:]
        size = request.profile, request.cpu_limit_milli or request.profile.cpu_milli
        if size != (slot.profile, slot.cpu_limit_milli):
            slot.resizes.add(
                resize_number=request.resize_number,
                profile=size[0],
                cpu_limit_milli=size[1],
                state=slots_pb2.SLOT_RESIZE_STATE_WAITING,
                message="no room",
            )
        if self.auto_resize and slot.resizes:
            await self.carry_out(request.allocation_id)
        kind: Any = rm.ResourceManagerServiceResizeSlotResponse
        if isinstance(request, cluster_pb2.ClusterServiceResizeSlotRequest):
            kind = cluster_pb2.ClusterServiceResizeSlotResponse
        return kind(slot=slot)

    async def carry_out(self, allocation_id: str) -> None:
        """Applies the waiting resize of a slot."""
        slot = self.sized[allocation_id]
        wish = slot.resizes.pop()
        slot.profile.CopyFrom(wish.profile)
        slot.cpu_limit_milli = wish.cpu_limit_milli
        await self.tell(allocation_id, GRANTED, generation=slot.generation, reason="RESIZED")

    async def refuse(self, allocation_id: str) -> None:
        """Refuses the waiting resize of a slot."""
        slot = self.sized[allocation_id]
        slot.resizes.pop()
        reason = "RESIZE_REFUSED"
        await self.tell(allocation_id, GRANTED, generation=slot.generation, reason=reason)

    async def WatchJob(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.live["WatchJob"] += 1
        try:
            await self._begin("WatchJob", request, context)
            left = self.break_watch_after.popleft() if self.break_watch_after else -1
            at = request.from_sequence
            if at == 0:
                at = len(self.events) + 1
                broken = self.break_snapshot_after.popleft() if self.break_snapshot_after else -1
                parts = [[each] for each in self.snapshot] or [[]]
                for number, part in enumerate(parts):
                    if number == broken:
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted break")
                    more = number < len(parts) - 1
                    yield rm.WatchJobResponse(
                        snapshot=rm.JobSnapshot(sequence=at - 1, requests=part, more=more)
                    )
            elif at < self.first_kept:
                await _abort(context, OutOfRange("no longer kept"))
            while True:
                while at <= len(self.events):
                    if left == 0:
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted break")
                    left -= 1
                    if at not in self.withheld:
                        yield rm.WatchJobResponse(events=[self.events[at - 1]])
                    at += 1
                async with self.changed:
                    if self.failures["WatchJob"]:
                        await _abort(context, self.failures["WatchJob"].popleft())
                    # B023: the wait is over before `at` changes.
                    await self.changed.wait_for(
                        lambda: at <= len(self.events) or self.failures["WatchJob"]  # noqa: B023
                    )
        finally:
            self.live["WatchJob"] -= 1

    def token_of(self, allocation_id: str, generation: int) -> bytes:
        return f"{self.authority}: {allocation_id} {generation}".encode()

    async def GetAllocationToken(self, request: Any, context: Any) -> Any:
        await self._begin("GetAllocationToken", request, context)
        token = self.token_of(request.allocation_id, request.generation)
        return rm.GetAllocationTokenResponse(token=token)

    async def Explain(self, request: Any, context: Any) -> Any:
        await self._begin("Explain", request, context)
        if self.explained is not None:
            return self.explained
        answer = rm.ExplainResponse(primary_reason="WAITING_CAPACITY", summary="no room")
        answer.request.allocation_id = request.allocation_id
        answer.request.state = PENDING
        answer.executors.add(executor_id="host-a", blockers=["INSUFFICIENT_CPU_MILLI"])
        return answer

    # The cluster.

    async def GetCluster(self, request: Any, context: Any) -> Any:
        await self._begin("GetCluster", request, context)
        return cluster_pb2.GetClusterResponse(
            available=resources_pb2.ResourceAmounts(cpu_milli=500), rm_epoch=1
        )

    async def ListRequests(self, request: Any, context: Any) -> Any:
        await self._begin("ListRequests", request, context)
        for each in self.snapshot:
            if each.HasField("slot"):
                each.slot.CopyFrom(self.sized[each.allocation_id])
        return cluster_pb2.ListRequestsResponse(
            requests=[
                each
                for each in self.ended + self.snapshot
                if each.allocation_id.startswith(tuple(request.allocation_ids))
                and (each.state in request.states or not request.states)
            ]
        )

    async def ListExecutors(self, request: Any, context: Any) -> Any:
        await self._begin("ListExecutors", request, context)
        page = int(request.page_token or 0)
        answer = cluster_pb2.ListExecutorsResponse(
            next_page_token=str(page + 1) if page < 2 else ""
        )
        answer.executors.add(
            executor_id=f"host-{page}",
            state=cluster_pb2.EXECUTOR_STATE_ACTIVE,
            total={"cpu_milli": 4000, "extended": {"license": 2}},
        )
        return answer

    async def GetExecutor(self, request: Any, context: Any) -> Any:
        await self._begin("GetExecutor", request, context)
        answer = cluster_pb2.GetExecutorResponse(slots=[self.slot("s-1", 1)])
        answer.executor.executor_id = request.executor_id
        answer.executor.address = self.executor_address or self.tasks_address
        answer.executor.state = cluster_pb2.EXECUTOR_STATE_ACTIVE
        answer.executor.report_time.FromJsonString("2026-01-02T03:04:05.600Z")
        answer.executor.topology.online_cpus = "0-3"
        answer.executor.topology.memory_bytes = 2**33
        return answer

    async def ListEvents(self, request: Any, context: Any) -> Any:
        await self._begin("ListEvents", request, context)
        first = request.from_sequence or 1
        if first > 3 and request.HasField("wait"):
            await asyncio.sleep(0.05)
        events = [cluster_pb2.ClusterEvent(sequence=n, kind="k") for n in range(first, 4)]
        for kind, message in self.cluster_events:
            events.append(cluster_pb2.ClusterEvent(sequence=4, kind=kind, message=message))
        return cluster_pb2.ListEventsResponse(events=events, next_sequence=max(first, 4))

    async def ReleaseAllocations(self, request: Any, context: Any) -> Any:
        await self._begin("ReleaseAllocations", request, context)
        return cluster_pb2.ReleaseAllocationsResponse(
            results=[slots_pb2.ItemResult(id=each) for each in request.allocation_ids]
        )

    async def AdviseThreads(self, request: Any, context: Any) -> Any:
        await self._begin("AdviseThreads", request, context)
        answer = cluster_pb2.AdviseThreadsResponse(
            threads_recommended=530,
            threads_observed=190,
            threads_running=10,
            share_within_target=0.35,
            target=request.target,
            quantile=request.quantile or 0.95,
            remarks=["35 % of the finished threads met 2m00s"],
        )
        answer.median.FromMilliseconds(141_300)
        answer.at_quantile.FromMilliseconds(314_678)
        answer.longest.FromMilliseconds(469_398)
        return answer

    async def ListGroups(self, request: Any, context: Any) -> Any:
        await self._begin("ListGroups", request, context)
        answer = cluster_pb2.ListGroupsResponse(service_measure="dominant")
        answer.half_life.FromSeconds(900)
        group = answer.groups.add(name="medium", weight=4.0, share_entitled=0.8, share_now=0.75)
        group.maximum["cpu_milli"] = 0
        group.used.extended["license"] = 2
        group.oldest_wait_time.FromJsonString("2026-01-02T03:04:05Z")
        answer.groups.add(name="nightly", parent="medium", weight=0.5, running=3, waiting=7, jobs=1)
        return answer

    async def SetGroup(self, request: Any, context: Any) -> Any:
        await self._begin("SetGroup", request, context)
        group = cluster_pb2.GroupStatus(name=request.name, weight=request.weight or 1.0)
        group.maximum.update(request.maximum)
        return cluster_pb2.SetGroupResponse(group=group)

    async def ChangeGroupRules(self, request: Any, context: Any) -> Any:
        await self._begin("ChangeGroupRules", request, context)
        group = cluster_pb2.GroupStatus(name=request.name, rules=request.add)
        return cluster_pb2.ChangeGroupRulesResponse(group=group)

    async def ChangeGroupUsers(self, request: Any, context: Any) -> Any:
        await self._begin("ChangeGroupUsers", request, context)
        group = cluster_pb2.GroupStatus(name=request.name, users=request.allow)
        return cluster_pb2.ChangeGroupUsersResponse(group=group)

    async def ListUsers(self, request: Any, context: Any) -> Any:
        await self._begin("ListUsers", request, context)
        user = cluster_pb2.UserStatus(user="user/alice", slots=2, jobs=1, requests=3)
        user.used.cpu_milli = 500
        return cluster_pb2.ListUsersResponse(users=[user])

    async def SetUserLimits(self, request: Any, context: Any) -> Any:
        await self._begin("SetUserLimits", request, context)
        user = cluster_pb2.UserStatus(user=request.user, own_limits=True)
        user.maximum.update(request.maximum)
        return cluster_pb2.SetUserLimitsResponse(user=user)

    async def DeleteUserLimits(self, request: Any, context: Any) -> Any:
        await self._begin("DeleteUserLimits", request, context)
        return cluster_pb2.DeleteUserLimitsResponse()

    async def DeleteGroup(self, request: Any, context: Any) -> Any:
        await self._begin("DeleteGroup", request, context)
        return cluster_pb2.DeleteGroupResponse()

    async def GetHostPolicy(self, request: Any, context: Any) -> Any:
        await self._begin("GetHostPolicy", request, context)
        answer = cluster_pb2.GetHostPolicyResponse(number=4, followed_number=3)
        answer.set.numa_strategy = cpus_pb2.NUMA_STRATEGY_MOST_ALLOCATED
        answer.set.reserved_cpus = "0"
        answer.effective.policy.CopyFrom(answer.set)
        answer.effective.policy.bind = cpus_pb2.HOST_BIND_POLICY_FULL_PCPUS_ONLY
        answer.effective.strictly_reserved_cpus = "0"
        answer.effective.origins.update({"numa_strategy": "operator", "bind": "kubelet"})
        return answer

    async def SetHostPolicy(self, request: Any, context: Any) -> Any:
        await self._begin("SetHostPolicy", request, context)
        answer = cluster_pb2.SetHostPolicyResponse(set=request.policy, number=5)
        answer.effective.policy.CopyFrom(request.policy)
        return answer

    async def ListProviders(self, request: Any, context: Any) -> Any:
        await self._begin("ListProviders", request, context)
        answer = cluster_pb2.ListProvidersResponse(unplanned=["2 requests: maximum reached"])
        answer.shapes.add(name="small", provider="process", cost=1.5, executors={"started": 1})
        answer.shapes[0].total.cpu_milli = 4000
        answer.shapes[0].backoff_until_time.FromJsonString("2026-01-02T03:04:05Z")
        answer.maximum.cpu_milli = 64_000
        answer.idle_timeout.FromSeconds(60)
        answer.executors.add(
            executor_id="small-1-1",
            shape="small",
            state=cluster_pb2.PROVIDED_EXECUTOR_STATE_STARTED,
            planned=["3 of 0.5 cpu"],
            planned_requests=3,
        )
        return answer

    # The executor.

    async def SubmitTask(self, request: Any, context: Any) -> Any:
        await self._begin("SubmitTask", request, context)
        self.tasks[request.task_id] = request
        if request.spec.argv[0] in self.run_for_real:
            self.programs[request.task_id] = Program(ends=False)
        answer = te.SubmitTaskResponse(task=self._status(request.task_id))
        if self.waits and request.HasField("wait") and self._is_over(request.task_id):
            program = self.programs[self._name(request.task_id)]
            for number, data in ((1, program.stdout), (2, program.stderr)):
                answer.output.add(stream=number, data=data)
            answer.complete = True
        return answer

    async def ListTasks(self, request: Any, context: Any) -> Any:
        await self._begin("ListTasks", request, context)
        return te.ListTasksResponse(tasks=map(self._status, self.tasks))

    async def CancelTask(self, request: Any, context: Any) -> Any:
        await self._begin("CancelTask", request, context)
        if request.task_id not in self.tasks:
            await _abort(context, NotFound("no such task", reason=Reason.TASK_UNKNOWN))
        self.cancelled.add(request.task_id)  # only this task, as an executor does
        await self.wake()
        return te.CancelTaskResponse()

    async def SignalTask(self, request: Any, context: Any) -> Any:
        await self._begin("SignalTask", request, context)
        self.signals.append(request.signal)
        return te.SignalTaskResponse()

    async def WriteTaskInput(self, requests: Any, context: Any) -> Any:
        await self._check_token(context)
        program = None
        async for each in requests:
            self.calls["WriteTaskInput"].append(each)
            program = program or self.programs[self._name(each.task_id)]
            if self.failures["WriteTaskInput"] and each.offset > 4:
                await _abort(context, self.failures["WriteTaskInput"].popleft())
            program.read += each.data[max(0, len(program.read) - each.offset) :]
            program.eof = program.eof or each.eof
            if program.eof and self._name(each.task_id) == each.task_id:
                argv = self.tasks[each.task_id].spec.argv
                ran = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE)
                program.stdout, _ = await ran.communicate(bytes(program.read))
                program.exit_code, program.ends = ran.returncode or 0, True
        assert program is not None
        await self.wake()
        return te.WriteTaskInputResponse(accepted_bytes=len(program.read))

    async def WatchTask(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.live["WatchTask"] += 1
        try:
            await self._begin("WatchTask", request, context)
            program = self.programs[self._name(request.task_id)]
            left = self.break_output_after.popleft() if self.break_output_after else -1
            yield te.WatchTaskResponse(task=self._status(request.task_id))
            if self._name(request.task_id) == request.task_id:
                async with self.changed:
                    await self.changed.wait_for(lambda: self._is_over(request.task_id))
            ends = {1: request.stdout_offset, 2: request.stderr_offset}
            while not request.no_output:
                chunks = [
                    te.OutputChunk(
                        stream=n, offset=ends[n], data=data[ends[n] :][: self.chunk_bytes]
                    )
                    for n, data in ((1, program.stdout), (2, program.stderr))
                    if ends[n] < len(data)
                ]
                if not chunks:
                    break
                for chunk in chunks:
                    if left == 0:
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted break")
                    left -= 1
                    ends[chunk.stream] += len(chunk.data)
                    yield te.WatchTaskResponse(output=chunk)
            async with self.changed:
                await self.changed.wait_for(
                    lambda: self._is_over(request.task_id) or self.interrupt_watches
                )
            if self.interrupt_watches:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "interrupted")
            yield te.WatchTaskResponse(task=self._status(request.task_id))
        finally:
            self.live["WatchTask"] -= 1

    def _name(self, task_id: str) -> str:
        name: str = self.tasks[task_id].spec.argv[0]
        return task_id if name in self.run_for_real else name

    def _is_over(self, task_id: str) -> bool:
        return task_id in self.cancelled or self.programs[self._name(task_id)].ends

    def _status(self, task_id: str) -> te.TaskStatus:
        submitted, program = self.tasks[task_id], self.programs[self._name(task_id)]
        status = te.TaskStatus(
            task_id=task_id,
            allocation_id=submitted.allocation_id,
            generation=submitted.generation,
            state=te.TASK_STATE_RUNNING,
            pid=42,
            argv=submitted.spec.argv,
        )
        if program.error_reason:
            status.state = te.TASK_STATE_FAILED
            status.error.reason = program.error_reason
        elif self._is_over(task_id):
            status.state = te.TASK_STATE_EXITED
            status.exit.exit_code = program.exit_code
            status.exit.end_reason = program.end_reason
            status.exit.end_message = program.end_message
            status.exit.cancelled = program.cancelled or task_id in self.cancelled
            status.exit.cpu_time_us = 1_500_000
            status.exit.stdout_bytes = len(program.stdout)
            status.exit.stderr_bytes = len(program.stderr)
        return status

    async def _check_token(self, context: Any) -> None:
        shown = dict(context.invocation_metadata()).get(TOKEN_KEY, b"")
        self.tokens.append(shown)
        if not shown.startswith(self.authority.encode()):
            await _abort(context, PermissionDenied("wrong", reason=Reason.TOKEN_REFUSED))

    async def _begin(self, method: str, request: Any, context: Any) -> None:
        self.calls[method].append(request)
        if f"/finegrain.v1.TaskExecutorService/{method}" in TASK_EXECUTOR_ACCESS and hasattr(
            request, "task_id"
        ):
            await self._check_token(context)
        (caller,) = context.auth_context()["peer_spiffe_id"]
        self.callers[method].append(caller.decode())
        if self.failures[method]:
            await _abort(context, self.failures[method].popleft())
        if method in self.blocked:
            self.live[method] += 1
            try:
                await self.blocked[method].wait()
            finally:
                self.live[method] -= 1


async def _abort(context: Any, error: FinegrainError) -> None:
    code, message, trailing = status_of(error)
    await context.abort(code, message, trailing)


@asynccontextmanager
async def serving(
    servant: Scripted, address: str = "127.0.0.1:0"
) -> AsyncIterator[grpc.aio.Server]:
    """Serves until the end of the block.

    The resource manager is at `servant.address`, and its executor host-a at
    `servant.tasks_address`.
    """
    server = grpc.aio.server(options=SERVER_OPTIONS)
    service: Any = servant  # all services in one object
    resource_manager_pb2_grpc.add_ResourceManagerServiceServicer_to_server(service, server)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(service, server)
    task_executor_pb2_grpc.add_TaskExecutorServiceServicer_to_server(service, server)
    for_manager = own("rm").server_credentials()
    for_executor = own("executor/host-a").server_credentials()
    servant.address = f"127.0.0.1:{server.add_secure_port(address, for_manager)}"
    servant.tasks_address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', for_executor)}"
    await server.start()
    servant.server = server
    try:
        yield server
    finally:
        await server.stop(0)


JOB_ENDED = FailedPrecondition("the lease is over", reason=Reason.JOB_ENDED)
