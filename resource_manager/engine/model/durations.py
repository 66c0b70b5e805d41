"""How long the threads of one job took: a histogram of bounded size that tells quantiles to 5 %.

Knows durations in milliseconds and their text in the books. Refuses to know what a thread is, when
one begins or ends, and what anybody concludes from it (`fairness.py`).

Source: Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile sketch with
relative-error guarantees", VLDB 2019: buckets whose bounds grow by a constant factor, each
represented by the value that is off by the same share at both of its ends.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

RELATIVE_ERROR = 0.05
"""A duration that is read off the histogram is off by at most this share."""

_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = math.log(_GROWTH)

BUCKETS_MAX = 256
"""The last bucket holds whatever is longer, from some 3.8 years on."""

_VERSION = 1


@dataclass(slots=True)
class Durations:
    """Counts of durations by bucket; number, sum, shortest and longest are exact.

    Bucket b holds what is longer than `_GROWTH ** (b - 1)` ms and at most `_GROWTH ** b` ms; bucket
    0 holds what is at most 1 ms.
    """

    count: int = 0
    total_ms: int = 0
    shortest_ms: int = 0
    longest_ms: int = 0
    handed_on: int = 0  # slots that went on with the next thread; no part of the histogram
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, duration_ms: int) -> None:
        """Takes one duration in; one below 0 counts as 0."""
        duration_ms = max(0, duration_ms)
        at = _bucket_of(duration_ms)
        self.buckets[at] = self.buckets.get(at, 0) + 1
        self.shortest_ms = min(self.shortest_ms, duration_ms) if self.count else duration_ms
        self.longest_ms = max(self.longest_ms, duration_ms)
        self.count += 1
        self.total_ms += duration_ms

    def merge(self, other: Durations) -> None:
        """Takes in all that another one holds."""
        self.handed_on += other.handed_on
        if not other.count:
            return
        for at, count in other.buckets.items():
            self.buckets[at] = self.buckets.get(at, 0) + count
        self.shortest_ms = (
            min(self.shortest_ms, other.shortest_ms) if self.count else other.shortest_ms
        )
        self.longest_ms = max(self.longest_ms, other.longest_ms)
        self.count += other.count
        self.total_ms += other.total_ms

    @property
    def mean_ms(self) -> float:
        """The mean; 0 where there is none."""
        return self.total_ms / self.count if self.count else 0.0

    def quantile_ms(self, quantile: float) -> float:
        """The duration that at least this share of all did not exceed; 0 where there is none.

        It is one that occurred (nearest rank), within `RELATIVE_ERROR`.
        """
        if not self.count:
            return 0.0
        left = max(1, math.ceil(quantile * self.count - 1e-9))
        for at in sorted(self.buckets):
            left -= self.buckets[at]
            if left <= 0:
                return self._within(_value_of(at))
        raise AssertionError("the buckets hold as many as were counted")

    def share_within(self, limit_ms: float) -> float:
        """The share of those that took at most `limit_ms`, 0 to 1; 1 where there is none.

        A bucket that the limit cuts counts by where on its logarithmic width the limit lies.
        """
        return self.count_within(limit_ms) / self.count if self.count else 1.0

    def count_within(self, limit_ms: float) -> float:
        """Likewise, as a number of durations."""
        if limit_ms >= self.longest_ms:
            return float(self.count)
        if limit_ms < self.shortest_ms:
            return 0.0
        position = math.log(limit_ms) / _LOG_GROWTH if limit_ms > 1 else 0.0
        found = 0.0
        for at, count in self.buckets.items():
            if at <= position:
                found += count
            elif at - 1 < position:
                found += count * (position - (at - 1))
        return found

    def beyond(self, limit_ms: float) -> tuple[int, float]:
        """How many took longer than `limit_ms`, and for how long altogether, to a bucket."""
        long = {at: count for at, count in self.buckets.items() if _value_of(at) > limit_ms}
        total = sum(count * self._within(_value_of(at)) for at, count in long.items())
        return sum(long.values()), total

    def to_text(self) -> str:
        """For the row of a job: compact JSON; empty where there is none."""
        if not (self.count or self.handed_on):
            return ""
        flat = [number for at in sorted(self.buckets) for number in (at, self.buckets[at])]
        numbers = [self.total_ms, self.shortest_ms, self.longest_ms, self.handed_on]
        body = [_VERSION, *numbers, flat]
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Durations:
        """What `to_text` wrote. What another version wrote, or what makes no sense, is nothing:
        advice is no reason not to start.
        """
        if not text:
            return cls()
        try:
            version, *numbers, flat = json.loads(text)
            if version != _VERSION:
                return cls()
            total_ms, shortest_ms, longest_ms, handed_on = map(int, numbers)
            buckets = _pairs(flat)
            count = sum(buckets.values())
            return cls(count, total_ms, shortest_ms, longest_ms, handed_on, buckets)
        except (ValueError, TypeError):
            return cls()

    def _within(self, value: float) -> float:
        return min(max(value, self.shortest_ms), self.longest_ms)


def merged(parts: Iterable[Durations]) -> Durations:
    """All of them in one."""
    whole = Durations()
    for each in parts:
        whole.merge(each)
    return whole


def _pairs(flat: list[int]) -> dict[int, int]:
    found = dict(zip(map(int, flat[::2]), map(int, flat[1::2]), strict=True))
    if any(not 0 <= at < BUCKETS_MAX or count < 1 for at, count in found.items()):
        raise ValueError("no such bucket")
    return found


def _bucket_of(duration_ms: int) -> int:
    if duration_ms <= 1:
        return 0
    return min(BUCKETS_MAX - 1, math.ceil(math.log(duration_ms) / _LOG_GROWTH))


def _value_of(bucket: int) -> float:
    """The value that is off by the same share at both ends of its bucket."""
    return 2 * _GROWTH**bucket / (_GROWTH + 1)
