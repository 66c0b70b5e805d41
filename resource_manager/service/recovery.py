"""When to go on after a failure of the store, and when to give up.

Decides that a database that is away, or has no room, is waited for as long as it takes, with
growing pauses; that a failure which comes back although the database is there (a batch that it
refuses again and again) ends the process after a few times; and that a store that broke for this
process ends it at once. Refuses to know how books are read.
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
    """Named limits; seconds."""

    failures_max: int = 5  # within `window_s`, with the database there; one more ends the process
    window_s: float = 60.0
    pause_s: float = 0.2  # after a first failure
    pause_max_s: float = 2.0
    quiet_s: float = 10.0  # without a failure for so long, pauses are short again
    reminder_s: float = 30.0  # between two lines of the log about a database that stays away


class Recovery:
    """The failures so far. Moments are seconds of a monotonic clock."""

    def __init__(self, limits: RecoveryLimits) -> None:
        self._limits = limits
        self._failures: deque[float] = deque()
        self._in_a_row = 0
        self._last_at = float("-inf")
        self._away: StoreAway | None = None
        self._away_since = 0.0
        self._logged_at = 0.0

    def refusal(self) -> StoreError | None:
        """What callers are told while the database is away; None: it is there."""
        away = self._away
        if away is None:
            return None
        return StoreError(away.message, reason=away.reason, details=away.details)

    def failed(self, error: BaseException, moment: float) -> FinegrainError | None:
        """Notes a failure; the error to end the process with, if it has to end."""
        if moment - self._last_at > self._limits.quiet_s:
            self._in_a_row = 0
        self._in_a_row += 1
        self._last_at = moment
        if isinstance(error, StoreBroken):
            return error
        if isinstance(error, StoreAway):
            self._note_away(error, moment)
            return None
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
        """How long to wait before the books are read anew."""
        doubled = self._limits.pause_s * 2.0 ** min(self._in_a_row - 1, 16)
        return min(doubled, self._limits.pause_max_s)

    def recovered(self, moment: float) -> None:
        """The books have been read."""
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
