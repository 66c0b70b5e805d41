"""Decodes and checks task submissions, before a submission has any effect."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from finegrain.errors import InvalidArgument
from finegrain.ids import check_id
from finegrain.rpc.wire import duration_ms_from_proto
from finegrain.v1 import task_executor_pb2
from finegrain.values.bounds import (
    AMOUNT_MAX,
    COMMAND_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    SUBMIT_WAIT_MS_MAX,
    TASK_TIME_MS_MAX,
)
from finegrain.values.operators import OperatorTask
from task_executor.engine.slots import SlotKey
from task_executor.service.messages import check_generation
from task_executor.service.operator_requests import operator_task_of

# a limit is a multiple of this unit; so the kernel never rounds it
MEMORY_UNIT_BYTES = 64 * 1024
PATH_LENGTH_MAX = 4096
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked SubmitTask request. `env` can contain secrets, so it must never be logged or
    shown.
    """

    task_id: str
    key: SlotKey
    digest: str
    earlier_digest: str  # the digest of the same submission in executors of version 0.2
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    user: str
    stdin: bool
    timeout_ms: int | None
    output_limit_bytes: int  # 0: the executor's default
    operator_task: OperatorTask | None = None
    memory_limit_bytes: int = 0  # 0: only the limit of the slot applies
    output_holder: str = ""  # the reader for which no output may be dropped


def submission_of(request: task_executor_pb2.SubmitTaskRequest) -> Submission:
    """Decodes and checks a submission.

    Raises:
        InvalidArgument: a field is invalid. The error has the name, the value and the allowed
            values of the field.
    """
    spec = request.spec
    timeout_ms = None
    if spec.HasField("timeout"):
        timeout_ms = duration_ms_from_proto(
            spec.timeout, "spec.timeout", smallest_ms=1, largest_ms=TASK_TIME_MS_MAX
        )
    if not 0 <= spec.output_limit_bytes <= OUTPUT_BYTES_MAX:
        raise InvalidArgument(
            "spec.output_limit_bytes", spec.output_limit_bytes, f"0 to {OUTPUT_BYTES_MAX}"
        )
    operator_task = (
        operator_task_of(request.operator_task) if request.HasField("operator_task") else None
    )
    # Serialize deterministically, without the time to wait, so that a repeated submission has the
    # same digest. A job master of an earlier version sends no place in the graph, and a later
    # version can repeat its submission.
    # Executors of version 0.2 do not know these fields, and keep them in the message. Unknown
    # fields come last in a serialized message, and so do these fields.
    earlier_digest = _digest(request)
    request.ClearField("wait")
    if operator_task is not None:
        request.operator_task.ClearField("place")
    # Check every field before the task is created, so that an invalid request has no effect.
    return Submission(
        task_id=check_id("task_id", request.task_id),
        key=SlotKey(
            check_id("allocation_id", request.allocation_id),
            check_generation(request.generation, "generation"),
        ),
        digest=_digest(request),
        earlier_digest=earlier_digest,
        argv=_check_argv(tuple(spec.argv)),
        env=_check_env(dict(spec.env)),
        cwd=_check_cwd(spec.cwd),
        user=_check_user(spec.user),
        stdin=spec.stdin,
        timeout_ms=timeout_ms,
        output_limit_bytes=spec.output_limit_bytes,
        operator_task=operator_task,
        memory_limit_bytes=_check_memory_limit(request.memory_limit_bytes),
        output_holder=check_holder("spec.output_holder", spec.output_holder),
    )


def wait_of(request: task_executor_pb2.SubmitTaskRequest) -> int | None:
    """Returns the time for which a submission waits for the end of the task, in milliseconds.

    Raises:
        InvalidArgument: the time is outside the allowed range.
    """
    if not request.HasField("wait"):
        return None
    return duration_ms_from_proto(request.wait, "wait", largest_ms=SUBMIT_WAIT_MS_MAX)


def check_holder(field_name: str, holder: str) -> str:
    """Returns the id of a holder; empty: there is no holder.

    Raises:
        InvalidArgument: the value is not an id.
    """
    return check_id(field_name, holder) if holder else ""


def check_output_offset(field_name: str, offset: int) -> int:
    """Returns a position in an output stream.

    Raises:
        InvalidArgument: the position is outside the allowed range.
    """
    if not 0 <= offset <= OUTPUT_BYTES_MAX:
        raise InvalidArgument(field_name, offset, f"0 to {OUTPUT_BYTES_MAX}")
    return offset


def _digest(request: task_executor_pb2.SubmitTaskRequest) -> str:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()


def _check_memory_limit(limit_bytes: int) -> int:
    if not 0 <= limit_bytes <= AMOUNT_MAX or limit_bytes % MEMORY_UNIT_BYTES:
        expected = f"0, or a multiple of {MEMORY_UNIT_BYTES}"
        raise InvalidArgument("memory_limit_bytes", limit_bytes, expected)
    return limit_bytes


def _check_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    if not argv or not argv[0]:
        raise InvalidArgument("spec.argv", list(argv), "a program and its arguments")
    for index, word in enumerate(argv):
        if "\0" in word:
            raise InvalidArgument(f"spec.argv[{index}]", word, "text without NUL")
    size = sum(len(word.encode()) + 1 for word in argv)
    if size > COMMAND_BYTES_MAX:
        raise InvalidArgument(
            "spec.argv", f"{size} bytes", f"at most {COMMAND_BYTES_MAX} bytes; pass data by stdin"
        )
    return argv


def _check_env(env: dict[str, str]) -> dict[str, str]:
    for key, value in env.items():
        if not _ENV_KEY.fullmatch(key):
            raise InvalidArgument(
                "spec.env key", key, "a name of A-Z a-z 0-9 _ without a digit first"
            )
        if "\0" in value:  # the value can be a secret, so the error does not show it
            raise InvalidArgument(f"spec.env[{key}]", "(hidden)", "text without NUL")
    size = sum(len(f"{key}={value}".encode()) + 1 for key, value in env.items())
    if size > COMMAND_BYTES_MAX:
        raise InvalidArgument("spec.env", f"{size} bytes", f"at most {COMMAND_BYTES_MAX} bytes")
    return env


def _check_cwd(cwd: str) -> str:
    if cwd and (not cwd.startswith("/") or "\0" in cwd or len(cwd.encode()) > PATH_LENGTH_MAX):
        raise InvalidArgument("spec.cwd", cwd, "an absolute path, or empty for a scratch directory")
    return cwd


def _check_user(user: str) -> str:
    if user and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}\$?", user):
        raise InvalidArgument("spec.user", user, "the name or number of a user, or empty")
    return user
