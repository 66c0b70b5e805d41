"""Implements TaskExecutorService: passes each call to the part that handles the call.

Before a call arrives here, the server (finegrain/rpc/server.py) checks the caller and the size of
the call. The server converts the errors that this module raises into gRPC statuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from finegrain.ids import check_id
from finegrain.rpc.allocation_tokens import ShownToken, TokenChecker
from finegrain.rpc.server import current_caller
from finegrain.rpc.wire import duration_ms_from_proto
from finegrain.v1 import task_executor_pb2, task_executor_pb2_grpc
from finegrain.values.bounds import GRACE_MS_MAX
from task_executor.service.commands import CommandRunner
from task_executor.service.encoding import write
from task_executor.service.operator_calls import OperatorCalls
from task_executor.service.task_requests import check_holder, check_output_offset, wait_of
from task_executor.service.task_runner import TaskRunner
from task_executor.service.task_watch import keep_holding, short_output, watch_task


class ExecutorService(task_executor_pb2_grpc.TaskExecutorServiceServicer):
    """The gRPC service of one executor."""

    def __init__(
        self,
        commands: CommandRunner,
        tasks: TaskRunner,
        operators: OperatorCalls,
        tokens: TokenChecker,
    ) -> None:
        self._tokens = tokens
        self._commands = commands
        self._tasks = tasks
        self._operators = operators

    async def AllocateSlots(
        self, request: task_executor_pb2.AllocateSlotsRequest, _context: Any
    ) -> task_executor_pb2.AllocateSlotsResponse:
        return await self._commands.allocate(request)

    async def FreeSlots(
        self, request: task_executor_pb2.FreeSlotsRequest, _context: Any
    ) -> task_executor_pb2.FreeSlotsResponse:
        return await self._commands.free(request)

    async def ResizeSlot(
        self, request: task_executor_pb2.TaskExecutorServiceResizeSlotRequest, _context: Any
    ) -> task_executor_pb2.TaskExecutorServiceResizeSlotResponse:
        return await self._commands.resize(request)

    async def SubmitTask(
        self, request: task_executor_pb2.SubmitTaskRequest, context: Any
    ) -> task_executor_pb2.SubmitTaskResponse:
        wait_ms = wait_of(request)
        task = await self._tasks.submit(request, self._shown(context))
        output = None if wait_ms is None else await short_output(task, wait_ms)
        return task_executor_pb2.SubmitTaskResponse(
            task=write(task_executor_pb2.TaskStatus, task),
            output=output,
            complete=output is not None,
        )

    async def CancelTask(
        self, request: task_executor_pb2.CancelTaskRequest, context: Any
    ) -> task_executor_pb2.CancelTaskResponse:
        task = self._tasks.need(request.task_id, self._shown(context), operators=True)
        grace_ms = None
        if request.HasField("grace"):
            grace_ms = duration_ms_from_proto(request.grace, "grace", largest_ms=GRACE_MS_MAX)
        await self._tasks.cancel(task, grace_ms)
        caller = current_caller()
        # The calls of an owner for its own tasks are not in the audit log.
        if not caller.owns(task.owner):
            changed = f"task {task.task_id} of job {task.job_id}"
            self._tasks.note_admin_call(caller.name, "CancelTask", changed)
        return task_executor_pb2.CancelTaskResponse()

    async def SignalTask(
        self, request: task_executor_pb2.SignalTaskRequest, context: Any
    ) -> task_executor_pb2.SignalTaskResponse:
        task = self._tasks.need(request.task_id, self._shown(context))
        await self._tasks.signal(task, request.signal)
        return task_executor_pb2.SignalTaskResponse()

    async def WriteTaskInput(
        self, requests: AsyncIterator[task_executor_pb2.WriteTaskInputRequest], context: Any
    ) -> task_executor_pb2.WriteTaskInputResponse:
        accepted = await self._tasks.write_input(requests, self._shown(context))
        return task_executor_pb2.WriteTaskInputResponse(accepted_bytes=accepted)

    async def WatchTask(
        self, request: task_executor_pb2.WatchTaskRequest, context: Any
    ) -> AsyncIterator[task_executor_pb2.WatchTaskResponse]:
        holder = check_holder("holder", request.holder)
        # A holder can make the task wait, so only the task's owner may be the holder.
        task = self._tasks.need(
            request.task_id, self._shown(context), operators=not holder, reads=not holder
        )
        if holder:
            hold = partial(self._tasks.hold_output, task, holder)
            renewals = await keep_holding(task, request, hold)
            # The end of the call ends the hold, even if this generator is not closed at once.
            context.add_done_callback(lambda _: renewals.cancel())
        async for message in watch_task(task, request):
            yield message

    async def AcknowledgeOutput(
        self, request: task_executor_pb2.AcknowledgeOutputRequest, context: Any
    ) -> task_executor_pb2.AcknowledgeOutputResponse:
        task = self._tasks.need(request.task_id, self._shown(context))
        limit_bytes = await self._tasks.hold_output(
            task,
            check_id("holder", request.holder),
            check_output_offset("stdout_offset", request.stdout_offset),
            check_output_offset("stderr_offset", request.stderr_offset),
        )
        return task_executor_pb2.AcknowledgeOutputResponse(limit_bytes=limit_bytes)

    async def ListTasks(
        self, request: task_executor_pb2.ListTasksRequest, context: Any
    ) -> task_executor_pb2.ListTasksResponse:
        tasks = self._tasks.of_job(request.job_id, self._shown(context))
        return task_executor_pb2.ListTasksResponse(
            tasks=[write(task_executor_pb2.TaskStatus, task) for task in tasks]
        )

    async def RegisterManagedMemory(
        self, request: task_executor_pb2.RegisterManagedMemoryRequest, context: Any
    ) -> task_executor_pb2.RegisterManagedMemoryResponse:
        return await self._operators.register(request, self._shown(context))

    async def SetTaskPeers(
        self, request: task_executor_pb2.SetTaskPeersRequest, context: Any
    ) -> task_executor_pb2.SetTaskPeersResponse:
        await self._operators.set_peers(request, self._shown(context))
        return task_executor_pb2.SetTaskPeersResponse()

    def _shown(self, context: Any) -> ShownToken:
        """Returns the caller of a call with the rights that its token gives."""
        return self._tokens.shown(current_caller(), context.invocation_metadata())
