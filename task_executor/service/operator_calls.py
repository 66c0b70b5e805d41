"""Serves the calls that register operators of job graphs, and the call that changes the peers of a
task. Job masters and tasks make these calls.
"""

from __future__ import annotations

from dataclasses import replace

from finegrain.errors import FailedPrecondition, InvalidArgument, Reason, Unavailable
from finegrain.ids import check_id
from finegrain.rpc.allocation_tokens import ShownToken
from finegrain.v1 import task_executor_pb2
from finegrain.values.operators import TaskOperator
from task_executor.engine.managed_memory import Quota
from task_executor.engine.slots import SlotKey
from task_executor.service.messages import check_generation
from task_executor.service.operator_requests import peers_of
from task_executor.service.slot_keeper import SlotKeeper
from task_executor.service.task_runner import TaskRunner
from task_executor.service.task_table import Task


class OperatorCalls:
    """Serves the calls about operators.

    Args:
        keeper: the slots of this executor, with their operators.
        runner: the runner of tasks, which stores tasks.
    """

    def __init__(self, keeper: SlotKeeper, runner: TaskRunner) -> None:
        self._keeper = keeper
        self._runner = runner

    async def register(
        self, request: task_executor_pb2.RegisterManagedMemoryRequest, shown: ShownToken
    ) -> task_executor_pb2.RegisterManagedMemoryResponse:
        """Registers an operator for a task, or for a slot.

        Raises:
            InvalidArgument: a field is not valid, or the task does not run in the slot.
            NotFound, PermissionDenied, FailedPrecondition: see `TaskRunner.slot_of`.
            AlreadyExists, FailedPrecondition: see `Operators.register`.
            Unavailable: the operator could not be stored.
        """
        key = SlotKey(
            check_id("allocation_id", request.allocation_id),
            check_generation(request.generation, "generation"),
        )
        operator_id = check_id("operator_id", request.operator_id)
        self._runner.slot_of(key, shown)
        if request.task_id:
            task = self._runner.need(request.task_id, shown)
            if task.key != key:
                expected = f"a task of slot {key.allocation_id} generation {key.generation}"
                raise InvalidArgument("task_id", request.task_id, expected)
            quota = await self.register_in_task(task, operator_id, request.fraction)
        else:
            quota = self._keeper.operators.register(key, operator_id, request.fraction)
            try:
                await self._keeper.save()
            except OSError as error:
                raise Unavailable(
                    f"the operator could not be recorded in {self._keeper.directory.path}: "
                    f"{error.strerror}; free some space there and try again",
                    reason=Reason.DISK_FULL,
                ) from None
        return task_executor_pb2.RegisterManagedMemoryResponse(
            memory_bytes=quota.memory_bytes,
            pages=quota.pages,
            page_bytes=self._keeper.operators.page_bytes,
        )

    async def register_in_task(self, task: Task, operator_id: str, fraction: str) -> Quota:
        """Registers an operator for a task, durably. Returns the operator's quota.

        Raises:
            AlreadyExists, FailedPrecondition, InvalidArgument: see `Operators.register`.
                FailedPrecondition also means that the task has ended.
            Unavailable: the task is still being started, or the operator could not be stored. The
                caller can safely repeat the call.
        """
        await self._runner.await_start(task)
        async with self._keeper.operators.storing:
            _check_runs(task)
            quota = self._keeper.operators.register(task.key, operator_id, fraction, task.task_id)
            given = task.operator_task.operators if task.operator_task else ()
            if operator_id not in (each.operator_id for each in (*given, *task.registered)):
                task.registered += (TaskOperator(operator_id, fraction),)
                self._keeper.operators.refresh_task(task)
            # Store the task even if the operator is already registered: an earlier call has
            # possibly failed at this point.
            await self._runner.store(task)
            return quota

    async def set_peers(
        self, request: task_executor_pb2.SetTaskPeersRequest, shown: ShownToken
    ) -> None:
        """Replaces the peers of a task.

        Raises:
            InvalidArgument: a field is not valid.
            NotFound, PermissionDenied: see `TaskRunner.need`.
            FailedPrecondition: the task has ended, or runs no operators.
            Unavailable: the task is still being started, or the peers could not be stored. The
                caller can safely repeat the call.
        """
        task = self._runner.need(request.task_id, shown)
        peers = peers_of(request.peers)
        await self._runner.await_start(task)
        async with self._keeper.operators.storing:
            _check_runs(task)
            if task.operator_task is None:
                raise FailedPrecondition(
                    f"task {task.task_id} was submitted without operator_task, so it has no peers",
                    details={"task_id": task.task_id},
                )
            task.operator_task = replace(task.operator_task, peers=peers)
            await self._runner.store(task)
        self._keeper.operators.on_change(task.key)


def _check_runs(task: Task) -> None:
    if task.has_ended:
        raise FailedPrecondition(
            f"task {task.task_id} has ended",
            reason=Reason.TASK_ENDED,
            details={"task_id": task.task_id},
        )
