"""Finds the lowest of many straight lines, at a time that only moves forward.

A *kinetic tournament* (Basch, Guibas, Hershberger: "Data structures for mobile data", SODA 1997) is
a binary tree over the entries. Each inner node stores its *winner*, which is the lowest entry below
the node: of the winners of its two children, the entry with the lower value. The node also stores a
time until which no winner in its subtree can change. A query before the time of the root reads only
the root. A later query *judges* only the nodes whose time has passed. To judge a node means to
compare the winners of its two children, and to store the new winner and time. If the line of an
entry changes, the tree judges the nodes above the entry's leaf, from the leaf up. It stops at the
first node whose winner and time did not change and whose winner is another entry.

Example: four lines are in seats 0 to 3, and are judged at tau = 0.

    A = 10 + 2 tau    B = 14 + 1 tau    C = 13    D = 20

    node 2 (A, B): A wins, until tau = 4, where A and B cross
    node 3 (C, D): C wins, until infinity
    node 1 (2, 3): A wins, until tau = 1.5, where A and C cross

`least(1)` returns A, and judges no node. `least(2)` judges only node 1: A is 14 and C is 13, so C
wins until tau = 4. At tau = 4, the winner of node 2 can change, so nodes 2 and 1 are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nextafter
from typing import Generic, TypeVar

_LEAVES_MIN = 2


@dataclass(slots=True, eq=False)
class Entry:
    """A line `level + slope * tau`. If two entries have equal lines, the entry with the lower `tie`
    comes first.

    `seat` is the position of the entry's leaf in its tournament, or -1 if the entry is in no
    tournament. While an entry has a seat, the caller must call `Tournament.moved` after every
    change of the line or of `tie`.
    """

    tie: tuple[int, str] = (0, "")
    level: float = 0.0
    slope: float = 0.0
    seat: int = -1

    def at(self, tau: float) -> float:
        """Returns the value of the line at a time."""
        return self.level + self.slope * tau


EntryT = TypeVar("EntryT", bound=Entry)


class Tournament(Generic[EntryT]):
    """A set of entries, with a search for the lowest entry. The times that callers pass must never
    decrease.
    """

    __slots__ = ("_empty", "_leaves", "_until", "_winner", "count")

    def __init__(self) -> None:
        self.count = 0
        self._leaves = 0
        self._empty: list[int] = []  # free seats, the lowest last
        # for each node, its winner; node 1 is the root, and the leaves come last
        self._winner: list[EntryT | None] = []
        self._until: list[float] = []

    def __len__(self) -> int:
        return self.count

    def seat(self, entry: EntryT, tau: float) -> None:
        """Adds an entry, in O(log n). If no leaf is free, the tree first grows to twice its
        size.
        """
        if not self._empty:
            self._grow(tau)
        entry.seat = self._empty.pop()
        self.count += 1
        self._winner[self._leaves + entry.seat] = entry
        self._climb(entry, tau)

    def unseat(self, entry: EntryT, tau: float) -> None:
        """Removes an entry."""
        self.count -= 1
        # If this was the last entry, there is nothing to judge.
        if self.count:
            self._winner[self._leaves + entry.seat] = None
            self._climb(entry, tau)
            self._empty.append(entry.seat)
        else:  # start again with a small tree
            self._leaves = 0
            self._empty, self._winner, self._until = [], [], []
        entry.seat = -1

    def moved(self, entry: EntryT, tau: float) -> None:
        """Updates the tree after the line or the tie of an entry has changed."""
        self._climb(entry, tau)

    def least(self, tau: float) -> EntryT | None:
        """Returns the lowest entry. The result is None if the tournament has no entry."""
        if not self.count:
            return None
        if self._until[1] <= tau:
            self._freshen(1, tau)
        return self._winner[1]

    def runner_up(self, tau: float) -> EntryT | None:
        """Returns the second lowest entry. The result is None if there are fewer than two entries.

        At some node, the second lowest entry lost directly to the lowest entry. So the method
        follows the path from the lowest entry's leaf to the root. The second lowest entry is the
        winner of the sibling of one of the nodes on this path.
        """
        first = self.least(tau)
        if first is None or self.count == 1:
            return None
        best: EntryT | None = None
        least = inf
        winner, at = self._winner, self._leaves + first.seat
        while at > 1:
            # At the parent node, the winner of the other child lost to the lowest entry.
            other = winner[at ^ 1]
            at >>= 1
            if other is None:
                continue
            level = other.level + other.slope * tau
            if level < least or best is None or (level == least and other.tie < best.tie):
                best, least = other, level
        return best

    def entries(self) -> list[EntryT]:
        """Returns all entries in the order of their seats."""
        return [entry for entry in self._winner[self._leaves :] if entry is not None]

    def rebuild(self, tau: float) -> None:
        """Judges all nodes, after the caller has changed all lines and the time from which tau
        counts.
        """
        for node in range(self._leaves - 1, 0, -1):
            self._judge(node, tau)

    def _grow(self, tau: float) -> None:
        entries = self._winner[self._leaves :]
        # Entries keep their seats, but the nodes of the leaves get other numbers.
        before, self._leaves = self._leaves, max(_LEAVES_MIN, 2 * self._leaves)
        self._empty.extend(range(self._leaves - 1, before - 1, -1))
        self._winner = [None] * self._leaves + entries + [None] * (self._leaves - before)
        self._until = [inf] * (2 * self._leaves)
        self.rebuild(tau)

    def _climb(self, entry: EntryT, tau: float) -> None:
        """Judges the nodes above a leaf, from the leaf up. Stops at the first node whose winner and
        time did not change and whose winner is another entry.
        """
        winner, until = self._winner, self._until
        node = (self._leaves + entry.seat) >> 1
        while node:
            before, until_before = winner[node], until[node]
            self._judge(node, tau)
            after = winner[node]
            # If only the time of the node has changed, the nodes above it must be judged, too,
            # because they use this time.
            if after is before and after is not entry and until[node] == until_before:
                return
            node >>= 1

    def _freshen(self, node: int, tau: float) -> None:
        """Judges this node, and each node below it whose time has passed."""
        until, left = self._until, 2 * node
        if left < self._leaves:
            if until[left] <= tau:
                self._freshen(left, tau)
            if until[left + 1] <= tau:
                self._freshen(left + 1, tau)
        self._judge(node, tau)

    def _judge(self, node: int, tau: float) -> None:
        """Sets the winner of a node, and the time until which the winner is valid. This time is
        when the two lines cross, or an earlier time at which the winner of a child can change.
        """
        winner, untils = self._winner, self._until
        left = node + node
        one, two = winner[left], winner[left + 1]
        until, other = untils[left], untils[left + 1]
        if other < until:  # noqa: PLR1730 -- min() would cost more than all the rest
            until = other
        # If one child has no entry, no lines cross at this node. So the winner can change only
        # after a change below this node.
        if one is None or two is None:
            winner[node] = one or two
            untils[node] = until
            return
        # `one` is lower while closing * tau < apart. The lines cross at tau = apart / closing.
        apart, closing = two.level - one.level, one.slope - two.slope
        ahead = apart - closing * tau  # the difference between the two lines now
        if ahead > 0 or (ahead == 0 and one.tie < two.tie):
            winner[node] = one
            closes = closing > 0
        else:
            winner[node] = two
            closes = closing < 0
        if closes and (crossing := apart / closing) < until:
            # If the crossing is not in the future, either the lines are equal now, or the crossing
            # was rounded down. Then the node is judged again at the next later time.
            until = crossing if crossing > tau else nextafter(tau, inf)
        untils[node] = until
