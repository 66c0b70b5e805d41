"""How fast a batch goes: how long its threads take, who takes too long, when it will end.

Decides what an estimate goes by, and whom a straggler is compared with. Refuses to know a clock.
Pure.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from finegrain_client.batch.values import Estimate

BASIS_MIN = 5
"""Threads that have to be done before anybody is called a straggler."""

STRAGGLERS_MIN_S = 0.5
"""Nobody is called a straggler before that: a second run costs more."""


class Rate:
    """Durations of the threads that are done, in seconds."""

    def __init__(self, durations_s: Iterable[float] = ()) -> None:
        self._sorted = sorted(durations_s)
        self._sum_s = sum(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, duration_s: float) -> None:
        """One more is done."""
        insort(self._sorted, duration_s)
        self._sum_s += duration_s

    @property
    def mean_s(self) -> float:
        """The mean; 0 where none is done."""
        return self._sum_s / len(self._sorted) if self._sorted else 0.0

    def quantile_s(self, part: float) -> float:
        """The duration that this part of them keeps to (nearest rank); 0 where none is done."""
        if not self._sorted:
            return 0.0
        return self._sorted[max(0, math.ceil(part * len(self._sorted)) - 1)]

    def straggler_after_s(self, factor: float, threads: int) -> float | None:
        """How long a thread runs before it is called a straggler; None: too little is known."""
        if len(self._sorted) < BASIS_MIN or 2 * len(self._sorted) < threads:
            return None
        return max(STRAGGLERS_MIN_S, factor * self.quantile_s(0.95))

    def estimate(
        self, now: datetime, *, to_run: int, running_s: Sequence[float], at_once: int
    ) -> Estimate | None:
        """When all will be done; None where nothing is known, or nothing goes on.

        What is left to do, by the mean duration of those that are done, is divided by how many are
        done at one time at present; and one that has begun takes at least another moment.

        Args:
            to_run: threads that have not begun.
            running_s: for how long those run that have begun.
            at_once: how many slots there are at present.
        """
        if not self._sorted or not at_once:
            return None
        mean_s = self.mean_s
        left_of = [max(mean_s - each, mean_s * 0.1) for each in running_s]
        work_s = to_run * mean_s + sum(left_of)
        remaining_s = max(work_s / at_once, max(left_of, default=0.0))
        basis = (
            f"the {len(self._sorted)} done so far took {mean_s:.3g} s on average (95 % of them at "
            f"most {self.quantile_s(0.95):.3g} s), {to_run + len(running_s)} left, {at_once} at "
            "one time now"
        )
        return Estimate(remaining_s, now + timedelta(seconds=remaining_s), basis)
