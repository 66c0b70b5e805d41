"""A histogram of the durations of one job's threads. The size of the histogram is bounded, and its
quantiles have a relative error of at most 5 %.

Source: Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees", VLDB 2019. The bounds of buckets grow by a constant factor. One value represents all
durations of a bucket. The relative error of this value is the same at both ends of the bucket.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

RELATIVE_ERROR = 0.05
"""The largest relative error of a duration that is read from the histogram."""

_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = math.log(_GROWTH)

BUCKETS_MAX = 256
"""Number of buckets. The last bucket contains all durations from about 3.8 years on."""

_VERSION = 2
_VERSION_WITHOUT_ATTEMPTS = 1
"""Version of texts without `unfinished` and `unmatched`, which earlier programs wrote."""


@dataclass(slots=True)
class Durations:
    """The number of durations in each bucket. Count, sum, shortest and longest are exact.

    Bucket b contains durations above `_GROWTH ** (b - 1)` ms, up to `_GROWTH ** b` ms. Bucket 0
    contains durations up to 1 ms.
    """

    count: int = 0
    total_ms: int = 0
    shortest_ms: int = 0
    longest_ms: int = 0
    handed_on: int = 0  # number of slots that were reused for the next thread
    unfinished: int = 0  # number of attempts that finished no thread; they have no duration here
    # number of durations whose job master did not report whether a thread has finished
    unmatched: int = 0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, duration_ms: int, times: int = 1) -> None:
        """Adds one duration `times` times; a negative duration counts as 0."""
        if not times:
            return
        duration_ms = max(0, duration_ms)
        at = _bucket_of(duration_ms)
        self.buckets[at] = self.buckets.get(at, 0) + times
        self.shortest_ms = min(self.shortest_ms, duration_ms) if self.count else duration_ms
        self.longest_ms = max(self.longest_ms, duration_ms)
        self.count += times
        self.total_ms += duration_ms * times

    def merge(self, other: Durations) -> None:
        """Adds the contents of another histogram."""
        self.handed_on += other.handed_on
        self.unfinished += other.unfinished
        self.unmatched += other.unmatched
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
        """The mean of all durations; 0 if there are no durations."""
        return self.total_ms / self.count if self.count else 0.0

    def quantile_ms(self, quantile: float) -> float:
        """Returns a duration such that the fraction `quantile` of all durations is not longer.
        Returns 0 if there are no durations.

        The result is the duration at the nearest rank, with an error of at most `RELATIVE_ERROR`.
        Example: for 20 durations, the quantile 0.95 is the 19th shortest.
        """
        if not self.count:
            return 0.0
        # Without the tolerance, a rounding error of the product could raise the rank.
        left = max(1, math.ceil(quantile * self.count - 1e-9))
        for at in sorted(self.buckets):
            left -= self.buckets[at]
            if left <= 0:
                return self._within(_value_of(at))
        raise AssertionError("the buckets contain fewer durations than were counted")

    def share_within(self, limit_ms: float) -> float:
        """Returns the fraction of durations up to `limit_ms`, from 0 to 1; 1 if there are no
        durations.

        If the limit is inside a bucket, the part below the limit is estimated. The estimate assumes
        that durations are evenly distributed in the bucket, on a logarithmic scale.
        """
        return self.count_within(limit_ms) / self.count if self.count else 1.0

    def count_within(self, limit_ms: float) -> float:
        """Returns the number of durations up to `limit_ms`, estimated as in `share_within`."""
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
        """Returns the number of durations above `limit_ms`, and the sum of these durations in ms.
        The number and the sum have the precision of the buckets.
        """
        long = {at: count for at, count in self.buckets.items() if _value_of(at) > limit_ms}
        total = sum(count * self._within(_value_of(at)) for at, count in long.items())
        return sum(long.values()), total

    def to_text(self) -> str:
        """Returns compact JSON for the stored row; empty if there is nothing to store."""
        if not (self.count or self.handed_on or self.unfinished):
            return ""
        flat = [number for at in sorted(self.buckets) for number in (at, self.buckets[at])]
        numbers = [self.total_ms, self.shortest_ms, self.longest_ms, self.handed_on]
        numbers += [self.unfinished, self.unmatched]
        body = [_VERSION, *numbers, flat]
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Durations:
        """Reads the text that `to_text` wrote. An invalid text, or a text of another version, gives
        an empty histogram: the resource manager must be able to start without the durations.
        """
        if not text:
            return cls()
        try:
            version, *numbers, flat = json.loads(text)
            buckets = _pairs(flat)
            count = sum(buckets.values())
            if version == _VERSION_WITHOUT_ATTEMPTS:
                numbers += [0, count]
            elif version != _VERSION:
                return cls()
            total_ms, shortest_ms, longest_ms, handed_on, unfinished, unmatched = map(int, numbers)
            return cls(
                count,
                total_ms,
                shortest_ms,
                longest_ms,
                handed_on,
                unfinished,
                unmatched,
                buckets,
            )
        except (ValueError, TypeError):
            return cls()

    def _within(self, value: float) -> float:
        return min(max(value, self.shortest_ms), self.longest_ms)


def merged(parts: Iterable[Durations]) -> Durations:
    """Returns one histogram with the durations of all parts."""
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
    """Returns the value that represents a bucket. It has the same relative distance to both ends of
    the bucket.
    """
    return 2 * _GROWTH**bucket / (_GROWTH + 1)
