"""Which hosts have room, without looking at all of them. Knows vectors of numbers by host, and
nothing else.

A tree over the hosts in order of id. Leaves hold one number per column and host; every inner node
holds the largest of its 32 children, per column. A search goes down only where every needed column
is large enough, and comes back when the maxima of a node stemmed from different hosts; so it is
complete, and its cost follows the depth of the tree, not the number of hosts, as long as hosts of
a neighbourhood are alike.

Writing one leaf stops climbing as soon as a node's maximum does not change. A new host rebuilds
the tree, once for all hosts that came since the last search.

While much is taken at once, nobody climbs: leaves are lowered where they stand, `took` remembers
where, and `settle` mends the inner nodes at the end. Until then some are too high, which leads a
search astray but never past a host; a search that comes back empty from such a node mends it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from typing import TypeVar

from finegrain.resources import Amounts

_BITS = 5
_FAN_OUT = 1 << _BITS

GROWTH_LOG_MAX = 4_096
"""Positions that grew, as kept for those who wait; beyond this, they search anew."""

Need = Amounts
Column = list[list[int]]
"""Levels of one column: leaves first, root level last."""


class CapacityIndex:
    """Vectors of hosts, searchable for those that cover a need in every column.

    `grown` is a log of positions where something rose, so that a waiting shape need only look
    there. A column with a slash in its name says what a host is, not what it has free, and is left
    out of that log. `version` changes whenever positions or the log lose their meaning.
    """

    def __init__(self, version: int = 0) -> None:
        self.ids: list[str] = []
        self.position: dict[str, int] = {}
        self.columns: dict[str, Column] = {}
        self.sums: dict[str, int] = {}
        self.grown: list[int] = []
        self.version = version
        self.taken: set[int] = set()  # positions where something was taken since `settle`
        self._loose: set[int] = set()  # their blocks of leaves, but for those mended meanwhile
        self._vectors: dict[str, dict[str, int]] = {}  # of hosts that came since the last build
        self._gone: set[str] = set()  # hosts that went since then
        self._stale = False

    def __len__(self) -> int:
        return len(self.ids)

    def knows(self, host_id: str) -> bool:
        """True if the host is in this index."""
        known = host_id in self.position and host_id not in self._gone
        return known or host_id in self._vectors

    def value(self, host_id: str, name: str) -> int:
        """One number of a host; the tree must be fresh."""
        column = self.columns.get(name)
        return column[0][self.position[host_id]] if column else 0

    def put(self, host_id: str, vector: Mapping[str, int]) -> bool:
        """Sets a host's numbers; a column that is absent is zero. True if something free rose."""
        if self._stale or host_id not in self.position:
            self._vectors[host_id] = dict(vector)
            self._stale = True
            return True
        if not vector.keys() <= self.columns.keys():
            for name in vector:
                if name not in self.columns:
                    self.columns[name] = _build_column([0] * len(self.ids))
                    self.sums[name] = 0
        position = self.position[host_id]
        rose = False
        for name, column in self.columns.items():
            value = vector.get(name, 0)
            before = column[0][position]
            if value != before:
                self.sums[name] += value - before
                _write(column, position, value)
                rose = rose or (value > before and "/" not in name)
        if rose:
            self.log_growth(host_id)
        return rose

    def log_growth(self, host_id: str) -> None:
        """Makes those who wait look at this host again."""
        if self._stale or host_id not in self.position:
            return  # a host that has yet to be put here makes them look at all again
        if len(self.grown) >= GROWTH_LOG_MAX:
            self.grown.clear()
            self.version += 1
        self.grown.append(self.position[host_id])

    def write(self, position: int, name: str, value: int) -> None:
        """Sets one number that did not rise, or that is put back to what it was: nobody is made to
        look at this host again.
        """
        column = self.columns[name]
        self.sums[name] += value - column[0][position]
        _write(column, position, value)

    def took(self, positions: list[int]) -> None:
        """Leaves of these hosts were lowered in place; the caller owes `sums`, and `settle`."""
        self.taken.update(positions)
        self._loose.update([position >> _BITS for position in positions])

    def settle(self) -> None:
        """Mends the inner nodes above everything that was taken."""
        nodes = self.taken
        columns = self._free_columns()
        for level in range(1, self._height + 1):
            nodes = {node >> _BITS for node in nodes}
            for node in nodes:
                _mend(columns, level, node)
        self.taken = set()
        self._loose.clear()

    @property
    def _height(self) -> int:
        return next((len(column) - 1 for column in self.columns.values()), 0)

    def _free_columns(self) -> list[Column]:
        """Those of what is free, which are lowered in place; the others say what a host is."""
        return [column for name, column in self.columns.items() if "/" not in name]

    def remove(self, host_id: str) -> None:
        """Forgets a host."""
        self._vectors.pop(host_id, None)
        if host_id in self.position:
            self._gone.add(host_id)
        self._stale = True

    def freshen(self) -> None:
        """Builds the tree anew if hosts came or went. To be called before anything is searched."""
        if not self._stale:
            return
        self.ids = sorted((self.position.keys() - self._gone) | self._vectors.keys())
        origins = [self.position.get(host_id, -1) for host_id in self.ids]
        self.position = {host_id: at for at, host_id in enumerate(self.ids)}
        names = {name for vector in self._vectors.values() for name in vector}
        for name in sorted(self.columns.keys() | names):
            old = self.columns[name][0] if name in self.columns else []
            leaves = [old[at] if 0 <= at < len(old) else 0 for at in origins]
            for host_id, vector in self._vectors.items():
                leaves[self.position[host_id]] = vector.get(name, 0)
            self.columns[name] = _build_column(leaves)
            self.sums[name] = sum(leaves)
        self._vectors = {}
        self._gone = set()
        self._stale = False
        self.grown.clear()
        self.version += 1

    def vector(self, host_id: str) -> dict[str, int]:
        """A host's numbers without zeros."""
        if host_id in self._vectors:
            return {name: value for name, value in self._vectors[host_id].items() if value}
        position = self.position[host_id]
        return {
            name: column[0][position]
            for name, column in self.columns.items()
            if column[0][position]
        }

    def covers(self, position: int, need: Need) -> bool:
        """True if one host covers a need."""
        return all(
            name in self.columns and self.columns[name][0][position] >= amount
            for name, amount in need.items()
        )

    def room(self, position: int, need: Need) -> int:
        """How many times one host covers a need; never, if nothing is needed."""
        columns = self.columns
        fits = [
            columns[name][0][position] // amount if name in columns else 0
            for name, amount in need.items()
        ]
        return min(fits, default=0)

    def covering(self, needs: Iterable[Need], start: int = 0) -> Iterator[int]:
        """Positions from `start` on that cover one of the needs, in order."""
        return chain.from_iterable(self.covering_by_block(needs, start))

    def covering_by_block(self, needs: Iterable[Need], start: int = 0) -> Iterator[list[int]]:
        """The same, some neighbours at once: what is looked for together is listed together."""
        searches = [
            self._search(columns, start)
            for need in needs
            if (columns := self._columns_of(need)) is not None
        ]
        if len(searches) == 1:
            return searches[0]
        positions = _merged([chain.from_iterable(blocks) for blocks in searches])
        return ([position] for position in positions)

    def best_first(self, needs: Iterable[Need], score: str) -> Iterator[int]:
        """Positions that cover one of the needs, highest score first, lowest position first among
        equals.
        """
        searches = [
            self._search_best(columns, self.columns[score])
            for need in needs
            if (columns := self._columns_of(need)) is not None
        ]
        if len(searches) == 1:
            return (position for _, position in searches[0])
        return (position for _, position in _merged(searches))

    def _columns_of(self, need: Need) -> list[tuple[Column, int]] | None:
        """The columns of a need; None if no host has any of one of them."""
        columns = []
        for name, amount in need.items():
            column = self.columns.get(name)
            if column is None:
                return None
            columns.append((column, amount))
        return columns if self.ids else None

    def _search(self, columns: list[tuple[Column, int]], start: int) -> Iterator[list[int]]:
        height = len(columns[0][0]) - 1
        top = _survivors(columns, height, start >> (_BITS * height), len(columns[0][0][height]))
        if height == 0:
            if top:
                yield top
            return
        stack = [iter(top)]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            level = height - len(stack)
            low = max(node << _BITS, start >> (_BITS * level))
            high = min((node + 1) << _BITS, len(columns[0][0][level]))
            found = _survivors(columns, level, low, high)
            if found and level:
                stack.append(iter(found))
            elif found:
                yield found
            elif level == 0 and node in self._loose:
                self._loose.remove(node)
                _mend(self._free_columns(), 1, node)

    def _search_best(
        self, columns: list[tuple[Column, int]], score: Column
    ) -> Iterator[tuple[int, int]]:
        height = len(score) - 1
        heap = [
            (-score[height][node], node << (_BITS * height), height)
            for node in _survivors(columns, height, 0, len(score[height]))
        ]
        heapq.heapify(heap)
        while heap:
            negative, first, level = heapq.heappop(heap)
            if level == 0:
                yield negative, first
                continue
            below = level - 1
            node = first >> (_BITS * level)
            high = min((node + 1) << _BITS, len(score[below]))
            for child in _survivors(columns, below, node << _BITS, high):
                heapq.heappush(heap, (-score[below][child], child << (_BITS * below), below))

    def problems(self) -> list[str]:
        """Where an inner node is not the largest of its children, or a sum is wrong. Empty:
        none.
        """
        found = []
        for name, column in self.columns.items():
            for below, above in pairwise(column):
                expected = [max(below[at : at + _FAN_OUT]) for at in range(0, len(below), _FAN_OUT)]
                if expected != above:
                    found.append(
                        f"index column {name}: an inner node is not its children's maximum"
                    )
            if self.sums[name] != sum(column[0]):
                found.append(f"index column {name}: sum is {self.sums[name]}")
        return found


