"""Turns what executors say about tasks into the values of `types/status.py`."""

from __future__ import annotations

from finegrain.v1 import task_executor_pb2
from finegrain_client.decoding.status import moment, state
from finegrain_client.types import status as types


def task(message: task_executor_pb2.TaskStatus) -> types.TaskStatus:
    """One task."""
    return types.TaskStatus(
        task_id=message.task_id,
        allocation_id=message.allocation_id,
        generation=message.generation,
        job_id=message.job_id,
        state=state(types.TaskState, task_executor_pb2.TaskState, message.state),
        pid=message.pid,
        start_time=moment(message, "start_time"),
        argv=tuple(message.argv),
        result=_result(message.task_id, message.exit) if message.HasField("exit") else None,
        reason=message.error.reason,
        message=message.error.message,
    )


def _result(task_id: str, message: task_executor_pb2.TaskExit) -> types.TaskResult:
    return types.TaskResult(
        task_id=task_id,
        exit_code=message.exit_code,
        signal=message.signal,
        oom_killed=message.oom_killed,
        timed_out=message.timed_out,
        cancelled=message.cancelled,
        peak_memory_bytes=message.peak_memory_bytes,
        cpu_time_s=message.cpu_time_us / 1e6,
        end_time=moment(message, "end_time"),
        stdout_bytes=message.stdout_bytes,
        stderr_bytes=message.stderr_bytes,
        dropped_bytes=message.dropped_bytes,
    )
