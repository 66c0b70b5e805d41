"""Functions of time that are constant between moments. The values are exact and not sampled."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Steps:
    """A step function: `values[i]` holds from `times_ms[i]` until the next time. Before the first
    time the value is 0.
    """

    times_ms: Sequence[int] = ()
    values: Sequence[float] = ()

    def at(self, time_ms: int) -> float:
        """Returns the value at (and right after) a moment. O(log n)."""
        number = bisect_right(self.times_ms, time_ms)
        return self.values[number - 1] if number else 0

    def pieces(self, begin_ms: int, end_ms: int) -> Iterator[tuple[int, int, float]]:
        """Yields (from, until, value) for each constant piece of an interval, without gaps."""
        since, number = begin_ms, bisect_right(self.times_ms, begin_ms)
        value = self.values[number - 1] if number else 0
        while number < len(self.times_ms) and self.times_ms[number] < end_ms:
            yield since, self.times_ms[number], value
            since, value = self.times_ms[number], self.values[number]
            number += 1
        if since < end_ms:
            yield since, end_ms, value

    def integral(self, begin_ms: int, end_ms: int) -> float:
        """Returns the integral over an interval, in value x milliseconds."""
        return sum((until - since) * value for since, until, value in self.pieces(begin_ms, end_ms))

    def mean(self, begin_ms: int, end_ms: int) -> float:
        """Returns the mean over an interval; 0 for an empty interval."""
        return self.integral(begin_ms, end_ms) / (end_ms - begin_ms) if end_ms > begin_ms else 0

    def most(self) -> float:
        """Returns the highest value, at least 0."""
        return max(self.values, default=0)


def steps_of(changes: Iterable[tuple[int, float]]) -> Steps:
    """Returns the running sum of (moment, change) pairs, which can be in any order.

    Example: (5, +2), (0, +1), (9, -1) is 1 from 0, 3 from 5 and 2 from 9.
    """
    summed: dict[int, float] = {}
    for time_ms, change in changes:
        summed[time_ms] = summed.get(time_ms, 0) + change
    times, values, value = [], [], 0.0
    for time_ms in sorted(summed):
        # Leave out moments whose changes cancel out.
        if summed[time_ms]:
            value += summed[time_ms]
            times.append(time_ms)
            values.append(value)
    return Steps(times, values)
