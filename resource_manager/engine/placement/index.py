"""Finds hosts with room in the capacity index, without comparing all hosts.

The index is a tree over the hosts in order of id: a segment tree of maxima, with 32 children per
node. A leaf stores the numbers of one host, one number for each column (resource). An inner node
stores, for each column, the maximum over its up to 32 children. A search descends into a node only
if the maxima of the node are large enough in all needed columns.

Example: a request needs 4 cpus and 8 GiB on a cluster of 1,024 hosts, which are 32 nodes of 32
hosts. The search skips a node with the maxima (6 cpus, 4 GiB), together with all its hosts. The
search reads a node with the maxima (6 cpus, 16 GiB), but possibly finds no host with room below the
node: for example, one host has (6, 4), and another host has (2, 16). So a search can read a node
without result, but never misses a host with room. If hosts with adjacent ids are similar, the cost
depends on the depth of the tree and not on the number of hosts.

- A write to a leaf also updates the nodes above the leaf. The update stops at the first node whose
  maximum stays the same.
- After hosts were added or removed, the tree is rebuilt once, before the next search (`freshen`).
- A placement pass lowers many leaves in place and does not update the nodes above them. `took`
  records these leaves, and `settle` repairs the nodes at the end of the pass. Until the repair,
  some maxima are too high, so a search can read more nodes without result. When a search finds no
  host in a node of the lowest level, the search repairs this node.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from typing import TypeVar

from finegrain.resources import Amounts
from resource_manager.engine.hosts.host import KNOWN, ONLINE
from resource_manager.engine.model.scheduling_key import EMPTY, IN_USE

_BITS = 5
_FAN_OUT = 1 << _BITS

WHEN_EMPTY = (KNOWN, ONLINE)
"""Prefixes of columns that contain the capacity of a host without slots."""

GROWTH_LOG_MAX = 4_096
"""The largest length of the growth log. A full log is cleared, and after that blocked classes
search all hosts.
"""

Need = Amounts
Written = tuple["CapacityIndex", int, str, int]
"""A number that was overwritten: the index, the position of the host, the column, and the old
number.
"""

Column = list[list[int]]
"""The levels of the tree of one column: the leaves first, the root level last."""


class CapacityIndex:
    """The numbers of all hosts by column, with searches for hosts that have a needed amount in
    every column.

    The position of a host is its place in the order of ids. A column with a prefix of `WHEN_EMPTY`
    contains the amount that the host has when empty. Changes of these columns are not logged in
    `grown`.

    Attributes:
        ids: the ids of the hosts, by position.
        position: for each host id, the position of the host.
        columns: the tree of each column; the key is the name of the column.
        sums: the sum of each column over all hosts.
        grown: the growth log: the positions of hosts of which a free amount has risen. A class that
            found no room checks only these positions again.
        version: a number that changes when positions change or the log is cleared. Positions and
            lengths of the log that were stored for an earlier version are not valid any more.
        taken: the positions of hosts whose leaves were lowered in place since the last `settle`.
        opened: positions of hosts that were empty and got their first slots in this pass, in the
            order of these slots.
        journal: the overwritten numbers, which `undo` needs; None if changes are not recorded.
    """

    def __init__(self, version: int = 0) -> None:
        self.ids: list[str] = []
        self.position: dict[str, int] = {}
        self.columns: dict[str, Column] = {}
        self.sums: dict[str, int] = {}
        self.grown: list[int] = []
        self.version = version
        self.taken: set[int] = set()
        self.opened: list[int] = []
        self.journal: list[Written] | None = None
        # nodes of the lowest level above the leaves of `taken` that must still be repaired
        self._unrepaired: set[int] = set()
        # the numbers of each host that was added since the last rebuild
        self._vectors: dict[str, dict[str, int]] = {}
        self._removed: set[str] = set()  # hosts that were removed since the last rebuild
        self._stale = False

    def __len__(self) -> int:
        return len(self.ids)

    def knows(self, host_id: str) -> bool:
        """Returns True if the host is in this index."""
        known = host_id in self.position and host_id not in self._removed
        return known or host_id in self._vectors

    def value(self, host_id: str, name: str) -> int:
        """Returns one number of a host. The tree must be up to date (`freshen`)."""
        column = self.columns.get(name)
        return column[0][self.position[host_id]] if column else 0

    def most(self, name: str) -> int:
        """Returns the largest number of a column. The tree must be up to date (`freshen`)."""
        column = self.columns.get(name)
        return max(column[-1], default=0) if column else 0

    def put(self, host_id: str, vector: Mapping[str, int]) -> bool:
        """Sets all numbers of a host. If `vector` lacks a column, the number in this column becomes
        0.

        Returns:
            True if a free amount has risen, or if the tree must be rebuilt.
        """
        # The next `freshen` changes the positions, so until then the numbers are stored by host id.
        if self._stale or host_id not in self.position:
            self._vectors[host_id] = dict(vector)
            self._stale = True
            return True
        # In a new column, all other hosts have the number 0.
        if not vector.keys() <= self.columns.keys():
            for name in vector:
                if name not in self.columns:
                    self.columns[name] = _build_column([0] * len(self.ids))
                    self.sums[name] = 0
        position = self.position[host_id]
        rose = False
        # Iterate over all columns, because a column that the vector lacks must become 0.
        for name, column in self.columns.items():
            value = vector.get(name, 0)
            before = column[0][position]
            if value != before:
                self.sums[name] += value - before
                _write(column, position, value)
                # If only the capacity of the empty host has risen, its free capacity has not.
                rose = rose or (value > before and not name.startswith(WHEN_EMPTY))
        if rose:
            self.log_growth(host_id)
        return rose

    def log_growth(self, host_id: str) -> None:
        """Adds a host to the growth log, so that all waiting classes check the host again."""
        if self._stale or host_id not in self.position:
            return  # the tree will be rebuilt, so all classes will search all hosts
        # The new version makes the stored lengths of the cleared log invalid.
        if len(self.grown) >= GROWTH_LOG_MAX:
            self.grown.clear()
            self.version += 1
        self.grown.append(self.position[host_id])

    def write(self, position: int, name: str, value: int) -> None:
        """Sets one number without logging growth. The new number must not be higher than the number
        at the last logged change.

        Args:
            position: the position of the host.
            name: the name of the column, which must exist.
            value: the new number.
        """
        column = self.columns[name]
        before = column[0][position]
        if self.journal is not None:
            self.journal.append((self, position, name, before))
        self.sums[name] += value - before
        _write(column, position, value)

    def undo(self, position: int, name: str, before: int) -> None:
        """Undoes the last entry of the journal.

        Args:
            position: the position of the host.
            name: the name of the column.
            before: the number to restore.
        """
        # Only `open` records this column. `undo` runs in reverse order, so this host was opened
        # last.
        if name == EMPTY:
            self.opened.pop()
        column = self.columns[name]
        self.sums[name] += before - column[0][position]
        _write(column, position, before)

    def open(self, position: int) -> None:
        """Records that an empty host gets its first slots in the current pass, and appends the host
        to `opened`.
        """
        if self.journal is not None:
            self.journal.append((self, position, EMPTY, 1))
        # Lower the leaf in place, as for free amounts. `settle` repairs the nodes above the leaf.
        self.columns[EMPTY][0][position] = 0
        self.sums[EMPTY] -= 1
        self.opened.append(position)

    def took(self, positions: list[int]) -> None:
        """Records that the caller has lowered the leaves of these hosts in place.

        The caller must also correct `sums`, and must call `settle` at the end of the pass.
        """
        self.taken.update(positions)
        self._unrepaired.update([position >> _BITS for position in positions])

    def settle(self) -> None:
        """Repairs the inner nodes above all lowered leaves, and marks the hosts of `opened` as in
        use.
        """
        nodes = self.taken.union(self.opened)
        columns = self._free_columns()
        for level in range(1, len(columns[0]) if columns else 1):
            nodes = {node >> _BITS for node in nodes}
            for node in nodes:
                _mend(columns, level, node)
        self.taken = set()
        self._unrepaired.clear()
        # `IN_USE` is set only here. During the pass, searches find these hosts in `opened`, so they
        # must not find the same hosts in this column, too.
        for position in self.opened:
            self.write(position, IN_USE, 1)
            self.log_growth(self.ids[position])  # searches of hosts in use must check this host

    def with_prefix(self, prefix: str) -> CapacityIndex:
        """Returns an index of the same hosts that has only the columns with a prefix.

        The prefix is removed from the names of the columns. The two indexes share the lists of
        numbers.
        """
        seen = CapacityIndex(self.version)
        seen.ids, seen.position = self.ids, self.position
        for name, column in self.columns.items():
            if name.startswith(prefix):
                # The lists are not copied, because copying would cost time linear in the number of
                # hosts. Tentative ledgers roll their changes back.
                seen.columns[name[len(prefix) :]] = column
                seen.sums[name[len(prefix) :]] = self.sums[name]
        return seen

    def _free_columns(self) -> list[Column]:
        """Returns the columns of free capacity. Only these columns are lowered in place."""
        return [column for name, column in self.columns.items() if not name.startswith(WHEN_EMPTY)]

    def remove(self, host_id: str) -> None:
        """Removes a host from the index."""
        self._vectors.pop(host_id, None)
        # Keep the leaf until `freshen`: `freshen` reads the numbers of the other hosts at their old
        # positions.
        if host_id in self.position:
            self._removed.add(host_id)
        self._stale = True

    def freshen(self) -> None:
        """Rebuilds the tree if hosts were added or removed. Callers must call this method before a
        search.
        """
        if not self._stale:
            return
        self.ids = sorted((self.position.keys() - self._removed) | self._vectors.keys())
        # `origins` has the old position of each host. The origin of a new host is -1, the position
        # of the zero that is appended to each column.
        origins = [self.position.get(host_id, -1) for host_id in self.ids]
        none = [0] * len(self.position)
        self.position = {host_id: at for at, host_id in enumerate(self.ids)}
        names = {name for vector in self._vectors.values() for name in vector}
        added = [(self.position[host_id], vector) for host_id, vector in self._vectors.items()]
        for name in sorted(self.columns.keys() | names):
            old = self.columns[name][0] if name in self.columns else none
            leaves = list(map([*old, 0].__getitem__, origins))
            # Set these numbers last, so that a host that was removed and then added again gets its
            # new numbers.
            for at, vector in added:
                leaves[at] = vector.get(name, 0)
            self.columns[name] = _build_column(leaves)
            self.sums[name] = sum(leaves)
        self._vectors = {}
        self._removed = set()
        self._stale = False
        # Stored cursors and lengths of the log refer to the old positions. The new version makes
        # them invalid.
        self.grown.clear()
        self.version += 1

    def vector(self, host_id: str) -> dict[str, int]:
        """Returns a host's numbers, without columns that are 0."""
        if host_id in self._vectors:
            return {name: value for name, value in self._vectors[host_id].items() if value}
        position = self.position[host_id]
        return {
            name: column[0][position]
            for name, column in self.columns.items()
            if column[0][position]
        }

    def covers(self, position: int, need: Need) -> bool:
        """Returns True if a host has at least the needed amount in every column."""
        return all(
            name in self.columns and self.columns[name][0][position] >= amount
            for name, amount in need.items()
        )

    def room(self, position: int, need: Need) -> int:
        """Returns the number of times that a need fits on a host. The result is 0 if nothing is
        needed.
        """
        columns = self.columns
        fits = [
            columns[name][0][position] // amount if name in columns else 0
            for name, amount in need.items()
        ]
        return min(fits, default=0)

    def covering(self, needs: Iterable[Need], start: int = 0) -> Iterator[int]:
        """Yields, in order, the positions of hosts from `start` on that meet at least one of the
        needs.
        """
        return chain.from_iterable(self.covering_by_block(needs, start))

    def covering_by_block(self, needs: Iterable[Need], start: int = 0) -> Iterator[list[int]]:
        """Yields the positions that `covering` yields, grouped in lists. If there is one need, a
        list contains the positions below one node. Otherwise a list contains one position.
        """
        searches = [
            self._search(columns, start)
            for need in needs
            if (columns := self._columns_of(need)) is not None
        ]
        if len(searches) == 1:
            return searches[0]
        # Several searches are merged by position, so each list contains one position.
        positions = _merged([chain.from_iterable(blocks) for blocks in searches])
        return map(alone, positions)

    def covering_among(self, positions: list[int], needs: Iterable[Need]) -> list[int]:
        """Returns, in order, which of these positions meet at least one of the needs."""
        found: set[int] = set()
        for need in needs:
            left = positions if (columns := self._columns_of(need)) is not None else []
            for column, amount in columns or ():
                leaves = column[0]
                left = [at for at in left if leaves[at] >= amount]
            found.update(left)
        return sorted(found)

    def best_first(self, needs: Iterable[Need], score: str) -> Iterator[int]:
        """Yields the positions that meet at least one of the needs, the highest score first. Of
        equal scores, the lowest position comes first.
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
        """Returns the columns of a need with its amounts. Returns None if the index lacks one of
        the columns.
        """
        columns = []
        for name, amount in need.items():
            column = self.columns.get(name)
            if column is None:
                return None  # all hosts have 0 in this column
            columns.append((column, amount))
        # An empty tree has no root at which a search could begin.
        return columns if self.ids else None

    def _search(self, columns: list[tuple[Column, int]], start: int) -> Iterator[list[int]]:
        height = len(columns[0][0]) - 1
        # The highest level has up to 32 nodes. The search leaves out a node if all its positions
        # are before `start`.
        top = _survivors(columns, height, start >> (_BITS * height), len(columns[0][0][height]))
        if height == 0:
            if top:
                yield top
            return
        # Search depth first, with one iterator per level, so that positions are found in order.
        stack = [iter(top)]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            level = height - len(stack)
            # A node on the path to `start` is read from the middle. All later nodes are read from
            # their first child.
            low = max(node << _BITS, start >> (_BITS * level))
            high = min((node + 1) << _BITS, len(columns[0][0][level]))
            found = _survivors(columns, level, low, high)
            if found and level:
                stack.append(iter(found))
            elif found:
                yield found
            elif level == 0 and node in self._unrepaired:
                # No child of this node was large enough, so the maximum of the node was too high.
                # After the repair, later searches do not read the node without need.
                self._unrepaired.remove(node)
                _mend(self._free_columns(), 1, node)

    def _search_best(
        self, columns: list[tuple[Column, int]], score: Column
    ) -> Iterator[tuple[int, int]]:
        height = len(score) - 1
        # Best-first search: the score of a node is at least the score of every host below it. So
        # the first leaf that the heap returns is the best host. The second value of each entry
        # orders equal scores by position.
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
        """Returns a description of each wrong sum, and of each inner node that is not the maximum
        of its children. The result is empty if the index is correct.
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


def alone(position: int) -> list[int]:
    """Returns a list of one position."""
    return [position]


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
            if level[position] >= value:  # all nodes above are at least as large
                return
            level[position] = value
        return
    below = leaves
    for level in column[1:]:
        position >>= _BITS
        if level[position] != before:
            return  # another host has this maximum
        first = position << _BITS
        largest = max(below[first : first + _FAN_OUT])
        if largest == before:
            return  # another child has this maximum
        level[position] = largest
        below = level


def _survivors(columns: list[tuple[Column, int]], level: int, low: int, high: int) -> list[int]:
    first_column, first_amount = columns[0]
    values = first_column[level]
    found = [node for node in range(low, high) if values[node] >= first_amount]
    # Later columns are read only for the nodes that are large enough in all earlier columns.
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
        # Two searches find a host that meets two needs.
        if item != last:
            last = item
            yield item
