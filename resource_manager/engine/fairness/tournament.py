"""Finds the least of many straight lines, at a time that only moves forward.

A *kinetic tournament* (Basch, Guibas, Hershberger: "Data structures for mobile data", SODA 1997) is
a binary tree over the entries. Each inner node remembers its winner, the lesser of its two
children's winners. It also remembers until when nothing in its subtree changes. A question costs
nothing before that time; after it, only the nodes whose time has come are judged again. When one
line changes, the nodes above its leaf are judged, up to the first one where the entry neither won
nor wins.

Example: four lines in seats 0 to 3, judged at tau = 0.

    A = 10 + 2 tau    B = 14 + 1 tau    C = 13    D = 20

    node 2 (A, B): A wins, until tau = 4, where A and B cross
    node 3 (C, D): C wins, until infinity
    node 1 (2, 3): A wins, until tau = 1.5, where A and C cross

`least(1)` returns A and judges nothing. `least(2)` judges node 1 only: A is 14 and C is 13, so C
wins, until tau = 4. Then the winner of node 2 may change, and both nodes are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nextafter
from typing import Generic, TypeVar

_LEAVES_MIN = 2


@dataclass(slots=True, eq=False)
class Entry:
    """A line `level + slope * tau`. Of equal lines, the one with the lesser `tie` comes first.

    `seat` is the entry's leaf in its tournament, -1 if it is in none. Once it has a seat, the
    caller must report every change of line or tie with `Tournament.moved`.
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
    """Entries, and which of them is least. Times that callers pass must not go back."""

    __slots__ = ("_empty", "_leaves", "_until", "_winner", "count")

    def __init__(self) -> None:
        self.count = 0
        self._leaves = 0
        self._empty: list[int] = []  # seats, the lowest last
        self._winner: list[EntryT | None] = []  # of nodes; 1 is the root, the leaves come last
        self._until: list[float] = []

    def __len__(self) -> int:
        return self.count

    def seat(self, entry: EntryT, tau: float) -> None:
        """Adds an entry. Costs the height of the tree, and doubles the tree when it is full."""
        if not self._empty:
            self._grow(tau)
        entry.seat = self._empty.pop()
        self.count += 1
        self._winner[self._leaves + entry.seat] = entry
        self._climb(entry, tau)

    def unseat(self, entry: EntryT, tau: float) -> None:
        """Removes an entry."""
        self.count -= 1
        # The last entry leaves nothing to judge.
        if self.count:
            self._winner[self._leaves + entry.seat] = None
            self._climb(entry, tau)
            self._empty.append(entry.seat)
        else:  # the next ones need no tree as high as this one
            self._leaves = 0
            self._empty, self._winner, self._until = [], [], []
        entry.seat = -1

    def moved(self, entry: EntryT, tau: float) -> None:
        """Takes in a change of an entry's line or tie."""
        self._climb(entry, tau)

    def least(self, tau: float) -> EntryT | None:
        """Returns the least entry; None: there are none."""
        if not self.count:
            return None
        if self._until[1] <= tau:
            self._freshen(1, tau)
        return self._winner[1]

    def runner_up(self, tau: float) -> EntryT | None:
        """Returns the entry that would be least without the least one; None: there is no other.

        Every entry that lost to the winner directly is a sibling node on its path; one of them is
        second.
        """
        first = self.least(tau)
        if first is None or self.count == 1:
            return None
        best: EntryT | None = None
        least = inf
        winner, at = self._winner, self._leaves + first.seat
        while at > 1:
            # The other child has the entry that lost to the winner here.
            other = winner[at ^ 1]
            at >>= 1
            if other is None:
                continue
            level = other.level + other.slope * tau
            if level < least or best is None or (level == least and other.tie < best.tie):
                best, least = other, level
        return best

    def entries(self) -> list[EntryT]:
        """Returns all entries, by seat."""
        return [entry for entry in self._winner[self._leaves :] if entry is not None]

    def rebuild(self, tau: float) -> None:
        """Judges all nodes, after all lines and the meaning of times have changed."""
        for node in range(self._leaves - 1, 0, -1):
            self._judge(node, tau)

    def _grow(self, tau: float) -> None:
        entries = self._winner[self._leaves :]
        # Entries keep their seats; only the leaves begin at a higher node.
        before, self._leaves = self._leaves, max(_LEAVES_MIN, 2 * self._leaves)
        self._empty.extend(range(self._leaves - 1, before - 1, -1))
        self._winner = [None] * self._leaves + entries + [None] * (self._leaves - before)
        self._until = [inf] * (2 * self._leaves)
        self.rebuild(tau)

    def _climb(self, entry: EntryT, tau: float) -> None:
        """Judges the nodes above a leaf, up to the first one where the entry neither won nor
        wins.
        """
        winner, until = self._winner, self._until
        node = (self._leaves + entry.seat) >> 1
        while node:
            before, until_before = winner[node], until[node]
            self._judge(node, tau)
            after = winner[node]
            # If only the time has changed, the nodes above still have to take it over.
            if after is before and after is not entry and until[node] == until_before:
                return
            node >>= 1

    def _freshen(self, node: int, tau: float) -> None:
        """Judges the nodes at and below this one whose time has come."""
        until, left = self._until, 2 * node
        if left < self._leaves:
            if until[left] <= tau:
                self._freshen(left, tau)
            if until[left + 1] <= tau:
                self._freshen(left + 1, tau)
        self._judge(node, tau)

    def _judge(self, node: int, tau: float) -> None:
        """Sets the winner of a node, and until when it holds: until the two lines cross, or until
        the winner below either child may change.
        """
        winner, untils = self._winner, self._until
        left = node + node
        one, two = winner[left], winner[left + 1]
        until, other = untils[left], untils[left + 1]
        if other < until:  # noqa: PLR1730 -- min() would cost more than all the rest
            until = other
        # Without an opponent there is no crossing: only changes below end the validity.
        if one is None or two is None:
            winner[node] = one or two
            untils[node] = until
            return
        # The first is less while closing * tau < apart; the lines cross at apart / closing.
        apart, closing = two.level - one.level, one.slope - two.slope
        ahead = apart - closing * tau  # by how much the first one is less
        if ahead > 0 or (ahead == 0 and one.tie < two.tie):
            winner[node] = one
            closes = closing > 0
        else:
            winner[node] = two
            closes = closing < 0
        if closes and (crossing := apart / closing) < until:
            # The lines are equal now, or the crossing was rounded into the past: judge again at the
            # next question.
            until = crossing if crossing > tau else nextafter(tau, inf)
        untils[node] = until
