"""Defines the errors that only a job master can get. All other errors are in `finegrain.errors`.

These errors say how a request, a slot or a task ended. Other modules convert gRPC statuses to the
classes of `finegrain.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from finegrain.errors import FailedPrecondition, FinegrainError, Reason
from finegrain.values.outcomes import ItemOutcome
from finegrain_client.types.status import SlotStatus


def reason_of(text: str, otherwise: Reason) -> Reason:
    """Returns the reason with this name, or `otherwise` if this client does not know the name."""
    try:
        return Reason(text)
    except ValueError:
        return otherwise


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason why one slot request was rejected: a stable code, a sentence, and the variable
    parts of the sentence.
    """

    allocation_id: str
    reason: str
    message: str
    details: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, allocation_id: str, outcome: ItemOutcome) -> Rejection:
        """Returns the rejection that a failed outcome describes."""
        return cls(allocation_id, outcome.reason, outcome.message, dict(outcome.details))


class RequestRejected(FinegrainError):
    """Slot requests were rejected and will never be served. `rejections` names all rejected
    requests.
    """

    default_reason = Reason.INFEASIBLE_NEVER

    def __init__(self, rejections: Sequence[Rejection]) -> None:
        self.rejections = tuple(rejections)
        # Some members were rejected only because of another member of their gang. Leave them out:
        # their messages do not help.
        culprits = [each for each in rejections if each.reason != Reason.GANG_REFUSED]
        first = (culprits or self.rejections)[0]
        super().__init__(
            self._text(first),
            reason=reason_of(first.reason, self.default_reason),
            details={**first.details, "allocation_id": first.allocation_id},
        )

    def _text(self, first: Rejection) -> str:
        more = len(self.rejections) - 1
        text = f"slot request {first.allocation_id} was rejected: {first.message or first.reason}"
        return text + (f"; {more + 1} slot requests were rejected in total" if more else "")


class GangTimeout(RequestRejected, TimeoutError):
    """A gang was not placed as a whole within its timeout. The gang does not wait any longer."""

    default_reason = Reason.GANG_TIMEOUT

    def _text(self, first: Rejection) -> str:
        return (
            f"the gang of slot request {first.allocation_id} was not granted: "
            f"{first.message or 'it was not placed as a whole within its timeout'}"
        )


def rejected(rejections: Sequence[Rejection]) -> RequestRejected:
    """Returns GangTimeout if the timeout of a gang caused a rejection, and otherwise
    RequestRejected.
    """
    # One rejection for this reason is enough, because a gang ends as a whole.
    if any(each.reason == Reason.GANG_TIMEOUT for each in rejections):
        return GangTimeout(rejections)
    return RequestRejected(rejections)


class RequestEnded(FailedPrecondition):
    """The request was cancelled or released before its slot could be used."""

    default_reason = Reason.JOB_OVER

    def __init__(self, allocation_id: str, state: str, reason: str, message: str) -> None:
        super().__init__(
            f"slot request {allocation_id} is {state}: {message or reason or 'it was cancelled'}",
            reason=reason_of(reason, self.default_reason),
            details={"allocation_id": allocation_id, "state": state},
        )


class StillWaiting(FinegrainError, TimeoutError):
    """The request was not granted within the given time, and stays queued."""

    default_reason = Reason.NOT_YET_CONSIDERED

    def __init__(self, allocation_id: str, timeout_s: float, state: str, reason: str) -> None:
        super().__init__(
            f"slot request {allocation_id} is still waiting after {timeout_s:g} s "
            f"({reason or state}); it stays queued: await it again, or cancel it",
            reason=reason_of(reason, self.default_reason),
            details={"allocation_id": allocation_id, "state": state},
        )


class ResizeRefused(FailedPrecondition):
    """The slot did not get the requested size.

    The slot keeps its size, or another resize has replaced this resize.

    `status` is the state of the slot after the refusal.
    """

    default_reason = Reason.RESIZE_REFUSED

    def __init__(self, status: SlotStatus, resize_number: int, message: str) -> None:
        super().__init__(
            f"slot {status.allocation_id} was not resized (resize {resize_number}): {message}",
            details={
                "allocation_id": status.allocation_id,
                "generation": status.generation,
                "resize_number": resize_number,
            },
        )
        self.status = status


class StillResizing(FinegrainError, TimeoutError):
    """The slot was not resized within the given time. The resize is still pending."""

    default_reason = Reason.NOT_YET_CONSIDERED

    def __init__(self, allocation_id: str, timeout_s: float, why: str) -> None:
        super().__init__(
            f"slot {allocation_id} was not resized within {timeout_s:g} s"
            f"{f' ({why})' if why else ''}; the resize stays queued: request another size, or "
            "withdraw it",
            details={"allocation_id": allocation_id},
        )


class SlotLost(FinegrainError):
    """The slot has ended: its executor was lost, or the slot was released.

    It is unknown how much of their work the tasks of the slot have done.
    """

    default_reason = Reason.EXECUTOR_LOST

    def __init__(
        self, allocation_id: str, generation: int, executor_id: str, reason: str, message: str
    ) -> None:
        super().__init__(
            f"slot {allocation_id} (generation {generation}) on {executor_id} has ended: "
            f"{message or reason or 'no reason given'}",
            reason=reason_of(reason, self.default_reason),
            details={
                "allocation_id": allocation_id,
                "generation": generation,
                "executor_id": executor_id,
            },
        )


class TaskNotStarted(FinegrainError):
    """The command never ran. `reason` is for example COMMAND_NOT_FOUND or CWD_UNAVAILABLE."""

    default_reason = Reason.START_FAILED


class JobEnded(FailedPrecondition):
    """The job has ended: its job master or an administrator ended it, or its lease expired."""

    default_reason = Reason.JOB_ENDED
