"""Implements the handle of one task, which starts, watches, signals and ends the task, and writes
its input.

Every call contains the task id. So the call can be repeated safely. The watch stream of a task
contains the task's output and result.
"""

from __future__ import annotations

import asyncio
import inspect
import operator
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Literal

from finegrain.errors import FinegrainError, InvalidArgument, NotFound, PermissionDenied
from finegrain.resources import MIB
from finegrain.v1 import task_executor_pb2 as te
from finegrain.values.bounds import (
    AMOUNT_MAX,
    OUTPUT_BYTES_MAX,
    SUBMIT_WAIT_MS_MAX,
    TASK_TIME_MS_MAX,
)
from finegrain.values.states import TaskState
from finegrain_client.decoding import read
from finegrain_client.durations import duration, grace
from finegrain_client.errors import JobEnded, TaskNotStarted, reason_of
from finegrain_client.job.background import CLEANING_UP
from finegrain_client.job.context import JobContext
from finegrain_client.retry import REFUSALS, StreamCall, follow, resumed
from finegrain_client.slot.at_executor import SlotAtExecutor
from finegrain_client.slot.task_input import TaskInput
from finegrain_client.slot.task_output import Capture, Offsets
from finegrain_client.types.status import OutputChunk, TaskResult, TaskStatus

OutputFunction = Callable[[OutputChunk], Awaitable[None] | None]
OutputMode = Literal["capture", "stream"] | OutputFunction
ACKNOWLEDGE_S = 1.0  # processed output is acknowledged after this time at the latest
ACKNOWLEDGE_BYTES = 16 * MIB  # bytes between two acknowledgments if the limit is unknown

StdinSource = bytes | AsyncIterable[bytes] | Literal["pipe"] | None


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The command of a task, and the use of its input and output; see `Slot.run`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    user: str
    timeout_s: float | None
    stdin: StdinSource
    output: OutputMode
    output_limit_bytes: int
    operator_task: te.OperatorTask | None = None  # operators, if the task belongs to a job graph
    memory_limit_bytes: int = 0  # limit of the task within the slot's limit; 0 means no such limit
    hold_output: bool = False  # True if the task waits for `output`
    wait_s: float = 0.0  # the executor answers when the task has ended, or after this time

    def __post_init__(self) -> None:
        if not self.argv:
            raise InvalidArgument("argv", self.argv, "a program and its arguments")
        if not (self.output in ("capture", "stream") or callable(self.output)):
            raise InvalidArgument("output", self.output, '"capture", "stream" or a function')
        if self.hold_output and not callable(self.output):
            raise InvalidArgument("hold_output", True, "a function as `output`")
        if isinstance(self.stdin, str) and self.stdin != "pipe":
            raise InvalidArgument("stdin", self.stdin, 'bytes, an async iterable, "pipe" or None')
        for name, amount, most in (
            ("output_limit_bytes", self.output_limit_bytes, OUTPUT_BYTES_MAX),
            ("memory_limit_bytes", self.memory_limit_bytes, AMOUNT_MAX),
        ):
            if not 0 <= amount <= most:
                raise InvalidArgument(name, amount, f"0 to {most}")
        most_s = TASK_TIME_MS_MAX / 1000
        if self.timeout_s is not None and not 0.001 <= self.timeout_s <= most_s:
            raise InvalidArgument("timeout_s", self.timeout_s, f"0.001 to {most_s:.0f} seconds")
        most_s = SUBMIT_WAIT_MS_MAX / 1000
        if not 0 <= self.wait_s <= most_s:
            raise InvalidArgument("wait_s", self.wait_s, f"0 to {most_s:g} seconds")

    def message(self, task_id: str) -> te.TaskSpec:
        """Returns the options as a protocol message."""
        return te.TaskSpec(
            argv=self.argv,
            env=self.env,
            cwd=self.cwd,
            user=self.user,
            stdin=self.stdin is not None,
            timeout=duration(self.timeout_s),
            output_limit_bytes=self.output_limit_bytes,
            output_holder=self.holder_of(task_id),
        )

    def holder_of(self, task_id: str) -> str:
        """Returns the id of the output's holder; empty if there is no holder.

        The holder's id is the task id. So if another process submits the same task again, that
        process is the same holder.
        """
        return task_id if self.hold_output else ""


