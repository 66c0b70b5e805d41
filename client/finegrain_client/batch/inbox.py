"""Defines the messages that background tasks send to the main loop of a batch. The messages are
plain data.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.errors import FinegrainError
from finegrain_client.batch.scheduler_state import AttemptKey, AttemptOutcome, SlotKey
from finegrain_client.batch.slots import SlotMessage


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt has ended."""

    key: AttemptKey
    outcome: AttemptOutcome


@dataclass(frozen=True, slots=True)
class SubmissionFailed:
    """The submission of requests failed. `error` is None if another try is allowed."""

    first: int
    count: int
    error: FinegrainError | None


@dataclass(frozen=True, slots=True)
class ReuseAnswered:
    """The resource manager's answers to the question whether slots may be reused."""

    answers: list[tuple[SlotKey, int, bool]]


@dataclass(frozen=True, slots=True)
class Broken:
    """A background task failed, and the runner cannot continue."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class CommandStarted:
    """An attempt's command was started."""


@dataclass(frozen=True, slots=True)
class WakeUp:
    """The session must stop."""


InboxMessage = (
    SlotMessage | AttemptEnded | SubmissionFailed | ReuseAnswered | Broken | CommandStarted | WakeUp
)
