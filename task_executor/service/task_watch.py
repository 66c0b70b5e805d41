"""Streams the states and the output of one task to a watcher, and holds the output for a holder.

The watcher receives all output before the final state. The front reads the log files separately for
each watcher, one chunk at a time. So a slow watcher needs only one buffer of `CHUNK_BYTES`, and
does not delay other watchers. But a slow holder delays the task (task_executor/helper/output.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

from finegrain.errors import AlreadyExists, FinegrainError
from finegrain.logs import get_logger
from finegrain.v1 import task_executor_pb2
from task_executor.host.task_log import OutputReader
from task_executor.service.encoding import write
from task_executor.service.task_requests import check_output_offset
from task_executor.service.task_table import Task

CHUNK_BYTES = 64 * 1024
POLL_S_MIN, POLL_S_MAX = 0.01, 0.25
KEEPALIVE_S = 10.0
RENEWAL_S = 5.0  # time between two renewals of a hold
FIRST_HOLD_S = 1.0  # the stream starts after this time even if the helper does not answer

STDOUT, STDERR = 1, 2  # numbers of the streams in the protocol

Hold = Callable[[int, int], Awaitable[object]]
"""Makes the watcher the holder, or renews its hold. The arguments are the watcher's positions in
stdout and stderr.
"""

log = get_logger(__name__)


async def keep_holding(
    task: Task, request: task_executor_pb2.WatchTaskRequest, hold: Hold
) -> asyncio.Task[None]:
    """Starts to hold the output for a watcher, and returns the task that renews the hold.

    Raises:
        AlreadyExists: another reader holds the output.
        InvalidArgument: an offset is outside the allowed range.
    """
    at = (
        check_output_offset("stdout_offset", request.stdout_offset),
        check_output_offset("stderr_offset", request.stderr_offset),
    )
    is_held = asyncio.Event()
    renewals = asyncio.create_task(_renew(task, hold, *at, is_held))
    first = asyncio.create_task(is_held.wait())
    # A helper that is being restarted must not delay the output.
    await asyncio.wait({renewals, first}, timeout=FIRST_HOLD_S, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    if renewals.done():
        renewals.result()
    return renewals


async def watch_task(
    task: Task, request: task_executor_pb2.WatchTaskRequest
) -> AsyncIterator[task_executor_pb2.WatchTaskResponse]:
    """Yields the messages of WatchTask; see task_executor.proto.

    Args:
        task: the task.
        request: the offsets from which the output is sent, or the flag that no output is requested.

    Raises:
        InvalidArgument: an offset is outside the allowed range.
    """
    stdout = check_output_offset("stdout_offset", request.stdout_offset)
    stderr = check_output_offset("stderr_offset", request.stderr_offset)
    readers: dict[int, OutputReader] = {}
    clock = asyncio.get_running_loop().time
    with task.watched() as changed:
        yield task_executor_pb2.WatchTaskResponse(task=write(task_executor_pb2.TaskStatus, task))
        sent_state, last_message_at, pause_s = task.state, clock(), POLL_S_MIN
        while True:
            # Clear the event before reading. A later change then starts another iteration.
            changed.clear()
            # Read this before the output: if the task has ended now, no more output can follow.
            is_last_read = task.has_ended
            if task.state is not sent_state and not is_last_read:
                sent_state = task.state
                yield task_executor_pb2.WatchTaskResponse(
                    task=write(task_executor_pb2.TaskStatus, task)
                )
                last_message_at = clock()
            if task.directory is not None and not readers and not request.no_output:
                readers[STDOUT] = OutputReader(task.directory, "stdout", stdout)
                readers[STDERR] = OutputReader(task.directory, "stderr", stderr)
            for chunk in _new_output(readers, thorough=is_last_read):
                yield task_executor_pb2.WatchTaskResponse(output=chunk)
                last_message_at, pause_s = clock(), POLL_S_MIN
            if is_last_read:
                yield task_executor_pb2.WatchTaskResponse(
                    task=write(task_executor_pb2.TaskStatus, task)
                )
                return
            if clock() - last_message_at > KEEPALIVE_S:
                yield task_executor_pb2.WatchTaskResponse()
                last_message_at = clock()
            # Poll the output, because supervisors do not notify the front when they write output.
            if await _wait(changed, KEEPALIVE_S if request.no_output else pause_s):
                continue
            pause_s = min(pause_s * 2, POLL_S_MAX)


async def short_output(task: Task, wait_ms: int) -> list[task_executor_pb2.OutputChunk] | None:
    """Waits for the end of a task, and returns its whole output.

    Args:
        task: the task.
        wait_ms: the maximum time to wait, in milliseconds.

    Returns:
        The output; None: the task has not ended, or has too much output for one message.
    """
    if not task.has_ended:
        with task.watched() as changed, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                while not task.has_ended:
                    changed.clear()
                    await changed.wait()
    if not task.has_ended:
        return None
    sizes = _output_sizes(task)
    if sum(sizes.values()) > CHUNK_BYTES or task.directory is None:
        return None if any(sizes.values()) else []
    readers = {
        number: OutputReader(task.directory, "stdout" if number == STDOUT else "stderr")
        for number, size in sizes.items()
        if size
    }
    return list(_new_output(readers, thorough=True))


def _output_sizes(task: Task) -> dict[int, int]:
    """Returns the number of bytes of each stream of an ended task."""
    record = task.exit
    if record is None:  # the task never ran
        return {}
    return {
        STDOUT: record.stdout_bytes + record.stdout_dropped_bytes,
        STDERR: record.stderr_bytes + record.stderr_dropped_bytes,
    }


def _new_output(
    readers: Mapping[int, OutputReader], *, thorough: bool
) -> Iterator[task_executor_pb2.OutputChunk]:
    """Yields all output that is available now. Chunks alternate between stdout and stderr.

    Args:
        readers: the readers by the numbers of their streams.
        thorough: True if the task has ended, so that all output is available. False if the task can
            still write. Then the iterator ends at the first chunk that is not full, because more
            output can fill this chunk later.
    """
    pending = dict(readers)
    while pending:
        for number, reader in list(pending.items()):
            try:
                offset, data = reader.read(CHUNK_BYTES)
            except NotADirectoryError:
                data = b""
            if data:
                yield task_executor_pb2.OutputChunk(stream=number, offset=offset, data=data)
            if not data or (len(data) < CHUNK_BYTES and not thorough):
                del pending[number]


async def _renew(task: Task, hold: Hold, stdout: int, stderr: int, is_held: asyncio.Event) -> None:
    while not task.has_ended:
        try:
            await hold(stdout, stderr)
            is_held.set()
        except AlreadyExists:
            raise
        except FinegrainError as error:
            log.warning("output_hold_delayed", task_id=task.task_id, error=error.message)
        await asyncio.sleep(RENEWAL_S)


async def _wait(changed: asyncio.Event, seconds: float) -> bool:
    """Waits for a change, at most `seconds`. Returns True if there was a change."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return False
    return True