@dataclass(slots=True)
class _Reader:
    """The position of one reader in a task's stream."""

    offsets: Offsets
    no_output: bool = False
    status: TaskStatus | None = None

    def take(self, message: te.WatchTaskResponse) -> OutputChunk | None:
        if message.HasField("task"):
            self.status = read(TaskStatus, message.task)
        return self.offsets.take(message)

    @property
    def is_done(self) -> bool:
        """True if no further message can come. If this is False, the stream can still end at any
        time.
        """
        if self.status is None or not self.status.state.has_ended:
            return False
        result = self.status.result
        return self.no_output or result is None or self.offsets.reach_the_end(result)


class Task:
    """A command that runs in a slot.

    Attributes:
        task_id: identity of the task.
        status: last known status of the task.
    """

    task_id: str
    status: TaskStatus

    def __init__(
        self,
        slot: SlotAtExecutor,
        context: JobContext,
        status: TaskStatus,
        options: TaskOptions,
        whole: Sequence[te.WatchTaskResponse] = (),
    ) -> None:
        self._slot = slot
        self._whole = whole  # all messages of the task's stream, if the task has already ended
        self._context = context
        self._options = options
        self._capture = Capture()
        self._reader = _Reader(Offsets(), no_output=options.output == "stream")
        self._processed = (0, 0)  # offsets up to which `output` has processed stdout and stderr
        self._acknowledge_at = (
            1,
            1,
        )  # offsets at which the client acknowledges next; the first answer moves these offsets
        self._must_acknowledge = asyncio.Event()
        self._cancelled = False  # True if this client has cancelled the task
        self._input = TaskInput(slot, context, status.task_id)
        self._done: asyncio.Future[TaskResult] = asyncio.get_running_loop().create_future()
        # Read the exception, because possibly no caller waits for the task, and asyncio logs each
        # exception that was never retrieved.
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.task_id = status.task_id
        self.status = status
        self._watcher = context.background.start(self._watch(), f"watching task {self.task_id}")
        if options.hold_output:
            acknowledging = context.background.start(
                self._acknowledge(), f"acknowledging output of task {self.task_id}"
            )
            self._watcher.add_done_callback(lambda _: acknowledging.cancel())
        if options.stdin is not None and options.stdin != "pipe":
            feeder = context.background.start(
                self._input.feed(options.stdin), f"standard input of task {self.task_id}"
            )
            # Stop feeding when the task has ended, because further input would be rejected.
            self._watcher.add_done_callback(lambda _: feeder.cancel())

    def __repr__(self) -> str:
        return f"<Task {self.task_id} {self.state}>"

    @property
    def state(self) -> TaskState:
        """Last known state of the task."""
        return self.status.state

    @property
    def pid(self) -> int:
        """Process id of the task on its host; 0 if it is not known yet."""
        return self.status.pid

    async def wait(self, timeout_s: float | None = None) -> TaskResult:
        """Waits until the task has ended, and returns its result.

        If the wait is cancelled or times out, the task continues to run. If the slot was released,
        the result says that the task was cancelled.

        Raises:
            TimeoutError: the task still runs after `timeout_s`.
            TaskNotStarted: the task never ran.
            SlotLost: the slot was lost before the task ended, or ended the task.
            JobEnded: the job has ended.
        """
        async with asyncio.timeout(timeout_s):
            # Use a shield, because several callers can wait. If one caller is cancelled, the other
            # callers must still get the result.
            return await asyncio.shield(self._done)

    async def output(
        self, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncIterator[OutputChunk]:
        """Yields the task's output from the given offsets to the end of the task.

        The executor keeps the output as long as the slot exists. So each iteration reads all
        output, even if other iterations have already read it. The client does not read faster than
        the caller consumes.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the executor refused the call.
        """
        reader = _Reader(Offsets(stdout_offset, stderr_offset))
        # Even if the slot is released in the meantime, the caller can read the output to its end.
        with self._slot.in_use():
            async with aclosing(self._messages(reader)) as messages:
                while (message := await self._slot.guard(anext(messages, None))) is not None:
                    if (chunk := reader.take(message)) is not None:
                        yield chunk
                    if reader.is_done:
                        return

    async def write_input(self, data: bytes, *, eof: bool = False) -> None:
        """Writes to the task's standard input. Returns when the executor has accepted the data.

        This works only for a task started with `stdin="pipe"`.

        Raises:
            InvalidArgument: the task was not started with `stdin="pipe"`.
            FailedPrecondition: TASK_ENDED: the task has ended, or its input is closed.
            SlotLost: the slot has ended.
        """
        if self._options.stdin != "pipe":
            raise InvalidArgument(
                "stdin",
                self._options.stdin,
                '"pipe"; set it in Slot.run if you write to the task later',
            )
        await self._input.write(data, eof=eof)

    async def close_input(self) -> None:
        """Closes the task's standard input. Raises the errors of `write_input`."""
        await self.write_input(b"", eof=True)

    async def signal(self, number: int) -> None:
        """Sends a signal to the task's process group. Does nothing if the task has ended.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the executor refused the call, or could not be reached.
        """
        message = te.SignalTaskRequest(task_id=self.task_id, signal=int(number))
        await self._slot.call(
            lambda executor, timeout_s: executor.SignalTask(message, timeout=timeout_s)
        )

    async def cancel(self, grace_s: float | None = None) -> None:
        """Ends the task: SIGTERM, then SIGKILL after the grace period. Does not wait for the end.

        Args:
            grace_s: time in seconds between SIGTERM and SIGKILL; None means the executor's default.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the executor refused the call, or could not be reached.
        """
        self._cancelled = True
        await _cancel(self._slot, self.task_id, grace_s)

    async def _watch(self) -> None:
        try:
            with self._slot.in_use():
                await self._slot.guard(follow(self._messages(self._reader), self._take))
                if self._was_ended_with_slot():
                    # If the slot is lost, `wait` must raise SlotLost, even if the end of the task
                    # is known first.
                    await self._slot.await_end()
            self._finish()
        except asyncio.CancelledError:
            if not self._done.done():
                self._done.set_exception(
                    JobEnded(
                        f"this client closed its handle of job {self._context.job_id} while task "
                        f"{self.task_id} was running"
                    )
                )
            raise
        except Exception as error:  # `wait` must raise every error
            if not self._done.done():
                self._done.set_exception(error)

    def _was_ended_with_slot(self) -> bool:
        """True if the end of the slot has probably ended the task, and the client does not know the
        reason yet.
        """
        result = self.status.result
        if result is None or result.end_reason or self._cancelled:
            return False
        return result.cancelled

    async def _messages(self, reader: _Reader) -> AsyncGenerator[te.WatchTaskResponse, None]:
        if self._whole and reader is self._reader:
            for message in self._whole:
                yield message
            return

        def open_stream() -> StreamCall[te.WatchTaskResponse]:
            message = te.WatchTaskRequest(
                task_id=self.task_id,
                stdout_offset=reader.offsets.stdout,
                stderr_offset=reader.offsets.stderr,
                no_output=reader.no_output,
                holder=self._options.holder_of(self.task_id) if reader is self._reader else "",
            )
            return self._slot.stub.WatchTask(message)

        while True:
            messages = resumed(
                open_stream,
                where=lambda: self._slot.executor_address,
                policy=self._context.connection.policy,
                after_break=self._slot.after_break,
                is_complete=lambda: reader.status is not None and reader.status.state.has_ended,
            )
            try:
                async with aclosing(messages):
                    async for message in messages:
                        yield message
                return
            except PermissionDenied as error:
                await self._slot.renew_token(error)

    async def _take(self, message: te.WatchTaskResponse) -> bool:
        chunk = self._reader.take(message)
        if chunk is not None:
            if callable(self._options.output):
                returned = self._options.output(chunk)
                if inspect.isawaitable(returned):
                    await returned
                offsets = self._reader.offsets
                # Store this separately, because the reader moves past a chunk before the chunk is
                # processed.
                self._processed = (offsets.stdout, offsets.stderr)
                if any(map(operator.ge, self._processed, self._acknowledge_at)):
                    self._must_acknowledge.set()
            else:
                self._capture.add(chunk)
        if self._reader.status is not None:
            self.status = self._reader.status
        return self._reader.is_done

    async def _acknowledge(self) -> None:
        """Acknowledges the output that was processed. The executor can then remove this output."""
        acknowledged = (0, 0)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ACKNOWLEDGE_S):
                    await self._must_acknowledge.wait()
            self._must_acknowledge.clear()
            stdout, stderr = processed = self._processed
            if processed == acknowledged:
                continue
            message = te.AcknowledgeOutputRequest(
                task_id=self.task_id,
                holder=self._options.holder_of(self.task_id),
                stdout_offset=stdout,
                stderr_offset=stderr,
            )
            try:
                answer = await self._slot.call(
                    lambda executor, timeout_s, message=message: executor.AcknowledgeOutput(  # type: ignore[misc]
                        message, timeout=timeout_s
                    )
                )
            except FinegrainError:
                # There are two causes: the task or its slot has ended, or the executor has an
                # earlier version and drops output beyond its limit. The watch stream reports the
                # lost bytes.
                await asyncio.sleep(ACKNOWLEDGE_S)
                continue
            acknowledged = processed
            # The task waits when the limit is reached. Acknowledge after a quarter of the limit,
            # which is early enough and needs few calls.
            quarter = answer.limit_bytes // 4 or ACKNOWLEDGE_BYTES
            self._acknowledge_at = (stdout + quarter, stderr + quarter)

    def _finish(self) -> None:
        if self._done.done():
            return
        result = self.status.result
        if result is None:
            self._done.set_exception(_not_started(self.status))
            return
        if not self._reader.no_output:
            offsets = self._reader.offsets
            missing = offsets.missing + offsets.missing_at_end(result)
            result = self._capture.complete(result)
            if result.dropped_bytes != missing:
                result = replace(result, dropped_bytes=missing)
        self._done.set_result(result)


