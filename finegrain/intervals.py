"""Implements a set of whole numbers, stored as intervals. Ranges of requests and job queues use
this set.

A million consecutive numbers need as much memory as one number. The set is a flat, ascending array
of boundaries, `start, end, start, end, ...`. To test a number, count the boundaries that are less
than or equal to it. The number is in the set only if this count is odd. So each query is one binary
search. Example: {3, 4, 5, 9} is the array 3, 6, 9, 10. One boundary (3) is less than or equal to 5,
so 5 is in the set.

Queues remove numbers at the front. To make this cheap, a removal at the front only skips
boundaries. The skipped boundaries are deleted when they are more than half of the array.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Self

Run = tuple[int, int]
"""An interval of numbers: from the first up to, but not including, the second."""

CUT_OFF_FROM = 64
"""A deletion moves all other boundaries. So skipped boundaries are deleted only if there are at
least this number of them.
"""


class IntervalSet:
    """A set of whole numbers (64 bits, signed). It is stored as sorted intervals that do not
    overlap or touch.

    A search takes O(log intervals). A change moves all boundaries that come after it (16 bytes per
    interval). A change at the start or the end of the set moves no boundary. Iteration is in
    ascending order. The set must not be changed during an iteration.
    """

    __slots__ = ("_bounds", "_count", "_head")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._bounds = array("q")
        self._head = 0
        self._count = 0
        for start, end in runs:
            self.add_run(start, end)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Returns the set of these numbers, which can be in any order."""
        made = cls()
        for number in numbers:
            made.add(number)
        return made

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        return (self._after(number) - self._head) & 1 == 1

    def __iter__(self) -> Iterator[int]:
        for start, end in self.runs():
            yield from range(start, end)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return self._count == other._count and list(self.runs()) == list(other.runs())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IntervalSet({list(self.runs())!r})"

    @property
    def first(self) -> int:
        """The smallest number. Raises KeyError if the set is empty."""
        if not self._count:
            raise KeyError("an empty set has no first number")
        return self._bounds[self._head]

    @property
    def last(self) -> int:
        """The largest number. Raises KeyError if the set is empty."""
        if not self._count:
            raise KeyError("an empty set has no last number")
        return self._bounds[-1] - 1

    @property
    def run_count(self) -> int:
        """Number of intervals."""
        return (len(self._bounds) - self._head) // 2

    def runs(self) -> Iterator[Run]:
        """Yields the intervals in ascending order."""
        bounds = self._bounds
        for at in range(self._head, len(bounds), 2):
            yield bounds[at], bounds[at + 1]

    def runs_within(self, start: int, end: int) -> Iterator[Run]:
        """Yields the intersections of the set's intervals with `start` to `end` (exclusive)."""
        bounds = self._bounds
        at = self._after(start)
        # An odd position is the end of an interval that contains `start`. Begin with the start of
        # this interval.
        at -= (at - self._head) & 1
        for here in range(at, len(bounds), 2):
            low, high = max(start, bounds[here]), min(end, bounds[here + 1])
            if low >= high:
                return
            yield low, high

    def next_from(self, number: int) -> int | None:
        """Returns the smallest number of the set that is at least `number`, or None."""
        at = self._after(number)
        # If an odd number of boundaries is less than or equal to `number`, the number is in the
        # set.
        if (at - self._head) & 1:
            return number
        return self._bounds[at] if at < len(self._bounds) else None

    def count_within(self, start: int, end: int) -> int:
        """Returns how many numbers of the set are in `start` to `end` (exclusive).

        The cost is linear in the intervals between `start` and `end`.
        """
        return sum(high - low for low, high in self.runs_within(start, end))

    def add(self, number: int) -> bool:
        """Adds a number. Returns False if the set already has it."""
        return self.add_run(number, number + 1) == 1

    def add_run(self, start: int, end: int) -> int:
        """Adds the numbers from `start` to `end` (exclusive). Returns the count of new numbers."""
        if start >= end:
            return 0
        bounds = self._bounds
        # An interval after all other numbers is appended without a search.
        if not bounds or start > bounds[-1]:
            bounds.append(start)
            bounds.append(end)
            self._count += end - start
            return end - start
        if start == bounds[-1]:
            bounds[-1] = end
            self._count += end - start
            return end - start
        # Join intervals that touch: remove a boundary that equals `start` or `end`.
        low = bisect_left(bounds, start, self._head)
        high = bisect_right(bounds, end, self._head)
        put = []
        if (low - self._head) & 1 == 0:
            # An even position is outside all intervals, so this boundary is new.
            put.append(start)
        if (high - self._head) & 1 == 0:
            put.append(end)
        return self._replace(low, high, put)

    def remove(self, number: int) -> None:
        """Removes a number. Raises KeyError if the set does not have it."""
        if not self.remove_run(number, number + 1):
            raise KeyError(number)

    def discard(self, number: int) -> bool:
        """Removes a number. Returns False if the set does not have it."""
        return self.remove_run(number, number + 1) == 1

    def remove_run(self, start: int, end: int) -> int:
        """Removes the numbers from `start` to `end` (exclusive). Returns the count of removed
        numbers.
        """
        if start >= end or not self._count:
            return 0
        bounds = self._bounds
        low = bisect_left(bounds, start, self._head)
        high = bisect_right(bounds, end, self._head)
        put = []
        if (low - self._head) & 1:
            # An odd position is inside an interval, whose part before `start` stays.
            put.append(start)
        if (high - self._head) & 1:
            put.append(end)
        if low == self._head and not put:
            # At the front, move only the head. Queues remove numbers at the front, so this removal
            # must be cheap.
            return self._skip(high)
        return -self._replace(low, high, put)

    def take(self, count: int) -> list[Run]:
        """Removes the smallest `count` numbers, or all numbers if there are fewer.

        Returns the removed numbers as intervals.
        """
        bounds, at = self._bounds, self._head
        # Most calls take a part of the first interval, so this case has a short path.
        if at < len(bounds) and 0 < count < bounds[at + 1] - bounds[at]:
            start = bounds[at]
            bounds[at] = start + count
            self._count -= count
            return [(start, start + count)]
        taken: list[Run] = []
        left = count
        while left > 0 and at < len(bounds):
            start, end = bounds[at], min(bounds[at + 1], bounds[at] + left)
            taken.append((start, end))
            left -= end - start
            if end < bounds[at + 1]:
                bounds[at] = end
            else:
                at += 2
        self._count -= sum(end - start for start, end in taken)
        self._move_head(at)
        return taken

    def peek(self, count: int) -> list[Run]:
        """Returns the result that `take` would return, but removes nothing."""
        found: list[Run] = []
        left = count
        for start, end in self.runs():
            if left <= 0:
                break
            found.append((start, min(end, start + left)))
            left -= end - start
        return found

    def copy(self) -> "IntervalSet":
        """Returns a set of the same numbers."""
        other = IntervalSet()
        other._bounds = self._bounds[self._head :]
        other._count = self._count
        return other

    def clear(self) -> None:
        """Removes all numbers."""
        self._bounds = array("q")
        self._head = 0
        self._count = 0

    def _after(self, number: int) -> int:
        return bisect_right(self._bounds, number, self._head)

    def _replace(self, low: int, high: int, put: list[int]) -> int:
        """Replaces boundaries. Returns the count of numbers by which the set has grown."""
        bounds = self._bounds
        # Move both positions to even positions, so that only whole intervals are counted.
        before = self._length(low - ((low - self._head) & 1), high + ((high - self._head) & 1))
        bounds[low:high] = array("q", put)
        high = low + len(put)
        after = self._length(low - ((low - self._head) & 1), high + ((high - self._head) & 1))
        self._count += after - before
        return after - before

    def _length(self, low: int, high: int) -> int:
        """Returns the count of numbers in the intervals with these boundaries."""
        if high - low == 2:  # most changes concern one interval
            return self._bounds[low + 1] - self._bounds[low]
        return sum(self._bounds[low + 1 : high : 2]) - sum(self._bounds[low:high:2])

    def _skip(self, high: int) -> int:
        gone = self._length(self._head, high)
        self._count -= gone
        self._move_head(high)
        return gone

    def _move_head(self, head: int) -> None:
        self._head = head
        if not self._count:
            # Clear the set, because `add_run` would otherwise extend intervals that were skipped.
            self.clear()
        elif head >= CUT_OFF_FROM and head * 2 > len(self._bounds):
            # Delete boundaries only when more than half of them are skipped, so that a deletion
            # moves at most as many boundaries as it deletes.
            del self._bounds[:head]
            self._head = 0
