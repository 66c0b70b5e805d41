"""Keeps the durations of the latest threads of one job and class, and estimates the duration of the
next threads.

Only the latest `KEPT` durations count, so the estimate follows a job whose threads become longer or
shorter. The estimate is a high quantile. If the estimate were too low, other work would be planned
for a time at which the thread still runs.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

KEPT = 200
"""Number of durations that are kept."""

NEEDED = 10
"""If fewer durations than this are known, there is no estimate."""

QUANTILE = 0.9
"""The estimate is this quantile of the kept durations."""

CLASSES_MAX = 64
"""Maximum number of classes of one job whose durations are kept. The oldest class is dropped
first.
"""


@dataclass(slots=True)
class RecentDurations:
    """The latest durations, in milliseconds."""

    _kept: array[int] = field(default_factory=lambda: array("q"))
    _next: int = 0  # position of the oldest duration, once `KEPT` durations are known
    _estimate_ms: int | None = None  # cached; None: not computed since the last change

    def add(self, duration_ms: int) -> None:
        """Adds a duration, and drops the oldest duration if there are too many."""
        if len(self._kept) < KEPT:
            self._kept.append(duration_ms)
        else:
            self._kept[self._next] = duration_ms
            self._next = (self._next + 1) % KEPT
        self._estimate_ms = None

    @property
    def expected_ms(self) -> int | None:
        """The estimate: the quantile at the nearest rank; None: too few durations are known."""
        if len(self._kept) < NEEDED:
            return None
        if self._estimate_ms is None:
            ordered = sorted(self._kept)
            # Without the tolerance, a rounding error of the product could raise the rank.
            rank = -int(-(QUANTILE * len(ordered) - 1e-9) // 1)
            self._estimate_ms = ordered[max(0, rank - 1)]
        return self._estimate_ms
