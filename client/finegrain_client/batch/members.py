"""Which members of a range wait: runs of whole numbers.

Decides how such a set is kept: a hundred thousand that follow one another cost as much as one.
Refuses to know what they wait for. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Members:
    """A set of whole numbers, as sorted runs `[start, end)` that neither overlap nor touch."""

    __slots__ = ("_count", "_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def runs(self) -> Iterator[tuple[int, int]]:
        """First one and count of each run, in rising order."""
        for start, end in zip(self._starts, self._ends, strict=True):
            yield start, end - start

    @property
    def first(self) -> int:
        """The least one; the set must not be empty."""
        return self._starts[0]

    def add(self, first: int, count: int = 1) -> None:
        """Adds numbers, some of which may be there."""
        start, end = first, first + count
        low = bisect_right(self._starts, start)
        if low and self._ends[low - 1] >= start:
            low -= 1
        high = bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._count += (end - start) - self._size(low, high)
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def remove(self, first: int, count: int = 1) -> None:
        """Takes numbers out, some of which may not be there."""
        start, end = first, first + count
        low = bisect_right(self._starts, start)
        if low and self._ends[low - 1] > start:
            low -= 1
        high = bisect_right(self._starts, end - 1)
        if low >= high:
            return
        kept = [
            run
            for run in ((self._starts[low], start), (end, self._ends[high - 1]))
            if run[0] < run[1]
        ]
        self._count -= self._size(low, high) - sum(b - a for a, b in kept)
        self._starts[low:high] = [a for a, _ in kept]
        self._ends[low:high] = [b for _, b in kept]

    def take_last(self, count: int) -> list[tuple[int, int]]:
        """Takes so many of the largest out; first one and count of each run of them."""
        taken: list[tuple[int, int]] = []
        while count > 0 and self._count:
            size = min(count, self._ends[-1] - self._starts[-1])
            first = self._ends[-1] - size
            self.remove(first, size)
            taken.append((first, size))
            count -= size
        return taken

    def clear(self) -> None:
        """Takes all out."""
        self._starts.clear()
        self._ends.clear()
        self._count = 0

    def _size(self, low: int, high: int) -> int:
        return sum(self._ends[low:high]) - sum(self._starts[low:high])
