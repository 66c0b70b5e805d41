"""The least of many straight lines, at a time that only moves on. Knows lines, not what they stand
for.

A *kinetic tournament* (Basch, Guibas, Hershberger: "Data structures for mobile data", SODA 1997):
a binary tree over the entries, in which every inner node remembers who of its two children's
winners is least, and until when nothing in its subtree changes by itself. So a question costs
nothing while that time has not come, and otherwise a look at the nodes whose time has; a change of
one line costs a walk from its leaf towards the root, which ends where the entry wins no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nextafter
from typing import Generic, TypeVar

_LEAVES_MIN = 2


@dataclass(slots=True, eq=False)
class Entry:
    """Somebody with a line: `level + slope * tau`. Of equal ones the lesser `tie` is first.

    `seat` is the leaf that an entry has in its tournament, -1 if it has none. Once it has one, a
    change of the line or the tie has to be told to the tournament.
    """

    tie: tuple[int, str] = (0, "")
    level: float = 0.0
    slope: float = 0.0
    seat: int = -1

    def at(self, tau: float) -> float:
        """Where the line is then."""
        return self.level + self.slope * tau


EntryT = TypeVar("EntryT", bound=Entry)


class Tournament(Generic[EntryT]):
    """Entries, and which of them is least. Times that are passed in never go back."""

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
        """Lets somebody take part."""
        if not self._empty:
            self._grow(tau)
        entry.seat = self._empty.pop()
        self.count += 1
        self._winner[self._leaves + entry.seat] = entry
        self._climb(entry, tau)

    def unseat(self, entry: EntryT, tau: float) -> None:
        """Lets somebody take part no more."""
        self.count -= 1
        if self.count:
            self._winner[self._leaves + entry.seat] = None
            self._climb(entry, tau)
            self._empty.append(entry.seat)
        else:  # the next ones need no tree as high as this one
            self._leaves = 0
            self._empty, self._winner, self._until = [], [], []
        entry.seat = -1

    def moved(self, entry: EntryT, tau: float) -> None:
        """The line of somebody who takes part has changed."""
        self._climb(entry, tau)

    def least(self, tau: float) -> EntryT | None:
        """Who is least; None: nobody takes part."""
        if not self.count:
            return None
        if self._until[1] <= tau:
            self._freshen(1, tau)
        return self._winner[1]

    def runner_up(self, tau: float) -> EntryT | None:
        """Who is least but for the one who is."""
        first = self.least(tau)
        if first is None or self.count == 1:
            return None
        best: EntryT | None = None
        least = inf
        winner, at = self._winner, self._leaves + first.seat
        while at > 1:
            other = winner[at ^ 1]
            at >>= 1
            if other is None:
                continue
            level = other.level + other.slope * tau
            if level < least or best is None or (level == least and other.tie < best.tie):
                best, least = other, level
        return best

    def entries(self) -> list[EntryT]:
        """All who take part, by seat."""
        return [entry for entry in self._winner[self._leaves :] if entry is not None]

    def rebuild(self, tau: float) -> None:
        """All lines, and what times are called, have changed."""
        for node in range(self._leaves - 1, 0, -1):
            self._judge(node, tau)

    def _grow(self, tau: float) -> None:
        entries = self._winner[self._leaves :]
        before, self._leaves = self._leaves, max(_LEAVES_MIN, 2 * self._leaves)
        self._empty.extend(range(self._leaves - 1, before - 1, -1))
        self._winner = [None] * self._leaves + entries + [None] * (self._leaves - before)
        self._until = [inf] * (2 * self._leaves)
        self.rebuild(tau)

    def _climb(self, entry: EntryT, tau: float) -> None:
        """Judges the nodes above a leaf, up to where the entry neither won nor wins."""
        winner, until = self._winner, self._until
        node = (self._leaves + entry.seat) >> 1
        while node:
            before, until_before = winner[node], until[node]
            self._judge(node, tau)
            after = winner[node]
            if after is before and after is not entry and until[node] == until_before:
                return
            node >>= 1

    def _freshen(self, node: int, tau: float) -> None:
        """Judges the nodes below and at this one whose time has come."""
        until, left = self._until, 2 * node
        if left < self._leaves:
            if until[left] <= tau:
                self._freshen(left, tau)
            if until[left + 1] <= tau:
                self._freshen(left + 1, tau)
        self._judge(node, tau)

    def _judge(self, node: int, tau: float) -> None:
        """Who of two is least, and until when: until their lines cross, or a child's time comes."""
        winner, untils = self._winner, self._until
        left = node + node
        one, two = winner[left], winner[left + 1]
        until, other = untils[left], untils[left + 1]
        if other < until:  # noqa: PLR1730 -- min() would cost more than all the rest
            until = other
        if one is None or two is None:
            winner[node] = one or two
            untils[node] = until
            return
        apart, closing = two.level - one.level, one.slope - two.slope
        ahead = apart - closing * tau  # by how much the first one is less
        if ahead > 0 or (ahead == 0 and one.tie < two.tie):
            winner[node] = one
            closes = closing > 0
        else:
            winner[node] = two
            closes = closing < 0
        if closes and (crossing := apart / closing) < until:
            # Of what is equal now, or was rounded, the next question decides.
            until = crossing if crossing > tau else nextafter(tau, inf)
        untils[node] = until
