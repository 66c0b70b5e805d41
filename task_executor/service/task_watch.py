"""Streams the states and the output of one task to a watcher.

The watcher receives all output before the final state. For each watcher, the log files are read
separately, one chunk at a time. So a slow watcher uses only one buffer of `CHUNK_BYTES`, and does
not delay other watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from finegrain.errors import InvalidArgument
from finegrain.v1 import task_executor_pb2
from task_executor.host.task_log import Stream, read_output
from task_executor.service.encoding import write
from task_executor.service.task_requests import OUTPUT_LIMIT_BYTES_MAX
from task_executor.service.task_table import Task

CHUNK_BYTES = 64 * 1024
POLL_S_MIN, POLL_S_MAX = 0.01, 0.25
KEEPALIVE_S = 10.0

STDOUT, STDERR = 1, 2


@dataclass(slots=True)
class _Tail:
    """The position in one output stream up to which a watcher has received the output."""

    number: int
    stream: Stream
    offset: int


async def watch_task(
    task: Task, request: task_executor_pb2.WatchTaskRequest
) -> AsyncIterator[task_executor_pb2.WatchTaskResponse]:
    """Yields the messages of WatchTask; see task_executor.proto.

    Args:
        task: the task.
        request: the offsets from which the output is sent, or that no output is requested.

    Raises:
        InvalidArgument: an offset is outside the allowed range.
    """
    tails = _tails(request)
    clock = asyncio.get_running_loop().time
    with task.watched() as changed:
        yield task_executor_pb2.WatchTaskResponse(task=write(task_executor_pb2.TaskStatus, task))
        sent_state, last_message_at, pause_s = task.state, clock(), POLL_S_MIN
        while True:
            # This clears the event before reading, so that a later change starts another iteration.
            changed.clear()
            # Read before the output, because an ended task writes no more.
            is_last_read = task.has_ended
            if task.state is not sent_state and not is_last_read:
                sent_state = task.state
                yield task_executor_pb2.WatchTaskResponse(
                    task=write(task_executor_pb2.TaskStatus, task)
                )
                last_message_at = clock()
            for chunk in _new_output(task.directory, tails):
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
            # This polls the output, because shims do not notify the front when they write output.
            if await _wait(changed, pause_s if tails else KEEPALIVE_S):
                continue
            pause_s = min(pause_s * 2, POLL_S_MAX)


def _tails(request: task_executor_pb2.WatchTaskRequest) -> list[_Tail]:
    for field in ("stdout_offset", "stderr_offset"):
        if not 0 <= (offset := getattr(request, field)) <= OUTPUT_LIMIT_BYTES_MAX:
            raise InvalidArgument(field, offset, f"0 to {OUTPUT_LIMIT_BYTES_MAX}")
    if request.no_output:
        return []
    return [
        _Tail(STDOUT, "stdout", request.stdout_offset),
        _Tail(STDERR, "stderr", request.stderr_offset),
    ]


def _new_output(
    directory: Path | None, tails: list[_Tail]
) -> Iterator[task_executor_pb2.OutputChunk]:
    """Yields all output that is available now. Chunks alternate between stdout and stderr."""
    pending = list(tails) if directory is not None else []
    while pending and directory is not None:
        for tail in list(pending):
            try:
                data = read_output(directory, tail.stream, tail.offset, CHUNK_BYTES)
            except NotADirectoryError:
                data = b""
            if data:
                yield task_executor_pb2.OutputChunk(
                    stream=tail.number, offset=tail.offset, data=data
                )
                tail.offset += len(data)
            # If a read returns less than a full chunk, all present output of this stream was sent.
            if len(data) < CHUNK_BYTES:
                pending.remove(tail)


async def _wait(changed: asyncio.Event, seconds: float) -> bool:
    """Waits for a change, at most `seconds`. Returns True if there was a change."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return False
    return True
