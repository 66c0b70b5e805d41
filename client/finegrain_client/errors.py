"""Errors that only a job master can meet; all else comes from `finegrain.errors`.

Decides which of a request's and a task's fates are exceptions. Refuses to know of gRPC statuses:
those become `finegrain.errors` classes before they get here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from finegrain.errors import FailedPrecondition, FinegrainError, Reason

if TYPE_CHECKING:
    from finegrain_client.types import TaskResult


def reason_of(text: str, otherwise: Reason) -> Reason:
    """The reason of that name, or `otherwise` where a newer server knows more reasons than we."""
    try:
        return Reason(text)
    except ValueError:
        return otherwise


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why one slot request was refused: stable code, sentence, and the numbers in it."""

    allocation_id: str
    reason: str
    message: str
    details: Mapping[str, str] = field(default_factory=dict)


class RequestRejected(FinegrainError):
    """Slot requests were refused and will never be served; `rejections` names every one."""

    default_reason = Reason.INFEASIBLE_NEVER

    def __init__(self, rejections: Sequence[Rejection]) -> None:
        self.rejections = tuple(rejections)
        first = self.rejections[0]
        more = len(self.rejections) - 1
        text = f"slot request {first.allocation_id} was rejected: {first.message or first.reason}"
        super().__init__(
            text + (f" (and {more} more, see .rejections)" if more else ""),
            reason=reason_of(first.reason, self.default_reason),
            details={**first.details, "allocation_id": first.allocation_id},
        )


class RequestEnded(FailedPrecondition):
    """The request was cancelled or released before anybody could use its slot."""

    default_reason = Reason.JOB_OVER

    def __init__(self, allocation_id: str, state: str, reason: str, message: str) -> None:
        super().__init__(
            f"slot request {allocation_id} is {state}: {message or reason or 'taken back'}",
            reason=reason_of(reason, self.default_reason),
            details={"allocation_id": allocation_id, "state": state},
        )


class StillWaiting(FinegrainError, TimeoutError):
    """The request was not granted within the time given; it stays in line."""

    default_reason = Reason.NOT_YET_CONSIDERED

    def __init__(self, allocation_id: str, timeout_s: float, state: str, reason: str) -> None:
        super().__init__(
            f"slot request {allocation_id} still waits after {timeout_s:g} s "
            f"({reason or state}); it stays in line, await it again or cancel it",
            reason=reason_of(reason, self.default_reason),
            details={"allocation_id": allocation_id, "state": state},
        )


class SlotLost(FinegrainError):
    """The slot is gone: its executor was lost, or somebody took it back.

    What its tasks did until then is unknown.
    """

    default_reason = Reason.EXECUTOR_LOST

    def __init__(
        self, allocation_id: str, generation: int, executor_id: str, reason: str, message: str
    ) -> None:
        super().__init__(
            f"slot {allocation_id} (generation {generation}) on {executor_id} is gone: "
            f"{message or reason or 'no reason given'}",
            reason=reason_of(reason, self.default_reason),
            details={
                "allocation_id": allocation_id,
                "generation": generation,
                "executor_id": executor_id,
            },
        )


class TaskFailed(FinegrainError):
    """A task ended otherwise than with exit code 0; `result` tells how."""

    default_reason = Reason.TASK_ENDED

    def __init__(self, message: str, result: TaskResult, *, reason: Reason | None = None) -> None:
        super().__init__(
            message,
            reason=reason,
            details={"task_id": result.task_id, "exit_code": result.exit_code},
        )
        self.result = result


class TaskNotStarted(FinegrainError):
    """The command never ran; `reason` is for example COMMAND_NOT_FOUND or CWD_UNAVAILABLE."""

    default_reason = Reason.START_FAILED


class JobEnded(FailedPrecondition):
    """The job is over: ended by its master, by its lease, or by an operator."""

    default_reason = Reason.JOB_ENDED