def _build_column(leaves: list[int]) -> Column:
    column = [leaves]
    while len(column[-1]) > _FAN_OUT:
        below = column[-1]
        column.append([max(below[at : at + _FAN_OUT]) for at in range(0, len(below), _FAN_OUT)])
    return column


def _mend(columns: list[Column], level: int, node: int) -> None:
    first = node << _BITS
    for column in columns:
        column[level][node] = max(column[level - 1][first : first + _FAN_OUT])


def _write(column: Column, position: int, value: int) -> None:
    leaves = column[0]
    before = leaves[position]
    leaves[position] = value
    if value > before:
        for level in column[1:]:
            position >>= _BITS
            if level[position] >= value:
                return
            level[position] = value
        return
    below = leaves
    for level in column[1:]:
        position >>= _BITS
        if level[position] != before:
            return  # the maximum is another host's
        first = position << _BITS
        largest = max(below[first : first + _FAN_OUT])
        if largest == before:
            return
        level[position] = largest
        below = level


def _survivors(columns: list[tuple[Column, int]], level: int, low: int, high: int) -> list[int]:
    first_column, first_amount = columns[0]
    values = first_column[level]
    found = [node for node in range(low, high) if values[node] >= first_amount]
    for column, amount in columns[1:]:
        if not found:
            break
        values = column[level]
        found = [node for node in found if values[node] >= amount]
    return found


_Found = TypeVar("_Found", int, tuple[int, int])


def _merged(searches: list[Iterator[_Found]]) -> Iterator[_Found]:
    last: _Found | None = None
    for item in heapq.merge(*searches):
        if item != last:
            last = item
            yield item
