"""Decides when to go on after a failure of the store, and when to give up.

- A database that is away or full is waited for indefinitely, with growing pauses.
- A failure that repeats although the database is there (a batch that it refuses again and again)
  ends the process after a few attempts.
- A store that is broken for this process ends it at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from finegrain.errors import FinegrainError, StoreError
from finegrain.logs import get_logger
from resource_manager.storage.store import StoreAway, StoreBroken

_log = get_logger("finegrain.rm.recovery")


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Limits of the recovery; times in seconds."""

    failures_max: int = 5  # in `window_s`, with the database there; one more ends the process
    window_s: float = 60.0
    pause_s: float = 0.2  # after the first failure; doubled with each further one
    pause_max_s: float = 2.0
    quiet_s: float = 10.0  # after this long without a failure, pauses are short again
    reminder_s: float = 30.0  # between two log lines about a database that stays away


class Recovery:
    """Counts failures. Moments are seconds of a monotonic clock."""

    def __init__(self, limits: RecoveryLimits) -> None:
        self._limits = limits
        self._failures: deque[float] = deque()
        self._in_a_row = 0
        self._last_at = float("-inf")
        self._away: StoreAway | None = None
        self._away_since = 0.0
        self._logged_at = 0.0

    def refusal(self) -> StoreError | None:
        """Returns the error for callers while the database is away; None: it is there."""
        away = self._away
        if away is None:
            return None
        return StoreError(away.message, reason=away.reason, details=away.details)

    def failed(self, error: BaseException, moment: float) -> FinegrainError | None:
        """Notes a failure. Returns the error to end the process with, or None to try again."""
        # After a quiet time the failure counts as the first one, so its pause is short.
        if moment - self._last_at > self._limits.quiet_s:
            self._in_a_row = 0
        self._in_a_row += 1
        self._last_at = moment
        if isinstance(error, StoreBroken):
            return error
        if isinstance(error, StoreAway):
            self._note_away(error, moment)
            return None
        # The database has answered, so it is not away. This failure counts.
        self._away = None
        self._failures.append(moment)
        while self._failures[0] < moment - self._limits.window_s:
            self._failures.popleft()
        if len(self._failures) <= self._limits.failures_max:
            return None
        return StoreError(
            f"giving up after {self._limits.failures_max} failures in "
            f"{self._limits.window_s:g} s; the last one: {error}"
        )

    def pause_s(self) -> float:
        """Returns how long to wait before the next attempt: `pause_s`, doubled per failure."""
        # The exponent is bounded, because a long outage counts thousands of failures.
        doubled = self._limits.pause_s * 2.0 ** min(self._in_a_row - 1, 16)
        return min(doubled, self._limits.pause_max_s)

    def recovered(self, moment: float) -> None:
        """Notes that the state has been read again."""
        if self._away is not None:
            _log.warning("database_back", away_s=round(moment - self._away_since, 1))
        self._away = None

    def _note_away(self, error: StoreAway, moment: float) -> None:
        first = self._away is None
        if first:
            self._away_since = moment
        if first or moment - self._logged_at >= self._limits.reminder_s:
            self._logged_at = moment
            _log.error("database_away", reason=error.reason.value, error=error.message)
        self._away = error
