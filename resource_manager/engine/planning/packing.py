"""Rooms and what goes into them, as short vectors of integers.

Knows arithmetic only. Wishes that are equal are one kind and counted; a room is a pending executor,
a registered one, or one that could be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from finegrain.resources import Amounts
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS
from resource_manager.engine.placement.elastic import Capacity

Need = tuple[tuple[int, int], ...]
"""What one wish takes: (dimension, amount) without zeros; the dimensions of one `Space`."""

Counts = dict[int, int]
"""How many of each kind; kinds are numbered by their place in `Space.wishes`."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What equal requests ask for, in columns of the capacity index (memory in grains, `SLOTS`,
    `DEFAULT_SLOTS` where the profile is unknown), on an executor with one memory pool and on one
    with a pool per memory part.
    """

    pooled: Amounts
    separate: Amounts
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, eq=False)
class Room:
    """A capacity of which something may have been taken."""

    capacity: Capacity
    left: list[int]
    default: Need
    content: Counts = field(default_factory=dict)


class Space:
    """All wishes and capacities of one plan in the same dimensions."""

    def __init__(self, wishes: Sequence[Wish], capacities: Iterable[Capacity]) -> None:
        self.wishes = list(wishes)
        self._dimensions: dict[str, int] = {SLOTS: 0}
        capacities = list(capacities)
        for capacity in capacities:
            for name in (*capacity.amounts, *capacity.default):
                self._dimensions.setdefault(name, len(self._dimensions))
        self._dimensions.pop(DEFAULT_SLOTS, None)
        self._dimensions = {name: at for at, name in enumerate(self._dimensions)}
        self._pooled = [self._need(wish.pooled) for wish in self.wishes]
        separate = any(capacity.separate for capacity in capacities)
        self._separate = (
            [self._need(wish.separate) for wish in self.wishes] if separate else self._pooled
        )
        self._defaults = [wish.pooled.get(DEFAULT_SLOTS, 0) for wish in self.wishes]

    @property
    def size(self) -> int:
        """How many dimensions there are."""
        return len(self._dimensions)

    def room(self, capacity: Capacity) -> Room:
        """A room of which nothing has been taken."""
        return Room(capacity, self.vector(capacity.amounts), self.default_need(capacity))

    def vector(self, amounts: Amounts, absent: int = 0) -> list[int]:
        """Amounts by dimension."""
        return [amounts.get(name, absent) for name in self._dimensions]

    def default_need(self, capacity: Capacity) -> Need:
        """What a default slot takes there; empty: there is none."""
        if not capacity.default:
            return ()
        return ((0, 1), *(self._need(capacity.default) or ()))

    def need(self, kind: int, capacity: Capacity, default: Need) -> Need | None:
        """What one wish takes of a room; None: it can never have it, whatever is free."""
        labels = self.wishes[kind].labels
        if labels and any(capacity.labels.get(name) != value for name, value in labels):
            return None
        if many := self._defaults[kind]:
            return tuple((at, amount * many) for at, amount in default) or None
        return self._separate[kind] if capacity.separate else self._pooled[kind]

    def rough_size(self, kind: int) -> object:
        """Equal for kinds that need about the same."""
        need = self._pooled[kind]
        if self._defaults[kind] or need is None:
            return kind
        return tuple([(at, amount.bit_length()) for at, amount in need])

    def needs_everywhere(self, capacities: Sequence[Capacity]) -> list[Sequence[Need | None]]:
        """`need` of every kind for each capacity; lists that are equal are one and the same."""
        selectors = {wish.labels for wish in self.wishes}
        defaults = [kind for kind, many in enumerate(self._defaults) if many]
        labels = [wish.labels for wish in self.wishes] if selectors != {()} else []
        known: dict[object, list[Need | None]] = {}  # executors of a shape are alike, and many
        found: list[Sequence[Need | None]] = []
        for capacity in capacities:
            carried = capacity.labels
            foreign = frozenset(
                each for each in selectors if any(carried.get(k) != v for k, v in each)
            )
            default = self.default_need(capacity) if defaults else ()
            key = (capacity.separate, foreign, default)
            if key not in known:
                needs = self._separate if capacity.separate else self._pooled
                if defaults:
                    needs = needs[:]
                    for kind in defaults:
                        needs[kind] = self.need(kind, capacity, default)
                if foreign:
                    needs = [
                        None if selector in foreign else need
                        for selector, need in zip(labels, needs, strict=True)
                    ]
                known[key] = needs
            found.append(known[key])
        return found

    def take(self, room: Room, kind: int, most: int) -> int:
        """Puts up to so many of a kind into a room; says how many there was room for."""
        need = self.need(kind, room.capacity, room.default)
        if need is None:
            return 0
        left = room.left
        for at, amount in need:
            if left[at] < amount * most:
                most = left[at] // amount
                if most <= 0:
                    return 0
        for at, amount in need:
            left[at] -= amount * most
        room.content[kind] = room.content.get(kind, 0) + most
        return most

    def give_back(self, room: Room, kind: int, count: int) -> None:
        """Takes so many of a kind out of a room again."""
        for at, amount in self.need(kind, room.capacity, room.default) or ():
            room.left[at] += amount * count
        room.content[kind] -= count
        if not room.content[kind]:
            del room.content[kind]

    def joined(self, members: Counts) -> int:
        """Number of a new kind: all these wishes in one room."""
        pooled: dict[str, int] = {}
        separate: dict[str, int] = {}
        for kind, count in members.items():
            wish = self.wishes[kind]
            for sums, amounts in ((pooled, wish.pooled), (separate, wish.separate)):
                for name, amount in amounts.items():
                    sums[name] = sums.get(name, 0) + amount * count
        labels = tuple(sorted({label for kind in members for label in self.wishes[kind].labels}))
        self.wishes.append(Wish(pooled, separate, labels))
        self._pooled.append(self._need(pooled))
        if self._separate is not self._pooled:
            self._separate.append(self._need(separate))
        self._defaults.append(pooled.get(DEFAULT_SLOTS, 0))
        return len(self.wishes) - 1

    def _need(self, amounts: Amounts) -> Need | None:
        """None: some dimension exists nowhere."""
        dimensions = self._dimensions
        try:
            return tuple(
                [
                    (dimensions[name], amount)
                    for name, amount in amounts.items()
                    if amount and name != DEFAULT_SLOTS
                ]
            )
        except KeyError:
            return None
