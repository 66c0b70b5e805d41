"""Computes the speed of a batch: durations of its threads, stragglers, and the expected end.

This module reads no clock: callers pass the time.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from finegrain_client.batch.values import Estimate

BASIS_MIN = 5
"""Number of threads that must be done before their durations say anything about the others."""

STRAGGLERS_MIN_S = 0.5
"""A thread that has run for less than this time, in seconds, is never a straggler: a second run
would cost more than it saves.
"""


class Rate:
    """Durations of the threads that are done, in seconds."""

    def __init__(self, durations_s: Iterable[float] = ()) -> None:
        self._sorted = sorted(durations_s)
        self._sum_s = sum(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, duration_s: float) -> None:
        """Adds the duration of one more thread. Cost: linear in the number of durations."""
        insort(self._sorted, duration_s)
        self._sum_s += duration_s

    @property
    def mean_s(self) -> float:
        """The mean duration; 0 if no thread is done."""
        return self._sum_s / len(self._sorted) if self._sorted else 0.0

    def quantile_s(self, part: float) -> float:
        """Returns a quantile of the durations (nearest rank); 0 if no thread is done."""
        if not self._sorted:
            return 0.0
        return self._sorted[max(0, math.ceil(part * len(self._sorted)) - 1)]

    def are_short(self, limit_s: float) -> bool:
        """Returns whether threads are usually short: 95 % of those done took at most `limit_s`
        seconds. False if fewer than `BASIS_MIN` are done.
        """
        return len(self._sorted) >= BASIS_MIN and self.quantile_s(0.95) <= limit_s

    def straggler_after_s(self, factor: float, threads: int) -> float | None:
        """Returns the run time in seconds after which a thread is a straggler, or None if too few
        threads are done.

        Too few means fewer than half of the threads, or fewer than `BASIS_MIN`.

        Args:
            factor: multiple of the 0.95 quantile of the durations.
            threads: number of threads of the batch.
        """
        if len(self._sorted) < BASIS_MIN or 2 * len(self._sorted) < threads:
            return None
        return max(STRAGGLERS_MIN_S, factor * self.quantile_s(0.95))

    def estimate(
        self, now: datetime, *, to_run: int, running_s: Sequence[float], at_once: int
    ) -> Estimate | None:
        """Estimates when all threads will be done. Returns None if no thread is done, or if no
        thread runs.

        The estimate is the remaining work, at the mean duration of the finished threads, divided by
        the number of running threads. A running thread is assumed to take at least another tenth of
        the mean. The result is at least the longest remaining time of a running thread. Example:
        the mean is 10 s, 4 threads have not started, and 2 threads have run for 6 s and 12 s. The
        estimate is (4 * 10 + 4 + 1) / 2 = 22.5 s.

        Args:
            now: the current time.
            to_run: number of threads that have not started.
            running_s: the time for which each running thread has run, in seconds.
            at_once: number of threads that run at present.
        """
        if not self._sorted or not at_once:
            return None
        mean_s = self.mean_s
        # The end of a thread that is already late is not known. Assume that it needs another tenth
        # of the mean.
        left_of = [max(mean_s - each, mean_s * 0.1) for each in running_s]
        work_s = to_run * mean_s + sum(left_of)
        # The thread with the longest remaining time must end in any case, even if there are many
        # slots.
        remaining_s = max(work_s / at_once, max(left_of, default=0.0))
        basis = (
            f"the {len(self._sorted)} done so far took {mean_s:.3g} s on average (95 % of them at "
            f"most {self.quantile_s(0.95):.3g} s), {to_run + len(running_s)} left, {at_once} run "
            "at the same time now"
        )
        return Estimate(remaining_s, now + timedelta(seconds=remaining_s), basis)
