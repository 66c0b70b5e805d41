"""Decides whether to try again after a failure of the store, or to end the process.

- If the database cannot be reached or is full, attempts continue indefinitely, with growing pauses.
- If the database answers, but failures repeat, the process ends after a few attempts. Example: the
  database rejects the same batch again.
- If the store cannot be used any more by this process, the process ends at once.
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
    """Limits of the recovery. Times are in seconds."""

    failures_max: int = 5  # failures of a reachable database in `window_s` before the process ends
    window_s: float = 60.0
    pause_s: float = 0.2  # pause after the first failure; each further failure doubles it
    pause_max_s: float = 2.0
    quiet_s: float = 10.0  # after this time without a failure, pauses are short again
    reminder_s: float = 30.0  # pause between two log lines about the same outage


class Recovery:
    """Counts the failures of the writer. `moment` is always a time in seconds of a monotonic
    clock.
    """

    def __init__(self, limits: RecoveryLimits) -> None:
        self._limits = limits
        self._failures: deque[float] = deque()
        self._in_a_row = 0
        self._last_at = float("-inf")
        self._away: StoreAway | None = None
        self._away_since = 0.0
        self._logged_at = 0.0

    def refusal(self) -> StoreError | None:
        """Returns the error for callers during an outage of the database; None: there is no
        outage.
        """
        away = self._away
        if away is None:
            return None
        return StoreError(away.message, reason=away.reason, details=away.details)

    def failed(self, error: BaseException, moment: float) -> FinegrainError | None:
        """Records a failure. Returns the error that ends the process, or None to try again."""
        # After some time without failures, this failure counts as the first failure again. So the
        # pause after this failure is short.
        if moment - self._last_at > self._limits.quiet_s:
            self._in_a_row = 0
        self._in_a_row += 1
        self._last_at = moment
        if isinstance(error, StoreBroken):
            return error
        if isinstance(error, StoreAway):
            self._note_away(error, moment)
            return None
        # The database has answered, so there is no outage, and this failure counts.
        self._away = None
        self._failures.append(moment)
        while self._failures[0] < moment - self._limits.window_s:
            self._failures.popleft()
        if len(self._failures) <= self._limits.failures_max:
            return None
        return StoreError(
            f"the process ends after {self._limits.failures_max} failures in "
            f"{self._limits.window_s:g} s; the last one: {error}"
        )

    def pause_s(self) -> float:
        """Returns the pause before the next attempt: `pause_s`, doubled by each further failure."""
        # The exponent is limited, because a long outage causes thousands of failures.
        doubled = self._limits.pause_s * 2.0 ** min(self._in_a_row - 1, 16)
        return min(doubled, self._limits.pause_max_s)

    def recovered(self, moment: float) -> None:
        """Records that the state was read again."""
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
