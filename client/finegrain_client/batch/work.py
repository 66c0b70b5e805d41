"""Runs one attempt at one thread of work in one slot: submits the task, watches it, and returns its
outcome.

The task id depends only on batch, thread and attempt. The command depends only on the spec. So a
restarted runner can submit the same task again. The executor does not start the task twice, and the
runner gets the outcome even if the task has ended.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    FinegrainError,
    NotFound,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from finegrain_client.batch.output import Output
from finegrain_client.batch.scheduler_state import AttemptOutcome, Ending
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.values import ThreadResult, ThreadState, unknown_result
from finegrain_client.errors import JobEnded, SlotLost, TaskNotStarted
from finegrain_client.slot.slot import Slot
from finegrain_client.slot.task import Task
from finegrain_client.types.status import TaskResult

HOPELESS = (
    Reason.COMMAND_NOT_FOUND,
    Reason.COMMAND_NOT_EXECUTABLE,
    Reason.CWD_UNAVAILABLE,
    Reason.USER_NOT_ALLOWED,
    Reason.LIMIT_TOO_SMALL,
)
"""Reasons why a command did not start. After such a reason, another try on the same host would fail
again.
"""

GONE = (
    SlotLost,
    JobEnded,
    NotFound,
    AlreadyExists,
    FailedPrecondition,
    Unavailable,
    ResourceExhausted,
)
"""Errors which mean that the attempt never started, or that its outcome is unknown. The thread then
runs again in another slot.
"""


SHORT_S = 0.1
"""Time in seconds for which the call that submits a task waits for the end of the task. A task that
ends within this time needs only one call.
"""


def task_id_of(batch_id: str, thread: int, attempt: int) -> str:
    """Returns the id of an attempt's task, which is the same for every runner of the batch.

    Args:
        batch_id: id of the batch.
        thread: index of the thread.
        attempt: number of the attempt.
    """
    return str(uuid.uuid5(uuid.UUID(batch_id), f"{thread}.{attempt}"))


@dataclass(slots=True)
class Attempt:
    """One attempt at a thread of work. `task` is set when the task was submitted."""

    spec: BatchSpec
    batch_id: str
    thread: int
    number: int
    slot: Slot
    output: Output
    task: Task | None = None
    cancelled: bool = False

    async def run(self, on_start: Callable[[], None]) -> AttemptOutcome:
        """Runs the attempt to its end. Calls `on_start` when the command was started.

        Raises:
            OSError: the output cannot be written.
        """
        began = time.time()
        try:
            self.task = await self.slot.run(
                self.spec.command_of(self.thread, self.number),
                env=self.spec.env_of(self.batch_id, self.thread, self.number),
                cwd=self.spec.cwd,
                user=self.spec.user,
                timeout_s=self.spec.timeout_s,
                output=self.output.take,
                output_limit_bytes=self.spec.output_limit_bytes,
                task_id=task_id_of(self.batch_id, self.thread, self.number),
                cancel_on_interrupt=False,  # a later runner can take over the task
                wait_s=SHORT_S,
            )
            on_start()
            # `cancel` may have been called before the task was submitted.
            if self.cancelled:
                await self.task.cancel()
            return self._ended(self.task, await self.task.wait(), began)
        except TaskNotStarted as error:
            return self._refused(error)
        except GONE as error:
            if error.reason is Reason.TIME_LIMIT and self.task is not None:
                result = unknown_result(self.thread, error.message, reason=error.reason)
                return AttemptOutcome(Ending.FAILED, result, error.message, error.reason)
            return AttemptOutcome(Ending.LOST, message=error.message, reason=error.reason)
        except FinegrainError as error:  # any other executor would also refuse the command
            result = unknown_result(self.thread, error.message, reason=error.reason)
            return AttemptOutcome(Ending.REFUSED, result, error.message, error.reason)

    async def cancel(self) -> None:
        """Cancels the attempt, because another attempt at its thread finished first."""
        self.cancelled = True
        if self.task is not None:
            try:
                await self.task.cancel()
            except FinegrainError:
                return  # the task or its slot has ended

    def _ended(self, task: Task, result: TaskResult, began: float) -> AttemptOutcome:
        # If the slot was released or the job ended, the exit code is not a result of the command.
        # But a thread that reaches the time limit of its slot has failed.
        if result.cancelled and result.end_reason != Reason.TIME_LIMIT:
            return AttemptOutcome(
                Ending.CANCELLED, message="its task was ended together with its slot"
            )
        end = result.end_time or datetime.now(UTC)
        start = task.status.start_time or datetime.fromtimestamp(began, UTC)
        return AttemptOutcome(
            Ending.OK if result.ok else Ending.FAILED,
            ThreadResult(
                index=self.thread,
                state=ThreadState.DONE if result.ok else ThreadState.FAILED,
                attempts=self.number,
                attempt=self.number,
                exit_code=result.exit_code,
                signal=result.signal,
                oom_killed=result.oom_killed,
                timed_out=result.timed_out,
                reason=result.end_reason or (Reason.OUTPUT_LOST if result.output_lost else ""),
                message="" if result.ok else self._how(result),
                executor_id=self.slot.executor_id,
                start_time=start,
                end_time=end,
                # Return no negative duration: the times can come from different clocks, or the
                # clock may have been set in the meantime.
                duration_s=max(0.0, (end - start).total_seconds()),
                cpu_time_s=result.cpu_time_s,
                peak_memory_bytes=result.peak_memory_bytes,
                stdout_bytes=result.stdout_bytes,
                stderr_bytes=result.stderr_bytes,
                dropped_bytes=result.dropped_bytes,
                stdout_tail=self.output.tail("stdout"),
                stderr_tail=self.output.tail("stderr"),
            ),
            message="" if result.ok else self._how(result),
        )

    def _how(self, result: TaskResult) -> str:
        stderr = self.output.tail("stderr")[-200:].decode("utf-8", errors="replace").strip()
        return f"{result.how}; its last error output: {stderr}" if stderr else result.how

    def _refused(self, error: TaskNotStarted) -> AttemptOutcome:
        message = f"could not be started on {self.slot.executor_id}: {error.message}"
        result = unknown_result(self.thread, message, reason=error.reason)
        hopeless = error.reason in HOPELESS
        ending = Ending.REFUSED if hopeless else Ending.FAILED
        return AttemptOutcome(ending, result, message, error.reason)
