"""One slot as its job master holds it: where it is, what is enforced, tasks, the way back.

Decides what a task's call means once the slot is gone. Refuses to know how slots come about.
"""

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
from finegrain.values.isolation import Isolation
from finegrain_client.durations import duration
from finegrain_client.errors import SlotLost, StillResizing
from finegrain_client.internal import internal
from finegrain_client.slot.at_executor import SlotAtExecutor
from finegrain_client.slot.resizing import SizeChange
from finegrain_client.slot.reusing import Reusable, reuse
from finegrain_client.slot.size import SlotSize
from finegrain_client.slot.task import OutputMode, Task, TaskOptions, start_task
from finegrain_client.types.status import SlotStatus


class Slot(SlotAtExecutor):
    """Resources that exist for us on one executor until `release`.

    Usable as an async context manager that releases the slot at its end.
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
        """What it consists of now; `status.resizes` says what it is becoming."""
        return self.status.profile

    @property
    def memory_bytes(self) -> int:
        """Its memory limit."""
        return self.status.memory_bytes

    @property
    def cpus(self) -> str:
        """The cpus it may run on, as a cpu list; empty: the executor's shared pool."""
        return self.status.cpus

    @property
    def assignment(self) -> CpuAssignment | None:
        """Its class, own cpus, NUMA nodes and pools; None: an LS slot in the whole shared pool."""
        return self.status.assignment

    @property
    def isolation(self) -> Isolation | None:
        """What is really enforced; None where the executor did not say."""
        return self.status.isolation

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
        task_id: str = "",
        cancel_on_interrupt: bool = True,
    ) -> Task:
        """Starts a command in the slot; returns when the executor has accepted it.

        Args:
            argv: program and arguments; no shell.
            env: the whole environment (PATH and HOME get defaults).
            cwd: absolute working directory; empty: a scratch directory of the task.
            user: user to run as; empty: the executor's.
            timeout_s: ended after this time.
            stdin: bytes, or chunks of them, or "pipe" for `Task.write_input`; None: /dev/null.
            output: "capture": collected in the result; "stream": read `Task.output` yourself;
                a function (plain or async): called with every `OutputChunk`.
            output_limit_bytes: kept on the executor's disk per stream; 0: its default.
            task_id: identity; made up where empty.
            cancel_on_interrupt: whether cancelling this call cancels the task, too; False: if it
                was accepted, it runs on, and the same `task_id` submitted again finds it.

        Raises:
            TaskNotStarted: the command cannot be executed; `reason` says why.
            SlotLost: the slot is gone.
            FinegrainError: the executor refused, or could not be reached.
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
        )
        return await start_task(
            self,
            self._context,
            task_id or new_id(),
            options,
            cancel_on_interrupt=cancel_on_interrupt,
        )

    async def release(self, grace_s: float | None = None) -> None:
        """Gives the slot back; releasing it twice, or when it is lost, is fine.

        Args:
            grace_s: time between SIGTERM and SIGKILL for tasks that still run; None: the
                executor's default.

        Raises:
            FinegrainError: the RM could not be told; the end of the job will release it.
        """
        if self.has_ended:
            return
        message = rm.ReleaseSlotsRequest(
            job_id=self._context.job_id,
            slots=[rm.SlotRelease(allocation_id=self.allocation_id, generation=self.generation)],
            grace=duration(grace_s),
        )
        await self._context.connection.call_manager(
            lambda manager, timeout_s: manager.ReleaseSlots(
                message, timeout=timeout_s, metadata=self._context.metadata
            )
        )
        self.mark_released()

    async def reuse_for(self, request: Reusable | str, grace_s: float | None = None) -> bool:
        """Asks whether the slot, whose work is done, may do that of a request which waits; see
        `Job.reuse`. False: it was given back, and the request waits on.

        Args:
            request: of the same job, asking for the same; or its allocation id.
            grace_s: see `release`.

        Raises:
            FinegrainError: the RM could not be told.
        """
        outcomes = await reuse(self._context, [(self, request)], grace_s)
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
        cpu_limit_milli: int | None = None,
        wait_for_use: bool = False,
        timeout_s: float | None = None,
    ) -> SlotStatus:
        """Changes what the slot consists of, without touching its tasks; returns when it has.

        What is not named stays as it is, or as a change that is under way makes it; see
        `SizeChange`. Growth is queued until its executor has room. Cancelling this, or a timeout,
        keeps the change queued; `withdraw_resize` takes it back.

        Args:
            wait_for_use: where the slot uses more memory than it is to have: wait until it uses
                less (True), or refuse (False).
            timeout_s: how long to wait here; None: for ever.

        Raises:
            ResizeRefused: the slot uses more, or another change took the place of this one.
            FailedPrecondition: INFEASIBLE_NEVER, more than the executor has in total.
            StillResizing: (a TimeoutError) not done within `timeout_s`.
            SlotLost: the slot is gone.
            InvalidArgument: no amount, or one that cannot be.
            FinegrainError: the RM could not be told.
        """
        change = SizeChange(
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            task_off_heap_memory_bytes=task_off_heap_memory_bytes,
            managed_memory_bytes=managed_memory_bytes,
            network_memory_bytes=network_memory_bytes,
            extended=extended,
            cpu_limit_milli=cpu_limit_milli,
        )
        if self.error is not None:
            raise self.error
        try:
            async with asyncio.timeout(timeout_s):
                return await self._size.change(change, wait_for_use=wait_for_use)
        except FinegrainError:
            raise
        except TimeoutError:
            waiting = "; ".join(each.message for each in self.status.resizes if each.message)
            raise StillResizing(self.allocation_id, timeout_s or 0, waiting) from None

    async def withdraw_resize(self) -> SlotStatus:
        """Takes back whatever change waits; one that is ordered already is undone if it succeeds.

        Raises:
            FinegrainError: the RM could not be told.
        """
        return await self._size.withdraw()

    # What follows is for the request and the tasks of the slot.

    @property
    @internal
    def size(self) -> SlotSize:
        """What it consists of, as the news of it tell."""
        return self._size

    @internal
    def mark_released(self) -> None:
        """The RM has taken the slot back from us; waits for tasks go on until these have ended."""
        self.end(
            SlotLost(self.allocation_id, self.generation, self.executor_id, "", "it was released"),
            at_once=False,
        )
