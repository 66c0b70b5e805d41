"""Implements the handle of one slot: its resources, tasks, resizes, reuse and release."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Mapping, Sequence
from typing import Literal

from finegrain.cpu_assignment import CpuAssignment
from finegrain.errors import FinegrainError
from finegrain.ids import new_id
from finegrain.resources import ResourceProfile
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import task_executor_pb2 as te
from finegrain.values.isolation import Isolation
from finegrain.values.outcomes import ThreadReport
from finegrain.values.states import ThreadEnd
from finegrain_client.decoding import read
from finegrain_client.durations import grace
from finegrain_client.errors import JobEnded, SlotLost, StillResizing
from finegrain_client.internal import internal
from finegrain_client.slot.at_executor import SlotAtExecutor
from finegrain_client.slot.resizing import SizeChange, parking_change
from finegrain_client.slot.reusing import Reusable, reuse, thread_end_number
from finegrain_client.slot.size import SlotSize
from finegrain_client.slot.task import OutputMode, Task, TaskOptions, start_task
from finegrain_client.types.status import SlotStatus, TaskStatus


class Slot(SlotAtExecutor):
    """Resources on one executor that belong to the job until `release`.

    A slot can be used in `async with`, which releases the slot at the end.
    """

    def __repr__(self) -> str:
        ended = " ended" if self.has_ended else ""
        return f"<Slot {self.allocation_id} #{self.generation} on {self.executor_id}{ended}>"

    async def __aenter__(self) -> Slot:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.release()

    @property
    def profile(self) -> ResourceProfile:
        """The current resources of the slot. `status.resizes` has the pending changes."""
        return self.status.profile

    @property
    def memory_bytes(self) -> int:
        """Memory limit of the slot."""
        return self.status.memory_bytes

    @property
    def cpus(self) -> str:
        """The cpus of the slot, as a cpu list; an empty value means the executor's shared pool."""
        return self.status.cpus

    @property
    def assignment(self) -> CpuAssignment | None:
        """QoS class, dedicated cpus, NUMA nodes and pools of the slot.

        The value is None if the slot has class LS and runs in the whole shared pool.
        """
        return self.status.assignment

    @property
    def isolation(self) -> Isolation | None:
        """How the executor enforces the limits of the slot; None if the executor has not reported
        it.
        """
        return self.status.isolation

    @property
    def ports(self) -> tuple[int, ...]:
        """The network ports that belong to the slot."""
        return self.isolation.ports if self.isolation is not None else ()

    async def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        timeout_s: float | None = None,
        stdin: bytes | AsyncIterable[bytes] | Literal["pipe"] | None = None,
        output: OutputMode = "capture",
        output_limit_bytes: int = 0,
        hold_output: bool = False,
        task_id: str = "",
        cancel_on_interrupt: bool = True,
        wait_s: float = 0.0,
    ) -> Task:
        """Starts a command in the slot. Returns when the executor has accepted the command.

        Args:
            argv: program and arguments. The executor starts the program without a shell.
            env: the whole environment of the task. The executor adds PATH and HOME if they are
                absent, FINEGRAIN_ variables, and variables about devices of the slot.
            cwd: absolute path of the working directory; an empty value means a scratch directory of
                the task.
            user: user that the task runs as; an empty value means the executor's default.
            timeout_s: after this time in seconds, the executor ends the task; None means that there
                is no limit.
            stdin: bytes or chunks of bytes, or "pipe" for `Task.write_input`; None means /dev/null.
            output: where the output goes. With "capture", the result contains the output. With
                "stream", the caller reads `Task.output`. A function (plain or async) is called with
                every `OutputChunk`.
            output_limit_bytes: bytes per stream that the executor keeps on disk, at most the
                executor's own limit; 0 means the executor's limit. If there is more output, the
                executor keeps the first and the last part.
            hold_output: if true, no output is lost: when the output that `output` has not processed
                reaches `output_limit_bytes`, the task waits. `output` must be a function. If this
                process has no connection to the executor for 60 s, the executor drops output again.
            task_id: id of the task; an empty value means that the client generates an id.
            cancel_on_interrupt: if true, cancelling this call also cancels the task. If false, an
                accepted task continues, and a call with the same `task_id` returns its handle.
            wait_s: the call returns when the task has ended, or after this time in seconds, at most
                1. For a task that ends within this time, this saves a call to the executor.

        Raises:
            TaskNotStarted: the command cannot be executed. `reason` says why.
            SlotLost: the slot has ended.
            FinegrainError: the executor refused the call, or could not be reached.
        """
        options = TaskOptions(
            argv=tuple(os.fspath(each) for each in argv),
            env=dict(env or {}),
            cwd=cwd,
            user=user,
            timeout_s=timeout_s,
            stdin=stdin,
            output=output,
            output_limit_bytes=output_limit_bytes,
            hold_output=hold_output,
            wait_s=wait_s,
        )
        return await start_task(
            self,
            self._context,
            task_id or new_id(),
            options,
            cancel_on_interrupt=cancel_on_interrupt,
        )

    async def tasks(self) -> list[TaskStatus]:
        """Returns the tasks of the slot that its executor knows, in order of submission.

        A job master that has attached to its job again finds its tasks with this method. To wait
        for a task, the job master calls `run` with the same arguments and the `task_id`. This call
        does not start the task twice.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the executor could not be reached.
        """
        message = te.ListTasksRequest(job_id=self.status.job_id)
        answer = await self.call(
            lambda executor, timeout_s: executor.ListTasks(message, timeout=timeout_s)
        )
        of_slot = (self.allocation_id, self.generation)
        found = read.each(TaskStatus, answer.tasks)
        return [each for each in found if (each.allocation_id, each.generation) == of_slot]

    async def release(
        self, grace_s: float | None = None, *, thread_end: ThreadEnd | None = None
    ) -> None:
        """Releases the slot. It is not an error to release a slot twice, after it was lost, or
        after its job has ended.

        Args:
            grace_s: time in seconds between SIGTERM and SIGKILL for tasks that still run; None
                means the executor's default.
            thread_end: FINISHED if a thread of work has its result, UNFINISHED if it will run again
                elsewhere. `Cluster.advise` counts only finished threads. None: the slot counts as a
                thread, and the advice says that it could not be matched to a thread.

        Raises:
            FinegrainError: the call to the resource manager failed. The slot is then released when
                the job ends.
        """
        if self.has_ended:
            return
        message = rm.ReleaseSlotsRequest(
            job_id=self._context.job_id,
            slots=[
                rm.SlotRelease(
                    allocation_id=self.allocation_id,
                    generation=self.generation,
                    thread_end=thread_end_number(ThreadReport(thread_end)),
                )
            ],
            grace=grace(grace_s),
        )
        try:
            await self._context.call_manager(
                lambda manager, timeout_s: manager.ReleaseSlots(message, timeout=timeout_s)
            )
        except JobEnded:
            return  # the slot has ended with its job, and the watch stream reports this
        # Mark the slot after the call: the slot exists until the call has succeeded.
        self.mark_released()

    async def reuse_for(
        self,
        request: Reusable | str,
        grace_s: float | None = None,
        *,
        thread_end: ThreadEnd | None = None,
    ) -> bool:
        """Reuses this finished slot for a waiting request; see `Job.reuse`.

        Args:
            request: a request of the same job for the resources of this slot, or the request's
                allocation id.
            grace_s: see `release`.
            thread_end: see `release`.

        Returns:
            True if the slot is reused; False if the slot was released and the request stays queued.

        Raises:
            FinegrainError: the call to the resource manager failed.
        """
        reports = {self.allocation_id: ThreadReport(thread_end)}
        outcomes = await reuse(self._context, [(self, request)], grace_s, reports)
        return outcomes[0].ok

    async def resize(
        self,
        *,
        cpu_milli: int | None = None,
        memory_bytes: int | None = None,
        task_off_heap_memory_bytes: int | None = None,
        managed_memory_bytes: int | None = None,
        network_memory_bytes: int | None = None,
        extended: Mapping[str, int] | None = None,
        devices: Mapping[str, int] | None = None,
        cpu_limit_milli: int | None = None,
        wait_for_use: bool = False,
        timeout_s: float | None = None,
    ) -> SlotStatus:
        """Changes the resources of the slot while its tasks continue to run, and waits until the
        change is done.

        An amount that is not given keeps its value, or gets the value of a pending change.
        `SizeChange` describes the amounts. Growth is queued until the slot's executor has free
        capacity. If the wait is cancelled or times out, the change stays pending. `withdraw_resize`
        withdraws the change.

        Args:
            wait_for_use: what the executor does if the slot uses more memory than its new size. If
                true, the executor waits until the slot uses less. If false, the executor refuses
                the change.
            timeout_s: longest time to wait in seconds; None means no limit.

        Raises:
            ResizeRefused: the slot uses more memory than its new size, or another change replaced
                this change.
            FailedPrecondition: INFEASIBLE_NEVER: the new size is more than the executor has in
                total.
            StillResizing: (a TimeoutError) the change was not done within `timeout_s`.
            SlotLost: the slot has ended.
            InvalidArgument: no amount is given, an amount is out of range, or `devices` names
                devices that the slot does not have.
            FinegrainError: the call to the resource manager failed.
        """
        change = SizeChange(
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            task_off_heap_memory_bytes=task_off_heap_memory_bytes,
            managed_memory_bytes=managed_memory_bytes,
            network_memory_bytes=network_memory_bytes,
            extended=extended,
            devices=devices,
            cpu_limit_milli=cpu_limit_milli,
        )
        return await self._change(change, wait_for_use=wait_for_use, timeout_s=timeout_s)

    async def park(self, *, timeout_s: float | None = None) -> SlotStatus:
        """Frees the GPUs of the slot, and keeps its processes. Returns when the GPUs are free.

        The contents of the GPUs' memory move to the slot's main memory. CUDA calls of the processes
        block, and the slot accepts no tasks, until the slot has GPUs again. The executor must be
        configured to park slots.

        Args:
            timeout_s: longest time to wait in seconds; None means no limit.

        Raises:
            ResizeRefused: the executor failed to park the slot, or another change replaced this
                change.
            FailedPrecondition: PARK_FAILED: the executor does not park slots on these GPUs.
            InvalidArgument: the slot has no GPUs.
            StillResizing, SlotLost, FinegrainError: see `resize`.
        """
        change = await parking_change(self._context.connection, self.allocation_id, park=True)
        return await self._change(change, wait_for_use=False, timeout_s=timeout_s)

    async def unpark(self, *, timeout_s: float | None = None) -> SlotStatus:
        """Gives the slot GPUs again, after `park`. Returns when the slot's processes can use the
        GPUs.

        The change is queued until GPUs are free. `withdraw_resize` withdraws the change.

        Args:
            timeout_s: longest time to wait in seconds; None means no limit.

        Raises:
            ResizeRefused: another change replaced this change.
            InvalidArgument: the slot has no GPUs.
            StillResizing, SlotLost, FinegrainError: see `resize`.
        """
        change = await parking_change(self._context.connection, self.allocation_id, park=False)
        return await self._change(change, wait_for_use=False, timeout_s=timeout_s)

    async def _change(
        self, change: SizeChange, *, wait_for_use: bool, timeout_s: float | None
    ) -> SlotStatus:
        if self.error is not None:
            raise self.error
        try:
            async with asyncio.timeout(timeout_s):
                return await self.guard(self._size.change(change, wait_for_use=wait_for_use))
        except FinegrainError:
            raise
        except TimeoutError:
            waiting = "; ".join(each.message for each in self.status.resizes if each.message)
            raise StillResizing(self.allocation_id, timeout_s or 0, waiting) from None

    async def withdraw_resize(self) -> SlotStatus:
        """Withdraws all pending changes.

        If the executor is already carrying out a change, the executor then resizes the slot back to
        the old size.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the call to the resource manager failed.
        """
        return await self.guard(self._size.withdraw())

    # The members below are for the request and the tasks of the slot.

    @property
    @internal
    def size(self) -> SlotSize:
        """The size of the slot and its pending changes."""
        return self._size

    @internal
    def mark_released(self) -> None:
        """Records that the slot was released.

        Callers that wait for tasks of the slot still get the results when the tasks have ended.
        """
        self.end(
            SlotLost(self.allocation_id, self.generation, self.executor_id, "", "it was released"),
            at_once=False,
        )