async def start_task(
    slot: SlotAtExecutor,
    context: JobContext,
    task_id: str,
    options: TaskOptions,
    *,
    cancel_on_interrupt: bool = True,
) -> Task:
    """Submits a task and returns its handle.

    Submitting the same id again does not start a second task.

    If the call fails, but the executor has possibly accepted the task, the client cancels the task
    in the background. If the call is cancelled, `cancel_on_interrupt` decides whether the task is
    also cancelled.

    Args:
        slot: the slot to run in.
        context: the job.
        task_id: id of the task.
        options: the command of the task, and the use of its input and output.
        cancel_on_interrupt: True if the task must be cancelled when this call is cancelled.

    Raises:
        TaskNotStarted: the command cannot be executed.
        SlotLost: the slot has ended.
        FinegrainError: the executor refused the call, or could not be reached.
    """
    message = te.SubmitTaskRequest(
        task_id=task_id,
        allocation_id=slot.allocation_id,
        generation=slot.generation,
        spec=options.message(task_id),
        operator_task=options.operator_task,
        memory_limit_bytes=options.memory_limit_bytes,
        wait=duration(options.wait_s or None),
    )
    try:
        answer = await slot.call(
            lambda executor, timeout_s: executor.SubmitTask(message, timeout=timeout_s)
        )
    except (asyncio.CancelledError, FinegrainError) as error:
        # A batch keeps its task for a later runner, which submits the same id again.
        wanted = isinstance(error, asyncio.CancelledError) and not cancel_on_interrupt
        if not wanted and not isinstance(error, REFUSALS) and not slot.has_ended:
            context.background.start(_forget(slot, task_id), f"{CLEANING_UP} task {task_id}")
        raise
    status = read(TaskStatus, answer.task)
    if status.state is TaskState.FAILED:
        raise _not_started(status)
    whole = [te.WatchTaskResponse(output=chunk) for chunk in answer.output]
    if answer.complete:
        whole.append(te.WatchTaskResponse(task=answer.task))
    return Task(slot, context, status, options, whole)


async def _forget(slot: SlotAtExecutor, task_id: str) -> None:
    try:
        await _cancel(slot, task_id, None)
    except NotFound:
        return  # the executor never accepted the task
    except FinegrainError:
        if not slot.has_ended:
            raise


async def _cancel(slot: SlotAtExecutor, task_id: str, grace_s: float | None) -> None:
    message = te.CancelTaskRequest(task_id=task_id, grace=grace(grace_s))
    await slot.call(lambda executor, timeout_s: executor.CancelTask(message, timeout=timeout_s))


def _not_started(status: TaskStatus) -> TaskNotStarted:
    return TaskNotStarted(
        f"task {status.task_id} ({status.argv[0] if status.argv else ''}) could not be started: "
        f"{status.message or status.reason}",
        reason=reason_of(status.reason, TaskNotStarted.default_reason),
        details={"task_id": status.task_id},
    )
