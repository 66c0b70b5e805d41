"""What a batch's loop is told by what runs beside it.

Plain data, and nothing that decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.errors import FinegrainError
from finegrain_client.batch.scheduler_state import AttemptKey, AttemptOutcome, SlotKey
from finegrain_client.batch.slots import SlotMessage


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt came to its end."""

    key: AttemptKey
    outcome: AttemptOutcome


@dataclass(frozen=True, slots=True)
class SubmissionFailed:
    """Requests are not queued; why, where asking again would not help."""

    first: int
    count: int
    error: FinegrainError | None


@dataclass(frozen=True, slots=True)
class ReuseAnswered:
    """Whether slots may be used once more."""

    answers: list[tuple[SlotKey, int, bool]]


@dataclass(frozen=True, slots=True)
class Broken:
    """Something beside the loop failed, and the runner cannot go on."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class CommandStarted:
    """A command could be executed."""


@dataclass(frozen=True, slots=True)
class WakeUp:
    """The session was asked to stop."""


InboxMessage = (
    SlotMessage | AttemptEnded | SubmissionFailed | ReuseAnswered | Broken | CommandStarted | WakeUp
)
